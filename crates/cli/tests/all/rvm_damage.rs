//! `netram rvm` on files that are damaged, missing, foreign, or of another version.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::forks;
use crate::common::rvm::RvmFixture;
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;

#[test]
fn damage_is_reported_in_sentences_with_exit_code_1() {
    type Harm = fn(&RvmFixture);
    let cases: [(Harm, &str); 8] = [
        (
            |place| place.flip("bank.log", 8192 + 60),
            "the log is damaged from LSN 0 on",
        ),
        (
            |place| {
                place.flip("bank.log.segments", 100);
                place.flip("bank.log.segments", 65536 + 100);
            },
            "both slots of the segment table are damaged",
        ),
        (
            |place| fs::remove_file(place.path("bank.data")).unwrap(),
            "bank.data does not exist",
        ),
        (
            |place| {
                fs::File::options()
                    .write(true)
                    .open(place.path("bank.data"))
                    .unwrap()
                    .set_len(4096)
                    .unwrap()
            },
            "is 4096 bytes long, but the log needs 1048576",
        ),
        (
            |place| {
                let bytes = fs::read(place.path("bank.data")).unwrap();
                fs::remove_file(place.path("bank.data")).unwrap();
                fs::write(place.path("bank.data"), bytes).unwrap();
            },
            "was replaced or copied",
        ),
        (
            |place| {
                let other = place.rvm(&["create", "other.log", "--segment", "other.data", "--size", "4096"]);
                assert_eq!(other.code, 0, "{}", other.err);
                fs::rename(place.path("other.log.segments"), place.path("bank.log.segments")).unwrap();
            },
            "the segment table belongs to journal",
        ),
        (
            |place| fs::remove_file(place.path("bank.log.segments")).unwrap(),
            "no such file",
        ),
        (
            |place| fs::rename(place.path("bank.log.segments"), place.path("bank.log.view")).unwrap(),
            "not a netram view file",
        ),
    ];
    for (harm, named) in cases {
        let place = RvmFixture::new();
        place.commit(&[(0, b"first"), (100, b"second"), (200, b"third")]);
        assert_eq!(place.rvm(&["check", "bank.log"]).code, 0);
        harm(&place);
        let checked = place.rvm(&["check", "bank.log"]);
        assert_eq!(checked.code, 1, "{named}: {}", checked.out);
        let said = format!("{}{}", checked.out, checked.err);
        assert!(said.contains(named), "{named}: {said}");
    }
}

#[test]
fn a_record_that_names_a_segment_that_the_table_lacks_is_damage() {
    let place = RvmFixture::new();
    place.commit(&[(0x8_0000, b"beyond the middle")]);
    let table = place.path("bank.log.segments");
    fs::remove_file(&table).unwrap();
    netram_rvm::RealStorage::create(table.to_str().unwrap()).unwrap();
    let checked = place.rvm(&["check", "bank.log"]);
    assert_eq!(checked.code, 1, "{}", checked.out);
    let named = "names segment 0, which the segment table does not know";
    assert!(checked.out.contains(named), "{}", checked.out);
}

/// Beside a running program the table that was read may be older than the log that was.
#[test]
fn a_table_that_lags_behind_a_program_is_no_damage() {
    let place = RvmFixture::new();
    let open = place.open();
    open.write(0, b"committed", Durability::Disk);
    let table = place.path("bank.log.segments");
    fs::remove_file(&table).unwrap();
    netram_rvm::RealStorage::create(table.to_str().unwrap()).unwrap();
    let checked = place.json(&["check", "bank.log"]);
    assert_eq!(checked["healthy"], true, "{checked}");
    let notes = checked["notes"].to_string();
    assert!(notes.contains("names segment 0"), "{notes}");
}

