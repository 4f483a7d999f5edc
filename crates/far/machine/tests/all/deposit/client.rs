//! A waiter gets the content that was put last, or learns that it is lost.

use netram_far_machine::deposit::{
    BlockMac, DirectorySettings, LenderSet, LenderViolation, Page, PageDirectory, PageLookup, PageSeal,
    RemotePageClient, SealedBlock,
};
use netram_far_machine::limit::{DEPOSIT_SLOTS_MAX, PREFETCHED_PAGES_MAX};
use netram_proto::id::Lsn;
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind};

use super::world::{DepositLender, OWNER};

/// A seal for tests: a page is a byte, and its sealed form names page and version.
#[derive(Clone, Debug)]
struct PlainSeal;

impl PageSeal for PlainSeal {
    type Clear = u8;
    type Sealed = Vec<u8>;

    fn zeros() -> Box<u8> {
        Box::new(0)
    }

    fn seal(&mut self, page: Page, version: u64, clear: &u8) -> Vec<u8> {
        vec![page.0 as u8, version as u8, *clear]
    }

    fn open(&self, page: Page, version: u64, sealed: &[u8]) -> Option<Box<u8>> {
        let clear = *sealed.get(2)?;
        (sealed == [page.0 as u8, version as u8, clear]).then(|| Box::new(clear))
    }

    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        let sum = |bytes: &[u8]| { bytes.iter() }.fold(0_u8, |sum, byte| sum.wrapping_mul(31) ^ byte);
        let mark = |block: &SealedBlock| {
            [
                block.page.0 as u8,
                block.version as u8,
                block.number,
                sum(&block.bytes),
            ]
        };
        marks.extend(blocks.iter().map(mark));
    }

    fn keep(&self, sealed: &[u8]) -> Vec<u8> {
        sealed.to_vec()
    }

    fn bytes(sealed: &Vec<u8>) -> &[u8] {
        sealed
    }
}

struct ClientWorld {
    client: RemotePageClient<PlainSeal>,
    lender: DepositLender,
    now: Time,
}

impl ClientWorld {
    /// A client and one lender with room for everything.
    fn new() -> ClientWorld {
        let settings = DirectorySettings {
            copies: 1,
            slots_max: vec![1024],
            grow: 1024,
            spill_max: 0,
        };
        let mut world = ClientWorld {
            client: RemotePageClient::new(PageDirectory::new(&settings), PlainSeal),
            lender: DepositLender::new(1, 1024),
            now: Time(1),
        };
        world.link();
        world
    }

    fn link(&mut self) {
        let mut header = FrameHeader::new(FrameKind::Deposit);
        (header.epoch, header.sender) = (self.client.links().next_session(0), OWNER);
        self.ask(header, &[]).unwrap();
        self.settle();
    }

    fn ask(&mut self, header: FrameHeader, body: &[u8]) -> Result<(), LenderViolation> {
        let (header, body) = self.lender.ask(header, body);
        let frame = Frame { header, body: &body };
        self.client.handle_frame(0, &frame, self.now).map(|_| ())
    }

    fn settle(&mut self) {
        while let Some(mut frame) = self.client.next_frame(0, self.now) {
            frame.header.sender = OWNER;
            let body = frame.parts::<PlainSeal>().collect::<Vec<_>>().concat();
            self.ask(frame.header, &body).unwrap();
        }
        self.client.settle(|_| ());
    }

    /// The lender's machine dies and comes back empty, before anyone is told.
    fn lender_dies(&mut self) {
        self.client.links().on_unlinked(0, self.now);
        self.lender = DepositLender::new(2, 1024);
        let mut header = FrameHeader::new(FrameKind::Deposit);
        (header.epoch, header.sender) = (self.client.links().next_session(0), OWNER);
        self.ask(header, &[]).unwrap();
    }
}

fn only() -> LenderSet {
    LenderSet(1)
}

/// An unrequested frame from a lender.
fn wish(world: &mut ClientWorld, flags: u8, keep: u64) -> Result<(), LenderViolation> {
    let mut header = FrameHeader::new(FrameKind::Withdraw);
    (header.flags, header.lsn) = (flags, Lsn(keep));
    let frame = Frame { header, body: &[] };
    world.client.handle_frame(0, &frame, world.now).map(|_| ())
}

#[test]
fn a_reclaim_request_for_slots_differs_from_a_withdrawal() {
    let mut world = ClientWorld::new();
    (0..9).for_each(|page| world.client.put(Page(page), &7));
    world.settle();
    (3..9).for_each(|page| world.client.forget(Page(page)));
    wish(&mut world, Flag::PARTIAL, 5).unwrap();
    world.settle();
    assert_eq!(world.lender.server.slots(), 5);
    wish(&mut world, Flag::PARTIAL, DEPOSIT_SLOTS_MAX.into()).unwrap();
    world.settle();
    assert_eq!(world.lender.server.slots(), 1024, "the maximum number of slots");
    let beyond = u64::from(u32::MAX) + 1;
    assert_eq!(
        wish(&mut world, Flag::PARTIAL, beyond),
        Err(LenderViolation::Misconduct)
    );
    (0..3).for_each(|page| world.client.forget(Page(page)));
    wish(&mut world, 0, 5).unwrap();
    world.client.links().tick(world.now);
    world.settle();
    assert_eq!(world.lender.server.slots(), 0);
}

