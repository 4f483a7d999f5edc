//! Where each page is, and what becomes of it next.

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

/// Where a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageState {
    /// It is zeros.
    #[default]
    Blank,
    /// In the depot.
    Remote,
    /// Somebody brings it, or zeros.
    Arriving,
    /// Somebody brings it from its berth.
    Activating(StagingFrame),
    /// In the program's sight.
    Resident,
    /// Somebody takes it out of sight.
    Deactivating(StagingFrame),
    /// Out of sight.
    Inactive(StagingFrame),
    /// Somebody gives it to the depot, or packs it.
    Evicting(StagingFrame),
    /// Here, compressed.
    Packed,
    /// The same, and somebody gives it to the depot.
    Passing,
    /// No lender has it any more.
    Lost,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageRecord {
    /// When it last came, was shown, or was hidden.
    pub(super) touched: u64,
    pub(super) state: PageState,
    /// So many rely on its being here.
    pub(super) pins: u16,
    /// Words of it that were wanted since it left sight.
    pub(super) spent: u8,
    /// A thread waits for whoever moves it.
    pub(super) wanted: bool,
    /// The program has thrown away what its mover has.
    pub(super) discarded: bool,
    /// The depot has a version of it, perhaps an old one.
    pub(super) stored: bool,
    /// It waits for a frame.
    pub(super) queued: bool,
    /// It came, or comes, as the marker of a run: it stays out of sight until it is referenced.
    pub(super) marker: bool,
}

const _: () = assert!(
    size_of::<PageRecord>() <= 24,
    "`ARENA_PAGES_MAX` says what a page costs"
);

/// The records of pages up to the highest that was ever referenced.
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

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaTally {
    /// References that found a page not in sight.
    pub faults: u64,
    /// Of these, pages that were nowhere: they came as zeros.
    pub zeros: u64,
    /// Pages that were hidden, and came without a lender.
    pub activated: u64,
    /// Pages that came out of the pack.
    pub unpacked: u64,
    /// Pages that came from the depot because somebody waited.
    pub fetched: u64,
    /// Faults that found no frame free.
    pub starved: u64,
    /// Pages that were asked for ahead.
    pub ahead: u64,
    /// Runs ahead that were proved wanted.
    pub proved: u64,
    /// Pages that were given to the depot, or dropped because it has them.
    pub sent: u64,
    /// Pages that were packed.
    pub packed: u64,
    /// Words that were had of pages that stayed away, or in the pack.
    pub words: u64,
    /// Words that were written to pages that stayed away.
    pub written: u64,
    /// Pages that were asked for because of what was written to them while they were away.
    pub patch_fetches: u64,
}

/// An arena. See the module.
#[derive(Clone, Debug)]
pub struct ArenaMachine {
    pub(super) settings: ArenaSettings,
    pub(super) records: PageRecords,
    /// Pages in sight, and which one is to leave.
    pub(super) frames: ReplacementQueue,
    pub(super) watermarks: Watermarks,
    /// Pages out of sight, the longest hidden first, each with the time at which it was. What has been shown
    /// since is passed over.
    pub(super) inactive: VecDeque<(Page, u64)>,
    pub(super) inactive_count: u32,
    pub(super) pack: CompressedPool,
    pub(super) compression: CompressionModel,
    pub(super) patches: PatchTable,
    pub(super) staging: StagingAllocator,
    /// Frames with a page in them, or one on its way.
    pub(super) used: u32,
    pub(super) resident: u32,
    /// Pages whose bytes the depot keeps in local memory.
    stashing: u32,
    starved: VecDeque<Page>,
    pub(super) ahead: VecDeque<Page>,
    pub(super) trends: BTreeMap<u32, FaultTrend>,
    pub(super) now: u64,
    pub(super) tally: ArenaTally,
}

