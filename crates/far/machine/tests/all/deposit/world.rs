//! One owner, and lenders that answer at once.

use std::collections::BTreeMap;

use netram_far_machine::deposit::{
    DepositCommand, DepositReply, DepositServer, DirectoryEvent, DirectorySettings, FramePages,
    GatheredBlocks, MisconductError, NoSlotsError, Page, PageDirectory, SlotMemory, page_header,
};
use netram_far_machine::limit::{DEPOSIT_LEASE, PAGE_BYTES};
use netram_proto::id::{DepositId, Incarnation, Lsn};
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

pub(crate) const OWNER: u64 = 7;

/// Memory for a bounded number of slots.
pub(crate) struct BoundedSlots {
    pub(crate) pages: Vec<Vec<u8>>,
    pub(crate) room: u32,
}

impl SlotMemory for BoundedSlots {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        if slots > self.room {
            return Err(NoSlotsError { possible: self.room });
        }
        self.pages.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, slot: u32, bytes: &[u8]) {
        self.pages[slot as usize] = bytes.to_vec();
    }

    fn read(&self, slot: u32, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.pages[slot as usize][at..at + into.len()]);
    }
}

pub(crate) struct DepositLender {
    pub(crate) server: DepositServer,
    pub(crate) memory: BoundedSlots,
}

impl DepositLender {
    pub(crate) fn new(life: u64, room: u32) -> DepositLender {
        DepositLender {
            server: DepositServer::new(DepositId(1), Incarnation(life), Time(0)),
            memory: BoundedSlots {
                pages: Vec::new(),
                room,
            },
        }
    }

    pub(crate) fn ask(&mut self, header: FrameHeader, body: &[u8]) -> (FrameHeader, Vec<u8>) {
        let frame = Frame { header, body };
        if header.kind == FrameKind::Deposit {
            return (self.server.open(&header, DEPOSIT_LEASE), Vec::new());
        }
        match self.server.handle(&frame, &mut self.memory) {
            DepositReply::Frame(header) => (header, Vec::new()),
            DepositReply::Pong(header, number) => (header, number.to_le_bytes().to_vec()),
            DepositReply::Blocks(header, body) => (header, body),
            DepositReply::Pages(header, asked, count) => {
                let mut body = Vec::new();
                for page in &asked[..count] {
                    let bytes = self.memory.pages[page.slot as usize]
                        .get(..page.bytes.into())
                        .unwrap();
                    body.extend_from_slice(&page_header(page.slot, page.version, bytes.len()));
                    body.extend_from_slice(bytes);
                }
                (header, body)
            }
        }
    }
}

pub(crate) struct DepositWorld {
    pub(crate) directory: PageDirectory,
    pub(crate) lenders: Vec<DepositLender>,
    pub(crate) linked: Vec<bool>,
    /// Pending pages.
    pub(crate) pending: BTreeMap<Page, (u64, Vec<u8>)>,
    pub(crate) events: Vec<DirectoryEvent>,
    pub(crate) arrived: BTreeMap<Page, Vec<u8>>,
    /// Pages of which blocks arrived, in order.
    pub(crate) gathered: Vec<Page>,
    pub(crate) now: Time,
}

impl DepositWorld {
    /// Linked lenders with these numbers of slots.
    pub(crate) fn new(copies: usize, rooms: &[u32]) -> DepositWorld {
        let mut world = DepositWorld::unlinked(copies, rooms, 0);
        (0..rooms.len()).for_each(|lender| world.link(lender));
        world
    }

    /// The same without links, and with a spill file as the last lender if `spill` is not 0.
    pub(crate) fn unlinked(copies: usize, rooms: &[u32], spill: u32) -> DepositWorld {
        DepositWorld {
            directory: PageDirectory::new(&DirectorySettings {
                copies,
                slots_max: vec![64; rooms.len()],
                grow: 8,
                spill_max: spill,
            }),
            lenders: { rooms.iter() }
                .chain((spill > 0).then_some(&spill))
                .enumerate()
                .map(|(at, room)| DepositLender::new(at as u64 + 1, *room))
                .collect(),
            linked: vec![false; rooms.len() + 1],
            pending: BTreeMap::new(),
            events: Vec::new(),
            arrived: BTreeMap::new(),
            gathered: Vec::new(),
            now: Time(1),
        }
    }

    pub(crate) fn link(&mut self, lender: usize) {
        let mut header = FrameHeader::new(FrameKind::Deposit);
        header.epoch = self.directory.next_session(lender);
        header.sender = OWNER;
        let (answer, _) = self.lenders[lender].ask(header, &[]);
        assert_eq!(answer.kind, FrameKind::DepositAck, "{answer:?}");
        let (life, slots) = (Incarnation(answer.stable.0), answer.lsn.0 as u32);
        self.directory
            .on_linked(lender, life, slots, DEPOSIT_LEASE)
            .unwrap();
        self.linked[lender] = true;
        self.settle();
    }

    pub(crate) fn unlink(&mut self, lender: usize) {
        self.linked[lender] = false;
        let epoch = self.lenders[lender].server.epoch();
        self.lenders[lender].server.end_session(epoch, self.now);
        self.directory.on_unlinked(lender, self.now);
        self.settle();
    }

