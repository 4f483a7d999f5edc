//! A wanted page, and a lender that has it but does not answer.

use netram_far_machine::deposit::{BlockRequest, DepositCommand, DirectoryLookup, GatherOutcome, Page};
use netram_far_machine::limit::{DEPOSIT_TIMEOUT, FRAME_PAGES_MAX, HEDGE_MAX, HEDGE_MIN, HEDGES_MAX};
use netram_proto::time::Nanos;

use super::world::DepositWorld;

/// Two lenders that both have the pages, and have answered promptly so far.
fn at_both(pages: u32) -> DepositWorld {
    let mut world = DepositWorld::new(2, &[64, 64]);
    for page in 0..pages {
        world.put(page, page as u8);
    }
    assert!(world.pending.is_empty());
    world
}

/// Requests a page. Returns the lender that is asked.
fn ask(world: &mut DepositWorld, page: u32) -> usize {
    assert_eq!(world.directory.get(Page(page)), DirectoryLookup::Requested);
    world.directory.asked(Page(page)).iter().next().unwrap()
}

fn wait(world: &mut DepositWorld, span: Nanos) {
    world.now = world.now + span;
    world.directory.tick(world.now);
}

#[test]
fn a_page_is_also_requested_from_the_other_lender_if_one_is_late() {
    let mut world = at_both(4);
    let silent = ask(&mut world, 0);
    let sent = world.directory.poll(silent, world.now).unwrap();
    wait(&mut world, Nanos(HEDGE_MIN.0 - 1));
    assert_eq!(
        world.directory.asked(Page(0)).iter().count(),
        1,
        "the lender is not late yet"
    );
    wait(&mut world, Nanos(1));
    assert_eq!(world.directory.asked(Page(0)).iter().count(), 2);
    assert!(
        !world.directory.is_silent(silent, world.now),
        "the lender is only late"
    );
    wait(&mut world, Nanos(1));
    let other = 1 - silent;
    assert!(
        matches!(world.directory.poll(other, world.now), Some(DepositCommand::Get(_, pages)) if pages.len() == 1)
    );
    assert_eq!(
        world.directory.poll(other, world.now),
        None,
        "the lender is asked once"
    );
    // Further pages are not requested from the late lender.
    for page in 1..4 {
        assert_eq!(ask(&mut world, page), other);
    }
    // It answers first after all.
    let (header, body) = world.frame(silent, sent);
    let (answer, body) = world.lenders[silent].ask(header, &body);
    world.hear(silent, &answer, &body).unwrap();
    assert_eq!(world.arrived[&Page(0)][0], 0);
    assert!(world.directory.asked(Page(0)).is_empty());
}

#[test]
fn a_second_answer_is_ignored() {
    let mut world = at_both(1);
    let silent = ask(&mut world, 0);
    let sent = world.directory.poll(silent, world.now).unwrap();
    let (header, body) = world.frame(silent, sent);
    let (late, late_body) = world.lenders[silent].ask(header, &body);
    wait(&mut world, HEDGE_MIN);
    world.linked[silent] = false;
    world.settle();
    assert_eq!(world.arrived.remove(&Page(0)).unwrap()[0], 0);
    // The page has been put again, with other bytes, when the answer arrives.
    world.put(0, 9);
    world.hear(silent, &late, &late_body).unwrap();
    assert!(world.arrived.is_empty());
    world.linked[silent] = true;
    world.settle();
    assert!(world.pending.is_empty());
    ask(&mut world, 0);
    world.settle();
    assert_eq!(world.arrived[&Page(0)][0], 9);
}

#[test]
fn the_remaining_lender_is_awaited_when_the_other_fails() {
    for goes in [true, false] {
        let mut world = at_both(1);
        let silent = ask(&mut world, 0);
        let sent = world.directory.poll(silent, world.now).unwrap();
        wait(&mut world, HEDGE_MIN);
        let other = 1 - silent;
        let version = world.directory.version(Page(0)).unwrap();
        match goes {
            true => world.directory.on_unlinked(other, world.now),
            false => world.directory.damaged(other, Page(0), version),
        }
        let asked: Vec<usize> = world.directory.asked(Page(0)).iter().collect();
        assert_eq!(asked, [silent]);
        assert_eq!(
            world.directory.poll(silent, world.now),
            None,
            "the lender is not asked twice"
        );
        let (header, body) = world.frame(silent, sent);
        let (answer, body) = world.lenders[silent].ask(header, &body);
        world.hear(silent, &answer, &body).unwrap();
        assert_eq!(world.arrived[&Page(0)][0], 0);
    }
}

