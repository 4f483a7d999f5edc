//! Operating a mount: attaching it again or in the background, listing it, and its status.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{CommandOutput, LenderProcess, finish, netram};
use crate::mount::{cannot_mount, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// A directory, a place for its journal, and a lender.
struct Place {
    directory: TempDir,
    lender: LenderProcess,
}

impl Place {
    fn new(name: &str) -> Place {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("dir")).unwrap();
        let socket = format!("unix:{}/lender", directory.path().display());
        let lender = LenderProcess::start(name, &["--insecure", "--listen", &socket, "--domain", "other"]);
        Place { directory, lender }
    }

    fn netram(&self, arguments: &[&str]) -> CommandOutput {
        let mut command: Command = netram();
        command.args(arguments).current_dir(self.directory.path());
        finish(&mut command)
    }

    /// `netram mount attach` in the background, with further arguments.
    fn attach(&self, more: &[&str]) -> CommandOutput {
        let usual = ["mount", "attach", "dir", "--on", "journal", "--background"];
        self.netram(&[&usual[..], more].concat())
    }

    /// The same with a small journal whose newest writes the lender has too.
    fn attach_with_lender(&self) -> CommandOutput {
        let lender = ["--insecure", "--lender", &self.lender.address];
        self.attach(&[&lender[..], &["--journal-size", "4MiB"]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.netram(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.netram(&["mount", "detach", "dir"]);
    }
}

#[test]
fn a_background_mount_is_ready_when_the_command_returns_and_is_listed() {
    if cannot_mount() {
        return;
    }
    let place = Place::new("background");
    let ran = place.attach_with_lender();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("mounted "), "{}", ran.out);
    let log = place.directory.path().join("dir/log");
    fs::write(&log, b"synced").unwrap();
    File::open(&log).unwrap().sync_all().unwrap();

    let text = |name: &str| {
        let path = place.directory.path().join(name).canonicalize().unwrap();
        Value::from(path.to_str().unwrap())
    };
    let (dir, journal) = (text("dir"), text("journal"));
    let listed = place.json(&["mount", "list"]);
    let mine = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["directory"] == dir);
    assert_eq!(mine.expect("it is listed")["journal"], journal, "{listed}");
    let shown = place.json(&["mount", "status", "dir"]);
    assert_eq!((&shown["journal"], &shown["mounted"]), (&journal, &true.into()));
    // Until the disk has followed, only the lender may hold it.
    wait_until("the log's end is on the disk", || {
        place.json(&["mount", "status", "dir"])["end"].as_u64() > Some(0)
    });
    assert_eq!(shown["lenders"][0], place.lender.address.as_str());
    // Regression: of a journal that is idle it was said that its member does not count yet.
    wait_until("the journal is idle", || {
        let people = place.netram(&["mount", "status", "dir"]);
        people.out.contains("idle: this disk has everything")
    });

    assert_eq!(place.netram(&["mount", "detach", "dir"]).code, 0);
    let listed = place.json(&["mount", "list"]);
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["directory"] != dir)
    );
    let gone = place.netram(&["mount", "status", "dir"]);
    assert_eq!(gone.code, 1, "{}", gone.out);
}

/// Everybody types the line again after a crash, or keeps it in a script.
#[test]
fn the_same_line_typed_again_goes_on_and_other_lenders_are_refused() {
    if cannot_mount() {
        return;
    }
    let place = Place::new("again");
    for _ in 0..2 {
        let ran = place.attach_with_lender();
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(place.netram(&["mount", "detach", "dir"]).code, 0);
    }
    let ran = place.attach(&["--insecure", "--lender", "unix:/nowhere/else"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    for part in [&place.lender.address[..], "leave out --lender", "netram.toml"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}

#[test]
fn mistakes_in_the_background_are_reported_in_front() {
    if cannot_mount() {
        return;
    }
    let place = Place::new("mistakes");
    let ran = place.netram(&["mount", "attach", "missing", "--on", "journal", "--background"]);
    assert!(
        ran.code == 1 && ran.err.contains("mkdir -p missing"),
        "{}",
        ran.err
    );
    assert_eq!(place.attach(&["--journal-size", "4MiB"]).code, 0);
    assert_eq!(place.netram(&["mount", "detach", "dir"]).code, 0);
    let ran = place.netram(&["mount", "recover", "journal"]);
    assert!(ran.code == 1 && ran.err.contains("is a journal"), "{}", ran.err);
}

/// The mount's server has the directory beneath open, whose path is the mount's.
#[test]
fn a_detach_that_is_refused_names_the_program_that_uses_the_mount() {
    if cannot_mount() {
        return;
    }
    let place = Place::new("busy");
    let made = place.attach(&["--insecure", "--lender", &place.lender.address]);
    assert_eq!(made.code, 0, "{}", made.err);
    let mounted = place.directory.path().join("dir");
    let mut user = Command::new("sleep")
        .arg("60")
        .current_dir(&mounted)
        .spawn()
        .unwrap();
    let refused = place.netram(&["mount", "detach", "dir"]);
    let _ = (user.kill(), user.wait());
    assert_ne!(refused.code, 0, "{}", refused.out);
    let named = format!("sleep (process {}) has", user.id());
    assert!(refused.err.contains(&named), "{}", refused.err);
}

/// Root runs this test; the command has the rights of a user who is in none of the directory's groups.
#[test]
fn a_directory_of_a_foreign_group_is_refused_before_anything_is_made() {
    if cannot_mount() || !rustix::process::geteuid().is_root() {
        return crate::common::skipped("acting as another user needs root");
    }
    let place = Place::new("foreign");
    let (user, group) = (65534, 4711);
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.directory.path(), open).unwrap();
    let directory = place.directory.path().join("dir");
    chown(&directory, Some(user), Some(group)).unwrap();
    let usual = ["mount", "attach", "dir", "--on", "journal", "--insecure"];
    let mut command: Command = netram();
    command.args(usual).args(["--lender", &place.lender.address]);
    command.current_dir(place.directory.path()).uid(user).gid(user);
    let refused = finish(&mut command);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(
        refused.err.contains("group 4711") && refused.err.contains("chgrp"),
        "{}",
        refused.err
    );
    assert!(fs::read_dir(&directory).unwrap().next().is_none());
    assert!(!place.directory.path().join("journal").exists());
}
