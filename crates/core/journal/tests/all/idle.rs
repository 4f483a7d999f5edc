//! An idle journal becomes clean: it opens although all lenders are gone, and members count again once it is
//! written to.

use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig, JournalOpenError};
use netram_proto::journal::{RecoveryError, WriterTimings};
use netram_proto::port::{Durability, RecordLog};
use netram_proto::time::Nanos;

use crate::common::{TestJournal, append, commit, copy_of, payloads};

const LOG_BYTES: u64 = 4 << 20;

fn soon_idle(place: &TestJournal) -> JournalConfig {
    JournalConfig {
        timing: WriterTimings {
            idle: Nanos::from_ms(50),
            ..WriterTimings::default()
        },
        ..place.config(&["a"], 1)
    }
}

pub(crate) fn wait_until_clean(journal: &Journal) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !journal.status().writer.clean {
        assert!(Instant::now() < deadline, "the journal does not become clean");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Regression: after a power cut of client and lenders every journal refused, even one that had been idle for
/// hours.
#[test]
fn an_idle_journal_opens_although_all_lenders_lost_their_memory() {
    let place = TestJournal::new();
    let lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(soon_idle(&place));
    commit(&journal, b"long ago", Durability::Remote);
    wait_until_clean(&journal);
    let copy = copy_of(&place);
    drop((journal, lender));
    let (opened, recovered) = Journal::open(&copy, place.config(&["a"], 1)).unwrap();
    assert_eq!((recovered.needed, recovered.loss_accepted), (0, None));
    assert_eq!(payloads(&opened), [b"long ago"]);
}

/// The opposite case: a journal written to a moment before is refused, and the refusal states what is known.
#[test]
fn a_busy_journal_is_refused_without_its_members() {
    let place = TestJournal::new();
    let lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(60),
        ..place.config(&["a"], 1)
    };
    let (journal, _) = place.open(config);
    commit(&journal, b"a moment ago", Durability::Remote);
    let copy = copy_of(&place);
    drop((journal, lender));
    match Journal::open(&copy, place.config(&["a"], 1)).map(drop) {
        Err(JournalOpenError::Refused {
            refusal: RecoveryError::Missing { held_max: None, .. },
            ..
        }) => (),
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_count_again_after_the_first_append_and_an_idle_period_costs_two_views() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(soon_idle(&place));
    wait_until_clean(&journal);
    let mut before = journal.status().writer.version;
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(10);
        // The disk completes the commits that come before the view does.
        while !{
            let ticket = append(&journal, b"awake");
            journal.wait(ticket, Durability::Remote).unwrap();
            let status = journal.status().writer;
            !status.clean && status.blocked.is_none()
        } {
            assert!(Instant::now() < deadline, "members do not count again");
        }
        wait_until_clean(&journal);
        // Two views, and two more for each pause of a busy machine that counted as idle.
        let version = journal.status().writer.version;
        assert!(
            version > before && (version - before).is_multiple_of(2),
            "{before}, {version}"
        );
        before = version;
    }
    journal.close().unwrap();
}
