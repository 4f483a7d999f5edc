//! A store from creation to reopening, on real files and with a real lender.

use std::fs;
use std::path::Path;
use std::time::Duration;

use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, SegmentAllocation};
use netram_store::{JournalLayout, JournaledRvm, Store, StoreError, StoreSettings};
use netram_transport::Security;

const LOG_BYTES: u64 = 1 << 20;

fn commit(memory: &JournaledRvm, segment: &Path, value: u64) {
    let region = memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    let mut transaction = memory.begin(RestoreMode::Restore);
    transaction.set(&region, 8, &value).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

fn found(memory: &JournaledRvm, segment: &Path) -> u64 {
    let region = memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    region.get(8).unwrap()
}

#[test]
fn commits_survive_a_reopening_in_both_layouts() {
    for layout in [JournalLayout::Directory, JournalLayout::Beside] {
        let directory = tempfile::tempdir().unwrap();
        let (path, segment) = (
            directory.path().join("bank.log"),
            directory.path().join("bank.data"),
        );
        let store = Store::create(&path, layout, LOG_BYTES).unwrap();
        assert!(store.exists());
        let opened = store.open(&StoreSettings::default()).unwrap();
        opened
            .memory
            .create_segment(segment.to_str().unwrap(), 8192, SegmentAllocation::Sparse)
            .unwrap();
        commit(&opened.memory, &segment, 7);
        drop(opened);

        let opened = Store::at(&path).open(&StoreSettings::default()).unwrap();
        assert_eq!(found(&opened.memory, &segment), 7, "{layout:?}");
    }
}

#[test]
fn a_second_opening_is_refused_and_names_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(
        &directory.path().join("bank.log"),
        JournalLayout::Beside,
        LOG_BYTES,
    )
    .unwrap();
    let _opened = store.open(&StoreSettings::default()).unwrap();
    let refused = store.open(&StoreSettings::default()).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("process {}", std::process::id())),
        "{refused}"
    );
}

#[test]
fn a_missing_segment_table_is_refused_while_the_log_needs_it() {
    let directory = tempfile::tempdir().unwrap();
    let (path, segment) = (
        directory.path().join("bank.log"),
        directory.path().join("bank.data"),
    );
    let store = Store::create(&path, JournalLayout::Beside, LOG_BYTES).unwrap();
    fs::remove_file(store.segments()).unwrap();
    let opened = store.open(&StoreSettings::default()).unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, SegmentAllocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    drop(opened);
    fs::remove_file(store.segments()).unwrap();
    let refused = store.open(&StoreSettings::default()).unwrap_err();
    assert!(matches!(refused, StoreError::TableMissing { .. }), "{refused}");
}

#[test]
fn a_new_log_has_no_state_of_a_deleted_one() {
    let directory = tempfile::tempdir().unwrap();
    let (path, segment) = (
        directory.path().join("bank.log"),
        directory.path().join("bank.data"),
    );
    let store = Store::create(&path, JournalLayout::Beside, LOG_BYTES).unwrap();
    let opened = store.open(&StoreSettings::default()).unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, SegmentAllocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    drop(opened);
    fs::remove_file(&path).unwrap();

    let store = Store::create(&path, JournalLayout::Beside, LOG_BYTES).unwrap();
    let opened = store.open(&StoreSettings::default()).unwrap();
    // Transactions in the deleted log are lost, as with every log.
    assert_eq!(found(&opened.memory, &segment), 0);
}

#[test]
fn the_settings_beside_the_log_find_the_lender() {
    let directory = tempfile::tempdir().unwrap();
    let (path, segment) = (
        directory.path().join("bank.log"),
        directory.path().join("bank.data"),
    );
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = format!("unix:{}", directory.path().join("lend.sock").display());
    let _lender = Lender::start(LenderConfig {
        listen: vec![socket.parse().unwrap()],
        security: Security::Insecure,
        memory: 64 << 20,
        store: Some(memory.path().join("lent")),
        ..LenderConfig::default()
    })
    .unwrap();
    let store = Store::create(&path, JournalLayout::Beside, LOG_BYTES).unwrap();
    fs::write(
        store.settings_file(),
        format!("[journal]\nlenders = [\"{socket}\"]\ninsecure = true\none-domain = true\n"),
    )
    .unwrap();
    let opened = store.open(&store.settings().unwrap()).unwrap();
    opened
        .memory
        .log()
        .wait_for_members(Duration::from_secs(20))
        .unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, SegmentAllocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    assert_eq!(opened.memory.log().status().writer.blocked, None);
}
