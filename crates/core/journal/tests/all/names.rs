//! A lender's identity is its memory, not its address: under two addresses it is one copy, and a moved one is
//! found.

use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig, UncountedReason};
use netram_proto::journal::DiskWaitReason;
use netram_proto::port::{Durability, RecordLog};

use crate::common::{TestJournal, append, commit, copy_of, payloads};

const LOG_BYTES: u64 = 4 << 20;

/// Regression: both addresses became members. The second join emptied the first one's window, so no byte was
/// ever held by both. Every commit waited for the disk, and the status showed two healthy members.
#[test]
fn one_lender_under_two_addresses_is_one_member() {
    let place = TestJournal::new();
    let _lender = place.lender_at("a", &["a", "also-a"]);
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = place.config(&["a", "also-a"], 2);
    let (journal, _) = Journal::open(&place.journal(), config).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_seen = || {
        let status = journal.status().writer;
        status.copies.have == 1 && status.lenders.iter().any(|lender| lender.alias_of.is_some())
    };
    while !is_seen() {
        assert!(Instant::now() < deadline, "{:?}", journal.status().writer);
        std::thread::sleep(Duration::from_millis(5));
    }
    let why = journal.wait_for_members(Duration::from_millis(200)).unwrap_err();
    assert_eq!(why.blocked, DiskWaitReason::TooFewMembers { have: 1, min: 2 });
    let [(_, UncountedReason::AliasOf(_))] = &why.lenders[..] else {
        panic!("{why:?}")
    };
    assert!(
        why.to_string().contains("it is the same lender as the one at"),
        "{why}"
    );
    let copies = journal.status().writer.copies.to_string();
    assert_eq!(copies, "1 of 2 copies, 1 domain");
}

#[test]
fn another_lender_takes_the_place_of_an_alias_and_members_commit() {
    let place = TestJournal::new();
    let _lenders = [place.lender_at("a", &["a", "also-a"]), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(60),
        ..place.config(&["a", "also-a", "b"], 2)
    };
    let (journal, _) = place.open(config);
    for _ in 0..100 {
        let ticket = append(&journal, b"at two lenders");
        let votes = journal.wait(ticket, Durability::Remote).unwrap();
        assert_eq!((votes.members, votes.rule), (2, true));
    }
    assert_eq!(journal.status().writer.copies.to_string(), "2 copies, 1 domain");
}

/// Regression: only the address in the view was asked, so recovery refused although the lender had the bytes
/// at a new address.
#[test]
fn a_member_that_moved_is_found_by_the_addresses_of_the_settings() {
    let place = TestJournal::new();
    let _lenders = [place.lender_at("a", &["a", "moved"]), place.lender("spare")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(60),
        ..place.config(&["a"], 1)
    };
    let (journal, _) = place.open(config);
    commit(&journal, b"in memory only", Durability::Remote);
    let copy = copy_of(&place);
    std::fs::remove_file(place.directory.path().join("a.sock")).unwrap();
    let config = place.config(&["spare", "moved"], 1);
    let (newer, recovered) = Journal::open(&copy, config).unwrap();
    assert_eq!(recovered.records_from_members, 1);
    assert!(
        recovered.members[0].0.contains("moved"),
        "{:?}",
        recovered.members
    );
    assert_eq!(payloads(&newer), [b"in memory only"]);
}
