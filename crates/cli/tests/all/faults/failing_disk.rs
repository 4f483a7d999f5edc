//! Failing disks: the tracer makes the Nth call of a kind fail, or kills the client at it, for every N.

use crate::faults::harness::process::tool;
use crate::faults::harness::{FaultsClient, FaultsFixture, skipped};
use crate::faults::worker::WorkerMessage;

/// How far the loop over every N goes in a short run.
const CALLS_FEW: u64 = 14;

/// Puts the client under a tracer that does `injection` to some of its calls.
pub(super) fn traced(client: &FaultsClient, place: &FaultsFixture, injection: &str) -> FaultsClient {
    let trace = place.memory().join("trace").display().to_string();
    let mut traced = client.clone();
    let call = injection.split(':').next().unwrap_or_default();
    let parts = [
        "strace",
        "-f",
        "-q",
        "-o",
        &trace,
        "-e",
        &format!("trace={call}"),
        "-e",
        "signal=none",
    ];
    traced.wrap = parts.map(str::to_owned).to_vec();
    traced
        .wrap
        .extend(["-e".to_owned(), format!("inject={injection}")]);
    traced
}

/// Returns what is missing to trace a process, as the error.
pub(super) fn tracer() -> Result<(), String> {
    tool(
        "strace",
        &[
            "-f",
            "-o",
            "/dev/null",
            "-e",
            "inject=fdatasync:error=EIO:when=1",
            "true",
        ],
    )
    .map(drop)
}

/// Lets the client meet an error from its Nth `call` on; what it acknowledged must be there afterwards.
fn fail_from(client: &mut FaultsClient, place: &FaultsFixture, call: &str, error: &str, first: u64) -> bool {
    let failing = traced(client, place, &format!("{call}:error={error}:when={first}+"));
    let ended = failing.start().end();
    let heard = &ended.report;
    if heard.messages.is_empty() {
        // The call was the system's own, loading the program.
        return false;
    }
    assert_ne!(ended.code, 5, "{:?}", heard.messages);
    let hit = match (heard.refusal(), heard.failure()) {
        (Some(refused), _) => {
            let named = refused.contains(error) || refused.contains("os error");
            assert!(
                named,
                "{call} {first}: {refused} does not say what the system said"
            );
            true
        }
        (None, Some(failure)) => {
            assert!(
                failure.contains(error),
                "{call} {first}: {failure} does not say what the system said"
            );
            assert_eq!(
                heard.after_failure, 0,
                "{call} {first}: a thread went on after its failure"
            );
            true
        }
        (None, None) => {
            assert_eq!(
                heard.messages.last(),
                Some(&WorkerMessage::Closed),
                "{call} {first}: {:?}",
                heard.messages
            );
            false
        }
    };
    client.learn(heard);
    client.recover();
    hit
}

fn fail_at_every_call(client: &mut FaultsClient, place: &FaultsFixture, call: &str, error: &str) {
    let mut hits = 0;
    for first in 1..=place.rounds(CALLS_FEW) {
        hits += u64::from(fail_from(client, place, call, error, first));
    }
    assert!(hits >= 3, "only {hits} runs met the error");
}

#[test]
fn a_disk_whose_syncs_fail_is_never_believed_again() {
    if let Err(missing) = tracer() {
        return skipped("a_disk_whose_syncs_fail_is_never_believed_again", &missing);
    }
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    client.work.commits = Some(30);
    fail_at_every_call(&mut client, &place, "fdatasync", "EIO");
}

#[test]
fn a_disk_whose_writes_fail_is_never_believed_again() {
    if let Err(missing) = tracer() {
        return skipped("a_disk_whose_writes_fail_is_never_believed_again", &missing);
    }
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    client.work.commits = Some(30);
    fail_at_every_call(&mut client, &place, "pwrite64", "EIO");
}

#[test]
fn a_disk_that_cannot_be_read_is_never_taken_for_an_empty_one() {
    if let Err(missing) = tracer() {
        return skipped(
            "a_disk_that_cannot_be_read_is_never_taken_for_an_empty_one",
            &missing,
        );
    }
    let place = FaultsFixture::new();
    let mut client = place.journal(&[], 0);
    client.work.commits = Some(30);
    fail_at_every_call(&mut client, &place, "pread64", "EIO");
}

#[test]
fn a_bank_on_a_disk_whose_syncs_fail_loses_nothing() {
    if let Err(missing) = tracer() {
        return skipped("a_bank_on_a_disk_whose_syncs_fail_loses_nothing", &missing);
    }
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.bank(&[&lender], 1);
    client.work.commits = Some(200);
    for call in ["fdatasync", "pwrite64"] {
        for first in 1..=place.rounds(6) {
            fail_from(&mut client, &place, call, "EIO", 1 + 3 * first);
        }
    }
}

#[test]
fn without_members_a_failed_disk_ends_the_commits_and_keeps_what_it_acknowledged() {
    if let Err(missing) = tracer() {
        let test = "without_members_a_failed_disk_ends_the_commits_and_keeps_what_it_acknowledged";
        return skipped(test, &missing);
    }
    let place = FaultsFixture::new();
    let mut client = place.journal(&[], 0);
    client.work.commits = Some(30);
    fail_at_every_call(&mut client, &place, "fdatasync", "EIO");
}

/// Kills the client at the Nth `call` for every N until it gets through.
fn killed_at_every_call(client: &mut FaultsClient, place: &FaultsFixture, call: &str) {
    let mut kills = 0;
    for at in 1..=place.rounds(CALLS_FEW) {
        let killed = traced(client, place, &format!("{call}:signal=KILL:when={at}"));
        let ended = killed.start().end();
        assert!(
            ended.code != 5 && ended.report.refusal().is_none(),
            "{call} {at}: {:?}",
            ended.report.messages
        );
        client.learn(&ended.report);
        kills += u64::from(!ended.report.messages.contains(&WorkerMessage::Closed));
        // Every second time the next process meets a journal that another kill left: recovery of a recovery.
        if at % 2 == 0 {
            client.recover();
        }
    }
    client.recover();
    assert!(kills >= 3, "only {kills} runs were killed");
}

#[test]
fn a_client_killed_at_any_sync_or_write_of_opening_and_truncation_recovers() {
    if let Err(missing) = tracer() {
        let test = "a_client_killed_at_any_sync_or_write_of_opening_and_truncation_recovers";
        return skipped(test, &missing);
    }
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.bank(&[&lender], 1);
    client.work.commits = Some(120);
    for call in ["fdatasync", "pwrite64"] {
        killed_at_every_call(&mut client, &place, call);
    }
}
