//! Dependencies: their licences, where they come from, and what is known against them, by `cargo deny`.
//!
//! The program is no part of the tree. Where it is missing, or the list of advisories cannot be fetched, this
//! says so and goes on: `make test` needs no network beyond the registry.

use std::process::{Command, Stdio};

use crate::tree;

/// Checks that need the lock file and the sources of the dependencies, those of other systems too.
const OF_SOURCES: [&str; 3] = ["bans", "licenses", "sources"];

/// Cargo-deny and cargo say one of these when they cannot reach what they need.
const UNREACHABLE: [&str; 3] = [
    "failed to fetch advisory database",
    "failed to download",
    "failed to fetch crates",
];

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
    for checks in [&OF_SOURCES[..], &["advisories"]] {
        let named = checks.join(", ");
        let output = tree::cargo(&root)
            .args(["deny", "--log-level", "error", "check"])
            .args(checks)
            .output()
            .map_err(|error| format!("`cargo deny` could not be started: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            println!("deny: {named}");
        } else if UNREACHABLE.iter().any(|words| said.contains(words)) {
            println!("deny: SKIPPED: {named}: this needs a network that is out of reach");
        } else {
            return Err(said.into_owned());
        }
    }
    Ok(())
}
