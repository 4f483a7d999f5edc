//! Refused calls: the system has no descriptor, memory, room or right for one call, or a signal interrupts
//! it, and the next time it succeeds (rule 17). The tracer refuses every call of a kind in turn. A service
//! reports it and goes on; an opening may be refused with the reason, and succeeds the next time.

use crate::faults::failing_disk::{traced, tracer};
use crate::faults::harness::{FaultsClient, FaultsFixture, FaultsLender, skipped};
use crate::faults::worker::WorkerMessage;

/// Errors with which calls are refused.
const ERRORS: [&str; 6] = ["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EINTR", "ENOSPC"];
/// Every call that opens, looks, reads, writes or reserves; syncs may only be interrupted.
const CALLS: [&str; 7] = [
    "openat",
    "statx",
    "pread64",
    "pwrite64",
    "ftruncate",
    "fallocate",
    "lseek",
];
/// Calls in a row that are refused.
const ROW: u64 = 2;
/// Distance between refused calls in a short run, each with one of the errors.
const STRIDE: u64 = 5;
/// The furthest call in a short run, and in a long one.
const LAST_SHORT: u64 = 24;
const LAST_LONG: u64 = 80;

/// How far a test goes.
#[derive(Clone, Copy)]
enum Extent {
    /// Some calls, one error each.
    Sample,
    /// Every call, every error.
    All,
}

/// The refusals of a test: call, error, the first call that meets it.
fn refusals(extent: Extent) -> Vec<(&'static str, &'static str, u64)> {
    let mut all = Vec::new();
    let mut turn = 0;
    let last = match extent {
        Extent::Sample => LAST_SHORT,
        Extent::All => LAST_LONG,
    };
    for (place, call) in CALLS.into_iter().chain(["fdatasync", "fsync"]).enumerate() {
        let errors: &[&str] = match call {
            "fdatasync" | "fsync" => &["EINTR"],
            _ => &ERRORS,
        };
        match extent {
            Extent::All => {
                let firsts = 1..=last;
                all.extend(firsts.flat_map(|first| errors.iter().map(move |error| (call, *error, first))));
            }
            Extent::Sample => {
                for first in (1 + place as u64 % STRIDE..=last).step_by(STRIDE as usize) {
                    turn += 1;
                    all.push((call, errors[turn % errors.len()], first));
                }
            }
        }
    }
    all
}

/// Refuses two calls of a client in a row. `false`: it made fewer.
fn refuse(client: &mut FaultsClient, place: &FaultsFixture, call: &str, error: &str, first: u64) -> bool {
    let injection = format!("{call}:error={error}:when={first}..{}", first + ROW - 1);
    let ended = traced(client, place, &injection).start().end();
    let heard = &ended.report;
    if heard.messages.is_empty() {
        // The system was still loading the program.
        return false;
    }
    match heard.refusal() {
        // Refused before it served: with the reason.
        Some(refused) => assert!(
            refused.contains(error) || refused.contains("os error"),
            "{injection}: {refused} does not say what the system said"
        ),
        None => {
            assert_eq!(heard.failure(), None, "{injection}: a refusal ended the service");
            assert_eq!(
                heard.messages.last(),
                Some(&WorkerMessage::Closed),
                "{injection}: {:?}",
                heard.messages
            );
        }
    }
    client.learn(heard);
    let trace = std::fs::read_to_string(place.memory().join("trace")).unwrap_or_default();
    trace.contains("INJECTED")
}

fn refuse_each(
    test: &str,
    extent: Extent,
    make: impl Fn(&FaultsFixture) -> (FaultsClient, Option<FaultsLender>),
) {
    if let Err(missing) = tracer() {
        return skipped(test, &missing);
    }
    let place = FaultsFixture::new();
    let (mut client, _lender) = make(&place);
    client.work.commits = Some(20);
    let (mut hits, all) = (0, refusals(extent));
    for (call, error, first) in &all {
        hits += u64::from(refuse(&mut client, &place, call, error, *first));
    }
    client.recover();
    assert!(
        hits * 10 >= all.len() as u64,
        "only {hits} of {} runs met a refusal",
        all.len()
    );
}

fn journal(place: &FaultsFixture) -> (FaultsClient, Option<FaultsLender>) {
    let lender = place.lender("a");
    (place.journal(&[&lender], 1), Some(lender))
}

