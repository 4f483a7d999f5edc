//! Where each page is, and what becomes of it next.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::berths::Berths;
use super::marks::Marks;
use super::pack::Pack;
use super::patches::Patches;
use super::saving::{From, Saving};
use super::trend::Trend;
use super::{Arrive, Berth, Discarded, Next, Page, Serve, Settings};
use crate::limit::{
    AHEAD_PAGES_MAX, ARENA_FRAMES_MIN, EVICT_PAGES, FLOW_MAX, FLOW_MIN, FLOW_SHARE, PACK_PAGE_BYTES,
    TOGETHER_MAX, TOGETHER_SHARE,
};
use crate::paging::{Frames, Touches};

/// Where a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// It is zeros.
    #[default]
    Nowhere,
    /// In the depot.
    Away,
    /// Somebody brings it, or zeros.
    Coming,
    /// Somebody brings it from its berth.
    Showing(Berth),
    /// In the program's sight.
    Here,
    /// Somebody takes it out of sight.
    Hiding(Berth),
    /// Out of sight.
    Hidden(Berth),
    /// Somebody gives it to the depot, or packs it.
    Leaving(Berth),
    /// Here, compressed.
    Packed,
    /// The same, and somebody gives it to the depot.
    Passing,
    /// No lender has it any more.
    Lost,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    /// When it last came, was shown, or was hidden.
    pub(super) touched: u64,
    pub(super) state: State,
    /// So many rely on its being here.
    pub(super) pins: u16,
    /// Words of it that were wanted since it left sight.
    pub(super) spent: u8,
    /// A thread waits for whoever moves it.
    pub(super) wanted: bool,
    /// The program has thrown away what its mover has.
    pub(super) discarded: bool,
    /// The depot has a version of it, perhaps an old one.
    pub(super) kept: bool,
    /// It waits for a frame.
    pub(super) queued: bool,
    /// It came, or comes, as the marker of a run: it stays out of sight until it is referenced.
    pub(super) marker: bool,
}

const _: () = assert!(
    size_of::<Record>() <= 24,
    "`ARENA_PAGES_MAX` says what a page costs"
);

/// The records of pages up to the highest that was ever referenced.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(Vec<Record>);

impl Records {
    pub(super) fn of(&mut self, page: Page) -> &mut Record {
        let index = page.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, Record::default());
        }
        &mut self.0[index]
    }

    fn extent(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn state(&self, page: Page) -> State {
        self.0
            .get(page.0 as usize)
            .map_or(State::Nowhere, |record| record.state)
    }
}

impl Touches for Records {
    fn touched(&self, page: Page) -> u64 {
        self.0[page.0 as usize].touched
    }

    fn untouch(&mut self, page: Page) {
        self.0[page.0 as usize].touched = 0;
    }

    fn is_local(&self, page: Page) -> bool {
        self.state(page) == State::Here
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// References that found a page not in sight.
    pub faults: u64,
    /// Of these, pages that were nowhere: they came as zeros.
    pub zeros: u64,
    /// Pages that were hidden, and came without a lender.
    pub shown: u64,
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
    pub mended: u64,
}

/// An arena. See the module.
#[derive(Clone, Debug)]
pub struct Arena {
    pub(super) settings: Settings,
    pub(super) records: Records,
    /// Pages in sight, and which one is to leave.
    pub(super) frames: Frames,
    pub(super) marks: Marks,
    /// Pages out of sight, the longest hidden first, each with the time at which it was. What has been shown since is passed over.
    pub(super) hidden: VecDeque<(Page, u64)>,
    pub(super) hidden_count: u32,
    pub(super) pack: Pack,
    pub(super) saving: Saving,
    pub(super) patches: Patches,
    pub(super) berths: Berths,
    /// Frames with a page in them, or one on its way.
    pub(super) used: u32,
    pub(super) here: u32,
    /// Pages whose bytes the depot keeps in local memory.
    stashing: u32,
    starved: VecDeque<Page>,
    pub(super) ahead: VecDeque<Page>,
    pub(super) trends: BTreeMap<u32, Trend>,
    pub(super) now: u64,
    pub(super) tally: Tally,
}

impl Arena {
    /// An arena of zeros.
    pub fn new(settings: Settings) -> Arena {
        assert!(
            settings.frames >= ARENA_FRAMES_MIN,
            "a smaller cap leaves no frame for faults"
        );
        assert!(
            settings.hidden <= settings.frames / 2,
            "what the program sees is the larger part"
        );
        assert!(
            settings.hidden + settings.pack + settings.patched <= settings.frames / 4 * 3,
            "what the program sees is the larger part"
        );
        Arena {
            settings,
            records: Records::default(),
            frames: Frames::new(settings.replacement, settings.seed),
            marks: Marks::new(settings.frames),
            hidden: VecDeque::new(),
            hidden_count: 0,
            pack: Pack::new(settings.pack),
            saving: Saving::new(settings.pack, settings.hidden, settings.packs_always),
            patches: Patches::new(settings.patched),
            berths: Berths::new(Self::taken_max(&settings)),
            used: 0,
            here: 0,
            stashing: 0,
            starved: VecDeque::new(),
            ahead: VecDeque::new(),
            trends: BTreeMap::new(),
            now: 0,
            tally: Tally::default(),
        }
    }