/// The log behind the damage cannot be read, so the readable part is not what was committed.
#[test]
fn nothing_of_a_damaged_log_passes_for_all_of_it() {
    type Harm = fn(&RvmFixture);
    let cases: [(Harm, &str); 2] = [
        (
            |place| place.flip("bank.log", 8192 + 60),
            "the log is damaged from LSN 0 on",
        ),
        (
            |place| {
                let other = place.rvm(&["create", "other.log"]);
                assert_eq!(other.code, 0, "{}", other.err);
                fs::rename(place.path("other.log.key"), place.path("bank.log.key")).unwrap();
            },
            "was not encrypted with this log's key",
        ),
    ];
    for (harm, named) in cases {
        let place = RvmFixture::new();
        place.commit(&[(0, b"first"), (100, b"second"), (200, b"third")]);
        harm(&place);
        let dumped = place.rvm(&["dump", "bank.log", "bank.data", "--output", "copy"]);
        assert_eq!(dumped.code, 1, "{named}: {}", dumped.out);
        assert!(dumped.err.contains(named), "{named}: {}", dumped.err);
        assert!(!place.path("copy").exists());
        let to_stdout = place.rvm(&["dump", "bank.log", "bank.data", "--length", "5"]);
        assert_eq!((to_stdout.code, to_stdout.out.as_str()), (1, ""));
        for command in ["log", "status"] {
            let people = place.rvm(&[command, "bank.log"]);
            assert_eq!(people.code, 1, "{command}: {}", people.out);
            assert!(people.out.contains("DAMAGED: "), "{command}: {}", people.out);
            assert!(people.out.contains(named), "{command}: {}", people.out);
            let program = place.rvm(&[command, "bank.log", "--json"]);
            assert_eq!(program.code, 1, "{command}");
            let said: serde_json::Value = serde_json::from_str(&program.out).unwrap();
            assert!(said["damage"].to_string().contains(named), "{command}: {said}");
        }
    }
}

/// A program that truncates while its log is looked at must not make the look fail.
#[test]
fn damage_of_a_log_in_use_is_a_note() {
    let place = RvmFixture::new();
    let open = place.open();
    // The records behind the damage prove that there was something.
    for offset in [0, 100, 200] {
        open.write(offset, b"committed", Durability::Disk);
    }
    place.flip("bank.log", 8192 + 60);
    for command in ["log", "status", "check"] {
        let said = place.json(&[command, "bank.log"]);
        let notes = said["notes"].to_string();
        assert!(notes.contains("check again"), "{command}: {said}");
    }
    let dumped = place.rvm(&["dump", "bank.log", "bank.data", "--length", "1"]);
    assert_eq!(dumped.code, 0, "{}", dumped.err);
    assert!(dumped.err.contains("check again"), "{}", dumped.err);
    place.flip("bank.log", 8192 + 60);
}

#[test]
fn old_values_that_only_the_file_has_are_marked() {
    let place = RvmFixture::new();
    place.commit(&[(96, b"aaaaaaaa"), (96, b"bbbb")]);
    let history = &["log", "bank.log", "--segment", "0", "--range", "96+8"][..];
    let old = |history: &serde_json::Value, index: usize| {
        let range = &history["transactions"][index]["ranges"][0];
        (range["old"].clone(), range["old_from"].clone())
    };
    let shown = place.json(history);
    assert_eq!(old(&shown, 0), ("0000000000000000".into(), "file".into()));
    assert_eq!(old(&shown, 1), ("61616161".into(), "log".into()));
    let people = place.rvm(history);
    assert!(
        people.out.contains("(from the file, may be newer)"),
        "{}",
        people.out
    );

    fs::rename(place.path("bank.data"), place.path("elsewhere")).unwrap();
    let shown = place.json(history);
    assert_eq!(old(&shown, 0), (serde_json::Value::Null, serde_json::Value::Null));
    assert_eq!(old(&shown, 1), ("61616161".into(), "log".into()));
    let people = place.rvm(history);
    assert!(
        people.out.contains("unknown -> 6161616161616161"),
        "{}",
        people.out
    );
}

