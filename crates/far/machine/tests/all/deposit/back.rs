//! A lender wants some of its slots back: pages move first, and pages that cannot move stay.
//! `DepositWorld::settle` checks each slot that is given up.

use netram_far_machine::deposit::{
    BlockRequest, DepositCommand, DirectoryEvent, DirectoryLookup, GatherOutcome, LenderSet, Page,
};
use netram_far_machine::limit::{DEPOSIT_RETRY, DEPOSIT_SLOTS_MAX, PAGE_BYTES};
use netram_proto::wire::FrameKind;

use super::world::{DepositLender, DepositWorld};

const PAGES: u32 = 40;

/// Runs until nothing happens any more.
fn rest(world: &mut DepositWorld) {
    for _ in 0..8 {
        world.directory.tick(world.now);
        world.settle();
    }
}

fn filled(copies: usize, rooms: &[u32]) -> DepositWorld {
    let mut world = DepositWorld::new(copies, rooms);
    (0..PAGES).for_each(|page| world.put(page, page as u8 + 1));
    world
}

fn slots(world: &DepositWorld, lender: usize) -> u32 {
    assert_eq!(
        world.lenders[lender].server.slots(),
        world.directory.status().lenders[lender].slots
    );
    world.lenders[lender].server.slots()
}

/// Checks that each page comes back as it was put.
fn all_come(world: &mut DepositWorld, pages: impl Iterator<Item = u32> + Clone) {
    world.arrived.clear();
    for page in pages.clone() {
        assert_eq!(
            world.directory.get(Page(page)),
            DirectoryLookup::Requested,
            "page {page}"
        );
    }
    world.settle();
    for page in pages {
        assert_eq!(world.arrived[&Page(page)][0], page as u8 + 1);
    }
}

/// The next frame to a lender, not delivered.
fn sent(world: &mut DepositWorld, lender: usize) -> DepositCommand {
    let Some(send) = world.directory.poll(lender, world.now) else {
        panic!("a frame is to be sent")
    };
    send
}

/// Delivers a frame and its answer.
fn arrives(world: &mut DepositWorld, lender: usize, send: DepositCommand) {
    let (header, body) = world.frame(lender, send);
    let (answer, body) = world.lenders[lender].ask(header, &body);
    world.hear(lender, &answer, &body).unwrap();
}

