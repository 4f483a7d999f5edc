//! One owner and lenders that answer at once.

use std::collections::BTreeMap;

use netram_far_machine::deposit::{
    Cut, Depot, Given, Holder, Lent, Misconduct, News, NoSlots, Page, Send, Settings, SlotMemory, page_head,
};
use netram_far_machine::limit::{DEPOSIT_LEASE, PAGE_BYTES};
use netram_proto::id::{DepositId, Incarnation, Lsn};
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Refusal};

pub(crate) const OWNER: u64 = 7;

/// Slots with a bound.
pub(crate) struct Memory {
    pub(crate) pages: Vec<Vec<u8>>,
    pub(crate) room: u32,
}

impl SlotMemory for Memory {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlots> {
        if slots > self.room {
            return Err(NoSlots { possible: self.room });
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

pub(crate) struct Lender {
    pub(crate) holder: Holder,
    pub(crate) memory: Memory,
}

impl Lender {
    pub(crate) fn new(life: u64, room: u32) -> Lender {
        Lender {
            holder: Holder::new(DepositId(1), Incarnation(life), Time(0)),
            memory: Memory {
                pages: Vec::new(),
                room,
            },
        }
    }

    pub(crate) fn ask(&mut self, header: Header, body: &[u8]) -> (Header, Vec<u8>) {
        let frame = Frame { header, body };
        if header.kind == FrameKind::Deposit {
            return (self.holder.open(&header, DEPOSIT_LEASE), Vec::new());
        }
        match self.holder.handle(&frame, &mut self.memory) {
            Lent::Frame(header) => (header, Vec::new()),
            Lent::Pong(header, number) => (header, number.to_le_bytes().to_vec()),
            Lent::Blocks(header, body) => (header, body),
            Lent::Pages(header, asked, count) => {
                let mut body = Vec::new();
                for page in &asked[..count] {
                    let bytes = self.memory.pages[page.slot as usize]
                        .get(..page.bytes.into())
                        .unwrap();
                    body.extend_from_slice(&page_head(page.slot, page.version, bytes.len()));
                    body.extend_from_slice(bytes);
                }
                (header, body)
            }
        }
    }
}

pub(crate) struct World {
    pub(crate) depot: Depot,
    pub(crate) lenders: Vec<Lender>,
    pub(crate) linked: Vec<bool>,
    /// What the owner keeps until it is stashed.
    pub(crate) aside: BTreeMap<Page, (u64, Vec<u8>)>,
    pub(crate) news: Vec<News>,
    pub(crate) came: BTreeMap<Page, Vec<u8>>,
    /// Pages of which blocks came, in that order.
    pub(crate) given: Vec<Page>,
    pub(crate) now: Time,
}

impl World {
    /// Lenders with so much room each, all linked.
    pub(crate) fn new(copies: usize, rooms: &[u32]) -> World {
        let mut world = World::apart(copies, rooms, 0);
        (0..rooms.len()).for_each(|lender| world.link(lender));
        world
    }

    /// The same, with nobody linked, and with a spill file if it has slots: that is the last lender.
    pub(crate) fn apart(copies: usize, rooms: &[u32], spill: u32) -> World {
        World {
            depot: Depot::new(&Settings {
                copies,
                slots_max: vec![64; rooms.len()],
                grow: 8,
                spill_max: spill,
            }),
            lenders: { rooms.iter() }
                .chain((spill > 0).then_some(&spill))
                .enumerate()
                .map(|(at, room)| Lender::new(at as u64 + 1, *room))
                .collect(),
            linked: vec![false; rooms.len() + 1],
            aside: BTreeMap::new(),
            news: Vec::new(),
            came: BTreeMap::new(),
            given: Vec::new(),
            now: Time(1),
        }
    }

    pub(crate) fn link(&mut self, lender: usize) {
        let mut header = Header::new(FrameKind::Deposit);
        header.epoch = self.depot.next_session(lender);
        header.who = OWNER;
        let (answer, _) = self.lenders[lender].ask(header, &[]);
        assert_eq!(answer.kind, FrameKind::Deposited, "{answer:?}");
        let (life, slots) = (Incarnation(answer.stable.0), answer.lsn.0 as u32);
        self.depot.on_linked(lender, life, slots, DEPOSIT_LEASE).unwrap();
        self.linked[lender] = true;
        self.settle();
    }

    pub(crate) fn unlink(&mut self, lender: usize) {
        self.linked[lender] = false;
        let epoch = self.lenders[lender].holder.epoch();
        self.lenders[lender].holder.leave(epoch, self.now);
        self.depot.on_unlinked(lender, self.now);
        self.settle();
    }

    pub(crate) fn put(&mut self, page: u32, byte: u8) {
        let version = self.depot.put(Page(page));
        self.aside.insert(Page(page), (version, vec![byte; PAGE_BYTES]));
        self.settle();
    }

    /// Everything that is to be sent is sent and answered.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut idle = true;
            for lender in 0..self.lenders.len() {
                while self.linked[lender]
                    && let Some(send) = self.depot.poll(lender, self.now)
                {
                    idle = false;
                    if let Send::Resize(slots) = send {
                        self.looks_at_what_is_given_up(lender, slots);
                    }
                    let (header, body) = self.frame(lender, send);
                    let (answer, body) = self.lenders[lender].ask(header, &body);
                    self.hear(lender, &answer, &body).unwrap();
                }
            }
            while let Some(news) = self.depot.news() {
                if let News::Stashed(page, version, _) = news
                    && self.aside.get(&page).is_some_and(|aside| aside.0 == version)
                {
                    self.aside.remove(&page);
                }
                self.news.push(news);
            }
            if idle {
                return;
            }
        }
    }

