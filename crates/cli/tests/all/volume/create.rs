//! `netram volume create`: what a new volume has, what is refused, and what a killed command leaves.

use std::fs;

use crate::common::{LenderProcess, finish, netram};
use crate::volume::VolumeFixture;

/// A volume at the disk's speed looked like any other.
#[test]
fn a_new_volume_says_why_its_writes_would_wait_for_the_disk() {
    let place = VolumeFixture::new();
    let lender = LenderProcess::start("label", &["--insecure", "--listen", "tcp://127.0.0.1:0"]);
    let create = |name: &str, more: &[&str]| {
        let usual = ["create", name, "--size", "1MiB", "--journal-size", "1MiB"];
        place.disk(&[&usual[..], more].concat()).err
    };
    let lenders = ["--insecure", "--lender", &lender.address];
    let none = create("none", &[]);
    assert!(none.contains("writes wait for this disk until"), "{none}");
    let label = create("label", &lenders);
    assert!(label.contains("power label `default`"), "{label}");
    for (name, more) in [
        ("own", ["--domain", "ups-1"].as_slice()),
        ("one", &["--one-domain"]),
    ] {
        let said = create(name, &[&lenders, more].concat());
        assert_eq!(said, "", "{name}");
    }
    let away = create("away", &["--insecure", "--lender", "unix:/nowhere/a.sock"]);
    assert!(
        away.contains("lender unix:/nowhere/a.sock does not count now"),
        "{away}"
    );
}

#[test]
fn settings_that_make_no_sense_make_no_volume() {
    let place = VolumeFixture::new();
    for (arguments, says) in [
        (&["--lender", "tcp://127.0.0.1:1"][..], "key"),
        (
            &["--lender", "tcp://127.0.0.1:1", "--key-file", "nowhere"],
            "nowhere",
        ),
        (&["--insecure", "--key-file", "nowhere"], "insecure"),
    ] {
        let refused = place.refused(&[&["create", "db", "--size", "1MiB"], arguments].concat(), 1);
        assert!(refused.contains(says), "{refused}");
        assert!(!place.path("db").exists(), "{arguments:?}");
    }
    // The error named this variable, which was not read.
    let mut create = netram();
    create.args([
        "volume",
        "create",
        "db",
        "--size",
        "1MiB",
        "--lender",
        "tcp://127.0.0.1:1",
    ]);
    create.current_dir(place.directory.path());
    let refused = finish(create.env("NETRAM_KEY_FILE", "elsewhere"));
    assert!(
        refused.code == 1 && refused.err.contains("elsewhere"),
        "{}",
        refused.err
    );
    assert!(!place.path("db").exists());
    let odd = place.refused(&["create", "db", "--size", "1000"], 1);
    assert!(odd.contains("4096") && !odd.contains(".new-"), "{odd}");
    assert!(!place.path("db").exists());
}

#[test]
fn remains_of_a_killed_create_are_listed_until_they_are_removed() {
    let place = VolumeFixture::new();
    let left = place.path(".db.new-0123abcd");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("image"), "half").unwrap();
    let listed = || place.disk(&["list", "."]);
    assert!(listed().err.contains(".db.new-0123abcd"), "{}", listed().err);
    place.json(&["create", "db", "--size", "1MiB", "--journal-size", "4MiB"]);
    assert!(!left.exists());
    assert_eq!(listed().err, "");
}
