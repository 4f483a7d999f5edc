//! Far memory: a lender with a deposit, and the owner of its pages, each fed with arbitrary frames.

use netram_far_machine::deposit::{
    BlockMac, BlockRequest, DepositReply, DepositServer, DirectorySettings, FramePages, NoSlotsError, Page,
    PageDirectory, PageSeal, RemotePageClient, SealedBlock, SlotMemory, page_header, write_run,
};
use netram_far_machine::limit::{BLOCK_BYTES, DEPOSIT_LEASE, FRAME_PAGES_MAX, PAGE_BYTES};
use netram_proto::id::{DepositId, Epoch, Incarnation, Lsn};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::input::FuzzInput;

const OWNER: u64 = 7;
const ROOM: u32 = 6;

/// Slots with a bound.
#[derive(Default)]
struct SlotVec(Vec<Vec<u8>>);

impl SlotMemory for SlotVec {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        if slots > ROOM {
            return Err(NoSlotsError { possible: ROOM });
        }
        self.0.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, slot: u32, bytes: &[u8]) {
        assert!(bytes.len() <= PAGE_BYTES);
        self.0[slot as usize] = bytes.to_vec();
    }

    fn read(&self, slot: u32, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[slot as usize][at..at + into.len()]);
    }
}

/// Pages in a frame's body: they are split as they were joined, or refused.
pub fn pages(bytes: &[u8]) {
    let Ok(cut) = FramePages::parse(bytes) else {
        return;
    };
    assert!((1..=FRAME_PAGES_MAX).contains(&cut.pages().len()));
    let mut again = Vec::new();
    for page in cut.pages() {
        again.extend_from_slice(&page_header(page.slot, page.version, page.bytes.len()));
        again.extend_from_slice(page.bytes);
    }
    assert_eq!(again, bytes, "pages have one form");
}

pub(crate) fn pages_seeds() -> Vec<Vec<u8>> {
    let one = |slot, bytes: usize| [&page_header(slot, 5, bytes)[..], &vec![7; bytes]].concat();
    vec![
        one(0, 0),
        one(3, 100),
        [one(1, 40), one(2, 0), one(9, 7)].concat(),
    ]
}

/// Invalid bodies of interesting kinds: short pages, runs of blocks, or random bytes.
fn body(input: &mut FuzzInput<'_>) -> Vec<u8> {
    let how = input.u8();
    let mut body = Vec::new();
    for _ in 0..how & 3 {
        let (slot, version) = (input.small(), input.small().into());
        match how >> 2 & 3 {
            0 | 1 => {
                let bytes = [0, 1, 128, PAGE_BYTES][usize::from(input.u8() & 3)];
                body.extend_from_slice(&page_header(slot, version, bytes));
                body.resize(body.len() + bytes, version as u8);
            }
            2 => {
                let numbers: Vec<u8> = input.bytes().iter().map(|number| number & 63).collect();
                if !numbers.is_empty() && numbers.is_sorted() {
                    write_run(slot, version, &numbers, &mut body);
                }
            }
            _ => body.extend_from_slice(input.bytes()),
        }
    }
    body.truncate(FRAME_BODY_BYTES_MAX);
    if how & 128 != 0 {
        body.truncate(usize::from(input.u8()));
    }
    body
}

/// A lender with a deposit gets arbitrary frames. It never uses more than its room, and returns only pages
/// that were put.
pub fn holder(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut memory = SlotVec::default();
    let mut holder = DepositServer::new(DepositId(1), Incarnation(3), Time(0));
    let mut owner = 0;
    for _ in 0..48 {
        if input.is_over() {
            break;
        }
        let which = input.u8();
        let kinds = [
            FrameKind::Deposit,
            FrameKind::Resize,
            FrameKind::Put,
            FrameKind::Get,
            FrameKind::Gather,
            FrameKind::Ping,
            FrameKind::Put,
            FrameKind::Append,
        ];
        let mut header = FrameHeader::new(kinds[usize::from(which & 7)]);
        (header.sender, header.epoch) = (owner, holder.epoch());
        if which & 128 != 0 {
            header.epoch = Epoch(input.small());
            header.sender = input.small().into();
        }
        if header.kind == FrameKind::Deposit {
            let before = holder.epoch();
            header.epoch = Epoch(before.0.saturating_add(u32::from(which >> 3 & 1)));
            header.sender = OWNER;
            holder.open(&header, DEPOSIT_LEASE);
            assert!(holder.epoch() >= before);
            owner = if holder.epoch() > Epoch(0) { OWNER } else { 0 };
            continue;
        }
        header.lsn = Lsn(input.small().into());
        header.mark = input.small();
        let body = body(&mut input);
        let frame = Frame { header, body: &body };
        let fenced = (header.epoch, header.sender) != (holder.epoch(), owner);
        let (slots, held) = (holder.slots(), holder.used_slots());
        let answer = holder.handle(&frame, &mut memory);
        if fenced {
            assert_eq!(answer.header().flags, RefusalReason::Fenced as u8);
            assert_eq!((holder.slots(), holder.used_slots()), (slots, held));
        }
        check_answer(&holder, &memory, &answer);
    }
}

