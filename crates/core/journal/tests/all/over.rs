//! Deleted journals: which lenders learn of it, and when.

use std::path::Path as FilePath;
use std::time::Duration;

use crate::common::{TestJournal, commit, copy_of};
use netram_journal::forget::{ForgetList, JournalDeletion, PATIENCE, WindowRelease};
use netram_journal::{Journal, JournalConfig, JournalDeleteError, JournalPaths as JournalPlace};
use netram_proto::port::Durability;

/// A journal that was cut off with bytes at the lender `a` and that no process has open. Its directory is
/// `copy`.
fn cut_off(place: &TestJournal) -> JournalPlace {
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(3600),
        ..place.config(&["a"], 1)
    };
    let (journal, _) = place.open(config);
    commit(&journal, b"at the lender alone", Durability::Remote);
    let copy = copy_of(place);
    // Its threads run until the test ends, without their lender.
    let _running = std::mem::ManuallyDrop::new(journal);
    JournalPlace::at(&copy)
}

/// Begins a deletion after which the lenders free everything.
fn begin(
    list: &ForgetList,
    place: &TestJournal,
    journal: &JournalPlace,
    key: Option<&FilePath>,
) -> JournalDeletion {
    begin_with(list, place, journal, key, WindowRelease::All)
}

fn begin_with(
    list: &ForgetList,
    place: &TestJournal,
    journal: &JournalPlace,
    key: Option<&FilePath>,
    windows: WindowRelease,
) -> JournalDeletion {
    let lenders = [place.address("a")];
    JournalDeletion::begin(
        Some(list.clone()),
        journal.root(),
        std::slice::from_ref(journal),
        windows,
        &lenders,
        key,
    )
    .unwrap()
}

fn paths_and_list() -> (TestJournal, ForgetList) {
    let place = TestJournal {
        security: netram_transport::Security::Insecure,
        ..TestJournal::new()
    };
    let list = ForgetList::at(place.directory.path().join("state/over"));
    (place, list)
}

fn files(place: &TestJournal) -> Vec<String> {
    let entries = std::fs::read_dir(place.directory.path().join("state/over"));
    let names = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// Starts the lender `a` at another address, as the list knows it. The original's process would join its
/// window again, so it must not find the lender at the old one.
fn moved(place: &TestJournal) -> netram_lender::Lender {
    std::fs::remove_file(place.directory.path().join("a.sock")).ok();
    let lender = place.lender_at("a", &["b"]);
    for entry in std::fs::read_dir(place.directory.path().join("state/over")).unwrap() {
        let entry = entry.unwrap().path();
        let moved = std::fs::read_to_string(&entry)
            .unwrap()
            .replace("a.sock", "b.sock");
        std::fs::write(&entry, moved).unwrap();
    }
    lender
}

#[test]
fn an_unreachable_lender_is_told_later_and_frees_window_and_slot() {
    let (place, list) = paths_and_list();
    let lender = place.lender("a");
    let journal = cut_off(&place);
    drop(lender);
    let deleting = begin(&list, &place, &journal, None);
    std::fs::remove_dir_all(journal.root()).unwrap();
    let untold = deleting.done(PATIENCE);
    assert_eq!(untold.len(), 1, "{untold:?}");
    assert!(files(&place)[0].ends_with(".over"));
    let lender = moved(&place);
    let report = lender.report();
    assert!(report.memory.used > 0 && report.journals_used == 1);
    assert_eq!(list.tell(PATIENCE), []);
    let report = lender.report();
    assert_eq!((report.memory.used, files(&place)), (0, Vec::new()));
    let deadline = std::time::Instant::now() + PATIENCE;
    while lender.report().journals_used > 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", lender.report());
    }
}

/// A deleted directory may be a copy, whose original was killed and needs its lenders to open. A journal
/// whose view cannot be read at the moment is not deleted either.
#[test]
fn a_journal_that_counts_on_lenders_is_not_deleted() {
    let (place, list) = paths_and_list();
    let lender = place.lender("a");
    let copy = cut_off(&place);
    let refused = copy.delete(Some(list.clone()), WindowRelease::Logged, &[], None);
    assert!(
        matches!(refused, Err(JournalDeleteError::NotClosed(_))),
        "{refused:?}"
    );
    let aside = copy.root().with_extension("view");
    std::fs::rename(copy.view(), &aside).unwrap();
    std::fs::create_dir(copy.view()).unwrap();
    let refused = copy.delete(Some(list.clone()), WindowRelease::Logged, &[], None);
    assert!(
        matches!(refused, Err(JournalDeleteError::Journal(_))),
        "{refused:?}"
    );
    std::fs::remove_dir(copy.view()).unwrap();
    std::fs::rename(&aside, copy.view()).unwrap();
    assert!(copy.log().exists() && copy.view().exists() && files(&place).is_empty());
    assert!(lender.report().memory.used > 0);
}

