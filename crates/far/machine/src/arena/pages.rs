//! State of each page, and its next transition.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::compressed_pool::CompressedPool;
use super::compression_model::{ArrivalSource, CompressionModel};
use super::patches::PatchTable;
use super::staging::StagingAllocator;
use super::trend::FaultTrend;
use super::watermarks::Watermarks;
use super::{ArenaSettings, ArrivalAction, DiscardActions, FaultAction, MoveFollowUp, Page, StagingFrame};
use crate::limit::{
    ARENA_FRAMES_MIN, EVICT_BATCH_MAX, EVICT_BATCH_SHARE, EVICT_PAGES, PACK_PAGE_BYTES, PREFETCH_PAGES_MAX,
    WRITEBACK_PAGES_MAX, WRITEBACK_PAGES_MIN, WRITEBACK_SHARE,
};
use crate::paging::{ReferenceTimes, ReplacementQueue};

/// State of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageState {
    /// Never referenced or discarded: zeros.
    #[default]
    Blank,
    /// At lenders, or pending on the way there.
    Remote,
    /// A mover brings its bytes, or zeros.
    Arriving,
    /// A mover maps it from its staging frame.
    Activating(StagingFrame),
    /// Mapped, visible to the program.
    Resident,
    /// A mover takes it to its staging frame.
    Deactivating(StagingFrame),
    /// In its staging frame, not visible to the program.
    Inactive(StagingFrame),
    /// A mover sends or packs it.
    Evicting(StagingFrame),
    /// In local memory, compressed.
    Packed,
    /// Packed, and a mover sends it on.
    Passing,
    /// No lender has it any more.
    Lost,
}

/// Record of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageRecord {
    /// Time, in ticks, of its last arrival, activation or deactivation.
    pub(super) touched: u64,
    pub(super) state: PageState,
    /// Number of pins that keep it resident.
    pub(super) pins: u16,
    /// Number of its words used since it was last resident.
    pub(super) spent: u8,
    /// A thread waits for its mover.
    pub(super) wanted: bool,
    /// The program has discarded the bytes that its mover has.
    pub(super) discarded: bool,
    /// Some version of it, perhaps an old one, is stored at lenders.
    pub(super) stored: bool,
    /// Waiting for a frame.
    pub(super) queued: bool,
    /// Marker of a prefetched run, kept unmapped until it is referenced.
    pub(super) marker: bool,
}

const _: () = assert!(
    size_of::<PageRecord>() <= 24,
    "the comment on `ARENA_PAGES_MAX` states a record's size"
);

/// Records of pages up to the highest one ever referenced.
#[derive(Clone, Debug, Default)]
pub(super) struct PageRecords(Vec<PageRecord>);

impl PageRecords {
    pub(super) fn of(&mut self, page: Page) -> &mut PageRecord {
        let index = page.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, PageRecord::default());
        }
        &mut self.0[index]
    }

    fn extent(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn state(&self, page: Page) -> PageState {
        self.0
            .get(page.0 as usize)
            .map_or(PageState::Blank, |record| record.state)
    }
}

impl ReferenceTimes for PageRecords {
    fn touched(&self, page: Page) -> u64 {
        self.0[page.0 as usize].touched
    }

    fn untouch(&mut self, page: Page) {
        self.0[page.0 as usize].touched = 0;
    }

    fn is_local(&self, page: Page) -> bool {
        self.state(page) == PageState::Resident
    }
}

/// Counters of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaTally {
    /// References to pages that were not resident.
    pub faults: u64,
    /// Faults on blank pages, which arrived as zeros.
    pub zeros: u64,
    /// Pages activated from a staging frame, without a lender.
    pub activated: u64,
    /// Pages decompressed from the pack.
    pub unpacked: u64,
    /// Pages fetched while a thread waited.
    pub fetched: u64,
    /// Faults that found no free frame.
    pub starved: u64,
    /// Pages requested by prefetch.
    pub ahead: u64,
    /// Prefetched runs whose marker was referenced.
    pub proved: u64,
    /// Pages sent to lenders, or dropped because lenders have them.
    pub sent: u64,
    /// Pages packed.
    pub packed: u64,
    /// Words read of pages that stayed remote or packed.
    pub words: u64,
    /// Words written to pages that stayed remote.
    pub written: u64,
    /// Pages fetched because their patches took too much memory.
    pub patch_fetches: u64,
}

