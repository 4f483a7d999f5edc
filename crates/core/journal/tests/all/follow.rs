//! A journal that follows another, by raw bytes of its log.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::{TestJournal, append, commit, payloads};
use netram_journal::paths::{JournalLayout, JournalPaths as JournalPlace};
use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalConfig, JournalFollower, JournalInit, LogBlocks};
use netram_proto::id::Lsn;
use netram_proto::journal::{SlotPair, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::{Durability, LogError, Record, RecordLog};

const LOG_BYTES: u64 = 1 << 20;

/// A journal with records of many sizes, all stable, and an empty follower of it.
fn pair(place: &TestJournal) -> (Journal, PathBuf) {
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&[], 0));
    for length in 0..200 {
        append(&journal, &vec![length as u8; length * 7]);
    }
    commit(&journal, b"the last", Durability::Disk);
    let key = JournalPlace::of(&place.journal(), JournalLayout::Directory).key();
    let head = journal.state().head;
    let parts = JournalInit {
        journal: journal.id(),
        log_bytes: LOG_BYTES,
        key: DataKey::from_bytes(*DataKey::load(&key).unwrap().as_bytes()),
        view: View::first(journal.id()),
        start: journal.link_at(head).unwrap(),
        blocks: LogBlocks::AsNeeded,
    };
    let root = place.directory.path().join("follower");
    JournalFollower::create(&root, &parts).unwrap();
    (journal, root)
}

/// Sends the follower the bytes that it lacks up to `end`, in pieces that split records, and makes them
/// durable.
fn ship(journal: &Journal, follower: &JournalFollower, end: Lsn) {
    let mut at = follower.end().lsn;
    let mut bytes = [0; 1000];
    while at < end {
        let wanted = bytes.len().min(end.since(at) as usize);
        let count = journal.read_raw(at, &mut bytes[..wanted]).unwrap();
        follower.write(at, &bytes[..count]).unwrap();
        at = at.plus(count as u64);
    }
    follower.flush(journal.link_at(end).unwrap()).unwrap();
}

fn followed(follower: &JournalFollower) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut each = |record: Record<'_>| {
        found.push(record.payload.to_vec());
        true
    };
    follower.read(follower.head().lsn, &mut each).unwrap();
    found
}

#[test]
fn a_followed_journal_opens_like_the_original() {
    let place = TestJournal::new();
    let (journal, root) = pair(&place);
    let follower = JournalFollower::open(&root).unwrap();
    ship(&journal, &follower, journal.state().stable);
    assert_eq!(followed(&follower), payloads(&journal));
    // More than one lap of the ring, with a moving head.
    for round in 0..40u8 {
        for _ in 0..10 {
            append(&journal, &[round; 5000]);
        }
        commit(&journal, &[round], Durability::Disk);
        ship(&journal, &follower, journal.state().stable);
        let stable = journal.state().stable;
        assert_eq!(follower.state().stable, stable);
        if round % 5 == 0 {
            journal.trim(stable).unwrap();
            follower.trim(stable).unwrap();
        }
    }
    let gone = journal.read_raw(Lsn(0), &mut [0; 8]);
    assert_eq!(gone, Err(LogError::OutOfRange(Lsn(0))));
    let expected = payloads(&journal);
    assert_eq!(expected.len(), 44);
    assert_eq!(followed(&follower), expected);
    drop(follower);
    let (taken, recovered) = Journal::open(&root, JournalConfig::default()).unwrap();
    assert_eq!(payloads(&taken), expected);
    assert_eq!(recovered.epoch.0, 1, "the view was the first one's");
}

#[test]
fn unflushed_bytes_are_sent_again_and_are_not_taken_for_damage() {
    let place = TestJournal::new();
    let (journal, root) = pair(&place);
    let follower = JournalFollower::open(&root).unwrap();
    let half = journal.state().stable;
    ship(&journal, &follower, half);
    for _ in 0..3 {
        commit(&journal, &[1; 3000], Durability::Disk);
    }
    // A power cut: of the unsynced bytes the disk has only the later part. The writer had synced the earlier
    // one before, and its later records say so.
    let mut bytes = vec![0; 1 << 16];
    let count = journal.read_raw(half, &mut bytes).unwrap();
    drop(follower);
    let log = std::fs::OpenOptions::new()
        .write(true)
        .open(root.join("log"))
        .unwrap();
    let data = SlotPair::bytes(SLOT_BYTES);
    log.write_all_at(&bytes[100..count], data + half.0 + 100).unwrap();
    let follower = JournalFollower::open(&root).unwrap();
    assert_eq!(follower.end(), journal.link_at(half).unwrap());
    drop(follower);
    let (taken, _) = Journal::open(&root, JournalConfig::default()).expect("no durable record is damaged");
    assert_eq!(payloads(&taken).len(), 201);
}

#[test]
fn a_restarted_log_holds_no_record_of_the_earlier_one() {
    let place = TestJournal::new();
    let (journal, root) = pair(&place);
    let follower = JournalFollower::open(&root).unwrap();
    let end = journal.state().stable;
    ship(&journal, &follower, end);
    let start = journal.link_at(journal.state().head).unwrap();
    follower.restart(start).unwrap();
    assert!(followed(&follower).is_empty());
    drop(follower);
    let follower = JournalFollower::open(&root).unwrap();
    assert_eq!((follower.head(), follower.end()), (start, start));
    ship(&journal, &follower, end);
    assert_eq!(followed(&follower), payloads(&journal));
}

#[test]
fn a_follower_has_one_owner_and_no_writer() {
    let place = TestJournal::new();
    let (_journal, root) = pair(&place);
    let follower = JournalFollower::open(&root).unwrap();
    assert!(JournalFollower::open(&root).is_err());
    assert!(Journal::open(&root, JournalConfig::default()).is_err());
    assert!(follower.append(crate::common::KIND, 1, &mut |_| ()).is_err());
}

/// Regression: damage below the durable end was taken for the end of the log, and the replica went on as if
/// it were whole.
#[test]
fn damage_below_the_durable_end_is_reported_and_the_bytes_behind_it_are_kept() {
    let place = TestJournal::new();
    let (journal, root) = pair(&place);
    let follower = JournalFollower::open(&root).unwrap();
    let stable = journal.state().stable;
    ship(&journal, &follower, stable);
    let (head, end) = (follower.head().lsn, follower.end());
    // Storing the superblock records how far the log is durable.
    follower.trim(head).unwrap();
    drop(follower);
    let log = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(JournalPlace::of(&root, JournalLayout::Directory).log())
        .unwrap();
    let mut before = vec![0; log.metadata().unwrap().len() as usize];
    log.read_exact_at(&mut before, 0).unwrap();
    let wrong = before.len() - LOG_BYTES as usize + stable.0 as usize / 2;
    before[wrong] ^= 1;
    log.write_all_at(&before[wrong..=wrong], wrong as u64).unwrap();
    for _ in 0..2 {
        let follower = JournalFollower::open(&root).unwrap();
        assert_eq!(follower.damaged_below(), Some(stable));
        assert!(follower.end().lsn < stable);
        drop(follower);
        let mut after = vec![0; before.len()];
        log.read_exact_at(&mut after, 0).unwrap();
        assert!(before == after, "no byte changed");
    }
    let follower = JournalFollower::open(&root).unwrap();
    follower.restart(end).unwrap();
    drop(follower);
    assert_eq!(JournalFollower::open(&root).unwrap().damaged_below(), None);
}
