//! Creating a store again after an attempt that failed or was killed.

use std::fs;
use std::path::Path;

use netram_store::{JournalLayout, Store, StoreError, StoreSettings};

fn make(path: &Path) -> Result<Store, StoreError> {
    Store::create(path, JournalLayout::Directory, 1 << 20)
}

#[test]
fn an_empty_directory_and_one_with_settings_become_stores() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path())
        .unwrap()
        .open(&StoreSettings::default())
        .unwrap();
    make(directory.path()).expect_err("the store exists");
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("netram.toml"), "[journal]\nmembers = 0\n").unwrap();
    make(&other).unwrap();
    assert!(other.join("netram.toml").exists());
    // A directory with other files is not used for a store.
    let photos = directory.path().join("photos");
    fs::create_dir(&photos).unwrap();
    fs::write(photos.join("photo"), "").unwrap();
    make(&photos).expect_err("the directory is not empty");
    assert_eq!(fs::read_dir(&photos).unwrap().count(), 1);
}

/// At each point of a creation some files exist, but no log.
#[test]
fn a_killed_creation_can_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    for made in 0..4 {
        let path = directory.path().join(made.to_string());
        fs::create_dir(&path).unwrap();
        for name in ["lock", "data.key", "view", "log.new"].iter().take(made + 1) {
            fs::write(path.join(name), "half").unwrap();
        }
        make(&path).unwrap().open(&StoreSettings::default()).unwrap();
        assert!(!path.join("log.new").exists());
    }
}

/// A log whose directory has other files is lost, and is not replaced.
#[test]
fn a_lost_log_is_not_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    make(&path).unwrap();
    fs::remove_file(path.join("log")).unwrap();
    let before = fs::read(path.join("view")).unwrap();
    make(&path).expect_err("its view may name the lenders that have its records");
    assert_eq!(fs::read(path.join("view")).unwrap(), before);
}

#[test]
fn the_error_for_a_missing_lock_file_names_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let store = make(&directory.path().join("store")).unwrap();
    let lock = store.path().join("lock");
    fs::remove_file(&lock).unwrap();
    let said = store.open(&StoreSettings::default()).unwrap_err().to_string();
    assert!(
        said.contains("touch") && said.contains(lock.to_str().unwrap()),
        "{said}"
    );
    fs::write(&lock, "").unwrap();
    store.open(&StoreSettings::default()).unwrap();
}
