//! A page that is wanted, and a lender that has it and does not answer.

use netram_far_machine::deposit::{BlockRequest, DepositCommand, DirectoryLookup, GatherOutcome, Page};
use netram_far_machine::limit::{DEPOSIT_TIMEOUT, FRAME_PAGES_MAX, HEDGE_MAX, HEDGE_MIN, HEDGES_MAX};
use netram_proto::time::Nanos;

use super::world::DepositWorld;

/// Two lenders with pages that are at both. They have answered at once so far.
fn at_both(pages: u32) -> DepositWorld {
    let mut world = DepositWorld::new(2, &[64, 64]);
    for page in 0..pages {
        world.put(page, page as u8);
    }
    assert!(world.pending.is_empty());
    world
}

/// Asks for a page. Of whom.
fn ask(world: &mut DepositWorld, page: u32) -> usize {
    assert_eq!(world.directory.get(Page(page)), DirectoryLookup::Requested);
    world.directory.asked(Page(page)).iter().next().unwrap()
}

fn wait(world: &mut DepositWorld, span: Nanos) {
    world.now = world.now + span;
    world.directory.tick(world.now);
}

#[test]
fn a_page_whose_lender_is_late_is_asked_of_the_other_one_as_well() {
    let mut world = at_both(4);
    let silent = ask(&mut world, 0);
    let sent = world.directory.poll(silent, world.now).unwrap();
    wait(&mut world, Nanos(HEDGE_MIN.0 - 1));
    assert_eq!(
        world.directory.asked(Page(0)).iter().count(),
        1,
        "it is not late yet"
    );
    wait(&mut world, Nanos(1));
    assert_eq!(world.directory.asked(Page(0)).iter().count(), 2);
    assert!(!world.directory.is_silent(silent, world.now), "it is only late");
    wait(&mut world, Nanos(1));
    let other = 1 - silent;
    assert!(
        matches!(world.directory.poll(other, world.now), Some(DepositCommand::Get(_, pages)) if pages.len() == 1)
    );
    assert_eq!(world.directory.poll(other, world.now), None, "it is asked once");
    // What is wanted from now on is not asked of who is late.
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
fn the_answer_that_comes_second_is_no_offence_and_counts_for_nothing() {
    let mut world = at_both(1);
    let silent = ask(&mut world, 0);
    let sent = world.directory.poll(silent, world.now).unwrap();
    let (header, body) = world.frame(silent, sent);
    let (late, late_body) = world.lenders[silent].ask(header, &body);
    wait(&mut world, HEDGE_MIN);
    world.linked[silent] = false;
    world.settle();
    assert_eq!(world.arrived.remove(&Page(0)).unwrap()[0], 0);
    // It has left again, with other bytes, when the answer comes.
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
fn the_one_that_is_left_is_waited_for_when_the_other_one_goes_or_has_lost_it() {
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
            "it is not asked twice"
        );
        let (header, body) = world.frame(silent, sent);
        let (answer, body) = world.lenders[silent].ask(header, &body);
        world.hear(silent, &answer, &body).unwrap();
        assert_eq!(world.arrived[&Page(0)][0], 0);
    }
}

/// It waited for its turn twice at the first lender, and the second of two answers in one frame was no page
/// that anybody had asked for.
#[test]
fn a_page_that_came_from_the_other_one_and_is_asked_for_again_is_asked_once() {
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
fn when_both_are_late_and_when_nobody_waits_nobody_else_is_asked() {
    let mut world = at_both(2);
    let first = ask(&mut world, 0);
    world.directory.poll(first, world.now).unwrap();
    let second = ask(&mut world, 1);
    assert_ne!(first, second, "of two the one with less on its way");
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
fn a_lender_that_always_takes_long_is_late_later() {
    let mut world = at_both(1);
    let slow = Nanos(HEDGE_MIN.0 * 4);
    for _ in 0..60 {
        // Only the first lender is there to be asked, and it takes its time.
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
fn no_more_is_asked_for_twice_at_once_than_may_be_on_its_way() {
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
fn blocks_that_a_late_lender_owes_are_asked_of_the_other_one() {
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
