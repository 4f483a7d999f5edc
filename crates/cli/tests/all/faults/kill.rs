//! Killed processes: the client, each lender, both together; with and without the lenders' memory.

use std::time::Duration;

use crate::faults::harness::{DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender};
use crate::faults::worker::WorkerMessage;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn refusals_name(text: &str, lenders: &[&FaultsLender]) {
    for lender in lenders {
        assert!(
            text.contains(&lender.address),
            "{text} does not name {}",
            lender.address
        );
    }
    assert!(
        text.contains("LSN") && text.contains("accept-loss"),
        "{text} names no LSN or no remedy"
    );
}

/// Kills the client `rounds` times at random moments, some of them while it starts.
fn kill_again_and_again(place: &mut FaultsFixture, client: &mut FaultsClient, rounds: u64) {
    let mut acks = 0;
    for round in 0..rounds {
        let running = client.start();
        match round % 3 {
            // Within the first moments: while it recovers.
            0 => pause(place.random.below(40)),
            1 => {
                running.until_serving();
                pause(place.random.below(60));
            }
            _ => drop(running.until_acks(1 + place.random.below(2000))),
        }
        acks += client.kill(running).acks;
    }
    client.recover();
    assert!(
        acks > 20,
        "only {acks} acknowledgements: the kills have shown nothing"
    );
}

#[test]
fn a_killed_client_loses_no_acknowledged_record() {
    let mut place = FaultsFixture::new();
    let lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    let rounds = place.rounds(9);
    kill_again_and_again(&mut place, &mut client, rounds);
}

#[test]
fn a_client_killed_while_its_log_wraps_loses_no_record_that_it_kept() {
    let mut place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.wrapping(&[&lender], 1);
    let rounds = place.rounds(9);
    kill_again_and_again(&mut place, &mut client, rounds);
    assert!(client.work.trimmed > 1, "the log never wrapped");
}

#[test]
fn a_killed_bank_has_exactly_the_committed_bytes() {
    let mut place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.bank(&[&lender], 1);
    let rounds = place.rounds(9);
    kill_again_and_again(&mut place, &mut client, rounds);
}

#[test]
fn records_that_only_lenders_hold_survive_the_client() {
    let mut place = FaultsFixture::new();
    let lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    for _ in 0..place.rounds(3) {
        let running = client.start();
        running.until_acks_by_rule(50 + place.random.below(500));
        let heard = client.kill(running);
        assert_eq!(heard.failure(), None);
        let report = client.recover();
        assert!(
            report.from_members >= 50,
            "{report:?}: the disk was not slow at all"
        );
    }
}

#[test]
fn a_bank_that_only_lenders_hold_survives_the_client() {
    let mut place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.bank(&[&lender], 1);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    for _ in 0..place.rounds(4) {
        let running = client.start();
        running.until_acks(1 + place.random.below(500));
        client.kill(running);
    }
    client.recover();
}

/// Kills lenders in turn under a committing client. Odd turns take their memory, too.
fn lenders_die_in_turn(place: &mut FaultsFixture, client: &mut FaultsClient, lenders: &mut [FaultsLender]) {
    let running = client.start();
    running.until_acks_by_rule(20);
    for turn in 0..place.rounds(4) as usize {
        let lender = &mut lenders[turn % 2];
        match turn / 2 % 2 {
            0 => lender.kill(),
            _ => lender.lose(),
        }
        running.until_acks(20 + place.random.below(50));
        lender.restart();
        let address = lender.address.clone();
        // It is a member again, and members acknowledge again.
        running.until("the lender is back", |heard| {
            let standing = heard.standing();
            standing.is_some_and(|(blocked, members)| blocked.is_none() && members.contains(&address))
        });
        running.until_acks_by_rule(20);
    }
    client.end_unfailed(running);
}

#[test]
fn lenders_that_die_in_turn_fail_no_commit() {
    let mut place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    lenders_die_in_turn(&mut place, &mut client, &mut lenders);
}

