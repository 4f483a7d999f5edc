//! The policies at work.
//!
//! A reference to a page in local memory is the fast way: a comparison and two stores. Of every other it is
//! said which pages move, in an order in which that can be done: room is made before a page comes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::frames::{ReferenceTimes, ReplacementQueue};
use super::moves::{PageMove, ReferenceOutcome};
use super::{FirstTouch, Page, PageAccess, PageLocation, PolicyConfig, PolicyKind, PolicyTally};

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicyRecord {
    /// When it was last referenced in local memory; 0: not since the replacement has set it so.
    pub(super) touched: u64,
    /// Words that may still be referenced before it moves.
    counter: u32,
    pub(super) location: PageLocation,
    /// In local memory it is not what it was when it came.
    dirty: bool,
    /// It is in local memory, and remote memory has a place for it all the same.
    copy: bool,
    /// It is in the queue of copies.
    queued: bool,
    /// Where it is to be had besides, apart from what is dirty.
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

/// Where a page is to be had besides the memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backing {
    /// It is zeros.
    #[default]
    Zeros,
    /// On the disk.
    Disk,
    /// Nowhere.
    None,
}

/// One policy. See the module.
#[derive(Clone, Debug)]
pub struct PagingPolicy {
    config: PolicyConfig,
    records: Vec<PolicyRecord>,
    frames: ReplacementQueue,
    /// Pages in local memory, and places taken in remote memory.
    local: u32,
    remote: u32,
    /// Pages that may have a copy, each once. What has none any more is passed over.
    copies: VecDeque<Page>,
    now: u64,
    moves: Vec<PageMove>,
    tally: PolicyTally,
}

impl PagingPolicy {
    /// Before the first reference.
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

    /// What it was made with.
    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// What has happened so far.
    pub fn tally(&self) -> &PolicyTally {
        &self.tally
    }

    /// Where a page is.
    pub fn location(&self, page: Page) -> PageLocation {
        let record = self.records.get(page.0 as usize);
        record.map_or(PageLocation::Nowhere, |record| record.location)
    }

    /// Pages in local memory.
    pub fn local(&self) -> u32 {
        self.local
    }

    /// Places taken in remote memory.
    pub fn remote(&self) -> u32 {
        self.remote
    }

    /// A page is referenced. What is to be moved is to be moved before the program goes on.
    #[inline]
    pub fn reference(&mut self, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        self.reference_at(self.now + 1, page, access)
    }

    /// The same, as the `now`th reference of all: later than every one that this has been told of.
    #[inline]
    pub fn reference_at(&mut self, now: u64, page: Page, access: PageAccess) -> ReferenceOutcome<'_> {
        assert!(self.now < now, "references come in their order");
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

    /// How many references to a page, from now on, move nothing: who makes them may tell of them later, all
    /// at once. It holds until a page leaves local memory, or this page is referenced.
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

    /// So many references to a page that were [`PagingPolicy::quiet`], the last of them the `last`th of all.
    /// They are told before any other reference moves a page: which page leaves depends on them.
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

    /// A reference to a page in remote memory.
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

    /// One word of a page in remote memory. `true`: with it, the page has earned to move.
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

    /// A reference to a page that is in neither memory.
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

    /// There is no frame for a page: it is put where it can be referenced by words.
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
        // What leaves for it may have its place.
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

    /// A page is in local memory from now on.
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

    /// Gives up pages until so many frames of local memory are free, or no page is left.
    fn make_room(&mut self, pages: u32) {
        while self.local.saturating_add(pages) > self.config.local_pages {
            let Some(page) = self.frames.take(&mut self.records) else {
                return;
            };
            self.local -= 1;
            self.give_up(page);
        }
    }

    /// A page leaves local memory.
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
        // It is nowhere while room is made: its own copy is no room for it.
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

    /// Whether remote memory has room for a page; copies of pages that are here make some.
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