    pub(crate) fn put(&mut self, page: u32, byte: u8) {
        let version = self.directory.put(Page(page));
        self.pending.insert(Page(page), (version, vec![byte; PAGE_BYTES]));
        self.settle();
    }

    /// Sends and answers everything.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut idle = true;
            for lender in 0..self.lenders.len() {
                while self.linked[lender]
                    && let Some(send) = self.directory.poll(lender, self.now)
                {
                    idle = false;
                    if let DepositCommand::Resize(slots) = send {
                        self.looks_at_what_is_given_up(lender, slots);
                    }
                    let (header, body) = self.frame(lender, send);
                    let (answer, body) = self.lenders[lender].ask(header, &body);
                    self.hear(lender, &answer, &body).unwrap();
                }
            }
            while let Some(news) = self.directory.next_event() {
                if let DirectoryEvent::Stashed(page, version, _) = news
                    && self.pending.get(&page).is_some_and(|aside| aside.0 == version)
                {
                    self.pending.remove(&page);
                }
                self.events.push(news);
            }
            if idle {
                return;
            }
        }
    }

    /// The lender wants slots back; `None`: no more. Frames are not sent.
    pub(crate) fn ask_back(&mut self, lender: usize, keep: Option<u32>) {
        let Some(wish) = self.lenders[lender].server.ask_back(keep) else {
            panic!("a reclaim request is told once")
        };
        self.hear(lender, &wish, &[]).unwrap();
    }

    /// Checks that every page in slots that are given up is pending or has another copy.
    pub(crate) fn looks_at_what_is_given_up(&self, lender: usize, slots: u32) {
        for page in 0..100 {
            let Some(version) = self.directory.version(Page(page)) else {
                continue;
            };
            let places = self.directory.places(Page(page));
            let mut there = places.filter(|(at, slot, _)| (*at, *slot >= slots) == (lender, true));
            assert_eq!(
                there.next(),
                None,
                "page {page} is in a slot that is being given up"
            );
            let holder = &self.lenders[lender].server;
            if !(slots..holder.slots()).any(|slot| holder.version(slot) == Some(version)) {
                continue;
            }
            let has = |(at, one): (usize, &DepositLender)| {
                let slots = 0..if at == lender { slots } else { one.server.slots() };
                slots
                    .into_iter()
                    .any(|slot| one.server.version(slot) == Some(version))
            };
            let elsewhere = self.lenders.iter().enumerate().any(has);
            assert!(
                elsewhere || self.pending.contains_key(&Page(page)),
                "page {page} is neither pending nor stored"
            );
        }
    }

    pub(crate) fn frame(&self, lender: usize, send: DepositCommand) -> (FrameHeader, Vec<u8>) {
        let mut header = FrameHeader::new(FrameKind::Get);
        let mut body = Vec::new();
        match send {
            DepositCommand::Resize(slots) => {
                header.kind = FrameKind::Resize;
                header.lsn = Lsn(slots.into());
            }
            DepositCommand::Put(number, items) => {
                header.kind = FrameKind::Put;
                header.mark = number;
                for item in items {
                    let (version, bytes) = &self.pending[&item.page];
                    assert_eq!(*version, item.version);
                    body.extend_from_slice(&page_header(item.slot, item.version, bytes.len()));
                    body.extend_from_slice(bytes);
                }
            }
            DepositCommand::Gather(number, runs) => {
                (header.kind, header.mark) = (FrameKind::Gather, number);
                body = runs;
            }
            DepositCommand::Get(number, items) => {
                header.mark = number;
                for item in items {
                    body.extend_from_slice(&page_header(item.slot, item.version, 0));
                }
            }
        }
        header.epoch = self.lenders[lender].server.epoch();
        header.sender = OWNER;
        (header, body)
    }

    pub(crate) fn hear(
        &mut self,
        lender: usize,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<(), MisconductError> {
        match header.kind {
            FrameKind::DepositAck => self.directory.on_resized(lender, header.lsn.0 as u32),
            FrameKind::PutAck => self.directory.on_stashed(lender, header.mark),
            FrameKind::GetReply => {
                let cut = FramePages::parse(body).map_err(|_| MisconductError)?;
                for due in self.directory.on_got(lender, header.mark, &cut)? {
                    let bytes = cut.pages()[due.index].bytes.to_vec();
                    let taken = self.directory.take(lender, due.page, due.version);
                    if taken.pending {
                        self.pending.insert(due.page, (due.version, bytes.clone()));
                    }
                    if taken.wanted {
                        self.arrived.insert(due.page, bytes);
                    }
                }
                Ok(())
            }
            FrameKind::GatherReply => {
                let given = |given: GatheredBlocks<'_>| self.gathered.push(given.page);
                self.directory
                    .on_gathered(lender, header.mark, body, given)
                    .map(|_| ())
            }
            FrameKind::Withdraw if header.flags == Flag::PARTIAL => {
                self.directory.on_asked_back(lender, header.lsn.0 as u32);
                Ok(())
            }
            FrameKind::Refuse if header.flags == RefusalReason::NoRoom as u8 => {
                self.directory
                    .on_no_room(lender, header.stable.0 as u32, self.now)
            }
            _ => Err(MisconductError),
        }
    }
}
