//! The paging policies.
//!
//! A reference to a local page is the fast path: a comparison and two stores. For any other reference the
//! moves are returned in an order in which they can be made: room first, then the page.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::frames::{ReferenceTimes, ReplacementQueue};
use super::moves::{PageMove, ReferenceOutcome};
use super::{FirstTouch, Page, PageAccess, PageLocation, PolicyConfig, PolicyKind, PolicyTally};

/// Record of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicyRecord {
    /// Time of its last reference in local memory; 0: none since the replacement policy cleared it.
    pub(super) touched: u64,
    /// Words that may still be referenced before it moves.
    counter: u32,
    pub(super) location: PageLocation,
    /// Changed in local memory since it arrived.
    dirty: bool,
    /// In local memory, with a copy in remote memory.
    copy: bool,
    /// In the queue of copies.
    queued: bool,
    /// Other place of its unchanged content.
    backing: Backing,
}

impl ReferenceTimes for Vec<PolicyRecord> {
    fn touched(&self, page: Page) -> u64 {
        self[page.0 as usize].touched
    }

    fn untouch(&mut self, page: Page) {
        self[page.0 as usize].touched = 0;
    }

    fn is_local(&self, page: Page) -> bool {
        self[page.0 as usize].location == PageLocation::Local
    }
}

/// Place of a page's content besides the two memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backing {
    /// None needed: it is zeros.
    #[default]
    Zeros,
    /// On the disk.
    Disk,
    /// None.
    None,
}

/// A paging policy. See the module's comment.
#[derive(Clone, Debug)]
pub struct PagingPolicy {
    config: PolicyConfig,
    records: Vec<PolicyRecord>,
    frames: ReplacementQueue,
    /// Number of pages in local memory; `remote`: places taken in remote memory.
    local: u32,
    remote: u32,
    /// Pages that may have a copy, each once. Those without one are skipped.
    copies: VecDeque<Page>,
    now: u64,
    moves: Vec<PageMove>,
    tally: PolicyTally,
}

impl PagingPolicy {
    /// A policy before its first reference.
    pub fn new(config: PolicyConfig) -> PagingPolicy {
        assert!(config.local_pages > 0, "a program needs a page of local memory");
        let spent = matches!(config.kind, PolicyKind::Counters { initial: 0 });
        assert!(!spent, "a counter begins at 1 or above");
        PagingPolicy {
            frames: ReplacementQueue::new(config.replacement, config.seed),
            config,
            records: Vec::new(),
            local: 0,
            remote: 0,
            copies: VecDeque::new(),
            now: 0,
            moves: Vec::new(),
            tally: PolicyTally::default(),
        }
    }

    /// Settings of the policy.
    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// Counters so far.
    pub fn tally(&self) -> &PolicyTally {
        &self.tally
    }

    /// Location of a page.
    pub fn location(&self, page: Page) -> PageLocation {
        let record = self.records.get(page.0 as usize);
        record.map_or(PageLocation::Nowhere, |record| record.location)
    }

    /// Number of pages in local memory.
    pub fn local(&self) -> u32 {
        self.local
    }

    /// Number of places taken in remote memory.
    pub fn remote(&self) -> u32 {
        self.remote
    }

    /// References a page. The returned moves must be made before the program continues.
    #[inline]
    pub fn reference(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        self.reference_at(self.now + 1, page, access)
    }

    /// As [`PagingPolicy::reference`], as the `now`th reference of all. `now` must be higher than in every
    /// earlier call.
    #[inline]
    pub fn reference_at(&mut self, now: u64, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        assert!(self.now < now, "references come in ascending order");
        self.now = now;
        if let Some(record) = self.records.get_mut(page.0 as usize)
            && record.location == PageLocation::Local
        {
            self.tally.local += 1;
            record.touched = now;
            record.dirty |= access == PageAccess::Write;
            return ReferenceOutcome::Local;
        }
        self.miss(page, access)
    }