#[test]
fn files_of_another_version_are_named_as_such() {
    let place = RvmFixture::new();
    let log = fs::File::options()
        .read(true)
        .write(true)
        .open(place.path("bank.log"))
        .unwrap();
    let length = {
        let mut length = [0; 4];
        log.read_exact_at(&mut length, 16).unwrap();
        u32::from_le_bytes(length) as usize
    };
    for slot in [0, 4096] {
        let mut bytes = vec![0; 24 + length];
        log.read_exact_at(&mut bytes, slot).unwrap();
        bytes[24] = 9;
        let mut crc = netram_proto::wire::Crc::new();
        crc.update(&bytes[..20]);
        crc.update(&bytes[24..]);
        let crc = crc.finish();
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        log.write_all_at(&bytes, slot).unwrap();
    }
    for command in ["status", "check", "log"] {
        let ran = place.rvm(&[command, "bank.log"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("format 9"), "{command}: {}", ran.err);
    }
}

#[test]
fn a_heap_is_summarised_and_damage_in_it_is_reported() {
    let place = RvmFixture::new();
    let (opened, region) = place.open().take();
    let heap = netram_heap::Heap::format(&opened.memory, region).unwrap();
    let mut transaction = opened.memory.begin(RestoreMode::Restore);
    for bytes in [10, 100, 9000] {
        let block = heap.alloc_bytes(&mut transaction, &vec![7; bytes]).unwrap();
        heap.set_root(&mut transaction, bytes % 3, block).unwrap();
    }
    transaction.commit(Durability::Disk).unwrap();
    {
        let _alone = forks();
        drop((heap, opened));
    }
    let shown = &place.json(&["status", "bank.log"])["segments"][0]["heap"];
    assert_eq!(
        (&shown["blocks"], &shown["offset"]),
        (&3.into(), &0.into()),
        "{shown}"
    );
    assert_eq!(shown["trouble"], serde_json::Value::Null);
    assert_eq!(place.json(&["check", "bank.log"])["healthy"], true);

    // The next opening applies the log to the segment; then the file is what counts.
    drop(place.open());
    let descriptors = 4096;
    for at in descriptors..descriptors + 64 {
        place.flip("bank.data", at);
    }
    let checked = place.rvm(&["check", "bank.log"]);
    assert_eq!(checked.code, 1, "{}", checked.out);
    assert!(
        checked.out.contains("DAMAGED: the heap at 0 in"),
        "{}",
        checked.out
    );
    let shown = place.rvm(&["status", "bank.log"]);
    assert!(shown.out.contains("heap UNUSABLE"), "{}", shown.out);
}

#[test]
fn a_heap_too_large_to_be_looked_into_is_no_damage() {
    let place = RvmFixture::new();
    let (opened, region) = place.open().take();
    let heap = netram_heap::Heap::format(&opened.memory, region).unwrap();
    {
        let _alone = forks();
        drop((heap, opened));
    }
    // The next opening applies the log to the segment; then the file is what counts.
    drop(place.open());
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(place.path("bank.data"))
        .unwrap();
    file.set_len(9 << 30).unwrap();
    // The heap's own length counts, not its segment's.
    let shown = &place.json(&["status", "bank.log"])["segments"][0]["heap"];
    assert_eq!(
        (&shown["looked_into"], &shown["blocks"]),
        (&true.into(), &0.into())
    );

    let mut header = [0; 36];
    file.read_exact_at(&mut header, 0).unwrap();
    let pages: u64 = (9 << 30) / 4096;
    header[16..24].copy_from_slice(&(pages * 4096).to_le_bytes());
    header[24..32].copy_from_slice(&(1 + (pages * 8).div_ceil(4096)).to_le_bytes());
    let mut crc = netram_proto::wire::Crc::new();
    crc.update(&header[..32]);
    let crc = crc.finish();
    header[32..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&header, 0).unwrap();
    let checked = place.json(&["check", "bank.log"]);
    assert_eq!(checked["healthy"], true, "{checked}");
    let notes = checked["notes"].to_string();
    assert!(
        notes.contains("heap of 9.0 GiB, which was not checked"),
        "{notes}"
    );
    let shown = &place.json(&["status", "bank.log"])["segments"][0]["heap"];
    assert_eq!(
        (&shown["looked_into"], &shown["bytes"]),
        (&false.into(), &(9_u64 << 30).into())
    );
    assert_eq!(shown["trouble"], serde_json::Value::Null);
    let people = place.rvm(&["status", "bank.log"]);
    assert!(people.out.contains("was not checked"), "{}", people.out);

    // One that is longer than its segment is damaged, however large.
    file.set_len((9 << 30) - 4096).unwrap();
    assert_eq!(place.rvm(&["check", "bank.log"]).code, 1);
}
