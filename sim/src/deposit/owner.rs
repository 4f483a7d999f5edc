//! An owner: its page client, its memory, and a program that knows each page's contents.

use std::collections::{BTreeMap, BTreeSet};

use netram_far_machine::deposit::{
    BlockMac, DirectoryEvent, DirectorySettings, GatherTicket, LenderSet, LenderViolation, Page,
    PageDirectory, PageLookup, PageSeal, RemotePageClient, SealedBlock,
};
use netram_proto::id::{DepositId, WriterId};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, crc32c};

use super::gather::{LieCertainty, PendingGather};
use super::spill::SpillDisk;
use super::{Event, LEASE, World};
use crate::event::FrameDirection;

/// Bytes of a page in this world: owner, page number, version, content, and a checksum.
pub(super) const PAGE: usize = 36;
/// Tolerance of timers: a link that is gone for the lease less this may be one whose deposit is gone.
const SLACK: Nanos = Nanos::from_ms(500);

/// The deposit of an owner's life.
pub(super) fn deposit_of(life: u64) -> DepositId {
    DepositId(0xFA12 << 64 | u128::from(life))
}

/// Seals a page's content (0 for zeros) with a checksum instead of a key. Lenders in this world do not know
/// how to compute it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChecksumSeal {
    life: u64,
}

impl ChecksumSeal {
    fn sealed(self, page: Page, version: u64, content: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE);
        bytes.extend_from_slice(&self.life.to_le_bytes());
        bytes.extend_from_slice(&u64::from(page.0).to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&content.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }
}

impl PageSeal for ChecksumSeal {
    type Clear = u64;
    type Sealed = Vec<u8>;

    fn zeros() -> Box<u64> {
        Box::new(0)
    }

    fn seal(&mut self, page: Page, version: u64, content: &u64) -> Vec<u8> {
        self.sealed(page, version, *content)
    }

    fn open(&self, page: Page, version: u64, bytes: &[u8]) -> Option<Box<u64>> {
        let content = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        (self.sealed(page, version, content) == bytes).then(|| Box::new(content))
    }

    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        marks.extend(blocks.iter().map(|block| {
            let of = self.sealed(block.page, block.version, block.number.into());
            crc32c(&[&of, &block.bytes[..]].concat()).to_le_bytes()
        }));
    }

    fn keep(&self, sealed: &[u8]) -> Vec<u8> {
        sealed.to_vec()
    }

    fn bytes(sealed: &Vec<u8>) -> &[u8] {
        sealed
    }
}

/// One owner's process.
pub(super) struct DepositOwner {
    pub(super) id: DepositId,
    pub(super) life: u64,
    pub(super) page_client: RemotePageClient<ChecksumSeal>,
    pub(super) conns: Vec<Option<usize>>,
    /// The owner's spill file.
    pub(super) disk: Option<SpillDisk>,
    /// Time at which the link to each lender was last up; meaningless while it is up.
    pub(super) linked_until: Vec<Time>,
    /// Lenders that were away for nearly the lease; pages that they still have may be given up.
    away_too_long: Vec<bool>,
    /// Expected content of each page; 0 for zeros.
    expected: BTreeMap<Page, u64>,
    /// Pages in local memory.
    resident: BTreeSet<Page>,
    /// Pages that the program waits for, and since when.
    pub(super) waiting: BTreeMap<Page, Time>,
    /// Requests of blocks that the program waits for.
    pub(super) gathers: BTreeMap<GatherTicket, PendingGather>,
    /// Pages with delivered false blocks that must be detected when the page arrives.
    pub(super) undetected_lies: BTreeMap<Page, LieCertainty>,
}

impl DepositOwner {
    pub(super) fn writer(&self) -> WriterId {
        WriterId(self.life)
    }