/// A log that wraps and is trimmed, and segments that it is brought into.
fn bank(place: &FaultsFixture) -> (FaultsClient, Option<FaultsLender>) {
    let lender = place.lender("a");
    (place.bank(&[&lender], 1), Some(lender))
}

fn volume(place: &FaultsFixture) -> (FaultsClient, Option<FaultsLender>) {
    (place.volume(), None)
}

#[test]
fn a_journal_goes_on_after_any_refused_call() {
    refuse_each(
        "a_journal_goes_on_after_any_refused_call",
        Extent::Sample,
        journal,
    );
}

#[test]
fn a_bank_goes_on_after_any_refused_call() {
    refuse_each("a_bank_goes_on_after_any_refused_call", Extent::Sample, bank);
}

#[test]
fn a_volume_goes_on_after_any_refused_call() {
    refuse_each("a_volume_goes_on_after_any_refused_call", Extent::Sample, volume);
}

#[test]
#[ignore = "takes an hour: cargo test -p netram-cli --test all faults::refused -- --ignored"]
fn a_journal_goes_on_after_every_refused_call() {
    refuse_each("a_journal_goes_on_after_every_refused_call", Extent::All, journal);
}

#[test]
#[ignore = "takes an hour: cargo test -p netram-cli --test all faults::refused -- --ignored"]
fn a_bank_goes_on_after_every_refused_call() {
    refuse_each("a_bank_goes_on_after_every_refused_call", Extent::All, bank);
}

#[test]
#[ignore = "takes an hour: cargo test -p netram-cli --test all faults::refused -- --ignored"]
fn a_volume_goes_on_after_every_refused_call() {
    refuse_each("a_volume_goes_on_after_every_refused_call", Extent::All, volume);
}

/// Calls that a lender makes while it serves. `recvfrom` is left out: the thread that waits for signals reads
/// its own socket by it, and the tracer cannot tell the two apart.
const LENDER_CALLS: [&str; 4] = ["accept4", "epoll_ctl", "sendto", "openat"];

/// Refuses calls of a running lender, one kind after the other: later clients are served.
fn lender_refuses(test: &str, firsts: &[u64]) {
    if let Err(missing) = tracer() {
        return skipped(test, &missing);
    }
    for (turn, call) in LENDER_CALLS.into_iter().enumerate() {
        for (round, first) in firsts.iter().enumerate() {
            let error = ERRORS[(turn + round) % ERRORS.len()];
            let place = FaultsFixture::new();
            let trace = place.memory().join("lender.trace").display().to_string();
            let injection = format!("inject={call}:error={error}:when={first}..{}", first + ROW - 1);
            let only = format!("trace={call}");
            let wrap = [
                "strace",
                "-f",
                "-q",
                "-o",
                &trace,
                "-e",
                &only,
                "-e",
                "signal=none",
                "-e",
                &injection,
            ];
            let address = format!("unix:{}", place.memory().join("a").display());
            let Some(mut lender) = FaultsLender::try_start(&place, "a", &address, &wrap, &[]) else {
                // Refused while it started: its log has the reason.
                let log = std::fs::read_to_string(place.memory().join("a.log")).unwrap_or_default();
                assert!(log.contains("os error"), "{injection}: {log}");
                continue;
            };
            let mut client = place.journal(&[&lender], 1);
            client.work.commits = Some(5);
            // By the last of these the refusals are over: each makes several calls of every kind.
            let mut members = false;
            for _ in 0..4 {
                let heard = client.start().end().report;
                assert_eq!(
                    heard.messages.last(),
                    Some(&WorkerMessage::Closed),
                    "{injection}: {:?}",
                    heard.messages
                );
                client.learn(&heard);
                members = heard.messages.contains(&WorkerMessage::Ready { members: true });
            }
            assert!(members, "{injection}: {}", lender.log_text());
            assert!(lender.is_alive(), "{injection}: {}", lender.log_text());
        }
    }
}

#[test]
fn a_lender_serves_on_after_refused_calls() {
    lender_refuses("a_lender_serves_on_after_refused_calls", &[8]);
}

#[test]
#[ignore = "takes minutes: cargo test -p netram-cli --test all faults::refused -- --ignored"]
fn a_lender_serves_on_after_every_refused_call() {
    let firsts: Vec<u64> = (1..=30).collect();
    lender_refuses("a_lender_serves_on_after_every_refused_call", &firsts);
}