fn check_answer(holder: &DepositServer, memory: &SlotVec, answer: &DepositReply) {
    assert!(holder.slots() <= ROOM && holder.used_slots() <= holder.slots());
    assert_eq!(holder.slots() as usize, memory.0.len());
    match answer {
        DepositReply::Pages(_, asked, count) => {
            for page in &asked[..*count] {
                let there = holder.version(page.slot) == Some(page.version);
                let stored = &memory.0[page.slot as usize];
                assert_eq!(usize::from(page.bytes), if there { stored.len() } else { 0 });
            }
        }
        DepositReply::Blocks(_, body) => assert!(body.len() <= FRAME_BODY_BYTES_MAX),
        DepositReply::Frame(_) | DepositReply::Pong(..) => (),
    }
}

pub(crate) fn holder_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![8, 1, 4, 0, 0, 2, 0, 0, 1, 0, 1, 3, 3, 0, 0, 1, 0, 1, 0],
        vec![
            8, 1, 5, 0, 0, 6, 0, 0, 2, 1, 2, 3, 2, 1, 3, 4, 0, 0, 9, 1, 2, 3, 1, 2, 3,
        ],
        vec![8, 1, 4, 0, 0, 130, 9, 9, 0, 0, 1, 0, 1, 3, 5, 0, 0, 0, 7, 0, 0, 0],
    ]
}

/// Seals that any lender can forge, so that the code behind the check is reached.
#[derive(Clone, Copy)]
struct PlainSeal;

impl PageSeal for PlainSeal {
    type Clear = u8;
    type Sealed = Vec<u8>;

    fn zeros() -> Box<u8> {
        Box::new(0)
    }

    fn seal(&mut self, _: Page, version: u64, _: &u8) -> Vec<u8> {
        vec![version as u8; 2 * BLOCK_BYTES]
    }

    fn open(&self, _: Page, version: u64, sealed: &[u8]) -> Option<Box<u8>> {
        (sealed.first() == Some(&(version as u8))).then(|| Box::new(version as u8))
    }

    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        marks.extend(blocks.iter().map(|block| [block.number, block.bytes[0], 0, 0]));
    }

    fn keep(&self, sealed: &[u8]) -> Vec<u8> {
        sealed.to_vec()
    }

    fn bytes(sealed: &Vec<u8>) -> &[u8] {
        sealed
    }
}

/// An owner with three lenders that answer arbitrarily. Each slot has one page or none, and a page is kept
/// locally until a lender has it.
pub fn owner(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let settings = DirectorySettings {
        copies: 1 + usize::from(input.u8() & 1),
        slots_max: vec![ROOM; 3],
        grow: 3,
        spill_max: 0,
    };
    let mut shelf = RemotePageClient::new(PageDirectory::new(&settings), PlainSeal);
    let mut now = Time(1);
    let mut tickets = Vec::new();
    for _ in 0..64 {
        if input.is_over() {
            break;
        }
        let which = input.u8();
        let (lender, page) = (usize::from(which >> 3 & 3).min(2), Page(u32::from(which >> 5)));
        now = Time(now.0 + 50_000_000);
        match which & 7 {
            0 => shelf.put(page, &which),
            1 => drop(shelf.get(page)),
            2 => match shelf.has_arrived(page) {
                true => drop(shelf.take(page)),
                false => shelf.forget(page),
            },
            3 if shelf.may_gather() => {
                let mut wanted = BlockRequest::default();
                wanted.add(page, input.u8() & 1);
                tickets.push(shelf.gather(wanted));
            }
            3 => drop(tickets.pop().and_then(|ticket| shelf.take_words(ticket))),
            4 => answer_honestly(&mut shelf, lender, now, &mut input),
            5 if shelf.directory().is_linked(lender) => shelf.links().on_unlinked(lender, now),
            5 => drop(shelf.links().next_session(lender)),
            6 => now = Time(now.0 + 3_000_000_000),
            _ => answer_falsely(&mut shelf, lender, now, &mut input),
        }
        shelf.settle(|_| ());
        shelf.links().tick(now);
        check_owner(&shelf);
    }
}