#[test]
fn lenders_that_die_in_turn_fail_no_transaction() {
    let mut place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.bank(&[&lenders[0], &lenders[1]], 2);
    lenders_die_in_turn(&mut place, &mut client, &mut lenders);
}

#[test]
fn a_lender_killed_and_restarted_between_two_clients_still_has_the_window() {
    let mut place = FaultsFixture::new();
    let mut lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    for _ in 0..place.rounds(3) {
        let running = client.start();
        running.until_acks_by_rule(1 + place.random.below(300));
        lender.kill();
        client.kill(running);
        lender.restart();
        client.recover();
    }
}

#[test]
fn a_client_and_one_of_two_members_die_together_and_the_other_has_it_all() {
    let mut place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    for round in 0..place.rounds(3) as usize {
        let running = client.start();
        running.until_acks_by_rule(50 + place.random.below(300));
        client.kill(running);
        lenders[round % 2].lose();
        let report = client.recover();
        assert!(report.from_members >= 50, "{report:?}");
        lenders[round % 2].restart();
    }
}

#[test]
fn with_every_copy_gone_recovery_refuses_until_loss_is_accepted() {
    let place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    client.work.patience_ms = 1000;
    let running = client.start();
    running.until_acks_by_rule(200);
    client.kill(running);
    for lender in &mut lenders {
        lender.lose();
    }
    let refused = client
        .try_recover()
        .expect_err("nobody has the acknowledged records");
    refusals_name(&refused, &[&lenders[0], &lenders[1]]);
    // Back without their memory, they cannot vouch either.
    for lender in &mut lenders {
        lender.restart();
    }
    let refused = client
        .try_recover()
        .expect_err("nobody has the acknowledged records");
    refusals_name(&refused, &[&lenders[0], &lenders[1]]);
    assert!(refused.contains("without its memory"), "{refused}");
    client.work.accept_loss = true;
    let running = client.start();
    let heard = running.until_acks_by_rule(1);
    let report = heard.report().expect("it opened");
    assert!(report.loss.is_some_and(|loss| loss.contains(&lenders[0].address)));
    running.kill();
}

#[test]
fn with_every_copy_gone_a_fast_disk_has_everything_or_recovery_refuses() {
    let mut place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    for _ in 0..place.rounds(3) {
        let directory = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
        let mut client = place.journal_in(directory.path(), 64 << 20, &[&lenders[0], &lenders[1]], 2);
        client.work.patience_ms = 1000;
        let running = client.start();
        running.until_acks_by_rule(20 + place.random.below(300));
        client.kill(running);
        for lender in &mut lenders {
            lender.lose();
        }
        match client.try_recover() {
            // `recover` has compared: everything acknowledged was on the disk.
            Ok(_) => (),
            Err(refused) => refusals_name(&refused, &[&lenders[0], &lenders[1]]),
        }
        for lender in &mut lenders {
            lender.restart();
        }
    }
}

#[test]
fn rule_any_needs_every_member_back_and_then_loses_nothing() {
    let place = FaultsFixture::new();
    let mut lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal(&[&lenders[0], &lenders[1]], 2);
    client.work.rule = "any".to_owned();
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    client.work.patience_ms = 1000;
    let running = client.start();
    running.until_acks_by_rule(100);
    client.kill(running);
    lenders[1].kill();
    let refused = client
        .try_recover()
        .expect_err("the missing member may hold more");
    refusals_name(&refused, &[&lenders[1]]);
    lenders[1].restart();
    client.recover();
}

#[test]
fn a_closed_journal_needs_no_lender() {
    let place = FaultsFixture::new();
    let mut lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    client.work.commits = Some(200);
    let ended = client.start().end();
    client.learn(&ended.report);
    assert_eq!(ended.report.messages.last(), Some(&WorkerMessage::Closed));
    lender.lose();
    let report = client.recover();
    assert_eq!((report.from_members, report.last), (0, vec![400]));
}
