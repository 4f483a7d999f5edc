//! The spill file: which pages it gets, and when they move.

use netram_far_machine::deposit::{
    DirectoryEvent, DirectoryLookup, NoSlotsError, Page, SlotFile, SlotRequest, SpillServer, StoredPage,
    page_header,
};
use netram_far_machine::limit::{DEPOSIT_DETECT, PAGE_BYTES};
use netram_proto::id::{DepositId, Epoch, Incarnation, Lsn};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use super::world::{DepositWorld, OWNER};

/// Lenders of these sizes and the spill file, with forty pages.
fn filled(copies: usize, rooms: &[u32]) -> DepositWorld {
    let mut world = DepositWorld::unlinked(copies, rooms, 64);
    (0..=rooms.len()).for_each(|lender| world.link(lender));
    (0..40).for_each(|page| world.put(page, page as u8));
    world
}

/// Number of pages at each lender, and in the spill file.
fn spread(world: &DepositWorld) -> Vec<u32> {
    let status = world.directory.status();
    let all = status.lenders.iter().chain(&status.spill);
    all.map(|lender| lender.used).collect()
}

fn all_come_back(world: &mut DepositWorld) {
    world.arrived.clear();
    (0..40).for_each(|page| assert_eq!(world.directory.get(Page(page)), DirectoryLookup::Requested));
    world.settle();
    assert_eq!(world.arrived.len(), 40);
    assert!(world.arrived.iter().all(|(page, bytes)| bytes[0] == page.0 as u8));
}

/// Lets time pass until nothing moves any more.
fn pass(world: &mut DepositWorld, span: Nanos) {
    for _ in 0..10 {
        world.now = world.now + Nanos(span.0 / 10);
        world.directory.tick(world.now);
        world.settle();
    }
}

#[test]
fn without_a_lender_pages_are_only_in_the_spill_file() {
    let mut world = filled(2, &[]);
    assert!(world.pending.is_empty());
    let once = |news: &DirectoryEvent| matches!(news, DirectoryEvent::Stashed(_, _, 1));
    assert!(world.events.iter().all(once));
    assert_eq!((spread(&world), world.directory.status().short), (vec![40], 40));
    all_come_back(&mut world);
}

#[test]
fn with_one_lender_the_spill_file_has_the_second_copy() {
    let mut world = filled(2, &[64]);
    assert_eq!(
        (spread(&world), world.directory.status().short),
        (vec![40, 40], 0)
    );
    world.lenders[1].memory.pages.iter_mut().for_each(Vec::clear);
    all_come_back(&mut world);
}

#[test]
fn the_disk_is_not_used_while_lenders_have_room() {
    let world = filled(2, &[64, 64]);
    assert_eq!(spread(&world), [40, 40, 0]);
    assert_eq!(world.directory.status().spill.unwrap().slots, 0);
}

#[test]
fn pages_move_from_the_file_to_new_lenders() {
    let mut world = DepositWorld::unlinked(2, &[64, 64], 64);
    world.link(2);
    (0..40).for_each(|page| world.put(page, page as u8));
    world.link(0);
    pass(&mut world, Nanos::from_ms(1000));
    assert_eq!(spread(&world), [40, 0, 40]);
    world.link(1);
    pass(&mut world, Nanos::from_ms(1000));
    assert_eq!(
        (spread(&world), world.directory.status().short),
        (vec![40, 40, 0], 0)
    );
    all_come_back(&mut world);
}

#[test]
fn pages_of_a_lost_lender_get_a_second_copy_in_the_file() {
    let mut world = filled(2, &[64, 64]);
    world.unlink(0);
    pass(&mut world, DEPOSIT_DETECT);
    pass(&mut world, Nanos::from_ms(1000));
    let places = |page| {
        world
            .directory
            .places(Page(page))
            .map(|(lender, ..)| lender)
            .collect::<Vec<_>>()
    };
    assert!((0..40).all(|page| places(page).contains(&1) && places(page).contains(&2)));
    assert_eq!(world.directory.status().short, 0);
    all_come_back(&mut world);
}

#[test]
fn pages_without_room_at_lenders_go_to_the_file_and_back() {
    let mut world = filled(1, &[16]);
    assert!(world.pending.is_empty());
    assert_eq!(spread(&world), [16, 24]);
    world.lenders[0].memory.room = 64;
    pass(&mut world, Nanos::from_ms(4000));
    assert_eq!(spread(&world), [40, 0]);
    all_come_back(&mut world);
}

