//! Blocks of pages that stay remote.

use netram_far_machine::deposit::{
    BlockRequest, DepositCommand, DirectoryEvent, DirectoryLookup, GatherOutcome, GatherResult, GatherTicket,
    LenderSet, Page,
};
use netram_far_machine::limit::{BLOCK_BYTES, DEPOSIT_LEASE, PAGE_BLOCKS};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;

use super::world::{DepositLender, DepositWorld};

const ALL: [u8; PAGE_BLOCKS] = {
    let mut all = [0; PAGE_BLOCKS];
    let mut at = 0;
    while at < PAGE_BLOCKS {
        all[at] = at as u8;
        at += 1;
    }
    all
};

fn ask(world: &mut DepositWorld, wanted: BlockRequest) -> GatherTicket {
    world.directory.gather(wanted, |_| false)
}

fn asked(world: &mut DepositWorld, page: u32, numbers: &[u8]) -> GatherTicket {
    let mut wanted = BlockRequest::default();
    wanted.extend(Page(page), numbers);
    let ticket = ask(world, wanted);
    assert!(!world.directory.has_gathered(ticket));
    ticket
}

fn taken(world: &mut DepositWorld, ticket: GatherTicket) -> GatherResult {
    assert!(world.directory.has_gathered(ticket));
    world.directory.take_gathered(ticket).unwrap()
}

/// Outcome of the first page of a request that needs no lender.
fn outcome(world: &mut DepositWorld, page: u32) -> GatherOutcome {
    let mut wanted = BlockRequest::default();
    wanted.add(Page(page), 7);
    let ticket = ask(world, wanted);
    taken(world, ticket).outcome(0)
}

#[test]
fn blocks_come_from_either_copy_in_several_frames() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    (0..40).for_each(|page| world.put(page, page as u8));
    const { assert!(40 * PAGE_BLOCKS * BLOCK_BYTES > 2 * FRAME_BODY_BYTES_MAX) };
    for dead in [0, 1] {
        let mut wanted = BlockRequest::default();
        (0..40).for_each(|page| wanted.extend(Page(page), &ALL));
        let ticket = ask(&mut world, wanted);
        let few = asked(&mut world, 3, &[255, 0]);
        world.unlink(dead);
        world.settle();
        let gathered = taken(&mut world, ticket);
        for page in 0..40 {
            let version = world.directory.version(Page(page as u32)).unwrap();
            assert_eq!(gathered.outcome(page), GatherOutcome::Arrived(version));
            let bytes = &gathered.bytes[gathered.wanted().bytes(page)];
            assert_eq!(bytes, [page as u8; 4096]);
        }
        assert_eq!(taken(&mut world, few).bytes, [3; 32]);
        world.link(dead);
    }
    assert_eq!(outcome(&mut world, 40), GatherOutcome::Never);
}

#[test]
fn a_gather_retries_a_page_that_was_put_or_forgotten() {
    let mut world = DepositWorld::new(1, &[64]);
    (0..3).for_each(|page| world.put(page, 1));
    let mut wanted = BlockRequest::default();
    (0..3).for_each(|page| wanted.extend(Page(page), &ALL));
    let ticket = ask(&mut world, wanted);
    let sent = world.directory.poll(0, world.now).unwrap();
    let (header, body) = world.frame(0, sent);
    let version = world.directory.put(Page(0));
    world.pending.insert(Page(0), (version, vec![2; 4096]));
    world.directory.forget(Page(1));
    assert!(!world.directory.has_gathered(ticket), "page 2 has not arrived");
    // The answer arrives; two of its pages are no longer wanted.
    let (answer, body) = world.lenders[0].ask(header, &body);
    world.hear(0, &answer, &body).unwrap();
    world.settle();
    assert_eq!(world.gathered, [Page(2)]);
    let gathered = taken(&mut world, ticket);
    let outcomes = [0, 1, 2].map(|index| gathered.outcome(index));
    let version = world.directory.version(Page(2)).unwrap();
    assert_eq!(
        outcomes,
        [
            GatherOutcome::Retry,
            GatherOutcome::Retry,
            GatherOutcome::Arrived(version)
        ]
    );
    assert_eq!(gathered.bytes[..2 * 4096], [0; 2 * 4096]);
    assert_eq!(gathered.bytes[2 * 4096..], [1; 4096]);
    assert_eq!(outcome(&mut world, 1), GatherOutcome::Never);
    let ticket = asked(&mut world, 0, &ALL);
    world.unlink(0);
    world.link(0);
    assert_eq!(taken(&mut world, ticket).bytes, [2; 4096]);
}