    /// Whether the link to a lender has been gone for nearly the lease, whatever state the lender is in.
    fn is_away_too_long(&self, lender: usize, now: Time) -> bool {
        !self.directory().is_linked(lender) && now.since(self.linked_until[lender] - SLACK) >= LEASE
    }

    /// The page directory.
    pub(super) fn directory(&self) -> &PageDirectory {
        self.page_client.directory()
    }

    /// The page directory, to report links and time.
    pub(super) fn directory_mut(&mut self) -> &mut PageDirectory {
        self.page_client.links()
    }

    fn expected_content(&self, page: Page) -> u64 {
        self.expected.get(&page).copied().unwrap_or(0)
    }

    /// The page's sealed bytes, as a lender keeps them.
    pub(super) fn sealed_page(&self, page: Page, version: u64) -> Vec<u8> {
        let life = self.life;
        ChecksumSeal { life }.sealed(page, version, self.expected_content(page))
    }

    /// Changes a page and evicts it.
    fn evict(&mut self, page: Page, content: u64) {
        self.expected.insert(page, content);
        self.resident.remove(&page);
        self.undetected_lies.remove(&page);
        self.gathers.values_mut().for_each(|asked| {
            if asked.has(page) {
                asked.renew(page);
            }
        });
        self.page_client.put(page, &content);
    }

    /// Whether the program waits for the page, or for blocks of it.
    pub(super) fn is_waited_for(&self, page: Page) -> bool {
        self.waiting.contains_key(&page) || self.gathers.values().any(|asked| asked.has(page))
    }

    pub(super) fn pages(&self) -> Vec<Page> {
        self.expected.keys().copied().collect()
    }

    pub(super) fn is_resident(&self, page: Page) -> bool {
        self.resident.contains(&page)
    }

    pub(super) fn pending_pages(&self) -> usize {
        self.page_client.pending()
    }
}

impl World {
    pub(super) fn start_arena(&mut self, arena: usize) {
        self.lives += 1;
        let life = self.lives;
        let mut depot = PageDirectory::new(&DirectorySettings {
            copies: self.profile.copies,
            slots_max: vec![self.profile.slots_max; self.profile.lenders],
            grow: self.profile.grow,
            spill_max: self.profile.spill,
        });
        depot.plant(self.planted);
        self.arenas[arena] = Some(DepositOwner {
            id: deposit_of(life),
            life,
            page_client: RemotePageClient::new(depot, ChecksumSeal { life }),
            conns: vec![None; self.profile.lenders],
            disk: self.new_disk(life),
            linked_until: vec![self.now; self.profile.lenders],
            away_too_long: vec![false; self.profile.lenders],
            expected: BTreeMap::new(),
            resident: BTreeSet::new(),
            waiting: BTreeMap::new(),
            gathers: BTreeMap::new(),
            undetected_lies: BTreeMap::new(),
        });
        for lender in 0..self.profile.lenders {
            self.at(Nanos(1), Event::Dial { arena, life, lender });
        }
        self.at(Nanos(1), Event::OpenDisk { arena, life });
        self.at(Nanos(2), Event::Program { arena, life });
    }

    pub(super) fn on_program(&mut self, arena: usize, life: u64) {
        let alive = self.arenas[arena]
            .as_ref()
            .is_some_and(|arena| arena.life == life);
        if !alive || self.faults_over {
            return;
        }
        let page = Page(self.rng.below(self.profile.pages.into()) as u32);
        self.reference(arena, page);
        self.settle(arena);
        let us = self.rng.between(1, self.profile.pace_us);
        self.at(Nanos::from_us(us), Event::Program { arena, life });
    }

