//! Copies of a home: opened beside or after its original, none puts old bytes over what the original has committed.
//!
//! A copied log directory named its original's segment by its full path, and opening it applied the copy's old records there:
//! a commit that had been acknowledged, applied and shown was gone.

use std::fs;
use std::path::Path;
use std::process::Command;

use netram_proto::port::Durability;
use netram_rvm::{Allocation, MapError, Mode, SegmentError};
use netram_store::{Home, HomeError, Layout, Memory, Settings};

/// A home called `name` in a folder, whose segment `data` lies where it is said.
fn home(folder: &Path, name: &str, data: &Path) -> Home {
    let home = Home::create(&folder.join(name), Layout::Directory, 1 << 20).unwrap();
    let opened = home.open(&Settings::default()).unwrap();
    let created = opened
        .memory
        .create_segment(text(data), 4096, Allocation::Preallocated);
    created.unwrap();
    close(opened.memory);
    home
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Commits, and ends as a process does that is killed.
fn put(home: &Home, data: &Path, value: u64) {
    let opened = home.open(&Settings::default()).unwrap();
    write(&opened.memory, data, value);
}

fn write(memory: &Memory, data: &Path, value: u64) {
    let region = memory.map(text(data), 0, 0).unwrap();
    let mut transaction = memory.begin(Mode::Restore);
    transaction.set(&region, 0, &value).unwrap();
    transaction.commit(Durability::Disk).unwrap();
}

fn close(memory: Memory) {
    let journal = memory.close().map_err(|(error, _)| error).unwrap();
    journal.close().unwrap();
}

fn got(home: &Home, data: &Path) -> u64 {
    let opened = home.open(&Settings::default()).unwrap();
    opened.memory.map(text(data), 0, 0).unwrap().get(0).unwrap()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_copied_home_with_its_segment_inside_is_a_home_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (store, backup) = (folder.path().join("store"), folder.path().join("backup"));
    let data = store.join("x.data");
    let home = home(folder.path(), "store", &data);
    put(&home, &data, 1);
    copy(&store, &backup);
    put(&home, &data, 2);
    assert_eq!(got(&home, &data), 2);
    let copied = Home::at(&backup);
    assert_eq!(got(&copied, &backup.join("x.data")), 1);
    put(&copied, &backup.join("x.data"), 3);
    assert_eq!(got(&home, &data), 2);
    assert_eq!(got(&copied, &backup.join("x.data")), 3);
}

#[test]
fn a_copied_home_with_its_segment_elsewhere_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (store, backup) = (folder.path().join("store"), folder.path().join("backup"));
    let data = folder.path().join("x.data");
    let home = home(folder.path(), "store", &data);
    put(&home, &data, 1);
    copy(&store, &backup);
    put(&home, &data, 2);
    let view = fs::read(backup.join("view")).unwrap();
    let original = fs::canonicalize(&store).unwrap();
    for step in ["the original is there", "the original was moved"] {
        let refused = Home::at(&backup).open(&Settings::default());
        let Err(HomeError::Older(error)) = refused.map(drop) else {
            panic!("{step}: not refused")
        };
        assert!(error.to_string().contains(text(&original)), "{step}: {error}");
        assert!(error.to_string().contains("x.data"), "{step}: {error}");
        assert!(
            fs::read(backup.join("view")).unwrap() == view,
            "{step}: the journal was claimed"
        );
        fs::rename(&store, folder.path().join("moved")).unwrap_or(());
    }
    assert_eq!(got(&Home::at(&folder.path().join("moved")), &data), 2);
    // By explicit word, and then for good.
    let settings = Settings {
        adopt_segments: true,
        ..Settings::default()
    };
    let opened = Home::at(&backup).open(&settings).unwrap();
    opened.memory.map(text(&data), 0, 0).unwrap();
    close(opened.memory);
    assert_eq!(got(&Home::at(&backup), &data), 1);
}

/// Log A commits and closes, log B takes the segment, A is opened again: B's bytes were gone.
#[test]
fn two_homes_take_turns_with_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("d.data");
    let a = home(folder.path(), "a", &data);
    let b = Home::create(&folder.path().join("b"), Layout::Directory, 1 << 20).unwrap();
    for (turn, home) in (1..).zip([&a, &b, &a, &b]) {
        let opened = home.open(&Settings::default()).unwrap();
        let region = opened.memory.map(text(&data), 0, 0).unwrap();
        assert_eq!(region.get::<u64>(0).unwrap(), turn - 1);
        drop(region);
        write(&opened.memory, &data, turn);
        close(opened.memory);
    }
    put(&a, &data, 5);
    let opened = b.open(&Settings::default()).unwrap();
    let refused = opened.memory.map(text(&data), 0, 0);
    let held = matches!(refused, Err(MapError::Segment(SegmentError::Held { .. })));
    assert!(held, "{refused:?}");
    drop(opened);
    // The remedy that the refusal names.
    close(a.open(&Settings::default()).unwrap().memory);
    assert_eq!(got(&b, &data), 5);
}

#[test]
fn a_home_is_moved_with_what_it_has_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let outside = folder.path().join("outside");
    let home = home(folder.path(), "old", &old.join("a.data"));
    let opened = home.open(&Settings::default()).unwrap();
    let created = opened
        .memory
        .create_segment(text(&outside), 4096, Allocation::Sparse);
    created.unwrap();
    write(&opened.memory, &old.join("a.data"), 1);
    write(&opened.memory, &outside, 2);
    drop(opened);
    fs::rename(&old, &new).unwrap();
    let moved = folder.path().join("elsewhere");
    fs::rename(&outside, &moved).unwrap();
    let home = Home::at(&new);
    let refused = home.open(&Settings::default()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("netram rvm relocate"), "{refused}");
    let relocated = home.relocate(text(&outside), text(&moved), false).unwrap();
    assert_eq!(relocated.len(), 1);
    assert_eq!(got(&home, &new.join("a.data")), 1);
    assert_eq!(got(&home, &moved), 2);
    let unknown = home.relocate("/nowhere", text(&moved), false).unwrap_err();
    assert!(unknown.to_string().contains("/nowhere"), "{unknown}");
}
