//! Stopped processes: alive for everybody, silent, and back at the worst moment.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::faults::harness::{DISK_NEVER_MS, FaultsFixture};

#[test]
fn a_silent_lender_leaves_the_view_and_comes_back() {
    let mut place = FaultsFixture::new();
    let lenders = [place.lender("a"), place.lender("b"), place.lender("c")];
    let mut client = place.journal(&[&lenders[0], &lenders[1], &lenders[2]], 2);
    let running = client.start();
    running.until_acks_by_rule(20);
    for turn in 0..place.rounds(2) as usize {
        let silent = &lenders[turn % 2];
        silent.signal(Signal::STOP);
        running.until("the view is without the silent lender", |heard| {
            let standing = heard.standing();
            standing.is_some_and(|(blocked, members)| blocked.is_none() && !members.contains(&silent.address))
        });
        running.until_acks_by_rule(20 + place.random.below(100));
        silent.signal(Signal::CONT);
        // Its late acknowledgements change nothing.
        running.until_acks(50);
    }
    client.end_unfailed(running);
}

#[test]
fn a_lone_member_that_falls_silent_makes_commits_wait_for_the_disk_until_it_rejoins() {
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.bank(&[&lender], 1);
    let running = client.start();
    running.until_acks_by_rule(20);
    for _ in 0..place.rounds(2) {
        lender.signal(Signal::STOP);
        running.until("commits wait for the disk", |heard| {
            heard.standing().is_some_and(|(blocked, _)| blocked.is_some())
        });
        running.until_acks(20);
        lender.signal(Signal::CONT);
        running.until("the lender has rejoined", |heard| {
            heard.standing().is_some_and(|(blocked, _)| blocked.is_none())
        });
        running.until_acks_by_rule(20);
    }
    let heard = client.kill(running);
    assert_eq!(heard.failure(), None, "a commit failed");
    client.recover();
}

#[test]
fn a_client_that_was_stopped_goes_on_unharmed() {
    let place = FaultsFixture::new();
    let lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.bank(&[&lenders[0], &lenders[1]], 2);
    let running = client.start();
    for seconds in [1, 2] {
        running.until_acks_by_rule(20);
        running.freeze();
        // Longer than any patience of the client with its lenders.
        std::thread::sleep(Duration::from_secs(seconds));
        running.thaw();
    }
    running.until_acks_by_rule(50);
    let heard = client.kill(running);
    assert_eq!(heard.failure(), None, "a commit failed");
    client.recover();
}

fn copy_journal(source: &Path, target: &Path) {
    std::fs::create_dir(target).expect("a new directory");
    for name in ["log", "view", "data.key", "lock"] {
        std::fs::copy(source.join(name), target.join(name)).expect("every journal has these files");
    }
}

#[test]
fn a_stopped_client_whose_journal_was_taken_over_never_acknowledges_again() {
    let place = FaultsFixture::new();
    let lenders = [place.lender("a"), place.lender("b")];
    let mut older = place.journal(&[&lenders[0], &lenders[1]], 2);
    // Nothing reaches the disk: what the newer client finds, it has from the lenders.
    older.work.disk_delay_ms = DISK_NEVER_MS;
    older.work.window_bytes = 8 << 20;
    older.work.threads = 1;
    let stopped = older.start();
    stopped.until_acks_by_rule(100);
    stopped.freeze();
    let mut newer = older.clone();
    let before = stopped.heard();
    newer.learn(&before);
    newer.work.journal = place.disk().join("copy");
    newer.work.disk_delay_ms = 1;
    copy_journal(&older.work.journal, &newer.work.journal);
    let serving = newer.start();
    serving.until_acks_by_rule(50);
    stopped.thaw();
    let ended = stopped.end();
    let failure = ended.report.failure().expect("a fenced client fails");
    assert!(failure.contains("fenced"), "{failure}");
    assert_eq!(ended.report.after_failure, 0, "it went on acknowledging");
    // A reply that was read before the stop may be reported after it, but never beyond what the newer client
    // took over.
    older.learn(&ended.report);
    let taken_over = serving.heard().report().expect("it serves").last[0];
    let acked = ended.report.acked[0];
    assert!(
        acked <= taken_over,
        "record {acked} was acknowledged, {taken_over} taken over"
    );
    newer.kill(serving);
    newer.recover();
    // The old copy of the directory is refused now, with the reason.
    older.work.patience_ms = 1000;
    match older.try_recover() {
        Err(refused) => assert!(
            refused.contains("another writer fenced this journal") || refused.contains("cannot prove"),
            "{refused}"
        ),
        Ok(report) => panic!("two writers: {report:?}"),
    }
}
