//! Lenders, rule and number of members of an open journal change, by calls and by orders of other processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netram_journal::orders::{JournalOrder, MembershipReport, OrderError, open_journals, order};
use netram_journal::{Journal, JournalConfig, Membership, MembershipChangeError};
use netram_lender::Lender;
use netram_proto::journal::{CommitRule, MembershipError};
use netram_proto::port::{Durability, RecordLog};
use netram_transport::Security;

use crate::common::{TestJournal, append, commit, payloads};

const LOG_BYTES: u64 = 8 << 20;
/// Their records fit into the log.
const COMMITS_MAX: u64 = 40_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn membership(place: &TestJournal, names: &[&str], rule: CommitRule, members: usize) -> Membership {
    Membership {
        lenders: names.iter().map(|name| place.address(name)).collect(),
        rule,
        members,
        members_min: None,
    }
}

fn wait_until_settled(journal: &Journal) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = journal.status().writer;
        if status.settled && status.lenders.iter().all(|lender| !lender.removed) {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn members(journal: &Journal) -> Vec<String> {
    let lenders = journal.status().writer.lenders.into_iter();
    let members = lenders.filter(|lender| lender.member);
    members.map(|lender| lender.address).collect()
}

fn ask(place: &TestJournal, wish: &JournalOrder) -> Result<MembershipReport, OrderError> {
    order(&place.journal(), wish).map(|report| report.expect("the journal is open"))
}

/// Number of journals with a window at a lender.
fn windows(lender: &Lender) -> usize {
    let journals = lender.report().journals;
    journals.iter().filter(|journal| journal.window_bytes > 0).count()
}

#[test]
fn lenders_join_and_leave_while_commits_go_on() {
    let place = TestJournal::new();
    let lenders: Vec<Lender> = ["a", "b", "c"].iter().map(|name| place.lender(name)).collect();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    let ends = AtomicBool::new(false);
    let steps = [
        (vec!["a", "b"], CommitRule::All, 2),
        (vec!["a", "b", "c"], CommitRule::AtLeast(2), 3),
        (vec!["b", "c"], CommitRule::AtLeast(2), 2),
        (vec!["b", "c"], CommitRule::Any, 2),
        (vec!["c", "a"], CommitRule::Any, 2),
        (vec!["a"], CommitRule::All, 1),
    ];
    let written = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut written = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                // The records are checked at the end, so nothing is trimmed, and the log is not endless.
                if written < COMMITS_MAX {
                    commit(&journal, &written.to_le_bytes(), Durability::Remote);
                    written += 1;
                }
                if written.is_multiple_of(1000) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            written
        });
        for (names, rule, count) in steps {
            let wish = membership(&place, &names, rule, count);
            journal.change_membership(&wish).unwrap();
            wait_until_settled(&journal);
            assert!(journal.membership().is_same(&wish));
            let mut expected: Vec<String> = wish.lenders.iter().map(ToString::to_string).collect();
            let mut found = members(&journal);
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
            assert_eq!(journal.status().writer.rule, rule);
        }
        ends.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    // What is not on the disk yet cannot be read.
    commit(&journal, &written.to_le_bytes(), Durability::Disk);
    let found = payloads(&journal);
    let expected: Vec<Vec<u8>> = (0..=written).map(|one| one.to_le_bytes().to_vec()).collect();
    assert!(found == expected, "{} of {} records", found.len(), expected.len());
    let deadline = Instant::now() + PATIENCE;
    while lenders.iter().map(windows).ne([1, 0, 0]) {
        assert!(Instant::now() < deadline, "removed lenders free their windows");
        std::thread::sleep(Duration::from_millis(5));
    }
    journal.close().unwrap();
}

#[test]
fn another_process_gives_orders_and_hears_refusals() {
    let place = TestJournal::new();
    let _lenders: Vec<Lender> = ["a", "b"].iter().map(|name| place.lender(name)).collect();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let closed = order(&place.journal(), &JournalOrder::Status).unwrap();
    assert!(closed.is_none());
    let (journal, _) = place.open(place.config(&["a"], 1));
    let report = ask(&place, &JournalOrder::Status).unwrap();
    assert_eq!(
        (report.members, report.lenders.len(), report.settled),
        (1, 1, true)
    );
    let both = membership(&place, &["a", "b"], CommitRule::All, 2);
    let checked = ask(&place, &JournalOrder::change(&both, true)).unwrap();
    assert_eq!(checked.lenders.len(), 1, "nothing has changed");
    ask(&place, &JournalOrder::change(&both, false)).unwrap();
    wait_until_settled(&journal);
    // An order that was given already changes nothing.
    let again = ask(&place, &JournalOrder::change(&both, false)).unwrap();
    assert!(again.settled && again.membership().is_same(&both));
    for (wrong, why) in [
        (
            membership(&place, &[], CommitRule::All, 0),
            "no lender would be left",
        ),
        (membership(&place, &["a"], CommitRule::All, 2), "2 members"),
        (membership(&place, &["a", "a"], CommitRule::All, 2), "named twice"),
        (
            membership(&place, &["a", "b"], CommitRule::AtLeast(3), 2),
            "commit rule 3",
        ),
    ] {
        let refused = ask(&place, &JournalOrder::change(&wrong, false)).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(journal.membership().is_same(&both));
    }
    drop(journal);
    assert!(order(&place.journal(), &JournalOrder::Status).unwrap().is_none());
}