/// Answers the lender's next request correctly, except for one byte.
fn answer_honestly(
    shelf: &mut RemotePageClient<PlainSeal>,
    lender: usize,
    now: Time,
    input: &mut FuzzInput<'_>,
) {
    let mut header = FrameHeader::new(FrameKind::DepositAck);
    let mut body = Vec::new();
    if !shelf.directory().is_linked(lender) {
        shelf.links().next_session(lender);
        header.stable = Lsn(lender as u64 + 1);
        header.mark = 5;
    } else if let Some(frame) = shelf.next_frame(lender, now) {
        header.mark = frame.header.mark;
        match frame.header.kind {
            FrameKind::Put => header.kind = FrameKind::PutAck,
            FrameKind::Get => {
                header.kind = FrameKind::GetReply;
                for mut head in frame.heads {
                    let version = head[8];
                    head[4..6].copy_from_slice(&(2 * BLOCK_BYTES as u16).to_le_bytes());
                    body.extend_from_slice(&head);
                    body.resize(body.len() + 2 * BLOCK_BYTES, version);
                }
            }
            FrameKind::Resize => header.lsn = frame.header.lsn,
            kind => {
                header.kind = if kind == FrameKind::Ping {
                    FrameKind::Pong
                } else {
                    FrameKind::GatherReply
                }
            }
        }
    }
    let twist = input.u8();
    match twist {
        250 => body.truncate(usize::from(input.u8())),
        251 => header.lsn = Lsn(input.small().into()),
        252 => header.mark = input.small(),
        _ => (),
    }
    deliver(shelf, lender, &Frame { header, body: &body }, now);
}

fn answer_falsely(
    shelf: &mut RemotePageClient<PlainSeal>,
    lender: usize,
    now: Time,
    input: &mut FuzzInput<'_>,
) {
    let kinds = [
        FrameKind::DepositAck,
        FrameKind::PutAck,
        FrameKind::GetReply,
        FrameKind::GatherReply,
        FrameKind::Withdraw,
        FrameKind::Refuse,
        FrameKind::Pong,
        FrameKind::Ack,
    ];
    let kind = kinds[usize::from(input.u8() & 7)];
    let mut header = input.header(kind, 0);
    if header.kind == FrameKind::Withdraw {
        header.flags = Flag::PARTIAL;
    }
    let body = body(input);
    deliver(shelf, lender, &Frame { header, body: &body }, now);
}

fn deliver(shelf: &mut RemotePageClient<PlainSeal>, lender: usize, frame: &Frame<'_>, now: Time) {
    if shelf.handle_frame(lender, frame, now).is_err() && shelf.directory().is_linked(lender) {
        shelf.links().on_unlinked(lender, now);
    }
}

fn check_owner(shelf: &RemotePageClient<PlainSeal>) {
    let depot = shelf.directory();
    for (at, lender) in depot.status().lenders.iter().enumerate() {
        assert!(lender.slots <= ROOM && lender.used <= lender.slots);
        let places = (0..8).map(Page).flat_map(|page| depot.places(page));
        let taken = places
            .filter(|(lender, ..)| *lender == at)
            .map(|(_, slot, _)| slot);
        let mut slots: Vec<u32> = taken.chain(depot.free_slots(at)).collect();
        slots.sort_unstable();
        assert!(
            slots.into_iter().eq(0..lender.slots),
            "each slot has one page or none"
        );
    }
}

pub(crate) fn owner_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![
            0, 4, 0, 12, 0, 0, 4, 0, 4, 0, 12, 0, 32, 64, 4, 0, 12, 0, 1, 33, 4, 0, 2, 34,
        ],
        vec![
            1, 4, 0, 12, 0, 20, 0, 0, 32, 4, 0, 12, 0, 20, 0, 4, 0, 12, 0, 3, 1, 4, 0, 3, 7, 4, 1, 0, 0, 0, 0,
        ],
        vec![
            0, 4, 0, 0, 4, 0, 4, 0, 7, 2, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 13, 6, 4, 0,
        ],
    ]
}
