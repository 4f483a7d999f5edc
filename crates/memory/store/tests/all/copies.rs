//! Copies of a store, opened beside or after the original: none overwrites bytes that the original has
//! committed.
//!
//! Regression: a copied log directory had the full path of its original's segment, and opening it applied the
//! copy's old records there. A commit that was acknowledged, applied and visible was lost.

use std::fs;
use std::path::Path;
use std::process::Command;

use netram_proto::port::Durability;
use netram_rvm::{MapError, RestoreMode, SegmentAllocation, SegmentError};
use netram_store::{JournalLayout, JournaledRvm, Store, StoreError, StoreSettings};

/// A store `name` in a directory, with its segment in the file `data`.
fn new_store(directory: &Path, name: &str, data: &Path) -> Store {
    let store = Store::create(&directory.join(name), JournalLayout::Directory, 1 << 20).unwrap();
    let opened = store.open(&StoreSettings::default()).unwrap();
    let created = opened
        .memory
        .create_segment(text(data), 4096, SegmentAllocation::Preallocated);
    created.unwrap();
    close(opened.memory);
    store
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Commits, and ends like a process that is killed.
fn put(store: &Store, data: &Path, value: u64) {
    let opened = store.open(&StoreSettings::default()).unwrap();
    write(&opened.memory, data, value);
}

fn write(memory: &JournaledRvm, data: &Path, value: u64) {
    let region = memory.map(text(data), 0, 0).unwrap();
    let mut transaction = memory.begin(RestoreMode::Restore);
    transaction.set(&region, 0, &value).unwrap();
    transaction.commit(Durability::Disk).unwrap();
}

fn close(memory: JournaledRvm) {
    let journal = memory.close().map_err(|(error, _)| error).unwrap();
    journal.close().unwrap();
}

fn got(store: &Store, data: &Path) -> u64 {
    let opened = store.open(&StoreSettings::default()).unwrap();
    opened.memory.map(text(data), 0, 0).unwrap().get(0).unwrap()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_copied_store_with_its_segment_inside_is_a_store_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (path, backup) = (directory.path().join("store"), directory.path().join("backup"));
    let data = path.join("x.data");
    let store = new_store(directory.path(), "store", &data);
    put(&store, &data, 1);
    copy(&path, &backup);
    put(&store, &data, 2);
    assert_eq!(got(&store, &data), 2);
    let copied = Store::at(&backup);
    assert_eq!(got(&copied, &backup.join("x.data")), 1);
    put(&copied, &backup.join("x.data"), 3);
    assert_eq!(got(&store, &data), 2);
    assert_eq!(got(&copied, &backup.join("x.data")), 3);
}

#[test]
fn a_copied_store_with_its_segment_elsewhere_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, backup) = (directory.path().join("store"), directory.path().join("backup"));
    let data = directory.path().join("x.data");
    let store = new_store(directory.path(), "store", &data);
    put(&store, &data, 1);
    copy(&path, &backup);
    put(&store, &data, 2);
    let view = fs::read(backup.join("view")).unwrap();
    let original = fs::canonicalize(&path).unwrap();
    for step in ["the original is there", "the original was moved"] {
        let refused = Store::at(&backup).open(&StoreSettings::default());
        let Err(StoreError::Older(error)) = refused.map(drop) else {
            panic!("{step}: opened without an error")
        };
        assert!(error.to_string().contains(text(&original)), "{step}: {error}");
        assert!(error.to_string().contains("x.data"), "{step}: {error}");
        assert!(
            fs::read(backup.join("view")).unwrap() == view,
            "{step}: the journal was claimed"
        );
        fs::rename(&path, directory.path().join("moved")).unwrap_or(());
    }
    assert_eq!(got(&Store::at(&directory.path().join("moved")), &data), 2);
    // With `adopt_segments`, and then permanently.
    let settings = StoreSettings {
        adopt_segments: true,
        ..StoreSettings::default()
    };
    let opened = Store::at(&backup).open(&settings).unwrap();
    opened.memory.map(text(&data), 0, 0).unwrap();
    close(opened.memory);
    assert_eq!(got(&Store::at(&backup), &data), 1);
}

/// Regression: log A commits and closes, log B takes the segment, A is opened again, and B's bytes were lost.
#[test]
fn two_stores_take_turns_with_a_segment() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("d.data");
    let a = new_store(directory.path(), "a", &data);
    let b = Store::create(&directory.path().join("b"), JournalLayout::Directory, 1 << 20).unwrap();
    for (turn, store) in (1..).zip([&a, &b, &a, &b]) {
        let opened = store.open(&StoreSettings::default()).unwrap();
        let region = opened.memory.map(text(&data), 0, 0).unwrap();
        assert_eq!(region.get::<u64>(0).unwrap(), turn - 1);
        drop(region);
        write(&opened.memory, &data, turn);
        close(opened.memory);
    }
    put(&a, &data, 5);
    let opened = b.open(&StoreSettings::default()).unwrap();
    let refused = opened.memory.map(text(&data), 0, 0);
    let held = matches!(
        refused,
        Err(MapError::Segment(SegmentError::OwnedByOtherLog { .. }))
    );
    assert!(held, "{refused:?}");
    drop(opened);
    // The remedy that the error names.
    close(a.open(&StoreSettings::default()).unwrap().memory);
    assert_eq!(got(&b, &data), 5);
}

#[test]
fn a_moved_store_keeps_the_records_in_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    let outside = directory.path().join("outside");
    let store = new_store(directory.path(), "old", &old.join("a.data"));
    let opened = store.open(&StoreSettings::default()).unwrap();
    let created = opened
        .memory
        .create_segment(text(&outside), 4096, SegmentAllocation::Sparse);
    created.unwrap();
    write(&opened.memory, &old.join("a.data"), 1);
    write(&opened.memory, &outside, 2);
    drop(opened);
    fs::rename(&old, &new).unwrap();
    let moved = directory.path().join("elsewhere");
    fs::rename(&outside, &moved).unwrap();
    let store = Store::at(&new);
    let refused = store
        .open(&StoreSettings::default())
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("netram rvm relocate"), "{refused}");
    let relocated = store.relocate(text(&outside), text(&moved), false).unwrap();
    assert_eq!(relocated.len(), 1);
    assert_eq!(got(&store, &new.join("a.data")), 1);
    assert_eq!(got(&store, &moved), 2);
    let unknown = store.relocate("/nowhere", text(&moved), false).unwrap_err();
    assert!(unknown.to_string().contains("/nowhere"), "{unknown}");
}