#[test]
fn a_journal_without_lenders_gets_its_first() {
    let place = TestJournal::new();
    let place = TestJournal {
        security: Security::Insecure,
        ..place
    };
    let lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&[], 0));
    commit(&journal, b"alone", Durability::Remote);
    journal
        .change_membership(&membership(&place, &["a"], CommitRule::All, 1))
        .unwrap();
    wait_until_settled(&journal);
    let ticket = append(&journal, b"together");
    let votes = journal.wait(ticket, Durability::Both).unwrap();
    assert_eq!(votes.members, 1);
    assert_eq!(windows(&lender), 1);
    let mut remote = membership(&place, &["a"], CommitRule::All, 1);
    remote.lenders.push("tcp://192.0.2.1:7420".parse().unwrap());
    let refused = journal.change_membership(&remote);
    assert!(
        matches!(refused, Err(MembershipChangeError::NoKey(_))),
        "{refused:?}"
    );
}

#[test]
fn a_removed_lender_that_is_away_is_told_when_it_is_back() {
    let place = TestJournal::new();
    let a = place.lender("a");
    let _others: Vec<Lender> = ["b", "c"].iter().map(|name| place.lender(name)).collect();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a", "b", "c"], 2));
    commit(&journal, b"one", Durability::Remote);
    // Its memory outlives it, and so does the window.
    drop(a);
    journal
        .change_membership(&membership(&place, &["b", "c"], CommitRule::All, 2))
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !journal.status().writer.settled {
        assert!(Instant::now() < deadline, "{:?}", journal.status().writer);
        std::thread::sleep(Duration::from_millis(5));
    }
    let removed = |journal: &Journal| {
        let status = journal.status().writer;
        status.lenders.iter().any(|lender| lender.removed)
    };
    assert!(removed(&journal));
    let a = place.lender("a");
    let deadline = Instant::now() + PATIENCE;
    while removed(&journal) || windows(&a) > 0 {
        assert!(Instant::now() < deadline, "{:?}", journal.status().writer);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The next opening may have other settings than the last: the view says which rule holds.
#[test]
fn a_crash_after_a_change_is_recovered_under_the_rule_of_the_stored_view() {
    let place = TestJournal::new();
    let mut lenders: Vec<Lender> = ["a", "b"].iter().map(|name| place.lender(name)).collect();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let slow = JournalConfig {
        // Nothing reaches the disk in this test's time, so only members hold what is committed.
        disk_delay: Duration::from_secs(600),
        ..place.config(&["a", "b"], 2)
    };
    let (journal, _) = place.open(slow);
    journal
        .change_membership(&membership(&place, &["a", "b"], CommitRule::Any, 2))
        .unwrap();
    wait_until_settled(&journal);
    commit(&journal, b"one", Durability::Remote);
    let copy = crate::common::copy_of(&place);
    let _crashed = std::mem::ManuallyDrop::new(journal);
    lenders.pop();
    // With `any` one member's answer is not enough, whatever the settings say now.
    let config = place.config(&["a", "b"], 2);
    let refused = Journal::open(&copy, config.clone());
    assert!(refused.is_err(), "the view's rule is `any`");
    lenders.push(place.lender("b"));
    let (journal, _) = Journal::open(&copy, config).unwrap();
    assert_eq!(payloads(&journal), [b"one".to_vec()]);
}

#[test]
fn an_ended_journal_refuses() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    let copy = crate::common::copy_of(&place);
    let (_newer, _) = Journal::open(&copy, place.config(&["a"], 1)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let wish = membership(&place, &["a"], CommitRule::Any, 1);
    loop {
        match journal.change_membership(&wish) {
            Err(MembershipChangeError::Membership(MembershipError::Ended)) => return,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A watcher needs no list of journals: the kernel has the sockets of all that are open.
#[test]
fn an_open_journal_is_found_by_its_socket_and_tells_its_path_and_latencies() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    commit(&journal, b"one", Durability::Remote);
    let path = place.journal().display().to_string();
    let found = || {
        let open = open_journals().unwrap().into_iter();
        let mut reports = open.filter_map(|socket| socket.report(PATIENCE).ok());
        reports.find(|report| report.path == path)
    };
    let report = found().expect("it is open");
    assert_eq!(report.commits.iter().sum::<u64>(), 1);
    assert_eq!(report.membership.lenders.len(), 1);
    drop(journal);
    assert!(found().is_none(), "a closed journal has no socket");
}
