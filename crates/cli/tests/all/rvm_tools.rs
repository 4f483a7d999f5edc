//! `netram rvm`: what an operator sees of recoverable memory, whole and closed or open in a program.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::rvm::{RvmFixture, pattern};
use crate::common::{LenderProcess, netram, run, start};
use netram_proto::port::Durability;
use netram_store::loader::{self, HEADER_BYTES};
use netram_store::{JournalSettings, StoreSettings};

#[test]
fn a_created_log_is_shown_and_sound() {
    let place = RvmFixture::new();
    let shown = place.json(&["status", "bank.log"]);
    assert_eq!(shown["capacity"], 64 * 1024);
    assert_eq!(shown["in_use"], false);
    assert_eq!(shown["segments"][0]["length"], 1 << 20);
    assert_eq!(shown["segments"][0]["file_bytes"], 1 << 20);
    assert_eq!(
        shown["segments"][0]["path"],
        place.path("bank.data").canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(shown["settings"]["lenders"], serde_json::json!([]));
    let people = place.rvm(&["status", "bank.log"]);
    for word in ["bank.data", "1.0 MiB", "64.0 KiB", "no lenders"] {
        assert!(people.out.contains(word), "{word}: {}", people.out);
    }
    assert_eq!(place.json(&["check", "bank.log"])["healthy"], true);

    let directory = place.rvm(&[
        "create",
        "home",
        "--directory",
        "--segment",
        "a",
        "--segment",
        "b",
        "--size",
        "8KiB",
    ]);
    assert_eq!(directory.code, 0, "{}", directory.err);
    assert_eq!(
        place.json(&["status", "home"])["segments"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let place = RvmFixture::new();
    let before = place.contents();
    for (arguments, code, named) in [
        (&["create", "bank.log"][..], 1, "already exists"),
        (
            &["create", "new.log", "--segment", "bank.data", "--size", "4096"],
            1,
            "bank.data exists already",
        ),
        (
            &["create", "new.log", "--segment", "a", "--segment", "b"],
            2,
            "--size SIZE",
        ),
        (&["create", "new.log", "--size", "4096"], 2, "--segment PATH"),
        (&["create", "new.log", "--log-size", "1KiB"], 1, "out of bounds"),
        (
            &["dump", "bank.log", "0", "--output", "bank.data"],
            1,
            "never overwritten",
        ),
    ] {
        let ran = place.rvm(arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(named), "{arguments:?}: {}", ran.err);
    }
    assert!(place.contents() == before);
}

#[test]
fn settings_are_shown_and_no_secret_with_them() {
    let place = RvmFixture::new();
    assert_eq!(run(["key", "create", place.path("k").to_str().unwrap()]).code, 0);
    fs::write(
        place.path("bank.log.toml"),
        "[journal]\nlenders = [\"tcp://10.0.0.2:7420\"]\nkey-file = \"k\"\nmembers = 1\n",
    )
    .unwrap();
    let shown = place.rvm(&["status", "bank.log"]);
    assert!(
        shown.out.contains("lenders = tcp://10.0.0.2:7420"),
        "{}",
        shown.out
    );
    assert!(shown.out.contains("key-file"), "{}", shown.out);
    let secret = fs::read_to_string(place.path("k")).unwrap();
    assert!(!shown.out.contains(secret.trim()));

    fs::write(place.path("bank.log.toml"), "lender = 1\n").unwrap();
    let shown = place.rvm(&["status", "bank.log"]);
    assert_eq!(shown.code, 0);
    assert!(
        shown.out.contains("UNUSABLE") && shown.out.contains("lender"),
        "{}",
        shown.out
    );
}

#[test]
fn lenders_of_a_new_log_are_in_its_settings_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (log, key) = (path("bank.log"), path("key"));
    assert_eq!(run(["key", "create", &key]).code, 0);
    let create = |lender: &str, log: &str| {
        let usual = ["rvm", "create", log, "--log-size", "1MiB", "--key-file", &key];
        run(usual.into_iter().chain(["--lender", lender]))
    };
    let made = create("unix:/nowhere/a.sock", &log);
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(
        made.err
            .contains("lender unix:/nowhere/a.sock does not count now"),
        "{}",
        made.err
    );
    let settings = fs::read_to_string(path("bank.log.toml")).unwrap();
    for part in ["unix:/nowhere/a.sock", &key] {
        assert!(settings.contains(part), "{settings}");
    }
    let none = run(["rvm", "create", &path("alone.log"), "--log-size", "1MiB"]);
    assert!(
        none.code == 0 && none.err.contains("commits wait for this disk"),
        "{}",
        none.err
    );
    let usual = ["rvm", "create", &path("other.log"), "--lender", "unix:/a"];
    let refused = run(usual);
    assert!(
        refused.code == 1 && refused.err.contains("no cluster key"),
        "{}",
        refused.err
    );
    assert!(!directory.path().join("other.log").exists());
}

#[test]
fn the_log_shows_changes_and_the_last_writer_of_each_byte() {
    let place = RvmFixture::new();
    place.commit(&[(0, b"first"), (100, b"aaaaaaaa"), (104, b"bbbb"), (102, b"cc")]);
    let all = place.json(&["log", "bank.log"]);
    assert_eq!(all["in_log"], 4);
    let lsn = |index: usize| all["transactions"][index]["lsn"].as_u64().unwrap();
    assert!(lsn(0) < lsn(1) && lsn(1) < lsn(2), "oldest first");
    assert_eq!(all["transactions"][0]["ranges"][0]["new"], "6669727374");

    let history = place.json(&["log", "bank.log", "--segment", "bank.data", "--range", "102+4"]);
    assert_eq!(history["matching"], 3);
    let range = |index: usize| &history["transactions"][index]["ranges"][0];
    assert_eq!(
        (&range(0)["old"], &range(0)["new"]),
        (&"00000000".into(), &"61616161".into())
    );
    assert_eq!(
        (&range(1)["old"], &range(1)["new"]),
        (&"6161".into(), &"6262".into())
    );
    assert_eq!(
        (&range(2)["old"], &range(2)["new"]),
        (&"6161".into(), &"6363".into())
    );
    let writers: Vec<(u64, u64)> = history["last_writers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|piece| (piece["offset"].as_u64().unwrap(), piece["lsn"].as_u64().unwrap()))
        .collect();
    assert_eq!(writers, [(102, lsn(3)), (104, lsn(2))]);

    let people = place.rvm(&[
        "log",
        "bank.log",
        "--segment",
        "0",
        "--range",
        "96+8",
        "--limit",
        "1",
    ]);
    for word in ["1 older transaction is left out", "96+4  none in the log"] {
        assert!(people.out.contains(word), "{word}: {}", people.out);
    }
    let unknown = place.rvm(&["log", "bank.log", "--segment", "nobody"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("it knows 0 "), "{}", unknown.err);
    let no_range = place.rvm(&["log", "bank.log", "--segment", "0", "--range", "12"]);
    assert_eq!(no_range.code, 2);
    assert!(no_range.err.contains("OFFSET+LENGTH"), "{}", no_range.err);
}

#[test]
fn a_dump_has_the_committed_bytes_and_changes_nothing() {
    let place = RvmFixture::new();
    place.commit(&[(0, b"in the log"), (4096, b"only"), (4098, b"newer")]);
    let file = fs::read(place.path("bank.data")).unwrap();
    assert!(file.iter().all(|byte| *byte == 0), "nothing has been applied yet");
    let before = place.contents();
    let hex = place.rvm(&[
        "dump",
        "bank.log",
        "bank.data",
        "--offset",
        "4096",
        "--length",
        "8",
        "--hex",
    ]);
    assert_eq!(hex.out, "0000001000  6f 6e 6e 65 77 65 72 00\n", "{}", hex.err);
    let (ran, all) = (
        place.rvm(&["dump", "bank.log", "bank.data", "--output", "copy"]),
        place.path("copy"),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    let dumped = fs::read(&all).unwrap();
    fs::remove_file(all).unwrap();
    assert!(place.contents() == before);

    let open = place.open();
    assert!(
        dumped == open.region().read()[..],
        "the next opening shows the same"
    );
    drop(open);
    let outside = place.rvm(&[
        "dump",
        "bank.log",
        "bank.data",
        "--offset",
        "1MiB",
        "--length",
        "1",
    ]);
    assert_eq!(outside.code, 1);
    assert!(outside.err.contains("which has 1048576"), "{}", outside.err);
}

#[test]
fn a_file_is_loaded_in_parts_that_fit_or_at_once() {
    let place = RvmFixture::new();
    let bytes = pattern(400_000, 1);
    fs::write(place.path("file"), &bytes).unwrap();
    let loaded = place.rvm(&["load", "bank.log", "bank.data", "file", "--offset", "1000"]);
    assert_eq!(loaded.code, 0, "{}", loaded.err);
    let dumped = place.rvm(&[
        "dump",
        "bank.log",
        "bank.data",
        "--offset",
        "1000",
        "--length",
        "400000",
        "--output",
        "copy",
    ]);
    assert_eq!(dumped.code, 0, "{}", dumped.err);
    assert!(fs::read(place.path("copy")).unwrap() == bytes);

    let before = place.json(&["status", "bank.log"])["end"].clone();
    for (arguments, named) in [
        (
            &["load", "bank.log", "bank.data", "file", "--atomic"][..],
            "do not fit one transaction",
        ),
        (
            &["load", "bank.log", "bank.data", "file", "--offset", "900000"],
            "which has 1048576",
        ),
        (&["load", "bank.log", "none.data", "file"], "--create"),
        (&["load", "bank.log", "bank.data", "none"], "opening none"),
        (
            &["load", "none.log", "bank.data", "file"],
            "there is no log none.log",
        ),
    ] {
        let refused = place.rvm(arguments);
        assert_eq!(refused.code, 1, "{arguments:?}");
        assert!(refused.err.contains(named), "{arguments:?}: {}", refused.err);
    }
    assert_eq!(
        place.json(&["status", "bank.log"])["end"],
        before,
        "a refusal commits nothing"
    );

    fs::write(place.path("small"), b"all or nothing").unwrap();
    let atomic = place.rvm(&["load", "bank.log", "new.data", "small", "--atomic", "--create"]);
    assert_eq!(atomic.code, 0, "{}", atomic.err);
    assert!(atomic.out.contains("in 1 transaction\n"), "{}", atomic.out);
    let text = place.rvm(&["dump", "bank.log", "new.data", "--length", "14"]);
    assert_eq!(text.out, "all or nothing");
}

#[test]
fn an_open_log_can_be_looked_at_and_not_changed() {
    let place = RvmFixture::new();
    let open = place.open();
    open.write(0, b"committed", Durability::Disk);
    let shown = place.json(&["status", "bank.log"]);
    assert_eq!(shown["in_use"], true);
    let dumped = place.rvm(&["dump", "bank.log", "bank.data", "--length", "9"]);
    assert_eq!((dumped.code, dumped.out.as_str()), (0, "committed"));
    assert!(
        dumped.err.contains("a process has the log open"),
        "{}",
        dumped.err
    );
    assert_eq!(place.json(&["log", "bank.log"])["in_log"], 1);
    assert_eq!(place.json(&["check", "bank.log"])["healthy"], true);
    fs::write(place.path("file"), b"x").unwrap();
    for arguments in [
        &["load", "bank.log", "bank.data", "file"][..],
        &["grow", "bank.log", "--size", "1MiB"],
    ] {
        let refused = place.rvm(arguments);
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("in use by process"), "{}", refused.err);
    }
    open.write(0, b"still his", Durability::Disk);
}

#[test]
fn commits_that_only_lenders_may_hold_are_mentioned() {
    let place = RvmFixture::new();
    let lender = LenderProcess::start(
        "tools",
        &["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "ups-1"],
    );
    let settings = StoreSettings {
        journal: JournalSettings {
            lenders: vec![lender.address.parse().unwrap()],
            insecure: true,
            ..JournalSettings::default()
        },
        ..StoreSettings::default()
    };
    let open = place.open_with(&settings);
    open.opened()
        .memory
        .log()
        .wait_for_members(Duration::from_secs(10))
        .unwrap();
    open.write(0, b"remote", Durability::Remote);
    // What a machine that loses power now would find on its disk.
    let copy = tempfile::tempdir().unwrap();
    for (path, _) in place.contents() {
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    fs::write(copy.path().join("bank.log.lock"), "").unwrap();
    let copied = copy.path().join("bank.log");
    let shown = run(["rvm", "status", copied.to_str().unwrap()]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.contains(&lender.address), "{}", shown.out);
    assert!(
        shown.out.contains("may hold commits that are not on this disk"),
        "{}",
        shown.out
    );
}

#[test]
fn a_log_grows_with_everything_in_it_and_does_not_shrink() {
    let place = RvmFixture::new();
    place.commit(&[(0, b"before"), (9000, b"growing")]);
    let smaller = place.rvm(&["grow", "bank.log", "--size", "32KiB"]);
    assert_eq!(smaller.code, 1);
    assert!(smaller.err.contains("a log cannot shrink"), "{}", smaller.err);
    let grown = place.rvm(&["grow", "bank.log", "--size", "1MiB"]);
    assert_eq!(grown.code, 0, "{}", grown.err);
    assert!(
        grown.out.contains("now has 1.0 MiB; it had 64.0 KiB"),
        "{}",
        grown.out
    );
    assert_eq!(place.json(&["status", "bank.log"])["capacity"], 1 << 20);
    assert_eq!(place.json(&["check", "bank.log"])["healthy"], true);
    let large = pattern(300_000, 2);
    place.commit(&[(20_000, &large)]);
    let open = place.open();
    assert_eq!(&open.region().read()[..6], b"before");
    assert_eq!(&open.region().read()[9000..9007], b"growing");
    assert!(open.region().read()[20_000..320_000] == large);
}

/// Growing writes the one place that has the positions of records; killed at any moment, it leaves the old
/// log or the new one.
#[test]
fn growing_can_be_killed_at_any_moment() {
    let place = RvmFixture::new();
    let mut size = 64 * 1024;
    for round in 0..12_u64 {
        let value = round.to_le_bytes();
        place.commit(&[(8 * round as usize, &value)]);
        let next = size + 64 * 1024;
        let text = next.to_string();
        let mut child = start(
            netram()
                .args(["rvm", "grow", "bank.log", "--size", &text])
                .current_dir(place.directory.path())
                .stdout(std::process::Stdio::null()),
        );
        let (began, moment) = (Instant::now(), Duration::from_micros(round * 1500));
        while began.elapsed() < moment {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        let capacity = place.json(&["status", "bank.log"])["capacity"].as_u64().unwrap();
        assert!(capacity == size || capacity == next, "round {round}: {capacity}");
        size = capacity;
        let open = place.open();
        for earlier in 0..=round {
            assert_eq!(
                open.region().get(8 * earlier as usize),
                Ok(earlier),
                "round {round}"
            );
        }
    }
    assert!(Path::new(&place.path("bank.log")).metadata().unwrap().len() >= 8192 + size);
}

/// The heap's use by C programs is tested with them: `a_heap_made_by_its_tool_is_loaded_by_c` in
/// crates/bindings/librvm.
#[test]
fn a_heap_is_made_for_c_programs_and_never_over_an_existing_file() {
    let place = RvmFixture::new();
    let heap = |segment: &str, address: &str| {
        place.rvm(&[
            "heap",
            "bank.log",
            segment,
            "--heap",
            "1MiB",
            "--static",
            "8KiB",
            "--address",
            address,
        ])
    };
    let made = heap("heap.data", "0x20000000000");
    assert_eq!(made.code, 0, "{}", made.err);
    let bytes = fs::read(place.path("heap.data")).unwrap();
    assert_eq!(bytes.len(), 4096 + (1 << 20) + 8192);
    let header = bytes[..HEADER_BYTES].try_into().unwrap();
    let regions = loader::decode(header).unwrap();
    assert_eq!(regions.len(), 2);
    assert_eq!(
        (regions[0].address, regions[0].length),
        (0x200_0000_0000, 1 << 20)
    );
    assert_eq!(regions[1].address, 0x200_0000_0000 + (1 << 20));
    netram_heap::inspect(&bytes[4096..4096 + (1 << 20)]).unwrap();
    let check = place.json(&["check", "bank.log"]);
    assert_eq!(check["healthy"], true, "{check}");

    let before = place.contents();
    for (segment, address, named) in [
        ("heap.data", "0x20000000000", "already"),
        ("bank.data", "0x20000000000", "already"),
        ("other.data", "0x20000000100", "Nothing was created"),
        ("other.data", "0", "Nothing was created"),
    ] {
        let refused = heap(segment, address);
        assert_eq!(refused.code, 1, "{segment} {address}: {}", refused.err);
        assert!(
            refused.err.contains(named),
            "{segment} {address}: {}",
            refused.err
        );
        assert!(!place.path("other.data").exists());
    }
    let data = |contents: &[(std::path::PathBuf, Vec<u8>)]| {
        let segments = contents
            .iter()
            .filter(|(path, _)| path.extension().is_some_and(|it| it == "data"));
        segments.cloned().collect::<Vec<_>>()
    };
    assert_eq!(data(&place.contents()), data(&before));
}
