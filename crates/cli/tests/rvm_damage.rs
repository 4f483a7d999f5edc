//! `netram rvm` on files that are damaged, missing, foreign, or of another version.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;

use common::forks;
use common::rvm::Place;
use netram_proto::port::Durability;
use netram_rvm::Mode;

#[test]
fn damage_is_told_in_sentences_and_ends_in_code_1() {
    type Harm = fn(&Place);
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
            "is 4096 bytes long, the log knows it with 1048576",
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
        let place = Place::new();
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
    let place = Place::new();
    place.commit(&[(0x8_0000, b"beyond the middle")]);
    let table = place.path("bank.log.segments");
    fs::remove_file(&table).unwrap();
    netram_rvm::RealStorage::create(table.to_str().unwrap()).unwrap();
    let checked = place.rvm(&["check", "bank.log"]);
    assert_eq!(checked.code, 1, "{}", checked.out);
    let named = "names segment 0, which the segment table does not know";
    assert!(checked.out.contains(named), "{}", checked.out);
}

#[test]
fn files_of_another_version_are_named_as_such() {
    let place = Place::new();
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
    for command in ["show", "check", "log"] {
        let ran = place.rvm(&[command, "bank.log"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("format 9"), "{command}: {}", ran.err);
    }
}

#[test]
fn a_heap_is_accounted_for_and_damage_in_it_is_told() {
    let place = Place::new();
    let (opened, region) = place.open().take();
    let heap = netram_heap::Heap::format(&opened.memory, region).unwrap();
    let mut transaction = opened.memory.begin(Mode::Restore);
    for bytes in [10, 100, 9000] {
        let block = heap.alloc_bytes(&mut transaction, &vec![7; bytes]).unwrap();
        heap.set_root(&mut transaction, bytes % 3, block).unwrap();
    }
    transaction.commit(Durability::Disk).unwrap();
    {
        let _alone = forks();
        drop((heap, opened));
    }
    let shown = &place.json(&["show", "bank.log"])["segments"][0]["heap"];
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
    let shown = place.rvm(&["show", "bank.log"]);
    assert!(shown.out.contains("heap UNUSABLE"), "{}", shown.out);
}
