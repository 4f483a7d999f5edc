//! The journal's promises, against real lenders in this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{KIND, TestJournal, append, commit, copy_of, payloads};
use netram_journal::{Journal, JournalConfig, JournalOpenError, MulticastOptions};
use netram_proto::journal::CommitRule;
use netram_proto::port::{AppendError, Durability, RecordLog};

const LOG_BYTES: u64 = 4 << 20;

#[test]
fn commits_come_back_after_closing_whatever_the_durability() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, recovered) = place.open(place.config(&["a", "b"], 2));
    assert_eq!(recovered.epoch.0, 1);
    for (index, durability) in [
        Durability::Remote,
        Durability::Disk,
        Durability::Both,
        Durability::Lazy,
    ]
    .into_iter()
    .enumerate()
    {
        commit(&journal, &[index as u8; 100], durability);
    }
    journal.close().unwrap();
    let (journal, recovered) = place.open(place.config(&["a", "b"], 2));
    assert_eq!(
        (
            recovered.epoch.0,
            recovered.records_from_members,
            recovered.needed
        ),
        (2, 0, 0)
    );
    assert_eq!(
        payloads(&journal),
        (0..4).map(|index| vec![index; 100]).collect::<Vec<_>>()
    );
}

#[test]
fn a_journal_opens_without_its_multicast_group() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        multicast: Some(MulticastOptions {
            group: "239.77.2.1:7421%nosuch0".parse().unwrap(),
            datagram_bytes: Some(1400),
            ttl: 1,
        }),
        disk_delay: Duration::from_secs(5),
        ..place.config(&["a", "b"], 2)
    };
    let (journal, _) = place.open(config);
    commit(&journal, b"over links", Durability::Remote);
}

/// On a UPS's battery this machine and its lenders may end together.
#[test]
fn while_the_disk_is_demanded_every_commit_is_on_it_and_so_is_what_came_before() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(3600),
        ..place.config(&["a", "b"], 2)
    };
    let (journal, _) = place.open(config);
    let demand = journal.disk_demand();
    let committed = || {
        let ticket = append(&journal, b"a commit");
        journal.wait(ticket, Durability::Remote).unwrap()
    };
    let await_stable = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while journal.state().stable < journal.state().tail {
            assert!(Instant::now() < deadline, "the disk lacks what only members have");
            std::thread::yield_now();
        }
    };
    assert!(!committed().disk);
    demand.set(true);
    await_stable();
    for _ in 0..20 {
        let votes = committed();
        assert!(votes.disk, "{votes:?}");
    }
    let lazy = append(&journal, b"lazy");
    journal.wait(lazy, Durability::Lazy).unwrap();
    await_stable();
    demand.set(false);
    let votes = committed();
    assert_eq!((votes.members, votes.rule, votes.disk), (2, true, false));
    journal.close().unwrap();
    demand.set(true);
}

#[test]
fn a_remote_commit_reports_its_voters() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(5),
        ..place.config(&["a", "b"], 2)
    };
    let (journal, _) = place.open(config);
    let ticket = append(&journal, b"remote");
    let votes = journal.wait(ticket, Durability::Remote).unwrap();
    assert_eq!((votes.members, votes.rule, votes.disk), (2, true, false));
    let votes = journal.wait(ticket, Durability::Both).unwrap();
    assert_eq!((votes.members, votes.rule, votes.disk), (2, true, true));
}

#[test]
fn without_lenders_the_disk_alone_commits() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&[], 0));
    let ticket = append(&journal, b"alone");
    let votes = journal.wait(ticket, Durability::Remote).unwrap();
    assert_eq!((votes.members, votes.rule, votes.disk), (0, false, true));
    assert_eq!(payloads(&journal), [b"alone"]);
}

#[test]
fn many_threads_commit_in_order_and_share_syncs() {
    const THREADS: u32 = 8;
    const EACH: u32 = 300;
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    let order = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (journal, order) = (&journal, &order);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let mut fill = |into: &mut [u8]| {
                        // Under the journal's lock, so the number is the record's position.
                        let place = order.fetch_add(1, Ordering::Relaxed);
                        into[..4].copy_from_slice(&place.to_le_bytes());
                        into[4..].copy_from_slice(&thread.to_le_bytes());
                    };
                    let ticket = journal.append(KIND, 8, &mut fill).unwrap();
                    journal.wait(ticket, Durability::Remote).unwrap();
                }
            });
        }
    });
    assert!(
        journal.status().syncs < u64::from(THREADS * EACH) / 2,
        "records did not share syncs"
    );
    let last = append(&journal, b"last");
    journal.wait(last, Durability::Disk).unwrap();
    for (place, payload) in payloads(&journal)[..(THREADS * EACH) as usize].iter().enumerate() {
        assert_eq!(payload[..4], (place as u32).to_le_bytes());
    }
}