    /// How many berths there are. Most are empty, and take no memory.
    pub fn berths(settings: &Settings) -> u32 {
        Berths::count(Self::taken_max(settings))
    }

    /// Berths for what is hidden, for two batches on their way, and for markers.
    fn taken_max(settings: &Settings) -> u32 {
        settings.hidden + 2 * Self::together(settings) as u32 + AHEAD_PAGES_MAX
    }

    /// Pages that are hidden together, and then leave together.
    pub(super) fn together(settings: &Settings) -> usize {
        (settings.frames as usize / TOGETHER_SHARE).clamp(EVICT_PAGES, TOGETHER_MAX)
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
        self.saving.packs()
    }

    /// A page that somebody waited for was fetched in so many ns.
    pub fn fetch_took(&mut self, ns: u64) {
        self.saving.fetch_took(ns);
    }

    /// Pages that nobody waited for yet came one so many ns after the other, while more were to come.
    pub fn ahead_took(&mut self, ns: u64) {
        self.saving.ahead_took(ns);
    }

    /// Compressing a page took so many ns, and it has so many bytes then: some are tried even while none are packed.
    pub fn packing_took(&mut self, ns: u64, bytes: u32) {
        self.saving.packing_took(ns, bytes + PACK_PAGE_BYTES);
    }

    /// Whether the page is in the pack.
    pub fn is_packed(&self, page: Page) -> bool {
        self.records.state(page) == State::Packed
    }

    /// Whether eviction is to begin.
    pub fn is_low(&self) -> bool {
        self.marks.is_low(self.free())
    }

    /// Whether [`Arena::next_ahead`] has pages.
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
        self.records.state(page) == State::Nowhere
    }