    /// Number of references to a page that would move nothing. They may be reported later, together. Valid
    /// until a page leaves local memory or this page is referenced.
    #[inline]
    pub fn quiet(&self, page: Page) -> u64 {
        let Some(record) = self.records.get(page.0 as usize) else {
            return 0;
        };
        match (record.location, self.config.kind) {
            (PageLocation::Local, _) | (PageLocation::Remote, PolicyKind::RemoteMain) => u64::MAX,
            (PageLocation::Remote, PolicyKind::Counters { .. }) => u64::from(record.counter) - 1,
            _ => 0,
        }
    }

    /// Reports `times` references to a page that were [`PagingPolicy::quiet`], the last of them as the
    /// `last`th of all. Must come before any other reference that moves a page, because the choice of pages
    /// to evict depends on them.
    #[inline]
    pub fn count(&mut self, page: Page, access: PageAccess, times: u64, last: u64) {
        assert!(times <= self.quiet(page), "none of them moves a page");
        self.now = self.now.max(last);
        let record = &mut self.records[page.0 as usize];
        let write = access == PageAccess::Write;
        if record.location == PageLocation::Local {
            self.tally.local += times;
            record.touched = last;
            record.dirty |= write;
            return;
        }
        self.tally.words += times;
        if write {
            record.backing = Backing::None;
        }
        if let PolicyKind::Counters { .. } = self.config.kind {
            record.counter -= times as u32;
        }
    }

    #[cold]
    fn miss(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        let index = page.0 as usize;
        if index >= self.records.len() {
            self.records.resize(index + 1, PolicyRecord::default());
        }
        self.moves.clear();
        match self.records[index].location {
            PageLocation::Remote => self.reference_remote(page, access),
            _ => self.arrive(page, access),
        }
    }

    /// References a page in remote memory.
    fn reference_remote(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        match self.config.kind {
            PolicyKind::RemoteMain | PolicyKind::Counters { .. } => match self.word(page, access) {
                true => {
                    self.fetch(page);
                    ReferenceOutcome::WordAndMoved(&self.moves)
                }
                false => ReferenceOutcome::Word,
            },
            PolicyKind::Disk | PolicyKind::RamDisk => {
                self.fetch(page);
                self.serve(page, access)
            }
        }
    }

    /// References one word of a remote page. Returns whether the page moves now.
    fn word(&mut self, page: Page, access: PageAccess) -> bool {
        self.tally.words += 1;
        let record = &mut self.records[page.0 as usize];
        if access == PageAccess::Write {
            record.backing = Backing::None;
        }
        match self.config.kind {
            PolicyKind::Counters { .. } => {
                record.counter -= 1;
                record.counter == 0
            }
            _ => false,
        }
    }

    /// References a page that is in neither memory.
    fn arrive(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        let again = self.records[page.0 as usize].location == PageLocation::Disk;
        let backing = match again || self.config.first_touch == FirstTouch::Disk {
            true => Backing::Disk,
            false => Backing::Zeros,
        };
        self.records[page.0 as usize].backing = backing;
        if again {
            self.frames.missed(page);
        }
        match (backing, again) {
            (Backing::Disk, true) => self.tally.disk_again += 1,
            (Backing::Disk, false) => self.tally.disk_first += 1,
            _ => self.tally.zeroed += 1,
        }
        let by_words = matches!(
            self.config.kind,
            PolicyKind::RemoteMain | PolicyKind::Counters { .. }
        );
        let full = self.local >= self.config.local_pages;
        if by_words && full && self.make_remote_room() {
            return self.place_away(page, access, backing);
        }
        self.make_room(1);
        self.moves.push(match backing {
            Backing::Disk => PageMove::Read(page),
            _ => PageMove::Zero(page),
        });
        self.come(page);
        self.serve(page, access)
    }