#[test]
fn a_full_window_waits_for_the_disk_and_a_full_log_is_an_error() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), 256 << 10).unwrap();
    let config = JournalConfig {
        window_bytes: 32 << 10,
        disk_delay: Duration::from_secs(60),
        ..place.config(&["a"], 1)
    };
    let (journal, _) = place.open(config);
    let payload = [7; 4000];
    let error = loop {
        match journal.append(KIND, payload.len(), &mut |into| into.copy_from_slice(&payload)) {
            Ok(_) => (),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendError::Full { .. }), "{error}");
    assert!(journal.status().window_stalls > 0);
    let ticket = {
        let end = journal.state().tail;
        netram_proto::port::CommitTicket { lsn: end, end }
    };
    journal.wait(ticket, Durability::Disk).unwrap();
    assert_eq!(payloads(&journal).len(), 64, "records of 4,096 bytes in 256 KiB");
    // There is room again once the head moves, and the log wraps.
    let half = {
        let mut seen = 0;
        let mut stop = |_: netram_proto::port::Record<'_>| {
            seen += 1;
            seen <= 31
        };
        journal.read(journal.state().head, &mut stop).unwrap()
    };
    journal.trim(half).unwrap();
    let before = payloads(&journal).len();
    for _ in 0..20 {
        commit(&journal, &payload, Durability::Disk);
    }
    journal.close().unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    assert_eq!(payloads(&journal).len(), before + 20);
}

#[test]
fn concurrent_trims_never_move_the_head_back() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), 64 << 10).unwrap();
    let (journal, _) = place.open(place.config(&[], 0));
    let done = std::sync::atomic::AtomicBool::new(false);
    // The trimming threads must end even if the committing thread fails; otherwise the test would hang
    // instead of failing.
    struct DoneGuard<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for DoneGuard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _ended = DoneGuard(&done);
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // A trim that another thread has overtaken is refused, which is expected.
                    let _ = journal.trim(journal.state().stable);
                }
            });
        }
        let mut head = journal.state().head;
        // A head that moved back would fill the log, or name bytes that have been overwritten.
        for _ in 0..2_000 {
            commit_when_there_is_room(&journal, &[7; 500]);
            let now = journal.state().head;
            assert!(now >= head, "the head went from {head} to {now}");
            head = now;
        }
    });
    let head = journal.state().head;
    journal.close().unwrap();
    let (journal, recovered) = place.open(place.config(&[], 0));
    assert_eq!((recovered.head, journal.state().head), (head, head));
}