impl ArenaMachine {
    /// An arena of zeros.
    pub fn new(settings: ArenaSettings) -> ArenaMachine {
        assert!(
            settings.frames >= ARENA_FRAMES_MIN,
            "a smaller cap leaves no frame for faults"
        );
        assert!(
            settings.inactive <= settings.frames / 2,
            "what the program sees is the larger part"
        );
        assert!(
            settings.inactive + settings.pack + settings.patched <= settings.frames / 4 * 3,
            "what the program sees is the larger part"
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

    /// How many berths there are. Most are empty, and take no memory.
    pub fn staging_frames(settings: &ArenaSettings) -> u32 {
        StagingAllocator::count(Self::taken_max(settings))
    }

    /// Berths for what is hidden, for two batches on their way, and for markers.
    fn taken_max(settings: &ArenaSettings) -> u32 {
        settings.inactive + 2 * Self::together(settings) as u32 + PREFETCH_PAGES_MAX
    }

    /// Pages that are hidden together, and then leave together.
    pub(super) fn together(settings: &ArenaSettings) -> usize {
        (settings.frames as usize / EVICT_BATCH_SHARE).clamp(EVICT_PAGES, EVICT_BATCH_MAX)
    }

    /// Frames that are free.
    pub fn free(&self) -> u32 {
        let taken = self.used + self.stashing + self.pack.frames() + self.patches.frames();
        self.settings.frames.saturating_sub(taken)
    }

    /// Frames with a page, or one on its way; what the depot has aside not among them.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Frames that compressed pages take.
    pub fn pack_frames(&self) -> u32 {
        self.pack.frames()
    }

    /// Frames that words take which were written to pages that are away.
    pub fn patch_frames(&self) -> u32 {
        self.patches.frames()
    }

    /// Whether pages that leave are to be packed, rather than sent.
    pub fn packs(&self) -> bool {
        self.compression.packs()
    }

    /// A page that somebody waited for was fetched in so many ns.
    pub fn fetch_took(&mut self, ns: u64) {
        self.compression.fetch_took(ns);
    }

    /// Pages that nobody waited for yet came one so many ns after the other, while more were to come.
    pub fn ahead_took(&mut self, ns: u64) {
        self.compression.ahead_took(ns);
    }

    /// Compressing a page took so many ns, and it has so many bytes then: some are tried even while none are
    /// packed.
    pub fn packing_took(&mut self, ns: u64, bytes: u32) {
        self.compression.packing_took(ns, bytes + PACK_PAGE_BYTES);
    }

    /// Whether the page is in the pack.
    pub fn is_packed(&self, page: Page) -> bool {
        self.records.state(page) == PageState::Packed
    }

    /// Whether eviction is to begin.
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

    /// One more than the highest page that was ever referenced.
    pub fn extent(&self) -> u32 {
        self.records.extent()
    }

    /// Whether a page is zeros, and nowhere.
    pub fn is_blank(&self, page: Page) -> bool {
        self.records.state(page) == PageState::Blank
    }

    /// What has happened so far.
    pub fn tally(&self) -> ArenaTally {
        self.tally
    }

    /// The depot keeps the bytes of so many pages in local memory. It is to be told after each change.
    pub fn stashing(&mut self, pages: u32) {
        self.stashing = pages;
    }

    /// Whether so much of the cap is taken by pages that no lender has room for that eviction frees nothing.
    pub fn is_crowded(&self) -> bool {
        self.stashing >= (self.settings.frames / 4).max(2 * EVICT_PAGES as u32)
    }

    /// Whether so much is on its way to lenders that more need not leave, as long as it arrives.
    pub fn has_enough_in_flight(&self) -> bool {
        self.stashing
            >= (self.settings.frames / WRITEBACK_SHARE).clamp(WRITEBACK_PAGES_MIN, WRITEBACK_PAGES_MAX)
    }

    /// A thread has referenced a page that the kernel did not find.
    pub fn fault(&mut self, page: Page) -> FaultAction {
        let record = self.records.of(page);
        if record.state == PageState::Resident {
            // It came while the word of this was on its way; or it came while the program was throwing it
            // away, and went with it.
            record.state = PageState::Arriving;
            self.resident -= 1;
            return FaultAction::Check;
        }
        self.want(page)
    }

    /// Somebody is about to reference a page.
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

    /// The page waits for a frame.
    pub(super) fn queue(&mut self, page: Page) {
        if !core::mem::replace(&mut self.records.of(page).queued, true) {
            self.starved.push_back(page);
        }
    }

    /// A page that has waited for a frame, and how it comes: [`FaultAction::Zero`], [`FaultAction::Unpack`]
    /// or [`FaultAction::Fetch`].
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
                // It was packed when its thread began to wait. Whoever passes it on has it wait again.
                PageState::Passing => record.wanted = true,
                _ => (),
            }
        }
        None
    }

    /// What was brought is at hand. Says what is to be put into sight. The program must not be able to throw
    /// pages away, unknown to this machine, until that is done.
    pub fn arrive(&mut self, page: Page) -> ArrivalAction {
        let record = self.records.of(page);
        assert!(
            matches!(record.state, PageState::Arriving | PageState::Activating(_)),
            "it is being brought"
        );
        if record.discarded {
            // What the program throws away from here on is what is put into sight now.
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

    /// The same for a page that is lost: [`ArrivalAction::Bytes`] means that the program is to be told, and
    /// then [`ArenaMachine::lost`].
    pub fn arrive_lost(&mut self, page: Page) -> ArrivalAction {
        self.records.of(page).marker = false;
        self.arrive(page)
    }

    /// The page is in sight.
    pub fn came(&mut self, page: Page) -> MoveFollowUp {
        let now = self.tick();
        let record = self.records.of(page);
        let again = if let PageState::Activating(berth) = record.state {
            self.staging.give_back(berth);
            // A marker comes by its first reference.
            !record.marker
        } else {
            assert!(record.state == PageState::Arriving, "it is being brought");
            false
        };
        assert!(
            !self.patches.has(page),
            "what was written to it has been taken along"
        );
        if record.discarded {
            return self.discard_arrival(page);
        }
        (record.wanted, record.marker) = (false, false);
        self.become_resident(page, now, again);
        MoveFollowUp::Done
    }

    /// The page is in the berth that it was to go into.
    pub fn staged(&mut self, page: Page) -> MoveFollowUp {
        assert!(
            !self.patches.has(page),
            "what was written to it has been taken along"
        );
        self.deactivated(page, true)
    }

    /// Every lender that had the page has lost it, and the program knows. [`ArenaMachine::arrive_lost`] comes
    /// first.
    pub fn lost(&mut self, page: Page) -> MoveFollowUp {
        self.patches.take(page);
        let record = self.records.of(page);
        assert!(record.state == PageState::Arriving, "it is being brought");
        if record.discarded {
            return self.discard_arrival(page);
        }
        record.state = PageState::Lost;
        (record.wanted, record.marker) = (false, false);
        self.used -= 1;
        MoveFollowUp::Done
    }

    /// The program has thrown the page away: from now on it is zeros.
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

    /// The page is in sight, and stays there until [`ArenaMachine::unpin`].
    pub fn pin(&mut self, page: Page) {
        let record = self.records.of(page);
        assert!(
            record.state == PageState::Resident,
            "only what is in sight stays there"
        );
        record.pins = record
            .pins
            .checked_add(1)
            .expect("fewer threads than that rely on a page");
    }

    /// It need not stay any more.
    pub fn unpin(&mut self, page: Page) {
        let record = self.records.of(page);
        assert!(record.pins > 0, "it was pinned");
        record.pins -= 1;
    }

    /// A page that was on its way into sight is thrown away there: the frame is empty.
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

    /// `again`: it had not left.
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

    /// The berth is empty, and with it a frame.
    pub fn dropped(&mut self, berth: StagingFrame) {
        self.staging.give_back(berth);
        self.used -= 1;
    }
}

/// How many pages have left since this one did: each of them has come and been hidden, two ticks.
pub(super) fn left_since(now: u64, record: &PageRecord) -> u64 {
    (now - record.touched) / 2
}