#[test]
fn pages_move_to_another_lender_before_slots_are_given_up() {
    let mut world = filled(1, &[64, 64]);
    let had = slots(&world, 0);
    assert!(had > 5 && world.lenders[0].server.used_slots() > 5);
    world.ask_back(0, Some(5));
    assert_eq!(world.directory.status().lenders[0].asked_back, had - 5);
    rest(&mut world);
    assert_eq!((slots(&world, 0), world.lenders[0].server.asked_back()), (5, 0));
    assert!(world.pending.is_empty() && world.directory.status().short == 0);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn a_moving_page_keeps_both_copies() {
    let mut world = filled(2, &[64, 64, 64]);
    world.ask_back(1, Some(0));
    rest(&mut world);
    assert_eq!(slots(&world, 1), 0);
    for page in 0..PAGES {
        let places = world.directory.places(Page(page));
        assert_eq!(
            places.filter(|(lender, _, held)| *held && *lender != 1).count(),
            2
        );
    }
    assert_eq!(world.directory.status().short, 0);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn pages_move_to_lower_slots_of_the_same_lender() {
    let mut world = filled(1, &[64]);
    (0..20).for_each(|page| world.directory.forget(Page(page)));
    world.ask_back(0, Some(20));
    rest(&mut world);
    assert_eq!((slots(&world, 0), world.lenders[0].server.used_slots()), (20, 20));
    all_come(&mut world, 20..PAGES);
}

#[test]
fn pages_without_another_place_stay_in_their_slots() {
    let mut world = filled(1, &[64, 64]);
    let had = slots(&world, 0);
    world.unlink(1);
    world.ask_back(0, Some(5));
    rest(&mut world);
    assert_eq!(slots(&world, 0), had);
    assert!(world.directory.status().lenders[0].asked_back > 0);
    assert!(world.pending.is_empty(), "pages that stay are not pending");
    let held = world.directory.places(Page(0)).next();
    assert!(held.is_some_and(|(.., held)| held));
    world.link(1);
    rest(&mut world);
    assert_eq!(slots(&world, 0), 5);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn with_two_copies_and_two_lenders_both_copies_stay() {
    let mut world = filled(2, &[64, 64]);
    let had = slots(&world, 0);
    world.ask_back(0, Some(0));
    rest(&mut world);
    assert_eq!(
        (slots(&world, 0), world.lenders[0].server.used_slots()),
        (had, PAGES)
    );
    assert_eq!(
        world.directory.status().short,
        0,
        "a reclaim request does not make pages short"
    );
}

#[test]
fn pages_move_into_the_spill_file_and_back() {
    let mut world = DepositWorld::unlinked(1, &[64], 64);
    let (lender, file) = (0, 1);
    [lender, file].into_iter().for_each(|which| world.link(which));
    (0..PAGES).for_each(|page| world.put(page, page as u8 + 1));
    assert_eq!(world.lenders[file].server.slots(), 0, "the disk is not used");
    world.ask_back(lender, Some(10));
    rest(&mut world);
    assert_eq!(
        (slots(&world, lender), world.lenders[lender].server.used_slots()),
        (10, 10)
    );
    let spilled = world.directory.status().spill.unwrap().used;
    assert_eq!(spilled, PAGES - 10);
    all_come(&mut world, 0..PAGES);
    world.ask_back(lender, None);
    rest(&mut world);
    assert_eq!(world.directory.status().spill.unwrap().used, 0);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn no_slots_are_requested_from_a_lender_that_wants_some_back() {
    let mut world = filled(1, &[64]);
    let had = slots(&world, 0);
    world.ask_back(0, Some(had));
    (PAGES..60).for_each(|page| world.put(page, page as u8 + 1));
    world.now = world.now + DEPOSIT_RETRY;
    rest(&mut world);
    assert_eq!((slots(&world, 0), world.pending.len() as u32), (had, 60 - had));
    assert!(
        !world.directory.status().lenders[0].full,
        "no slots were requested"
    );
    world.ask_back(0, None);
    rest(&mut world);
    assert!(slots(&world, 0) >= 60 && world.pending.is_empty());
    all_come(&mut world, 0..60);
}

#[test]
fn a_reclaim_request_may_change_while_pages_move() {
    let mut world = filled(1, &[64, 64]);
    world.ask_back(0, Some(10));
    // Some pages are in flight when the next reclaim request comes.
    let get = sent(&mut world, 0);
    assert!(matches!(get, DepositCommand::Get(..)));
    world.ask_back(0, Some(2));
    arrives(&mut world, 0, get);
    rest(&mut world);
    assert_eq!(slots(&world, 0), 2);
    all_come(&mut world, 0..PAGES);
    world.ask_back(0, Some(30));
    (PAGES..80).for_each(|page| world.put(page, page as u8 + 1));
    rest(&mut world);
    assert!((3..=30).contains(&slots(&world, 0)));
    all_come(&mut world, 0..80);
}

#[test]
fn a_reclaim_request_withdrawn_before_pages_move_leaves_them() {
    let mut world = filled(1, &[64, 64]);
    let had = slots(&world, 0);
    world.ask_back(0, Some(0));
    let get = sent(&mut world, 0);
    world.ask_back(0, None);
    arrives(&mut world, 0, get);
    rest(&mut world);
    assert_eq!(slots(&world, 0), had);
    all_come(&mut world, 0..PAGES);
}

/// Slots that a `Resize` gives up are no longer the owner's, whatever the lender says meanwhile.
#[test]
fn a_late_withdrawal_does_not_return_slots() {
    let mut world = filled(1, &[64, 64]);
    world.ask_back(0, Some(20));
    let resize = loop {
        match world.directory.poll(0, world.now) {
            Some(DepositCommand::Resize(slots)) => break slots,
            Some(send) => arrives(&mut world, 0, send),
            None => {
                let send = sent(&mut world, 1);
                arrives(&mut world, 1, send);
                while world.directory.next_event().is_some() {}
            }
        }
    };
    assert_eq!(resize, 20);
    world.ask_back(0, None);
    assert!(world.directory.free_slots(0).all(|slot| slot < 20));
    arrives(&mut world, 0, DepositCommand::Resize(20));
    world.pending.clear();
    rest(&mut world);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn a_page_in_flight_to_a_slot_wanted_back_goes_elsewhere() {
    let mut world = DepositWorld::new(1, &[64, 64]);
    for page in 0..PAGES {
        let version = world.directory.put(Page(page));
        let bytes = vec![page as u8 + 1; PAGE_BYTES];
        world.pending.insert(Page(page), (version, bytes));
    }
    world.settle();
    let version = world.directory.put(Page(0));
    world.pending.insert(Page(0), (version, vec![1; PAGE_BYTES]));
    let (at, ..) = world.directory.places(Page(0)).next().unwrap();
    let put = sent(&mut world, at);
    assert!(matches!(put, DepositCommand::Put(..)));
    world.ask_back(at, Some(0));
    arrives(&mut world, at, put);
    assert_ne!(world.directory.places(Page(0)).next().unwrap().0, at);
    assert!(
        world.pending.contains_key(&Page(0)),
        "the arrived copy does not count"
    );
    rest(&mut world);
    assert_eq!(slots(&world, at), 0);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn a_broken_link_ends_the_wish_and_loses_no_page() {
    let mut world = filled(1, &[64, 64]);
    let had = slots(&world, 0);
    world.ask_back(0, Some(0));
    let get = sent(&mut world, 0);
    arrives(&mut world, 0, get);
    world.unlink(0);
    world.link(0);
    assert_eq!(world.directory.status().lenders[0].asked_back, 0);
    rest(&mut world);
    assert_eq!(slots(&world, 0), had);
    all_come(&mut world, 0..PAGES);
    // The lender knows that, and repeats its request.
    world.ask_back(0, Some(0));
    rest(&mut world);
    assert_eq!(slots(&world, 0), 0);
    all_come(&mut world, 0..PAGES);
}

/// A deposit with fewer slots than its owner expected was taken for a different one, and all its pages for
/// lost.
#[test]
fn a_link_that_breaks_during_a_resize_loses_nothing() {
    for heard in [false, true] {
        let mut world = filled(1, &[64]);
        (10..PAGES).for_each(|page| world.directory.forget(Page(page)));
        world.ask_back(0, Some(10));
        let DepositCommand::Resize(10) = sent(&mut world, 0) else {
            panic!("slots from 10 on are empty")
        };
        if heard {
            let (header, _) = world.frame(0, DepositCommand::Resize(10));
            assert_eq!(world.lenders[0].ask(header, &[]).0.kind, FrameKind::DepositAck);
        }
        world.unlink(0);
        world.link(0);
        rest(&mut world);
        assert!(
            world
                .events
                .iter()
                .all(|news| !matches!(news, DirectoryEvent::Lost(..)))
        );
        all_come(&mut world, 0..10);
    }
}

#[test]
fn a_page_forgotten_or_put_while_moving_leaves_its_slot() {
    let mut world = filled(1, &[64, 64]);
    world.ask_back(0, Some(0));
    let get = sent(&mut world, 0);
    let DepositCommand::Get(_, items) = &get else {
        panic!("pages are fetched for moving")
    };
    let (gone, anew) = (items[0].page, items[1].page);
    world.directory.forget(gone);
    world.put(anew.0, anew.0 as u8 + 1);
    arrives(&mut world, 0, get);
    rest(&mut world);
    assert_eq!(slots(&world, 0), 0);
    assert_eq!(world.directory.get(gone), DirectoryLookup::Never);
    all_come(&mut world, (0..PAGES).filter(|page| *page != gone.0));
}

#[test]
fn a_moving_page_and_its_words_can_be_fetched() {
    let mut world = filled(1, &[64, 64]);
    let of = |world: &DepositWorld, lender| {
        let at = |page: &u32| world.directory.places(Page(*page)).next().unwrap().0 == lender;
        (0..PAGES).filter(at).collect::<Vec<u32>>()
    };
    let there = of(&world, 0);
    let mut wanted = BlockRequest::default();
    there.iter().for_each(|page| wanted.add(Page(*page), 9));
    let ticket = world.directory.gather(wanted, |_| false);
    assert_eq!(world.directory.get(Page(there[1])), DirectoryLookup::Requested);
    world.ask_back(0, Some(0));
    rest(&mut world);
    assert_eq!(slots(&world, 0), 0);
    assert_eq!(world.arrived[&Page(there[1])][0], there[1] as u8 + 1);
    let gathered = world.directory.take_gathered(ticket).unwrap();
    for (index, page) in there.iter().enumerate() {
        match gathered.outcome(index) {
            GatherOutcome::Arrived(_) => {
                let bytes = &gathered.bytes[gathered.wanted().bytes(index)];
                assert_eq!(bytes, [*page as u8 + 1; 16]);
            }
            // It arrived for its move and is looked up again.
            outcome => assert_eq!(outcome, GatherOutcome::Retry),
        }
    }
    assert_eq!(of(&world, 1).len(), PAGES as usize);
}

/// A lender that had lost a page, got it again and gave it back was still named as having lost it.
#[test]
fn a_lender_that_gives_back_a_page_has_not_lost_it() {
    let mut world = DepositWorld::new(2, &[64, 64, 64]);
    world.unlink(2);
    world.put(5, 6);
    world.link(2);
    let die = |world: &mut DepositWorld, lender: usize, life| {
        world.unlink(lender);
        world.lenders[lender] = DepositLender::new(life, 64);
        world.link(lender);
        rest(world);
    };
    // It dies and gets the page again, because the only other lender is away.
    world.unlink(2);
    die(&mut world, 0, 77);
    world.link(2);
    world.ask_back(0, Some(0));
    rest(&mut world);
    world.unlink(1);
    world.unlink(2);
    world.lenders[1] = DepositLender::new(78, 64);
    world.lenders[2] = DepositLender::new(79, 64);
    world.link(1);
    world.link(2);
    let mut lost = LenderSet::default();
    [1, 2].into_iter().for_each(|lender| lost.insert(lender));
    assert_eq!(world.directory.get(Page(5)), DirectoryLookup::Lost(lost));
}

#[test]
fn pages_leave_a_lender_that_wants_slots_back_and_then_stops() {
    let mut world = filled(1, &[64, 64]);
    world.ask_back(0, Some(5));
    world.directory.on_withdraw(0);
    rest(&mut world);
    assert_eq!(slots(&world, 0), 0);
    all_come(&mut world, 0..PAGES);
}

#[test]
fn a_reclaim_request_is_told_once_per_session() {
    let mut world = filled(1, &[64]);
    let holder = &mut world.lenders[0].server;
    let wish = holder.ask_back(Some(10)).unwrap();
    assert_eq!(
        (wish.kind, wish.lsn.0, wish.epoch),
        (FrameKind::Withdraw, 10, holder.epoch())
    );
    assert_eq!(holder.ask_back(Some(10)), None);
    assert_eq!(holder.asked_back(), holder.slots() - 10);
    let over = holder.ask_back(None).unwrap();
    assert_eq!((over.lsn.0, holder.asked_back()), (DEPOSIT_SLOTS_MAX.into(), 0));
    assert_eq!(holder.ask_back(None), None);
    assert!(holder.ask_back(Some(3)).is_some());
    world.unlink(0);
    let holder = &mut world.lenders[0].server;
    assert_eq!((holder.ask_back(Some(4)), holder.keep()), (None, None));
    world.link(0);
    assert!(
        world.lenders[0].server.ask_back(Some(3)).is_some(),
        "the new session must be told"
    );
}