/// An arena: the records of its pages and the decisions about them. See the module's comment.
#[derive(Clone, Debug)]
pub struct ArenaMachine {
    pub(super) settings: ArenaSettings,
    pub(super) records: PageRecords,
    /// Resident pages and the replacement policy.
    pub(super) frames: ReplacementQueue,
    pub(super) watermarks: Watermarks,
    /// Inactive pages, longest inactive first, each with the time of its deactivation. Stale entries are
    /// skipped.
    pub(super) inactive: VecDeque<(Page, u64)>,
    pub(super) inactive_count: u32,
    pub(super) pack: CompressedPool,
    pub(super) compression: CompressionModel,
    pub(super) patches: PatchTable,
    pub(super) staging: StagingAllocator,
    /// Number of frames with a page or for an arriving one.
    pub(super) used: u32,
    pub(super) resident: u32,
    /// Number of pages whose bytes are pending in local memory.
    stashing: u32,
    starved: VecDeque<Page>,
    pub(super) ahead: VecDeque<Page>,
    pub(super) trends: BTreeMap<u32, FaultTrend>,
    pub(super) now: u64,
    pub(super) tally: ArenaTally,
}

impl ArenaMachine {
    /// Makes an arena of zeros.
    pub fn new(settings: ArenaSettings) -> ArenaMachine {
        assert!(
            settings.frames >= ARENA_FRAMES_MIN,
            "the cap must leave frames for faults"
        );
        assert!(
            settings.inactive <= settings.frames / 2,
            "inactive, packed and patched pages take at most the allowed part of the cap"
        );
        assert!(
            settings.inactive + settings.pack + settings.patched <= settings.frames / 4 * 3,
            "inactive, packed and patched pages take at most the allowed part of the cap"
        );
        ArenaMachine {
            settings,
            records: PageRecords::default(),
            frames: ReplacementQueue::new(settings.replacement, settings.seed),
            watermarks: Watermarks::new(settings.frames),
            inactive: VecDeque::new(),
            inactive_count: 0,
            pack: CompressedPool::new(settings.pack),
            compression: CompressionModel::new(settings.pack, settings.inactive, settings.packs_always),
            patches: PatchTable::new(settings.patched),
            staging: StagingAllocator::new(Self::taken_max(&settings)),
            used: 0,
            resident: 0,
            stashing: 0,
            starved: VecDeque::new(),
            ahead: VecDeque::new(),
            trends: BTreeMap::new(),
            now: 0,
            tally: ArenaTally::default(),
        }
    }

    /// Number of staging frames. Most are empty and take no memory.
    pub fn staging_frames(settings: &ArenaSettings) -> u32 {
        StagingAllocator::count(Self::taken_max(settings))
    }

    /// Staging frames for inactive pages, two batches in motion, and markers.
    fn taken_max(settings: &ArenaSettings) -> u32 {
        settings.inactive + 2 * Self::together(settings) as u32 + PREFETCH_PAGES_MAX
    }

    /// Number of pages that are deactivated, and later evicted, together.
    pub(super) fn together(settings: &ArenaSettings) -> usize {
        (settings.frames as usize / EVICT_BATCH_SHARE).clamp(EVICT_PAGES, EVICT_BATCH_MAX)
    }

    /// Number of free frames.
    pub fn free(&self) -> u32 {
        let taken = self.used + self.stashing + self.pack.frames() + self.patches.frames();
        self.settings.frames.saturating_sub(taken)
    }

    /// Number of frames with a page or for an arriving one, without pending pages.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Number of frames that packed pages take.
    pub fn pack_frames(&self) -> u32 {
        self.pack.frames()
    }

    /// Number of frames that patches take.
    pub fn patch_frames(&self) -> u32 {
        self.patches.frames()
    }

    /// Whether evicted pages are to be packed instead of sent.
    pub fn packs(&self) -> bool {
        self.compression.packs()
    }

    /// Records the time of a fetch that a thread waited for, in ns.
    pub fn fetch_took(&mut self, ns: u64) {
        self.compression.fetch_took(ns);
    }

    /// Records the time between two prefetched pages while more were coming, in ns.
    pub fn ahead_took(&mut self, ns: u64) {
        self.compression.ahead_took(ns);
    }

    /// Records the time of a compression in ns, and the compressed size in bytes. Some pages are compressed
    /// as samples while packing is off.
    pub fn packing_took(&mut self, ns: u64, bytes: u32) {
        self.compression.packing_took(ns, bytes + PACK_PAGE_BYTES);
    }

    /// Whether the page is in the pack.
    pub fn is_packed(&self, page: Page) -> bool {
        self.records.state(page) == PageState::Packed
    }

    /// Whether eviction should begin.
    pub fn is_low(&self) -> bool {
        self.watermarks.is_low(self.free())
    }

    /// Whether [`ArenaMachine::next_ahead`] has pages.
    pub fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Whether pages wait for a frame.
    pub fn has_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Number of the highest page ever referenced, plus one.
    pub fn extent(&self) -> u32 {
        self.records.extent()
    }

    /// Whether a page is blank.
    pub fn is_blank(&self, page: Page) -> bool {
        self.records.state(page) == PageState::Blank
    }

