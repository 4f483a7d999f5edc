//! Drained lenders: their clients move away under load, and commits keep their copies.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::faults::harness::process::netram;
use crate::faults::harness::{ClientProcess, FaultsFixture, FaultsLender};
use crate::faults::worker::WorkerMessage;

/// Members that each journal of these tests wants.
pub(super) const MEMBERS: usize = 2;
const SAFE: i32 = 0;
const NOT_YET: i32 = 1;

impl FaultsLender {
    fn drain(&self, more: &[&str]) -> (i32, String) {
        let operator = format!("unix:{}", netram_lender::operator_path(self.store()).display());
        netram(&[&["lender", "drain", "--lender", &operator], more].concat())
    }

    fn stop_in_order(&mut self) {
        assert_eq!(self.stop(Signal::TERM), 0, "{}", self.log_text());
    }

    pub(super) fn drain_to_the_end(&self) {
        let (code, said) = self.drain(&[]);
        assert_eq!(code, SAFE, "{said}");
        assert!(said.ends_with("safe to stop\n"), "{said}");
    }

    fn undrain(&self) {
        let operator = format!("unix:{}", netram_lender::operator_path(self.store()).display());
        let (code, said) = netram(&["lender", "undrain", "--lender", &operator]);
        assert_eq!(code, 0, "{said}");
    }

    pub(super) fn report(&self, place: &FaultsFixture) -> Value {
        let key = place.key().display().to_string();
        let (code, said) = netram(&["lender", "status", &self.address, "--key-file", &key, "--json"]);
        assert_eq!(code, 0, "{said}");
        let said: Value = serde_json::from_str(&said).expect("it is JSON");
        said[0]["report"].clone()
    }
}

/// Waits until the members are as many as wanted, and `lender` is one or not.
pub(super) fn until_member(running: &ClientProcess, lender: &FaultsLender, member: bool) {
    running.until("the members have changed", |heard| {
        heard.standing().is_some_and(|(blocked, members)| {
            let complete = blocked.is_none() && members.len() == MEMBERS;
            complete && members.contains(&lender.address) == member
        })
    });
}

/// Ends the client. No commit failed, and no view had too few members since it first had enough.
pub(super) fn check(running: ClientProcess) -> Duration {
    let heard = running.kill();
    assert_eq!(heard.failure(), None, "a commit failed");
    let counts = heard.messages.iter().filter_map(|said| match said {
        WorkerMessage::Standing { members, .. } => Some(members.len()),
        _ => None,
    });
    let counts: Vec<usize> = counts.skip_while(|count| *count < MEMBERS).collect();
    assert!(
        !counts.is_empty() && counts.iter().all(|count| *count >= MEMBERS),
        "numbers of members: {counts:?}"
    );
    heard.longest_commit()
}

#[test]
fn a_drained_lender_is_safe_once_a_spare_has_taken_its_place_and_undrained_serves_again() {
    let place = FaultsFixture::new();
    let lenders = ["a", "b", "c"].map(|name| place.lender(name));
    let mut client = place.journal(&lenders.each_ref(), MEMBERS);
    let running = client.start();
    until_member(&running, &lenders[0], true);
    assert_eq!(lenders[0].drain(&["--check"]).0, NOT_YET);
    lenders[0].drain_to_the_end();
    until_member(&running, &lenders[0], false);
    let report = lenders[0].report(&place);
    assert_eq!(report["draining"], true);
    assert_eq!(report["safe_to_stop"], true);
    assert_eq!(lenders[0].drain(&["--check"]).0, SAFE);
    // A journal that is opened now is not given a window there.
    let elsewhere = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
    let other = place.journal_in(elsewhere.path(), 1 << 20, &[&lenders[0]], 1);
    let other = other.with_log(place.memory().join("other.log")).start();
    other.until_acks(20);
    assert_eq!(other.kill().by_rule, 0);
    assert_eq!(lenders[0].drain(&["--check"]).0, SAFE);
    lenders[0].undrain();
    lenders[1].drain_to_the_end();
    until_member(&running, &lenders[0], true);
    running.until_acks_by_rule(20);
    let heard = running.heard();
    let longest = check(running);
    eprintln!("{} commits, the longest took {longest:?}", heard.acks);
    client.learn(&heard);
    client.recover();
}