#[test]
fn a_reclaim_request_without_a_session_changes_nothing() {
    let mut world = ClientWorld::new();
    world.client.put(Page(1), &7);
    world.settle();
    let slots = world.client.directory().status().lenders[0].slots;
    world.client.links().on_unlinked(0, world.now);
    wish(&mut world, Flag::PARTIAL, 0).unwrap();
    assert_eq!(world.client.directory().status().lenders[0].asked_back, 0);
    world.link();
    assert_eq!(world.lender.server.slots(), slots);
}

#[test]
fn every_waiter_gets_a_page_once() {
    let mut world = ClientWorld::new();
    world.client.put(Page(3), &7);
    assert_eq!(world.client.get(Page(3)), PageLookup::Pending(Some(Box::new(7))));
    world.settle();
    assert_eq!(world.client.pending(), 0);
    assert_eq!(world.client.get(Page(3)), PageLookup::Waits);
    assert_eq!(world.client.get(Page(3)), PageLookup::Waits);
    assert!(!world.client.has_arrived(Page(3)));
    world.settle();
    for _ in 0..2 {
        assert!(world.client.has_arrived(Page(3)));
        assert_eq!(world.client.take(Page(3)), Some(Ok(Box::new(7))));
    }
    assert!(!world.client.has_arrived(Page(3)));
    assert_eq!(world.client.get(Page(4)), PageLookup::Zeros);
}

#[test]
fn prefetched_pages_are_kept_while_they_are_current() {
    let mut world = ClientWorld::new();
    let pages = PREFETCHED_PAGES_MAX as u32 + 10;
    (0..pages).for_each(|page| world.client.put(Page(page), &1));
    world.settle();
    world.client.prefetch((0..pages).map(Page));
    world.settle();
    let here = |world: &ClientWorld| {
        (0..pages)
            .filter(|page| world.client.has_arrived(Page(*page)))
            .count()
    };
    assert_eq!(here(&world), PREFETCHED_PAGES_MAX);
    assert_eq!(world.client.get(Page(0)), PageLookup::Waits);
    assert_eq!(world.client.take(Page(0)), Some(Ok(Box::new(1))));
    world.client.put(Page(1), &2);
    world.client.forget(Page(2));
    assert_eq!(here(&world), PREFETCHED_PAGES_MAX - 3);
    assert_eq!(world.client.get(Page(1)), PageLookup::Pending(Some(Box::new(2))));
    assert_eq!(world.client.get(Page(2)), PageLookup::Zeros);
}

#[test]
fn a_waiter_learns_of_loss_put_and_forget() {
    let mut world = ClientWorld::new();
    (0..3).for_each(|page| world.client.put(Page(page), &1));
    world.settle();
    (0..3).for_each(|page| assert_eq!(world.client.get(Page(page)), PageLookup::Waits));
    world.client.put(Page(1), &2);
    world.client.forget(Page(2));
    world.lender_dies();
    world.client.settle(|_| ());
    assert_eq!(world.client.take(Page(0)), Some(Err(only())));
    assert_eq!(world.client.take(Page(1)), Some(Ok(Box::new(2))));
    assert_eq!(world.client.take(Page(2)), Some(Ok(Box::new(0))));
    assert_eq!(world.client.get(Page(0)), PageLookup::Lost(only()));
}

/// The event of a loss was queued when the page was put anew, and the waiters were told that it is lost.
#[test]
fn a_page_that_was_put_anew_since_is_not_lost() {
    let mut world = ClientWorld::new();
    world.client.put(Page(0), &1);
    world.settle();
    assert_eq!(world.client.get(Page(0)), PageLookup::Waits);
    world.lender_dies();
    world.client.put(Page(0), &2);
    world.client.settle(|_| ());
    assert_eq!(world.client.take(Page(0)), Some(Ok(Box::new(2))));
}

#[test]
fn forbidden_frames_are_violations() {
    let mut world = ClientWorld::new();
    for kind in [
        FrameKind::GetReply,
        FrameKind::PutAck,
        FrameKind::DepositAck,
        FrameKind::Append,
    ] {
        let frame = Frame {
            header: FrameHeader::new(kind),
            body: &[],
        };
        assert_eq!(
            world.client.handle_frame(0, &frame, world.now),
            Err(LenderViolation::Misconduct),
            "{kind:?}"
        );
    }
}
