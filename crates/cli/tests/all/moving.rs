//! "Moving" in the operating guide, command by command: a log that was closed, or whose program was killed,
//! is moved with `mv` and is whole in its new place. It used to look for its segments in the old one.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

use crate::common::rvm::RvmFixture;
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_store::{Store, StoreSettings};

/// Runs a script of the guide in a shell.
fn shell(directory: &Path, script: &str) -> ExitStatus {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(directory)
        .status()
        .unwrap()
}

/// Commits a number, as a program does it that is killed then, or that closes the log.
fn put(log: &Path, segment: &Path, value: u64, closes: bool) {
    let opened = Store::at(log).open(&StoreSettings::default()).unwrap();
    let region = opened.memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    let mut transaction = opened.memory.begin(RestoreMode::Restore);
    transaction.set(&region, 0, &value).unwrap();
    transaction.commit(Durability::Disk).unwrap();
    drop(region);
    if closes {
        let journal = opened.memory.close().map_err(|(error, _)| error).unwrap();
        journal.close().unwrap();
    }
}

fn got(log: &Path, segment: &Path) -> u64 {
    let opened = Store::at(log).open(&StoreSettings::default()).unwrap();
    let region = opened.memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    region.get(0).unwrap()
}

#[test]
fn a_directory_is_moved_with_its_segments() {
    for (closes, value) in [(true, 7), (false, 8)] {
        let place = RvmFixture::new();
        fs::create_dir(place.path("new")).unwrap();
        let made = place.rvm(&["create", "bank", "--directory"]);
        assert_eq!(made.code, 0, "{}", made.err);
        fs::write(place.path("bank/a.data"), [0; 4096]).unwrap();
        put(&place.path("bank"), &place.path("bank/a.data"), value, closes);
        assert!(shell(place.directory.path(), "mv bank new/bank").success());
        assert_eq!(place.json(&["check", "new/bank"])["healthy"], true);
        assert_eq!(
            got(&place.path("new/bank"), &place.path("new/bank/a.data")),
            value
        );
        assert!(!place.path("bank").exists());
    }
}

#[test]
fn a_log_file_is_moved_with_its_companions_and_relocate_finds_the_rest() {
    let place = RvmFixture::new();
    fs::create_dir_all(place.path("new")).unwrap();
    fs::create_dir_all(place.path("far")).unwrap();
    fs::create_dir_all(place.path("farther")).unwrap();
    for name in ["far/a", "far/b"] {
        fs::write(place.path(name), [0; 4096]).unwrap();
        put(&place.path("bank.log"), &place.path(name), 5, true);
    }
    put(&place.path("bank.log"), &place.path("bank.data"), 6, false);
    let log = place.path("new/bank.log");
    assert!(
        shell(
            place.directory.path(),
            "mv bank.log* bank.data new/ && mv far/* farther/"
        )
        .success()
    );
    // Those that a record names are there.
    assert_eq!(got(&log, &place.path("new/bank.data")), 6);
    // Their names run from the log's directory on.
    let all = ["relocate", "new/bank.log", "new/far", "farther", "--json"];
    let ran = place.rvm(&all);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.out.matches("farther").count(), 2, "{}", ran.out);
    assert_eq!(got(&log, &place.path("farther/b")), 5);
    let applied = place.rvm(&["apply", "new/bank.log"]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert_eq!(place.json(&["check", "new/bank.log"])["healthy"], true);

    // What is no segment of this log, or none at all.
    fs::write(place.path("stranger"), [0; 4096]).unwrap();
    for (arguments, named) in [
        (["farther/a", "stranger"], "replaced or copied"),
        (["farther/c", "stranger"], "has no segment"),
        (["farther/a", "farther/b"], "another segment"),
        (["farther/a", "nowhere"], "does not exist"),
    ] {
        let ran = place.rvm(&[&["relocate", "new/bank.log"][..], &arguments[..]].concat());
        assert!(
            ran.code == 1 && ran.err.contains(named),
            "{arguments:?}: {}",
            ran.err
        );
    }
}

#[test]
fn a_segment_that_lost_its_attributes_is_taken_by_explicit_word() {
    let place = RvmFixture::new();
    put(&place.path("bank.log"), &place.path("bank.data"), 9, true);
    assert!(shell(place.directory.path(), "cp bank.data copy && mv copy bank.data").success());
    let refused = place.rvm(&["apply", "bank.log"]);
    assert_eq!(refused.code, 0, "no record names it: {}", refused.err);
    let checked = place.rvm(&["check", "bank.log"]);
    assert!(
        checked.out.contains("replaced or copied"),
        "{}{}",
        checked.out,
        checked.err
    );
    let taken = place.rvm(&["relocate", "bank.log", "bank.data", "bank.data", "--adopt"]);
    assert_eq!(taken.code, 0, "{}", taken.err);
    assert_eq!(got(&place.path("bank.log"), &place.path("bank.data")), 9);
}

/// The directory is copied where it should have been moved.
#[test]
fn a_copy_is_refused_by_a_sentence_that_names_the_log_to_use() {
    let place = RvmFixture::new();
    put(&place.path("bank.log"), &place.path("bank.data"), 1, false);
    // The segment stays where it is; only the log is copied, and named as it was elsewhere.
    let script = "mkdir copy && cp -a bank.log* copy/ && ln bank.data copy/bank.data";
    assert!(shell(place.directory.path(), script).success());
    let refused = place.rvm(&["apply", "copy/bank.log"]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    let original = place.path("bank.log").canonicalize().unwrap();
    let named = original.to_str().unwrap();
    assert!(
        refused.err.contains("this log is a copy") && refused.err.contains(named),
        "{}",
        refused.err
    );
    assert_eq!(got(&place.path("bank.log"), &place.path("bank.data")), 1);
}