#[test]
fn a_gather_of_a_lost_page_names_its_lenders() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    world.put(5, 9);
    world.unlink(0);
    world.lenders[0] = DepositLender::new(77, 64);
    world.unlink(1);
    let ticket = asked(&mut world, 5, &ALL);
    world.link(0);
    assert!(!world.directory.has_gathered(ticket));
    world.now = world.now + DEPOSIT_LEASE;
    world.directory.tick(world.now);
    world.settle();
    let both = LenderSet(3);
    assert_eq!(world.events.last(), Some(&DirectoryEvent::Gathered(ticket)));
    assert_eq!(taken(&mut world, ticket).outcome(0), GatherOutcome::Lost(both));
    assert_eq!(outcome(&mut world, 5), GatherOutcome::Lost(both));
}

#[test]
fn blocks_in_the_spill_file_are_fetched_with_their_page() {
    let mut world = DepositWorld::unlinked(2, &[64], 64);
    let (lender, file) = (0, 1);
    [lender, file].into_iter().for_each(|which| world.link(which));
    world.put(5, 9);
    let given = asked(&mut world, 5, &ALL);
    world.settle();
    assert_eq!(taken(&mut world, given).bytes, [9; 4096]);
    // The request need not wait for the lender to come back.
    let ticket = asked(&mut world, 5, &ALL);
    world.unlink(lender);
    assert_eq!(world.events.last(), Some(&DirectoryEvent::Gathered(ticket)));
    assert_eq!(taken(&mut world, ticket).outcome(0), GatherOutcome::Retry);
    assert_eq!(outcome(&mut world, 5), GatherOutcome::Spilled);
    assert_eq!(world.directory.get(Page(5)), DirectoryLookup::Requested);
    world.settle();
    assert_eq!(world.arrived[&Page(5)], [9; 4096]);
    world.link(lender);
    asked(&mut world, 5, &ALL);
}

#[test]
fn blocks_of_an_arrived_page_are_read_from_it() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    world.put(5, 9);
    let ticket = asked(&mut world, 5, &ALL);
    let picks_at = (0..2).find_map(|lender| Some((lender, world.directory.poll(lender, world.now)?)));
    let (slow, asked_slow) = picks_at.unwrap();
    // The other copy's lender has less in flight.
    assert_eq!(world.directory.get(Page(5)), DirectoryLookup::Requested);
    world.settle();
    assert_eq!(world.arrived[&Page(5)], [9; 4096]);
    assert_eq!(world.events.last(), Some(&DirectoryEvent::Gathered(ticket)));
    // Forged blocks that arrive after the page was verified would never be detected.
    let (header, body) = world.frame(slow, asked_slow);
    let (answer, body) = world.lenders[slow].ask(header, &body);
    world.hear(slow, &answer, &body).unwrap();
    assert_eq!(world.gathered, []);
    assert_eq!(taken(&mut world, ticket).outcome(0), GatherOutcome::Retry);
    // Until the page is taken, no other lender is asked either.
    let mut wanted = BlockRequest::default();
    wanted.add(Page(5), 7);
    let ticket = world.directory.gather(wanted, |page| page == Page(5));
    assert_eq!(taken(&mut world, ticket).outcome(0), GatherOutcome::Local);
}

#[test]
fn blocks_missing_at_a_lender_come_from_the_other_copy() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    (0..4).for_each(|page| world.put(page, page as u8 + 1));
    let mut wanted = BlockRequest::default();
    (0..4).for_each(|page| wanted.add(Page(page), 9));
    let ticket = ask(&mut world, wanted);
    let sent = world.directory.poll(0, world.now).unwrap();
    let (header, _) = world.frame(0, sent);
    // It answers that it has none of its pages.
    let count = (0..4).filter(|page| world.directory.places(Page(*page)).next().unwrap().0 == 0);
    let none = vec![0; 2 * count.count()];
    let mut answer = header;
    answer.kind = netram_proto::wire::FrameKind::GatherReply;
    assert!(!none.is_empty(), "the first lender was asked");
    world.hear(0, &answer, &none).unwrap();
    assert!(!world.directory.has_gathered(ticket));
    world.settle();
    let gathered = taken(&mut world, ticket);
    for page in 0..4 {
        assert_eq!(
            gathered.bytes[gathered.wanted().bytes(page)],
            [page as u8 + 1; 16]
        );
    }
}

#[test]
fn gathers_and_pages_alternate() {
    let mut world = DepositWorld::new(1, &[64]);
    (0..40).for_each(|page| world.put(page, page as u8));
    for page in 0..40 {
        asked(&mut world, page, &ALL);
    }
    assert_eq!(world.directory.get(Page(3)), DirectoryLookup::Requested);
    let mut sent = Vec::new();
    while let Some(send) = world.directory.poll(0, world.now) {
        sent.push(matches!(send, DepositCommand::Gather(..)));
    }
    assert_eq!(sent, [true, false, true, true]);
}