/// The copy was made while the journal was clean, so it needs no lender. The original then continued in the
/// same epoch and was killed.
#[test]
fn a_lender_keeps_what_the_deleted_copy_lacked() {
    let (place, list) = paths_and_list();
    let lender = place.lender("a");
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let mut config = place.config(&["a"], 1);
    config.timing.idle = netram_proto::time::Nanos::from_ms(50);
    config.disk_delay = Duration::from_secs(3600);
    let (journal, _) = place.open(config.clone());
    // The disk gets this record and, after the copy, no other: else the journal may soon be clean again.
    commit(&journal, b"of both", Durability::Disk);
    crate::idle::wait_until_clean(&journal);
    let copy = JournalPlace::at(&copy_of(&place));
    commit(&journal, b"of the original alone", Durability::Remote);
    drop(lender);
    let _running = std::mem::ManuallyDrop::new(journal);
    // The lender is told later, and so a second time.
    let untold = copy
        .delete(Some(list.clone()), WindowRelease::Logged, &[], None)
        .unwrap();
    assert_eq!((untold.len(), untold[0].bytes_held), (1, None));
    let lender = moved(&place);
    for _ in 0..2 {
        let untold = list.tell(PATIENCE);
        assert_eq!(untold.len(), 1);
        assert!(untold[0].bytes_held > Some(20), "{untold:?}");
        assert!(lender.report().memory.used > 0);
    }
}

/// The journal may be opened again if the deletion was interrupted before everything was removed, so no
/// lender may have been told.
#[test]
fn an_interrupted_deletion_loses_no_byte_until_it_is_completed() {
    let (place, list) = paths_and_list();
    let lender = place.lender("a");
    let journal = cut_off(&place);
    drop(begin(&list, &place, &journal, None));
    assert!(files(&place)[0].ends_with(".deleting"));
    assert_eq!(list.tell(PATIENCE), []);
    assert!(lender.report().memory.used > 0);
    // The second attempt finds a directory without a log, and the third without a view; the end of the log is
    // known nevertheless.
    let text = || {
        let entry = std::fs::read_dir(place.directory.path().join("state/over")).unwrap();
        std::fs::read_to_string(entry.last().unwrap().unwrap().path()).unwrap()
    };
    let before = text();
    for gone in [journal.log(), journal.view()] {
        std::fs::remove_file(gone).unwrap();
        drop(begin_with(&list, &place, &journal, None, WindowRelease::Logged));
        assert_eq!(text(), before);
    }
    let deleting = begin(&list, &place, &journal, None);
    std::fs::remove_dir_all(journal.root()).unwrap();
    let untold = deleting.done(Duration::from_millis(300));
    // The original's process is still connected, so the lender keeps the window.
    assert_eq!(untold.len(), 1);
    assert!(lender.report().memory.used > 0);
}

/// Regression: after the last file was removed and before any lender was told, a second attempt called it no
/// journal, and the lenders kept everything.
#[test]
fn a_deletion_interrupted_after_its_last_file_tells_lenders_when_repeated() {
    for directory_is_left in [true, false] {
        let (place, list) = paths_and_list();
        let lender = place.lender("a");
        let journal = cut_off(&place);
        drop(lender);
        drop(begin(&list, &place, &journal, None));
        std::fs::remove_dir_all(journal.root()).unwrap();
        if directory_is_left {
            std::fs::create_dir(journal.root()).unwrap();
        }
        let again = JournalPlace::at(journal.root());
        let untold = again
            .delete(Some(list.clone()), WindowRelease::Logged, &[], None)
            .unwrap();
        assert_eq!(untold.len(), 1, "the lender is unreachable");
        assert!(files(&place)[0].ends_with(".over"));
        assert!(!journal.root().exists());
        let none = again.delete(Some(list), WindowRelease::Logged, &[], None);
        assert!(
            matches!(none, Err(JournalDeleteError::NoJournal { .. })),
            "{none:?}"
        );
    }
}

#[test]
fn a_journal_unknown_to_lenders_leaves_no_entry() {
    let (place, list) = paths_and_list();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let journal = JournalPlace::at(&place.journal());
    let deleting = begin(&list, &place, &journal, None);
    assert_eq!((deleting.done(PATIENCE), files(&place)), (Vec::new(), Vec::new()));
}

#[test]
fn without_its_key_no_lender_is_told_and_the_entry_stays() {
    let (place, list) = paths_and_list();
    let lender = place.lender("a");
    let journal = cut_off(&place);
    let deleting = begin(&list, &place, &journal, Some(FilePath::new("/nowhere/key")));
    std::fs::remove_dir_all(journal.root()).unwrap();
    assert_eq!(deleting.done(PATIENCE).len(), 1);
    assert!(lender.report().memory.used > 0);
}