#[test]
fn a_window_whose_client_was_killed_keeps_a_drain_from_being_safe() {
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    let running = client.start();
    running.until_acks_by_rule(20);
    client.kill(running);
    let (code, said) = lender.drain(&["--timeout", "1s"]);
    assert_eq!(code, NOT_YET, "{said}");
    let report = lender.report(&place);
    assert_eq!(report["left"]["windows"], 1);
    let journal = report["journals"][0]["id"].as_str().expect("it has an id");
    assert!(
        said.contains(&format!("netram lender forget {journal}")),
        "{said}"
    );
    assert!(said.contains("not yet safe to stop"), "{said}");
    // Its client returns, takes what there is, and closes the journal.
    client.recover();
    lender.drain_to_the_end();
}

#[test]
fn an_unknown_lender_and_a_wrong_word_are_told_apart_by_their_exit_codes() {
    assert_eq!(netram(&["lender", "drain", "--lender", "nonsense"]).0, 2);
    assert_eq!(
        netram(&["lender", "drain", "--lender", "unix:/nowhere/a.operator"]).0,
        1
    );
}

/// Restarts the lenders one after the other.
#[test]
fn a_rolling_restart_under_load_loses_nothing_and_no_copy() {
    let mut place = FaultsFixture::new();
    let mut lenders = ["a", "b", "c"].map(|name| place.lender(name));
    let mut client = place.journal(&lenders.each_ref(), MEMBERS);
    let running = client.start();
    until_member(&running, &lenders[0], true);
    for _ in 0..place.rounds(1) {
        for lender in &mut lenders {
            running.until_acks_by_rule(50 + place.random.below(100));
            lender.drain_to_the_end();
            lender.stop_in_order();
            lender.restart();
        }
    }
    running.until_acks_by_rule(50);
    let heard = running.heard();
    let longest = check(running);
    eprintln!("{} commits, the longest took {longest:?}", heard.acks);
    client.learn(&heard);
    client.recover();
}

/// The second drain begins while the first lender is down.
#[test]
fn the_second_restart_waits_for_the_first() {
    let mut place = FaultsFixture::new();
    let mut lenders = ["a", "b", "c"].map(|name| place.lender(name));
    let mut client = place.journal(&lenders.each_ref(), MEMBERS);
    let running = client.start();
    until_member(&running, &lenders[0], true);
    for turn in 0..3 * place.rounds(1) as usize {
        let (first, second) = (turn % 3, (turn + 1) % 3);
        lenders[first].drain_to_the_end();
        lenders[first].stop_in_order();
        // Longer than a silent lender stays a member.
        let (code, said) = lenders[second].drain(&["--timeout", "1s"]);
        assert_eq!(code, NOT_YET, "{said}");
        assert!(
            said.contains("no other lender yet that takes its place"),
            "{said}"
        );
        lenders[first].restart();
        lenders[second].drain_to_the_end();
        lenders[second].undrain();
        running.until_acks_by_rule(50 + place.random.below(100));
    }
    let heard = running.heard();
    let longest = check(running);
    eprintln!("{} commits, the longest took {longest:?}", heard.acks);
    client.learn(&heard);
    client.recover();
}

/// Without an order, a lender that is told to stop moves its clients away first.
#[test]
fn a_lender_that_is_terminated_drains_first() {
    let place = FaultsFixture::new();
    let more = ["--grace", "30s"];
    let address = |name: &str| format!("unix:{}", place.memory().join(name).display());
    let mut lenders =
        ["a", "b", "c"].map(|name| FaultsLender::start(&place, name, &address(name), &[], &more));
    let mut client = place.journal(&lenders.each_ref(), MEMBERS);
    let running = client.start();
    until_member(&running, &lenders[0], true);
    for lender in &mut lenders {
        lender.stop_in_order();
        lender.restart();
        running.until_acks_by_rule(50);
    }
    let heard = running.heard();
    check(running);
    client.learn(&heard);
    client.recover();
}
