//! Dependencies: their licences, where they come from, and what is known against them, by `cargo deny`.
//!
//! The program is no part of the tree. Where it is missing, or the list of advisories cannot be fetched, this says so
//! and goes on: `make test` needs no network beyond the registry.

use std::process::{Command, Stdio};

use crate::tree;

/// Checks that need the lock file and the sources of the dependencies, which a build has fetched.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Cargo-deny ends with this code, and says this, when it cannot fetch the list of advisories.
const UNREACHABLE: &str = "failed to fetch advisory database";

pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let version = Command::new("cargo-deny")
        .arg("--version")
        .stderr(Stdio::null())
        .output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("deny: SKIPPED: there is no `cargo-deny`: cargo install --locked cargo-deny");
        return Ok(());
    }
    let deny = |offline: &[&str], checks: &[&str]| {
        let mut command = tree::cargo(&root);
        command
            .arg("deny")
            .args(offline)
            .args(["--log-level", "error", "check"])
            .args(checks);
        command
            .output()
            .map_err(|error| format!("`cargo deny` could not be started: {error}"))
    };
    let checked = deny(&["--offline"], &OFFLINE)?;
    if !checked.status.success() {
        return Err(String::from_utf8_lossy(&checked.stderr).into_owned());
    }
    let advisories = deny(&[], &["advisories"])?;
    let said = String::from_utf8_lossy(&advisories.stderr);
    if advisories.status.success() {
        println!("deny: licences, bans, sources and advisories");
    } else if said.contains(UNREACHABLE) {
        println!("deny: licences, bans and sources. SKIPPED: advisories, whose list cannot be fetched");
    } else {
        return Err(said.into_owned());
    }
    Ok(())
}