    /// Counters so far.
    pub fn tally(&self) -> ArenaTally {
        self.tally
    }

    /// Sets the number of pages whose bytes are pending in local memory. Must be called after each change.
    pub fn stashing(&mut self, pages: u32) {
        self.stashing = pages;
    }

    /// Whether pending pages take so much of the cap that further eviction would free nothing.
    pub fn is_crowded(&self) -> bool {
        self.stashing >= (self.settings.frames / 4).max(2 * EVICT_PAGES as u32)
    }

    /// Whether enough is in flight to lenders, so that no more pages need to be evicted while that arrives.
    pub fn has_enough_in_flight(&self) -> bool {
        self.stashing
            >= (self.settings.frames / WRITEBACK_SHARE).clamp(WRITEBACK_PAGES_MIN, WRITEBACK_PAGES_MAX)
    }

    /// A thread faulted on a page that is not mapped.
    pub fn fault(&mut self, page: Page) -> FaultAction {
        let record = self.records.of(page);
        if record.state == PageState::Resident {
            // The page was mapped after the kernel had reported the fault, or was mapped and discarded at the
            // same time.
            record.state = PageState::Arriving;
            self.resident -= 1;
            return FaultAction::Check;
        }
        self.want(page)
    }

    /// A thread is about to reference a page.
    pub fn want(&mut self, page: Page) -> FaultAction {
        let free = self.free();
        let record = self.records.of(page);
        let serve = match record.state {
            PageState::Resident => return FaultAction::Resident,
            PageState::Lost => return FaultAction::Lost,
            PageState::Arriving
            | PageState::Activating(_)
            | PageState::Deactivating(_)
            | PageState::Evicting(_)
            | PageState::Passing => {
                record.wanted = true;
                return FaultAction::Wait;
            }
            PageState::Inactive(berth) => {
                record.state = PageState::Activating(berth);
                self.inactive_count -= 1;
                self.tally.activated += 1;
                FaultAction::Activate(berth)
            }
            PageState::Blank | PageState::Remote | PageState::Packed if free == 0 => {
                self.tally.starved += u64::from(!record.queued);
                self.queue(page);
                return FaultAction::Starved;
            }
            PageState::Blank | PageState::Remote | PageState::Packed => self.bring(page),
        };
        self.tally.faults += 1;
        serve
    }

    fn bring(&mut self, page: Page) -> FaultAction {
        self.used += 1;
        let record = self.records.of(page);
        record.marker = false;
        let distance = left_since(self.now, record);
        match core::mem::replace(&mut record.state, PageState::Arriving) {
            PageState::Remote => {
                self.compression.came_back(distance, ArrivalSource::Remote);
                self.frames.missed(page);
                self.tally.fetched += 1;
                FaultAction::Fetch
            }
            PageState::Packed => {
                self.compression.came_back(distance, ArrivalSource::Pack);
                self.frames.missed(page);
                self.pack.remove(page);
                self.tally.unpacked += 1;
                FaultAction::Unpack
            }
            _ => {
                self.tally.zeros += 1;
                FaultAction::Zero
            }
        }
    }

    /// Queues a page for a free frame.
    pub(super) fn queue(&mut self, page: Page) {
        if !core::mem::replace(&mut self.records.of(page).queued, true) {
            self.starved.push_back(page);
        }
    }

    /// A page that waited for a frame, with its action: [`FaultAction::Zero`], [`FaultAction::Unpack`] or
    /// [`FaultAction::Fetch`].
    pub fn next_starved(&mut self) -> Option<(Page, FaultAction)> {
        while self.free() > 0 {
            let page = self.starved.pop_front()?;
            let record = self.records.of(page);
            record.queued = false;
            match record.state {
                PageState::Blank | PageState::Remote | PageState::Packed => {
                    self.tally.faults += 1;
                    return Some((page, self.bring(page)));
                }
                // It was still packed when its thread began to wait. When it has been sent on, it is queued
                // again.
                PageState::Passing => record.wanted = true,
                _ => (),
            }
        }
        None
    }

    /// Reports that a page's content is at hand; returns what to map. Until that is done, the program must
    /// not be able to discard pages unknown to this machine.
    pub fn arrive(&mut self, page: Page) -> ArrivalAction {
        let record = self.records.of(page);
        assert!(
            matches!(record.state, PageState::Arriving | PageState::Activating(_)),
            "the page is arriving"
        );
        if record.discarded {
            // A later discard concerns the content that is mapped now.
            (record.discarded, record.stored) = (false, false);
            return ArrivalAction::Zeros;
        }
        if record.marker
            && !record.wanted
            && record.state == PageState::Arriving
            && let Some(berth) = self.staging.take()
        {
            record.state = PageState::Deactivating(berth);
            return ArrivalAction::Stage(berth);
        }
        ArrivalAction::Bytes
    }