    /// What has happened so far.
    pub fn tally(&self) -> Tally {
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
    pub fn flows(&self) -> bool {
        self.stashing >= (self.settings.frames / FLOW_SHARE).clamp(FLOW_MIN, FLOW_MAX)
    }

    /// A thread has referenced a page that the kernel did not find.
    pub fn fault(&mut self, page: Page) -> Serve {
        let record = self.records.of(page);
        if record.state == State::Here {
            // It came while the word of this was on its way; or it came while the program was throwing it away, and went with it.
            record.state = State::Coming;
            self.here -= 1;
            return Serve::Check;
        }
        self.want(page)
    }

    /// Somebody is about to reference a page.
    pub fn want(&mut self, page: Page) -> Serve {
        let free = self.free();
        let record = self.records.of(page);
        let serve = match record.state {
            State::Here => return Serve::There,
            State::Lost => return Serve::Lost,
            State::Coming | State::Showing(_) | State::Hiding(_) | State::Leaving(_) | State::Passing => {
                record.wanted = true;
                return Serve::Wait;
            }
            State::Hidden(berth) => {
                record.state = State::Showing(berth);
                self.hidden_count -= 1;
                self.tally.shown += 1;
                Serve::Show(berth)
            }
            State::Nowhere | State::Away | State::Packed if free == 0 => {
                self.tally.starved += u64::from(!record.queued);
                self.queue(page);
                return Serve::Starved;
            }
            State::Nowhere | State::Away | State::Packed => self.bring(page),
        };
        self.tally.faults += 1;
        serve
    }

    fn bring(&mut self, page: Page) -> Serve {
        self.used += 1;
        let record = self.records.of(page);
        record.marker = false;
        let distance = left_since(self.now, record);
        match core::mem::replace(&mut record.state, State::Coming) {
            State::Away => {
                self.saving.came_back(distance, From::Depot);
                self.frames.missed(page);
                self.tally.fetched += 1;
                Serve::Fetch
            }
            State::Packed => {
                self.saving.came_back(distance, From::Pack);
                self.frames.missed(page);
                self.pack.remove(page);
                self.tally.unpacked += 1;
                Serve::Unpack
            }
            _ => {
                self.tally.zeros += 1;
                Serve::Zero
            }
        }
    }

    /// The page waits for a frame.
    pub(super) fn queue(&mut self, page: Page) {
        if !core::mem::replace(&mut self.records.of(page).queued, true) {
            self.starved.push_back(page);
        }
    }

    /// A page that has waited for a frame, and how it comes: [`Serve::Zero`], [`Serve::Unpack`] or [`Serve::Fetch`].
    pub fn next_starved(&mut self) -> Option<(Page, Serve)> {
        while self.free() > 0 {
            let page = self.starved.pop_front()?;
            let record = self.records.of(page);
            record.queued = false;
            match record.state {
                State::Nowhere | State::Away | State::Packed => {
                    self.tally.faults += 1;
                    return Some((page, self.bring(page)));
                }
                // It was packed when its thread began to wait. Whoever passes it on has it wait again.
                State::Passing => record.wanted = true,
                _ => (),
            }
        }
        None
    }

    /// What was brought is at hand. Says what is to be put into sight. The program must not be able to throw pages away, unknown to this machine, until
    /// that is done.
    pub fn arrive(&mut self, page: Page) -> Arrive {
        let record = self.records.of(page);
        assert!(
            matches!(record.state, State::Coming | State::Showing(_)),
            "it is being brought"
        );
        if record.discarded {
            // What the program throws away from here on is what is put into sight now.
            (record.discarded, record.kept) = (false, false);
            return Arrive::Zeros;
        }
        if record.marker
            && !record.wanted
            && record.state == State::Coming
            && let Some(berth) = self.berths.take()
        {
            record.state = State::Hiding(berth);
            return Arrive::Hold(berth);
        }
        Arrive::Bytes
    }

    /// The same for a page that is lost: [`Arrive::Bytes`] means that the program is to be told, and then [`Arena::lost`].
    pub fn arrive_lost(&mut self, page: Page) -> Arrive {
        self.records.of(page).marker = false;
        self.arrive(page)
    }

    /// The page is in sight.
    pub fn came(&mut self, page: Page) -> Next {
        let now = self.tick();
        let record = self.records.of(page);
        let again = if let State::Showing(berth) = record.state {
            self.berths.give_back(berth);
            // A marker comes by its first reference.
            !record.marker
        } else {
            assert!(record.state == State::Coming, "it is being brought");
            false
        };
        assert!(
            !self.patches.has(page),
            "what was written to it has been taken along"
        );
        if record.discarded {
            return self.come_to_nothing(page);
        }
        (record.wanted, record.marker) = (false, false);
        self.be_here(page, now, again);
        Next::Done
    }

    /// The page is in the berth that it was to go into.
    pub fn held(&mut self, page: Page) -> Next {
        assert!(
            !self.patches.has(page),
            "what was written to it has been taken along"
        );
        self.hid(page, true)
    }

    /// Every lender that had the page has lost it, and the program knows. [`Arena::arrive_lost`] comes first.
    pub fn lost(&mut self, page: Page) -> Next {
        self.patches.take(page);
        let record = self.records.of(page);
        assert!(record.state == State::Coming, "it is being brought");
        if record.discarded {
            return self.come_to_nothing(page);
        }
        record.state = State::Lost;
        (record.wanted, record.marker) = (false, false);
        self.used -= 1;
        Next::Done
    }

    /// The program has thrown the page away: from now on it is zeros.
    pub fn discard(&mut self, page: Page) -> Discarded {
        if self.records.state(page) == State::Nowhere {
            return Discarded::default();
        }
        self.patches.take(page);
        let record = self.records.of(page);
        let (mut drop, mut packed) = (None, false);
        match record.state {
            State::Nowhere | State::Away | State::Lost => record.state = State::Nowhere,
            State::Here => {
                record.state = State::Nowhere;
                self.used -= 1;
                self.here -= 1;
            }
            State::Hidden(berth) => {
                record.state = State::Nowhere;
                self.hidden_count -= 1;
                drop = Some(berth);
            }
            State::Packed => {
                record.state = State::Nowhere;
                self.pack.remove(page);
                packed = true;
            }
            State::Coming | State::Showing(_) | State::Hiding(_) | State::Leaving(_) | State::Passing => {
                record.discarded = true;
            }
        }
        let forget = core::mem::take(&mut record.kept);
        Discarded { forget, packed, drop }
    }

    /// The page is in sight, and stays there until [`Arena::unpin`].
    pub fn pin(&mut self, page: Page) {
        let record = self.records.of(page);
        assert!(record.state == State::Here, "only what is in sight stays there");
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
    pub(super) fn come_to_nothing(&mut self, page: Page) -> Next {
        let record = self.records.of(page);
        (record.discarded, record.marker) = (false, false);
        if core::mem::take(&mut record.wanted) {
            record.state = State::Coming;
            return Next::Zero;
        }
        record.state = State::Nowhere;
        self.used -= 1;
        Next::Done
    }

    /// `again`: it had not left.
    pub(super) fn be_here(&mut self, page: Page, now: u64, again: bool) {
        let record = self.records.of(page);
        (record.state, record.touched) = (State::Here, now);
        self.here += 1;
        match again {
            true => self.frames.add_again(page, now),
            false => self.frames.add(page, now),
        }
        self.frames.tidy(self.here as usize, &self.records);
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The berth is empty, and with it a frame.
    pub fn dropped(&mut self, berth: Berth) {
        self.berths.give_back(berth);
        self.used -= 1;
    }
}

/// How many pages have left since this one did: each of them has come and been hidden, two ticks.
pub(super) fn left_since(now: u64, record: &Record) -> u64 {
    (now - record.touched) / 2
}