#[test]
fn with_a_full_file_pages_stay_pending() {
    let mut world = DepositWorld::unlinked(1, &[], 64);
    world.lenders[0].memory.room = 16;
    world.link(0);
    (0..40).for_each(|page| world.put(page, page as u8));
    assert_eq!((spread(&world), world.pending.len()), (vec![16], 24));
    world.lenders[0].memory.room = 64;
    pass(&mut world, Nanos::from_ms(4000));
    assert_eq!((spread(&world), world.pending.len()), (vec![40], 0));
    all_come_back(&mut world);
}

#[test]
fn writes_in_flight_when_the_file_fails_are_repeated() {
    let mut world = DepositWorld::unlinked(2, &[64], 64);
    (0..2).for_each(|lender| world.link(lender));
    world.linked[1] = false;
    (0..40).for_each(|page| world.put(page, page as u8));
    // A frame is in flight and never answered.
    while world.directory.poll(1, world.now).is_some() {}
    world.unlink(1);
    world.link(1);
    pass(&mut world, Nanos::from_ms(1000));
    assert_eq!((spread(&world), world.pending.len()), (vec![40, 40], 0));
    world.lenders[0].memory.pages.iter_mut().for_each(Vec::clear);
    world.unlink(0);
    all_come_back(&mut world);
}

/// A file of which one write fails.
#[derive(Default)]
struct FailingFile {
    pages: Vec<Vec<u8>>,
    fails: bool,
    unreadable: Option<u32>,
}

impl SlotFile for FailingFile {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        self.pages.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool {
        for page in pages.iter().filter(|_| !self.fails) {
            self.pages[page.slot as usize] = page.bytes.to_vec();
        }
        !self.fails
    }

    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8])) {
        for page in pages {
            let kept = &self.pages[page.slot as usize][..page.bytes.into()];
            each(if self.unreadable == Some(page.slot) {
                &[]
            } else {
                kept
            });
        }
    }
}

fn ask(
    spill: &mut SpillServer<FailingFile>,
    kind: FrameKind,
    epoch: u32,
    lsn: u64,
    body: &[u8],
) -> Option<Vec<u8>> {
    let mut header = FrameHeader::new(kind);
    (header.epoch, header.sender, header.lsn) = (Epoch(epoch), OWNER, Lsn(lsn));
    spill.handle(&Frame { header, body })
}

fn kind(answer: &[u8]) -> FrameKind {
    Frame::parse(answer).unwrap().header.kind
}

#[test]
fn a_failed_write_ends_the_session() {
    let mut spill = SpillServer::new(DepositId(1), Incarnation(1), FailingFile::default());
    ask(&mut spill, FrameKind::Deposit, 1, 0, &[]).unwrap();
    ask(&mut spill, FrameKind::Resize, 1, 4, &[]).unwrap();
    let page = |slot: u32, version: u64| {
        [
            &page_header(slot, version, PAGE_BYTES)[..],
            &[slot as u8; PAGE_BYTES],
        ]
        .concat()
    };
    let both = [page(1, 7), page(2, 8)].concat();
    assert_eq!(
        kind(&ask(&mut spill, FrameKind::Put, 1, 0, &both).unwrap()),
        FrameKind::PutAck
    );
    spill.file().fails = true;
    assert_eq!(ask(&mut spill, FrameKind::Put, 1, 0, &page(3, 9)), None);
    spill.file().fails = false;
    assert_eq!(
        ask(&mut spill, FrameKind::Put, 1, 0, &page(3, 9)),
        None,
        "the session is over"
    );
    let answer = ask(&mut spill, FrameKind::Deposit, 2, 0, &[]).unwrap();
    let header = Frame::parse(&answer).unwrap().header;
    assert_eq!(
        (header.lsn, header.stable),
        (Lsn(4), Lsn(1)),
        "earlier pages are still there"
    );
    spill.file().unreadable = Some(2);
    let heads = [page_header(1, 7, 0), page_header(2, 8, 0)].concat();
    let answer = ask(&mut spill, FrameKind::Get, 2, 0, &heads).unwrap();
    assert_eq!(
        Frame::parse(&answer).unwrap().body,
        [page(1, 7), page_header(2, 8, 0).to_vec()].concat()
    );
    assert_eq!(spill.server().used_slots(), 3);
    assert!(!spill.server().is_over(Time(u64::MAX / 2), Nanos(u64::MAX)));
}