    /// The lender wants slots back; `None`: no more. What is to be sent is left.
    pub(crate) fn ask_back(&mut self, lender: usize, keep: Option<u32>) {
        let Some(wish) = self.lenders[lender].holder.ask_back(keep) else {
            panic!("a wish is told once")
        };
        self.hear(lender, &wish, &[]).unwrap();
    }

    /// Whatever is in slots that are given up is aside, or somewhere else.
    pub(crate) fn looks_at_what_is_given_up(&self, lender: usize, slots: u32) {
        for page in 0..100 {
            let Some(version) = self.depot.version(Page(page)) else {
                continue;
            };
            let places = self.depot.places(Page(page));
            let mut there = places.filter(|(at, slot, _)| (*at, *slot >= slots) == (lender, true));
            assert_eq!(there.next(), None, "page {page} is in a slot that is given up");
            let holder = &self.lenders[lender].holder;
            if !(slots..holder.slots()).any(|slot| holder.version(slot) == Some(version)) {
                continue;
            }
            let has = |(at, one): (usize, &Lender)| {
                let slots = 0..if at == lender { slots } else { one.holder.slots() };
                slots
                    .into_iter()
                    .any(|slot| one.holder.version(slot) == Some(version))
            };
            let elsewhere = self.lenders.iter().enumerate().any(has);
            assert!(
                elsewhere || self.aside.contains_key(&Page(page)),
                "page {page} is nowhere"
            );
        }
    }

    pub(crate) fn frame(&self, lender: usize, send: Send) -> (Header, Vec<u8>) {
        let mut header = Header::new(FrameKind::Get);
        let mut body = Vec::new();
        match send {
            Send::Resize(slots) => {
                header.kind = FrameKind::Resize;
                header.lsn = Lsn(slots.into());
            }
            Send::Put(number, items) => {
                header.kind = FrameKind::Put;
                header.mark = number;
                for item in items {
                    let (version, bytes) = &self.aside[&item.page];
                    assert_eq!(*version, item.version);
                    body.extend_from_slice(&page_head(item.slot, item.version, bytes.len()));
                    body.extend_from_slice(bytes);
                }
            }
            Send::Gather(number, runs) => {
                (header.kind, header.mark) = (FrameKind::Gather, number);
                body = runs;
            }
            Send::Get(number, items) => {
                header.mark = number;
                for item in items {
                    body.extend_from_slice(&page_head(item.slot, item.version, 0));
                }
            }
        }
        header.epoch = self.lenders[lender].holder.epoch();
        header.who = OWNER;
        (header, body)
    }

    pub(crate) fn hear(&mut self, lender: usize, header: &Header, body: &[u8]) -> Result<(), Misconduct> {
        match header.kind {
            FrameKind::Deposited => self.depot.on_resized(lender, header.lsn.0 as u32),
            FrameKind::Stashed => self.depot.on_stashed(lender, header.mark),
            FrameKind::Got => {
                let cut = Cut::parse(body).map_err(|_| Misconduct)?;
                for due in self.depot.on_got(lender, header.mark, &cut)? {
                    let bytes = cut.pages()[due.index].bytes.to_vec();
                    let taken = self.depot.take(lender, due.page, due.version);
                    if taken.aside {
                        self.aside.insert(due.page, (due.version, bytes.clone()));
                    }
                    if taken.wanted {
                        self.came.insert(due.page, bytes);
                    }
                }
                Ok(())
            }
            FrameKind::Gathered => {
                let given = |given: Given<'_>| self.given.push(given.page);
                self.depot
                    .on_gathered(lender, header.mark, body, given)
                    .map(|_| ())
            }
            FrameKind::Withdraw if header.flags == Flag::SOME => {
                self.depot.on_asked_back(lender, header.lsn.0 as u32);
                Ok(())
            }
            FrameKind::Refuse if header.flags == Refusal::NoRoom as u8 => {
                self.depot.on_no_room(lender, header.stable.0 as u32, self.now)
            }
            _ => Err(Misconduct),
        }
    }
}
