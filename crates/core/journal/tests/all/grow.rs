//! Growing a journal's log on a real disk: no record from before or after is lost.

use crate::common::{TestJournal, commit, payloads};
use netram_journal::{Journal, JournalConfig, JournalGrowError, JournalLayout};
use netram_proto::journal::LogGrowError as Refusal;
use netram_proto::port::{AppendError, Durability, RecordLog};

const SMALL: u64 = 16 * 1024;
const LARGE: u64 = 256 * 1024;

fn trim_all(journal: &Journal) {
    journal.trim(journal.state().stable).unwrap();
}

#[test]
fn an_empty_log_grows_and_continues_at_its_lsn() {
    let place = TestJournal::new();
    let root = place.journal();
    Journal::create(&root, SMALL).unwrap();
    let alone = JournalConfig::default();
    let (journal, _) = place.open(alone.clone());
    for number in 0..40 {
        commit(&journal, &[number; 500], Durability::Disk);
        if number % 10 == 9 {
            trim_all(&journal);
        }
    }
    commit(&journal, b"still there", Durability::Disk);
    journal.close().unwrap();
    let refused = Journal::grow(&root, &alone, LARGE).unwrap_err();
    let not_empty = matches!(
        &refused,
        JournalGrowError::Refused {
            source: Refusal::NotEmpty { .. },
            ..
        }
    );
    assert!(not_empty, "{refused}");

    let (journal, _) = place.open(alone.clone());
    assert_eq!(payloads(&journal), [b"still there"], "a refusal loses nothing");
    trim_all(&journal);
    let tail = journal.state().tail;
    journal.close().unwrap();
    let grown = Journal::grow(&root, &alone, LARGE).unwrap();
    assert_eq!((grown.before, grown.after), (SMALL, LARGE));
    assert_eq!(root.join("log").metadata().unwrap().len(), 8192 + LARGE);

    let (journal, recovered) = place.open(alone.clone());
    assert_eq!((recovered.head, recovered.end), (tail, tail));
    assert_eq!(journal.state().capacity, LARGE);
    let mut kept = Vec::new();
    for number in 0..100 {
        commit(&journal, &[number; 2000], Durability::Remote);
        kept.push(vec![number; 2000]);
    }
    drop(journal);
    let (journal, _) = place.open(alone);
    assert_eq!(payloads(&journal), kept);
}

#[test]
fn an_open_journal_does_not_grow() {
    let place = TestJournal::new();
    let root = place.journal();
    Journal::create(&root, SMALL).unwrap();
    let alone = JournalConfig::default();
    let (journal, _) = place.open(alone.clone());
    let in_use = Journal::grow(&root, &alone, LARGE).unwrap_err();
    assert!(in_use.to_string().contains("in use"), "{in_use}");
    assert_eq!(root.join("log").metadata().unwrap().len(), 8192 + SMALL);
    journal.close().unwrap();
    Journal::grow(&root, &alone, LARGE).unwrap();
}

#[test]
fn a_smaller_or_impossible_size_is_refused_with_the_reason() {
    let place = TestJournal::new();
    let root = place.directory.path().join("bank.log");
    netram_journal::JournalPaths::of(&root, JournalLayout::Beside)
        .create(LARGE)
        .unwrap();
    let alone = JournalConfig::default();
    for (bytes, named) in [
        (SMALL, "a log cannot shrink"),
        (u64::MAX, "out of bounds"),
        (0, "out of bounds"),
    ] {
        let refused = Journal::grow(&root, &alone, bytes).unwrap_err().to_string();
        assert!(refused.contains(named), "{bytes}: {refused}");
        assert!(refused.contains("bank.log"), "{refused}");
    }
    let same = Journal::grow(&root, &alone, LARGE - 1).unwrap();
    assert_eq!(
        (same.before, same.after),
        (LARGE, LARGE),
        "rounded up to what it has"
    );
    let (journal, _) = Journal::open(&root, alone).unwrap();
    let full = (0..1000).find_map(|_| {
        journal
            .append(crate::common::KIND, 4000, &mut |into| into.fill(1))
            .err()
    });
    assert!(matches!(full, Some(AppendError::Full { capacity: LARGE, .. })));
}