    fn reference(&mut self, arena: usize, page: Page) {
        let (draw, content) = (self.rng.below(100), self.rng.draw() | 1);
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        if owner.is_waited_for(page) {
            // Another thread overwrites the whole page without reading it.
            if draw < 10 {
                owner.evict(page, content);
                self.coverage.hit("far: pages put while they were waited for");
            }
            return;
        }
        if !owner.resident.contains(&page) && owner.expected.contains_key(&page) {
            return match draw {
                0..40 => self.gather_block(arena, page),
                _ => self.fault(arena, page),
            };
        }
        match draw {
            0..5 => {
                owner.expected.remove(&page);
                owner.resident.remove(&page);
                owner.undetected_lies.remove(&page);
                owner.page_client.forget(page);
                self.coverage.hit("far: pages forgotten");
            }
            // The page is unchanged, so its copies are still valid.
            5..30 if owner.resident.contains(&page) => {
                owner.resident.remove(&page);
            }
            30..40 => {
                let cold = |page: &Page| !owner.resident.contains(page);
                let ahead: Vec<Page> = (page.0..page.0 + 4).map(Page).filter(cold).collect();
                owner.page_client.prefetch(ahead);
            }
            _ => owner.evict(page, content),
        }
    }

    /// The program accesses a remote page.
    pub(super) fn fault(&mut self, arena: usize, page: Page) {
        let now = self.now;
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        match owner.page_client.get(page) {
            PageLookup::Zeros => self.fail(format!("{page:?} was evicted, but is reported as zeros")),
            PageLookup::Pending(content) => {
                self.coverage.hit("far: pages found aside");
                self.check_arrival(arena, page, content);
            }
            PageLookup::Lost(lenders) => self.on_page_lost(arena, page, lenders),
            PageLookup::Waits => {
                owner.waiting.insert(page, now);
            }
        }
    }

    /// The program collects pages that have arrived.
    fn collect(&mut self, arena: usize) {
        self.collect_blocks(arena);
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let here = |page: &Page| owner.page_client.has_arrived(*page);
        let here: Vec<Page> = owner.waiting.keys().copied().filter(here).collect();
        for page in here {
            let came = self.arenas[arena]
                .as_mut()
                .and_then(|owner| owner.page_client.take(page));
            match came {
                Some(Ok(content)) => {
                    self.check_arrival(arena, page, Some(content));
                    self.check_lies_detected(arena, page);
                }
                Some(Err(lenders)) => self.on_page_lost(arena, page, lenders),
                None => self.fail(format!("{page:?} is reported as arrived, but is not there")),
            }
        }
    }

