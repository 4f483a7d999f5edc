//! `netram shared`: an operator's view of a region that is not served, and of one that is open.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::forks;
use crate::common::shared::SharedFixture;
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_rvm::RangeView;
use netram_rvm::record::encode;
use netram_shared::server::{NewNode, RegionStore};
use netram_shared_machine::{LockId, LockVersion, RecordNumber, Stamp};

/// A node joins and writes one record; it is in the log, not yet in the table's file.
fn write(store: &mut RegionStore) {
    let joining = NewNode {
        name: "desk\u{7}".to_owned(),
        view: View::first(JournalId(5)),
        key: Vec::new(),
        begins: ChainPoint::default(),
    };
    let (node, _) = store.join(joining).unwrap();
    let stamp = Stamp {
        written: vec![(LockId(3), LockVersion(1))],
        read: Vec::new(),
    };
    let mut preamble = Vec::new();
    stamp.encode(&mut preamble);
    let range = RangeView {
        segment: store.segment(),
        offset: 3 * 4096,
        bytes: b"drawn",
    };
    let payload = encode(&preamble, &[range]);
    let stored = store
        .merge(node, RecordNumber(1), Some(ChainPoint::default()), &payload)
        .unwrap();
    store.wait(stored.end).unwrap();
}

#[test]
fn a_created_region_is_shown_and_sound() {
    let place = SharedFixture::new();
    let made = place.made();
    assert_eq!(
        (made.code, made.out.contains("16 locks")),
        (0, true),
        "{}{}",
        made.out,
        made.err
    );
    let settings = fs::read_to_string(place.path("plan/nodes.toml")).unwrap();
    assert!(settings.contains("tcp://10.0.0.3:7420"), "{settings}");
    let shown = place.json("status", "plan");
    assert_eq!(
        (&shown["bytes"], &shown["locks"], &shown["position"]),
        (&65536.into(), &16.into(), &0.into())
    );
    assert_eq!(
        (&shown["served"], &shown["nodes"]),
        (&false.into(), &serde_json::json!([]))
    );

    let forks_held = forks();
    let (mut store, _) = RegionStore::open(&place.path("plan"), || ()).unwrap();
    write(&mut store);
    drop(forks_held);
    // A process has it open: bytes that are only in the log are shown too.
    let shown = place.json("status", "plan");
    assert_eq!(
        (&shown["served"], &shown["position"], &shown["locks_written"]),
        (&true.into(), &1.into(), &1.into())
    );
    assert_eq!(
        (&shown["nodes"][0]["records"], &shown["nodes"][0]["standing"]),
        (&1.into(), &"live".into())
    );
    let people = place.shared("status", "plan", &[]);
    for word in ["position 1", "desk\\u{7}", "live", "16 locks"] {
        assert!(people.out.contains(word), "{word}: {}", people.out);
    }
    assert_eq!(place.json("check", "plan")["damage"], serde_json::json!([]));
    let forks_held = forks();
    store.close().unwrap();
    drop(forks_held);
    assert_eq!(place.json("check", "plan")["position"], 1);
}

#[test]
fn damage_and_contradictions_are_reported() {
    let place = SharedFixture::new();
    assert_eq!(place.made().code, 0);
    let table = fs::OpenOptions::new()
        .write(true)
        .open(place.path("plan/table"))
        .unwrap();
    // A position that no node's records make.
    table.write_all_at(&7_u64.to_le_bytes(), 512).unwrap();
    let forks_held = forks();
    // The log, which has zeros there, is applied, and the file damaged again.
    let refused = RegionStore::open(&place.path("plan"), || ()).map(|(store, _)| store.close());
    drop(forks_held);
    assert!(
        refused.is_ok_and(|closed| closed.is_ok()),
        "the log has the truth"
    );
    table.write_all_at(&7_u64.to_le_bytes(), 512).unwrap();
    let told = place.shared("check", "plan", &[]);
    assert_eq!(
        (told.code, told.out.contains("7 were merged")),
        (1, true),
        "{}{}",
        told.out,
        told.err
    );
    table.write_all_at(&0_u64.to_le_bytes(), 512).unwrap();
    assert_eq!(place.shared("check", "plan", &[]).code, 0);
    fs::OpenOptions::new()
        .write(true)
        .open(place.path("plan/region"))
        .unwrap()
        .set_len(4096)
        .unwrap();
    let told = place.shared("check", "plan", &[]);
    assert_eq!(told.code, 1, "{}", told.out);
    table.write_all_at(b"X", 0).unwrap();
    let told = place.shared("status", "plan", &[]);
    assert!(
        told.code == 1 && told.err.contains("not the table of a shared region"),
        "{}",
        told.err
    );
}

#[test]
fn a_region_is_made_again_of_copies_only() {
    let place = SharedFixture::new();
    fs::create_dir(place.path("copy")).unwrap();
    let copy = place.path("copy");
    let ran = place.shared("rescue", "plan", &[copy.to_str().unwrap()]);
    assert_ne!(ran.code, 0);
    assert!(ran.err.contains("is no saved copy of a region"), "{}", ran.err);
    assert!(!place.path("plan").exists());
}

#[test]
fn impossible_regions_are_refused_and_not_created() {
    let place = SharedFixture::new();
    let list = place.path("spans");
    for (text, named) in [
        ("0 0 64\n1 32 64\n", "both cover"),
        ("0 0 64 64\n", "line 1"),
        ("0 65536 8\n", "beyond"),
    ] {
        fs::write(&list, text).unwrap();
        let refused = place.shared(
            "create",
            "plan",
            &["--size", "64KiB", "--spans", list.to_str().unwrap()],
        );
        assert!(
            refused.code == 1 && refused.err.contains(named),
            "{named}: {}",
            refused.err
        );
    }
    for (arguments, code) in [
        (&["--size", "1000"][..], 1),
        (&["--size", "64KiB", "--span-size", "12"], 2),
        (&["--size", "64KiB", "--address", "0x1001"], 1),
        (&["--size", "64KiB", "--rule", "most"], 2),
        (&[], 2),
    ] {
        let refused = place.shared("create", "plan", arguments);
        assert_eq!(refused.code, code, "{arguments:?}: {}", refused.err);
    }
    assert!(!place.path("plan").exists());
    let nothing = place.shared("status", "plan", &[]);
    assert!(
        nothing.code == 1 && nothing.err.contains("netram shared create"),
        "{}",
        nothing.err
    );
    fs::write(&list, "# two locks\n9 0 64\n2 64 0x40\n").unwrap();
    let made = place.shared(
        "create",
        "plan",
        &[
            "--size",
            "64KiB",
            "--log-size",
            "1MiB",
            "--spans",
            list.to_str().unwrap(),
        ],
    );
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(place.json("status", "plan")["locks"], 2);
    let again = place.made();
    assert!(
        again.code == 1 && again.err.contains("exists already"),
        "{}",
        again.err
    );
}
