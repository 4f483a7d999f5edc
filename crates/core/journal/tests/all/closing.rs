//! Closing a journal takes effect at once, whatever its threads are doing.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{TestJournal, commit};
use netram_journal::Journal;
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;

/// Regression: a journal closed while it connected to a lender kept its lock until the attempt ended, three
/// seconds later. Its own process was told that the journal was in use by itself.
#[test]
fn a_closed_journal_can_be_opened_while_a_connection_attempt_lasts() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    // The listener accepts and then stays silent, so the handshake waits.
    let silent = UnixListener::bind(place.directory.path().join("silent.sock")).unwrap();
    let config = place.config(&["silent"], 1);
    let (journal, _) = Journal::open(&place.journal(), config.clone()).unwrap();
    let (_waiting, _) = silent.accept().unwrap();
    commit(&journal, b"by the disk", Durability::Remote);
    journal.close().unwrap();
    let (journal, recovered) = Journal::open(&place.journal(), config).unwrap();
    assert!(recovered.end > recovered.head);
    // Dropping closes, too.
    let (_waiting_too, _) = silent.accept().unwrap();
    drop(journal);
    netram_journal::JournalInspector::open(&place.journal())
        .map(|seen| assert!(!seen.in_use()))
        .unwrap();
}

/// The lender has a window of an earlier opening, and the journal is closed before there is a link to it.
#[test]
fn a_journal_closed_right_after_its_opening_tells_its_lender() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    for round in 0..5 {
        let lender = place.lender("a");
        let (journal, _) = place.open(place.config(&["a"], 1));
        commit(&journal, b"by the lender", Durability::Remote);
        // The lender's memory stays, and it is unreachable when the journal is closed.
        drop(lender);
        journal.close().unwrap();
        let lender = place.lender("a");
        assert_eq!(lender.report().journals_used, 1, "round {round}");
        let (journal, _) = Journal::open(&place.journal(), place.config(&["a"], 1)).unwrap();
        journal.close().unwrap();
        nothing_is_left(&lender);
    }
}

/// A lender that can remember `journals_max` journals.
fn small(place: &TestJournal, journals_max: u32) -> Lender {
    let config = LenderConfig {
        listen: vec![place.address("small")],
        security: place.security.clone(),
        memory: 64 << 20,
        journals_max,
        store: Some(place.directory.path().join("small.mem")),
        ..LenderConfig::default()
    };
    Lender::start(config).unwrap()
}

/// Runs programs that each create a journal, commit at the lender, close the journal and remove its
/// directory, repeatedly.
fn come_and_go(place: &TestJournal, programs: usize, rounds: u32) {
    std::thread::scope(|scope| {
        for program in 0..programs {
            let root = place.directory.path().join(format!("journal-{program}"));
            scope.spawn(move || {
                for round in 0..rounds {
                    comes_and_goes(place, &root, round);
                }
            });
        }
    });
}

fn comes_and_goes(place: &TestJournal, root: &Path, round: u32) {
    Journal::create(root, 16 << 10).unwrap();
    let (journal, _) = Journal::open(root, place.config(&["small"], 1)).unwrap();
    journal
        .wait_for_members(Duration::from_secs(5))
        .unwrap_or_else(|error| panic!("round {round}: {error}"));
    commit(&journal, b"by the lender", Durability::Remote);
    journal.close().unwrap();
    std::fs::remove_dir_all(root).unwrap();
}

/// Waits until the lender has been told that the last journal was closed, and remembers none.
fn nothing_is_left(lender: &Lender) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while lender.report().journals_used > 0 {
        assert!(Instant::now() < deadline, "{:?}", lender.report());
    }
    assert_eq!(lender.report().memory.used, 0);
}

/// Regression: each journal took a slot for the life of the lender's memory, so there could be only 1,024
/// (case 4).
#[test]
fn journals_that_come_and_go_leave_nothing_at_their_lender() {
    let place = TestJournal::new();
    let lender = small(&place, 12);
    come_and_go(&place, 4, 25);
    nothing_is_left(&lender);
}

#[test]
#[ignore = "ten minutes: cargo test -p netram-journal --release --test all closing:: -- --ignored"]
fn a_hundred_thousand_journals_leave_nothing_at_their_lender() {
    let place = TestJournal::new();
    let lender = small(&place, 100);
    come_and_go(&place, 25, 4000);
    nothing_is_left(&lender);
}