    /// Places a page in remote memory, where it is referenced by words, because no local frame is free.
    fn place_away(&mut self, page: Page, access: PageAccess, backing: Backing) -> ReferenceOutcome<'_> {
        self.moves.push(match backing {
            Backing::Disk => PageMove::ReadAway(page),
            _ => PageMove::ZeroAway(page),
        });
        self.tally.faults += 1;
        self.tally.placed += 1;
        self.remote += 1;
        self.be_remote(page);
        if self.word(page, access) {
            self.fetch(page);
        }
        ReferenceOutcome::WordAndMoved(&self.moves)
    }

    /// Brings a page from remote memory.
    fn fetch(&mut self, page: Page) {
        self.frames.missed(page);
        let keeps = self.config.keep_copies;
        // A page evicted for it may take its place.
        self.remote -= u32::from(!keeps);
        self.make_room(1);
        self.moves.push(PageMove::Fetch(page));
        self.tally.fetched += 1;
        self.come(page);
        let record = &mut self.records[page.0 as usize];
        record.copy = keeps;
        if keeps && !core::mem::replace(&mut record.queued, true) {
            self.copies.push_back(page);
        }
    }

    /// Makes a page local.
    fn come(&mut self, page: Page) {
        let record = &mut self.records[page.0 as usize];
        record.location = PageLocation::Local;
        record.dirty = false;
        record.touched = self.now;
        self.local += 1;
        self.tally.faults += 1;
        self.frames.add(page, self.now);
    }

    fn serve(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        self.records[page.0 as usize].dirty |= access == PageAccess::Write;
        self.tally.local += 1;
        ReferenceOutcome::Moved(&self.moves)
    }

    fn be_remote(&mut self, page: Page) {
        let record = &mut self.records[page.0 as usize];
        record.location = PageLocation::Remote;
        record.copy = false;
        if let PolicyKind::Counters { initial } = self.config.kind {
            record.counter = initial;
        }
    }

    /// Evicts pages until `pages` local frames are free, or none is left.
    fn make_room(&mut self, pages: u32) {
        while self.local.saturating_add(pages) > self.config.local_pages {
            let Some(page) = self.frames.take(&mut self.records) else {
                return;
            };
            self.local -= 1;
            self.give_up(page);
        }
    }

    /// Evicts a page from local memory.
    fn give_up(&mut self, page: Page) {
        let record = &mut self.records[page.0 as usize];
        let (dirty, copy) = (record.dirty, record.copy);
        if dirty {
            record.backing = Backing::None;
        }
        if copy && !dirty {
            self.be_remote(page);
            return self.drop(page);
        }
        let may_go = matches!(
            self.config.kind,
            PolicyKind::RamDisk | PolicyKind::Counters { .. }
        );
        // The page is nowhere while room is made: its own copy must not count as room for it.
        if may_go && (copy || self.make_remote_room()) {
            self.remote += u32::from(!copy);
            self.be_remote(page);
            self.moves.push(PageMove::Send(page));
            match dirty {
                true => self.tally.sent_dirty += 1,
                false => self.tally.sent_clean += 1,
            }
            return;
        }
        let record = &mut self.records[page.0 as usize];
        match record.backing {
            Backing::Zeros => record.location = PageLocation::Nowhere,
            Backing::Disk => record.location = PageLocation::Disk,
            Backing::None => {
                record.location = PageLocation::Disk;
                self.moves.push(PageMove::Write(page));
                self.tally.disk_written += 1;
                return;
            }
        }
        self.drop(page);
    }

    fn drop(&mut self, page: Page) {
        self.moves.push(PageMove::Drop(page));
        self.tally.dropped += 1;
    }

    /// Makes room for a page in remote memory, by dropping copies of local pages if needed. Returns whether
    /// there is room.
    fn make_remote_room(&mut self) -> bool {
        while self.remote >= self.config.remote_pages {
            let Some(page) = self.copies.pop_front() else {
                return false;
            };
            let record = &mut self.records[page.0 as usize];
            record.queued = false;
            if record.location == PageLocation::Local && record.copy {
                record.copy = false;
                self.remote -= 1;
                self.moves.push(PageMove::Forget(page));
            }
        }
        true
    }
}