/// Retries, since on a busy machine the trimming threads may not run for long enough, and the log fills up.
fn commit_when_there_is_room(journal: &Journal, payload: &[u8]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match journal.append(KIND, payload.len(), &mut |into| into.copy_from_slice(payload)) {
            Ok(ticket) => {
                journal.wait(ticket, Durability::Disk).unwrap();
                return;
            }
            Err(AppendError::Full { .. }) => {
                assert!(Instant::now() < deadline, "the log stayed full");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn huge_records_are_refused_with_the_bound_and_zero_bytes_are_fine() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    let max = journal.state().payload_max;
    let error = journal.append(KIND, max + 1, &mut |_| ()).unwrap_err();
    assert_eq!(error, AppendError::TooLarge { bytes: max + 1, max });
    let large = vec![3; max];
    commit(&journal, &large, Durability::Remote);
    commit(&journal, b"", Durability::Both);
    assert_eq!(payloads(&journal), [large, Vec::new()]);
}

#[test]
fn a_second_writer_is_told_which_process_has_the_journal() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (_journal, _) = place.open(place.config(&[], 0));
    match Journal::open(&place.journal(), place.config(&[], 0)) {
        Err(JournalOpenError::InUse { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_copy_of_the_journal_fences_the_original_which_never_acknowledges_again() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a"], 1));
    // On the disk, too: files are copied one after the other and must not be of different times.
    commit(&journal, b"before", Durability::Both);
    let copy = copy_of(&place);
    let (newer, recovered) = Journal::open(&copy, place.config(&["a"], 1)).unwrap();
    assert_eq!(recovered.epoch.0, 2);
    assert_eq!(payloads(&newer), [b"before"]);
    let error = loop {
        match journal.append(KIND, 1, &mut |into| into.fill(1)) {
            Ok(ticket) => drop(journal.wait(ticket, Durability::Remote)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendError::Fenced { .. }), "{error}");
}

#[test]
fn records_held_by_members_only_are_recovered_and_only_if_sealed() {
    for (seal, reopened_with) in [(true, true), (false, false), (false, true)] {
        let place = TestJournal::new();
        let _lender = place.lender("a");
        Journal::create(&place.journal(), LOG_BYTES).unwrap();
        let config = JournalConfig {
            disk_delay: Duration::from_secs(60),
            seal,
            ..place.config(&["a"], 1)
        };
        let (journal, _) = place.open(config);
        commit(&journal, b"in memory only", Durability::Remote);
        let copy = copy_of(&place);
        let config = JournalConfig {
            seal: reopened_with,
            ..place.config(&["a"], 1)
        };
        let outcome = Journal::open(&copy, config);
        if !seal && reopened_with {
            // Any lender could have forged the record.
            assert!(matches!(outcome, Err(JournalOpenError::Damaged { .. })));
            continue;
        }
        let (newer, recovered) = outcome.unwrap();
        assert_eq!(recovered.records_from_members, 1);
        assert_eq!(payloads(&newer), [b"in memory only"]);
    }
}

#[test]
fn a_lost_lender_is_replaced_and_no_commit_fails() {
    let place = TestJournal::new();
    let first = place.lender("a");
    let _others = [place.lender("b"), place.lender("c")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let (journal, _) = place.open(place.config(&["a", "b", "c"], 2));
    commit(&journal, b"one", Durability::Remote);
    drop(first);
    for _ in 0..200 {
        commit(&journal, b"more", Durability::Remote);
    }
    journal.wait_for_members(Duration::from_secs(5)).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while journal
        .status()
        .writer
        .lenders
        .iter()
        .filter(|lender| lender.member)
        .any(|l| l.address.contains("/a."))
    {
        assert!(
            std::time::Instant::now() < deadline,
            "the dead lender is still a member"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    commit(&journal, b"after", Durability::Both);
}

#[test]
fn a_view_in_one_power_domain_does_not_count_unless_allowed() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        one_domain: false,
        ..place.config(&["a"], 1)
    };
    let (journal, _) = Journal::open(&place.journal(), config).unwrap();
    assert!(journal.wait_for_members(Duration::from_millis(300)).is_err());
    let ticket = append(&journal, b"disk only");
    let votes = journal.wait(ticket, Durability::Remote).unwrap();
    assert!(votes.disk && !votes.rule);
}

#[test]
fn sealed_and_unsealed_records_live_in_one_log() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    for seal in [true, false, true] {
        let (journal, _) = place.open(JournalConfig {
            seal,
            ..place.config(&["a"], 1)
        });
        commit(&journal, format!("sealed: {seal}").as_bytes(), Durability::Remote);
    }
    let (journal, _) = place.open(place.config(&["a"], 1));
    assert_eq!(
        payloads(&journal),
        [&b"sealed: true"[..], b"sealed: false", b"sealed: true"]
    );
    drop(journal);
    let log = std::fs::read(place.journal().join("log")).unwrap();
    let seen = |text: &[u8]| log.windows(text.len()).filter(|window| *window == text).count();
    assert_eq!((seen(b"sealed: true"), seen(b"sealed: false")), (0, 1));
}

#[test]
fn contradictory_configurations_are_refused_with_the_reason() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let base = place.config(&["a"], 1);
    let wrong = [
        JournalConfig {
            members: 2,
            ..base.clone()
        },
        JournalConfig {
            rule: CommitRule::AtLeast(2),
            ..base.clone()
        },
        JournalConfig {
            members_min: Some(2),
            ..base.clone()
        },
        JournalConfig {
            window_bytes: 1,
            ..base.clone()
        },
        JournalConfig {
            lenders: vec![place.address("a"), place.address("a")],
            ..base.clone()
        },
    ];
    for config in wrong {
        assert!(matches!(
            Journal::open(&place.journal(), config),
            Err(JournalOpenError::Config(_))
        ));
    }
}