    /// As [`ArenaMachine::arrive`], for a lost page. [`ArrivalAction::Bytes`] means: tell the program, then
    /// [`ArenaMachine::lost`].
    pub fn arrive_lost(&mut self, page: Page) -> ArrivalAction {
        self.records.of(page).marker = false;
        self.arrive(page)
    }

    /// Reports that the page is mapped.
    pub fn came(&mut self, page: Page) -> MoveFollowUp {
        let now = self.tick();
        let record = self.records.of(page);
        let again = if let PageState::Activating(berth) = record.state {
            self.staging.give_back(berth);
            // A marker is mapped at its first reference only.
            !record.marker
        } else {
            assert!(record.state == PageState::Arriving, "the page is arriving");
            false
        };
        assert!(!self.patches.has(page), "its patch was taken before");
        if record.discarded {
            return self.discard_arrival(page);
        }
        (record.wanted, record.marker) = (false, false);
        self.become_resident(page, now, again);
        MoveFollowUp::Done
    }

    /// Reports that the page is in the staging frame assigned to it.
    pub fn staged(&mut self, page: Page) -> MoveFollowUp {
        assert!(!self.patches.has(page), "its patch was taken before");
        self.deactivated(page, true)
    }

    /// Reports that every lender lost the page and the program was told. [`ArenaMachine::arrive_lost`] comes
    /// first.
    pub fn lost(&mut self, page: Page) -> MoveFollowUp {
        self.patches.take(page);
        let record = self.records.of(page);
        assert!(record.state == PageState::Arriving, "the page is arriving");
        if record.discarded {
            return self.discard_arrival(page);
        }
        record.state = PageState::Lost;
        (record.wanted, record.marker) = (false, false);
        self.used -= 1;
        MoveFollowUp::Done
    }

    /// The program has discarded the page: it is zeros from now on.
    pub fn discard(&mut self, page: Page) -> DiscardActions {
        if self.records.state(page) == PageState::Blank {
            return DiscardActions::default();
        }
        self.patches.take(page);
        let record = self.records.of(page);
        let (mut drop, mut packed) = (None, false);
        match record.state {
            PageState::Blank | PageState::Remote | PageState::Lost => record.state = PageState::Blank,
            PageState::Resident => {
                record.state = PageState::Blank;
                self.used -= 1;
                self.resident -= 1;
            }
            PageState::Inactive(berth) => {
                record.state = PageState::Blank;
                self.inactive_count -= 1;
                drop = Some(berth);
            }
            PageState::Packed => {
                record.state = PageState::Blank;
                self.pack.remove(page);
                packed = true;
            }
            PageState::Arriving
            | PageState::Activating(_)
            | PageState::Deactivating(_)
            | PageState::Evicting(_)
            | PageState::Passing => {
                record.discarded = true;
            }
        }
        let forget = core::mem::take(&mut record.stored);
        DiscardActions { forget, packed, drop }
    }

    /// Keeps a resident page resident until [`ArenaMachine::unpin`].
    pub fn pin(&mut self, page: Page) {
        let record = self.records.of(page);
        assert!(
            record.state == PageState::Resident,
            "only a resident page can be pinned"
        );
        record.pins = record
            .pins
            .checked_add(1)
            .expect("the number of pins fits 16 bits");
    }

    /// Removes a pin.
    pub fn unpin(&mut self, page: Page) {
        let record = self.records.of(page);
        assert!(record.pins > 0, "the page was pinned");
        record.pins -= 1;
    }

    /// Ends the arrival of a page that was discarded meanwhile: its frame is empty.
    pub(super) fn discard_arrival(&mut self, page: Page) -> MoveFollowUp {
        let record = self.records.of(page);
        (record.discarded, record.marker) = (false, false);
        if core::mem::take(&mut record.wanted) {
            record.state = PageState::Arriving;
            return MoveFollowUp::Zero;
        }
        record.state = PageState::Blank;
        self.used -= 1;
        MoveFollowUp::Done
    }

    /// Makes a page resident. `again`: it had not left local memory.
    pub(super) fn become_resident(&mut self, page: Page, now: u64, again: bool) {
        let record = self.records.of(page);
        (record.state, record.touched) = (PageState::Resident, now);
        self.resident += 1;
        match again {
            true => self.frames.add_again(page, now),
            false => self.frames.add(page, now),
        }
        self.frames.tidy(self.resident as usize, &self.records);
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Reports that a staging frame is empty, which frees a frame.
    pub fn dropped(&mut self, berth: StagingFrame) {
        self.staging.give_back(berth);
        self.used -= 1;
    }
}

/// Number of pages evicted since this one: each arrived and was deactivated, two ticks.
pub(super) fn left_since(now: u64, record: &PageRecord) -> u64 {
    (now - record.touched) / 2
}