/// The page was queued twice at the first lender, and the second of two answers in one frame answered no
/// request.
#[test]
fn a_page_requested_again_is_asked_once() {
    let mut world = at_both(2);
    let silent = ask(&mut world, 0);
    let sent = world.directory.poll(silent, world.now).unwrap();
    let other = 1 - silent;
    world.linked[silent] = false;
    world.unlink(other);
    assert_eq!(ask(&mut world, 1), silent);
    world.link(other);
    wait(&mut world, HEDGE_MIN);
    world.settle();
    assert!(world.arrived.remove(&Page(1)).is_some());
    let (header, body) = world.frame(silent, sent);
    let (answer, body) = world.lenders[silent].ask(header, &body);
    world.hear(silent, &answer, &body).unwrap();
    world.unlink(other);
    assert_eq!(ask(&mut world, 1), silent);
    let sent = world.directory.poll(silent, world.now).unwrap();
    assert!(
        matches!(&sent, DepositCommand::Get(_, items) if items.len() == 1),
        "{sent:?}"
    );
    let (header, body) = world.frame(silent, sent);
    let (answer, body) = world.lenders[silent].ask(header, &body);
    world.hear(silent, &answer, &body).unwrap();
    assert_eq!(world.arrived[&Page(1)][0], 1);
}

#[test]
fn no_other_lender_is_asked_if_both_are_late_or_no_thread_waits() {
    let mut world = at_both(2);
    let first = ask(&mut world, 0);
    world.directory.poll(first, world.now).unwrap();
    let second = ask(&mut world, 1);
    assert_ne!(first, second, "the lender with less in flight");
    world.directory.poll(second, world.now).unwrap();
    wait(&mut world, HEDGE_MIN);
    for page in 0..2 {
        assert_eq!(world.directory.asked(Page(page)).iter().count(), 1);
    }
    world.directory.forget(Page(0));
    world.directory.on_unlinked(second, world.now);
    wait(&mut world, DEPOSIT_TIMEOUT);
    assert!(world.directory.asked(Page(0)).is_empty());
}

#[test]
fn a_slow_lender_gets_a_longer_timeout() {
    let mut world = at_both(1);
    let slow = Nanos(HEDGE_MIN.0 * 4);
    for _ in 0..60 {
        // Only the first lender is linked, and it is slow.
        let asked = ask(&mut world, 0);
        let sent = world.directory.poll(asked, world.now).unwrap();
        let (header, body) = world.frame(asked, sent);
        let (answer, body) = world.lenders[asked].ask(header, &body);
        world.now = world.now + slow;
        world.directory.look(world.now);
        world.hear(asked, &answer, &body).unwrap();
    }
    let asked = ask(&mut world, 0);
    world.directory.poll(asked, world.now).unwrap();
    wait(&mut world, Nanos(slow.0 - 1));
    assert_eq!(world.directory.asked(Page(0)).iter().count(), 1);
    wait(&mut world, HEDGE_MAX);
    assert_eq!(world.directory.asked(Page(0)).iter().count(), 2);
}

#[test]
fn the_number_of_second_requests_is_bounded() {
    let pages = HEDGES_MAX as u32 + FRAME_PAGES_MAX as u32;
    let mut world = DepositWorld::new(2, &[2 * pages, 2 * pages]);
    for page in 0..pages.min(64) {
        world.put(page, 1);
    }
    let count = pages.min(64);
    world.directory.on_unlinked(1, world.now);
    for page in 0..count {
        assert_eq!(ask(&mut world, page), 0);
    }
    while world.directory.poll(0, world.now).is_some() {}
    world.link(1);
    wait(&mut world, HEDGE_MIN);
    let twice = |world: &DepositWorld| {
        let asked = (0..count).map(|page| world.directory.asked(Page(page)).iter().count());
        asked.filter(|count| *count == 2).count()
    };
    assert_eq!(twice(&world), HEDGES_MAX.min(count as usize));
    wait(&mut world, Nanos(1));
    assert_eq!(twice(&world), count as usize);
}

#[test]
fn blocks_owed_by_a_late_lender_are_requested_from_the_other() {
    let mut world = at_both(1);
    let mut wanted = BlockRequest::default();
    wanted.extend(Page(0), &[3]);
    let ticket = world.directory.gather(wanted, |_| false);
    let silent = (0..2).find(|lender| world.directory.poll(*lender, world.now).is_some());
    let silent = silent.unwrap();
    wait(&mut world, HEDGE_MIN);
    world.linked[silent] = false;
    world.settle();
    let gathered = world.directory.take_gathered(ticket).unwrap();
    assert!(matches!(gathered.outcome(0), GatherOutcome::Arrived(_)));
}