    /// Checks that the program gets the newest content of the page.
    fn check_arrival(&mut self, arena: usize, page: Page, content: Option<Box<u64>>) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let should = owner.expected_content(page);
        if content.as_deref() != Some(&should) {
            self.fail(format!("{page:?} should be {should:x}, and is {content:x?}"));
        }
        owner.resident.insert(page);
        owner.waiting.remove(&page);
    }

    /// Checks the report of a lost page: it is correct if no place can have the page any more.
    pub(super) fn on_page_lost(&mut self, arena: usize, page: Page, lenders: LenderSet) {
        self.tell(|| format!("owner {arena}: {page:?} is lost by {lenders:?}"));
        self.coverage.hit("far: pages lost");
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let version = owner.directory().version(page);
        if self.profile.within_budget {
            self.fail(format!(
                "{page:?} is reported lost, but a copy of it always existed"
            ));
        }
        if lenders == LenderSet::default() {
            self.fail(format!("{page:?} is reported lost, but no lender lost it"));
        }
        for (index, machine) in self.machines.iter().enumerate() {
            let Some(holder) = machine.deposit(owner.id) else {
                continue;
            };
            let has = (0..holder.slots()).any(|slot| holder.version(slot) == version);
            let reachable = !owner.is_away_too_long(index, self.now) && !owner.away_too_long[index];
            // A slot that was given up may still have the page by chance.
            if has && reachable && lenders.contains(index) && !machine.is_hostile() {
                self.fail(format!(
                    "{page:?} is reported lost by lender {index}, which has it"
                ));
            }
        }
        let spill = owner.directory().spill();
        if let Some(disk) =
            { owner.disk.as_mut() }.filter(|_| spill.is_some_and(|spill| lenders.contains(spill)))
            && !disk.spill.file().faulty
        {
            self.fail(format!(
                "{page:?} is reported lost by a spill file that never lost a page"
            ));
        }
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        owner.waiting.remove(&page);
        owner.undetected_lies.remove(&page);
        owner.expected.remove(&page);
        owner.page_client.forget(page);
    }

    /// Handles a frame from a lender. A protocol violation ends the link.
    pub(super) fn on_lender_frame(
        &mut self,
        arena: usize,
        lender: usize,
        frame: &Frame<'_>,
    ) -> Result<(), LenderViolation> {
        let Some(owner) = &mut self.arenas[arena] else {
            return Ok(());
        };
        let heard = owner.page_client.handle_frame(lender, frame, self.now)?;
        let mut count = |what, times: usize| self.coverage.add(what, times as u64);
        count("far: sessions", heard.linked.into());
        count("far: lenders that were full", heard.full.into());
        count("far: pages fetched", heard.fetched);
        count("far: pages mended", heard.repairing);
        count("far: lies found", heard.forged.len());
        count("far: pages gathered from", heard.gathered);
        count("far: lies about words found", heard.disproved.len());
        self.on_lies_proven(arena, &heard.disproved);
        Ok(())
    }

    /// Handles the outcomes of pages, and sends the frames due.
    pub(super) fn settle(&mut self, arena: usize) {
        let (trace, coverage, now) = (&mut self.trace, &mut self.coverage, self.now);
        if let Some(owner) = &mut self.arenas[arena] {
            owner.page_client.settle(|news| {
                if let DirectoryEvent::Stashed(_, version, copies) = news {
                    trace.mark(now, 32, *version);
                    coverage.hit(if *copies > 1 {
                        "far: pages in two places"
                    } else {
                        "far: pages in one place"
                    });
                }
            });
        }
        self.collect(arena);
        for lender in 0..self.profile.lenders {
            while let Some(conn) = self.arenas[arena].as_ref().and_then(|owner| owner.conns[lender])
                && self.has_room(conn)
                && let Some(packet) = self.next_packet(arena, lender)
            {
                self.send(conn, FrameDirection::Up, packet);
            }
        }
        while self.is_disk_open(arena)
            && let Some(packet) = self.next_packet(arena, self.profile.lenders)
        {
            self.send_to_disk(arena, packet);
        }
    }

    fn next_packet(&mut self, arena: usize, lender: usize) -> Option<Vec<u8>> {
        let now = self.now;
        let owner = self.arenas[arena].as_mut()?;
        let mut outgoing = owner.page_client.next_frame(lender, now)?;
        outgoing.header.sender = owner.writer().0;
        let body: Vec<&[u8]> = outgoing.parts::<ChecksumSeal>().collect();
        let body = body.concat();
        Some([&outgoing.header.encode(body.len())[..], &body].concat())
    }

    /// Gives up links whose answers are overdue.
    pub(super) fn give_up_silent(&mut self, arena: usize) {
        for lender in 0..self.profile.lenders {
            if let Some(owner) = &mut self.arenas[arena] {
                owner.away_too_long[lender] |= owner.is_away_too_long(lender, self.now);
            }
            let silent = |owner: &&DepositOwner| owner.directory().is_silent(lender, self.now);
            let owner = self.arenas[arena].as_ref().filter(silent);
            if let Some(conn) = owner.and_then(|owner| owner.conns[lender]) {
                self.coverage.hit("far: lenders that owed an answer");
                self.on_closed(conn);
            }
        }
        let silent = |owner: &DepositOwner| owner.directory().is_silent(self.profile.lenders, self.now);
        if self.is_disk_open(arena) && self.arenas[arena].as_ref().is_some_and(silent) {
            self.coverage.hit("far: disks that were given up");
            self.close_disk(arena);
        }
    }
}
