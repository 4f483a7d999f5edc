//! The page directory: which lender's slot has which version of each page, and what to ask of whom.
//!
//! A [`PageDirectory`] is a value. Its methods come in three kinds:
//!
//! - commands: `put`, `get`, `gather`, `forget`;
//! - events: `on_*`, `take`, `damaged`, `tick`;
//! - what to do: `poll` returns a lender's next frame, `next_event` what became of pages.
//!
//! The caller has the bytes. A page is *pending* from `put` until [`DirectoryEvent::Stashed`]: its bytes must
//! be kept, and the newest version is sent whenever `poll` asks.
//!
//! Nothing waits for a lender that is away: what was in flight there goes elsewhere, and its slot is free
//! again. That is safe because a new session fences all earlier ones, and because a page is requested by its
//! version only.
//!
//! The *spill file* is one more lender with the highest number, of a second class. It gets pages for which no
//! lender has room, and they move when one has. It is asked for a page only if no lender has it. Pages in
//! slots that a lender wants back move as well.
//! Invariants: bytes are released only when all copies have them; a page is never requested by an outdated
//! version; a copy in a life that has ended does not count; a slot holds one page.

mod gather;
mod lender;
mod reclaim;
mod repair;
mod request;
mod route;
mod rtt;
mod slots;
mod status;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::{FramePages, LenderSet, Page};
use crate::limit::{COPIES_MAX, DEPOSIT_DETECT};
pub use gather::GatheredBlocks;
use lender::{InFlightFrame, LenderState};
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::limit::LENDERS_MAX;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};
use request::GatherRequests;
pub use request::{GatherOutcome, GatherResult, GatherTicket};

/// Settings of a page directory.
#[derive(Clone, Debug)]
pub struct DirectorySettings {
    /// Number of copies of each page: 1 or 2.
    pub copies: usize,
    /// Maximum number of slots of each lender.
    pub slots_max: Vec<u32>,
    /// Number of slots requested at a time; more are when a quarter of that is left free.
    pub grow: u32,
    /// Maximum number of slots of the spill file; 0: there is none.
    pub spill_max: u32,
}

/// A page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPage {
    /// The page.
    pub page: Page,
    /// Version of the page.
    pub version: u64,
    /// Slot at the lender.
    pub slot: u32,
}

/// A frame to send to a lender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DepositCommand {
    /// `Resize` to this number of slots.
    Resize(u32),
    /// `Put` with this number, of pending pages.
    Put(u32, Vec<SlotPage>),
    /// `Get` with this number.
    Get(u32, Vec<SlotPage>),
    /// `Gather` with this number and body.
    Gather(u32, Vec<u8>),
}

/// Result of looking up a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryLookup {
    /// The page was never put, or was forgotten: zeros.
    Never,
    /// The page is pending: the caller has its bytes.
    Pending,
    /// The page is requested: [`PageDirectory::take`] or [`DirectoryEvent::Lost`] follows.
    Requested,
    /// Every copy of the page is gone. These lenders had one.
    Lost(LenderSet),
}

/// A change of a page's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryEvent {
    /// All copies have this version of the page; their number. The bytes need not be kept.
    Stashed(Page, u64, usize),
    /// The page was requested, and every copy is gone. These lenders had one.
    Lost(Page, LenderSet),
    /// The gather request is complete, its last missing blocks will not come.
    Gathered(GatherTicket),
}

/// A page of a `Got` frame. The caller opens it and reports it to [`PageDirectory::take`] or
/// [`PageDirectory::damaged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedPage {
    /// Index in the frame.
    pub index: usize,
    /// The page.
    pub page: Page,
    /// Version of the page.
    pub version: u64,
}

/// Purpose of a page that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePurpose {
    /// A thread waits for it.
    pub wanted: bool,
    /// Its sealed bytes become pending, because it gets another copy.
    pub pending: bool,
}

/// The lender sent an answer to nothing that it was asked. Its link must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MisconductError;

/// Figures of an owner's pages, for monitoring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageDirectoryStatus {
    /// Number of pending pages.
    pub pending: u64,
    /// Number of pages with too few copies.
    pub short: u64,
    /// Number of pages that every lender has lost.
    pub lost: u64,
    /// Figures of each lender.
    pub lenders: Vec<DepositLenderStatus>,
    /// Figures of the spill file, if there is one.
    pub spill: Option<DepositLenderStatus>,
}

/// Figures of one lender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepositLenderStatus {
    /// Whether a session stands.
    pub linked: bool,
    /// Whether it had no more slots when last asked.
    pub full: bool,
    /// Number of slots of the deposit.
    pub slots: u32,
    /// Number of these with a page.
    pub used: u32,
    /// Number of slots that the lender wants back.
    pub asked_back: u32,
}

/// A copy of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageCopy {
    lender: u8,
    /// The lender is known to have the page's version.
    confirmed: bool,
    slot: u32,
}

/// Record of a page, 32 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PageEntry {
    /// 0: never put.
    version: u64,
    copies: [Option<PageCopy>; COPIES_MAX],
    /// The caller has the page's bytes.
    pending: bool,
    /// Lenders that lost this version.
    lost: LenderSet,
}

const _: () = assert!(
    size_of::<PageEntry>() <= 32,
    "docs/design/far.md states a record's size"
);

/// A page that was requested.
#[derive(Clone, Copy, Debug, Default)]
struct PageGet {
    wanted: bool,
    repair: bool,
    /// Lenders that were asked; empty: no linked lender has it. With two, the first is late.
    requested: LenderSet,
}

/// An owner's page directory. See the module's comment.
#[derive(Clone, Debug)]
pub struct PageDirectory {
    copies: usize,
    /// The spill file is the last one.
    lenders: Vec<LenderState>,
    /// Index of the spill file.
    spill: Option<usize>,
    pages: Vec<PageEntry>,
    /// Version given out last.
    version: u64,
    /// Pages with too few copies that are not lost.
    short: BTreeSet<Page>,
    /// Short pages that are pending.
    waiting: BTreeSet<Page>,
    /// Pages that move when there is room: from the spill file, or from slots that their lender wants back.
    moving: BTreeSet<Page>,
    gets: BTreeMap<Page, PageGet>,
    /// Gather requests.
    requests: GatherRequests,
    /// Position of the search for a page to repair.
    repair_from: Page,
    /// Position of the search for a page to move.
    move_from: Page,
    /// Lender whose turn it is to get a page.
    turn: usize,
    /// Time of the last call that gave one.
    now: Time,
    events: VecDeque<DirectoryEvent>,
    planted: FaultSwitch,
}

impl PageDirectory {
    /// A directory without pages.
    pub fn new(settings: &DirectorySettings) -> PageDirectory {
        assert!((1..=COPIES_MAX).contains(&settings.copies));
        let count = settings.slots_max.len();
        let spill = (settings.spill_max > 0).then_some(count);
        assert!(count <= LENDERS_MAX && (count > 0 || spill.is_some()));
        let lenders = settings
            .slots_max
            .iter()
            .map(|slots| LenderState::new(*slots, settings.grow));
        let file = spill.map(|_| LenderState::spill(settings.spill_max, settings.grow));
        PageDirectory {
            copies: settings.copies,
            lenders: lenders.chain(file).collect(),
            spill,
            pages: Vec::new(),
            version: 0,
            short: BTreeSet::new(),
            waiting: BTreeSet::new(),
            moving: BTreeSet::new(),
            gets: BTreeMap::new(),
            requests: GatherRequests::default(),
            repair_from: Page(0),
            move_from: Page(0),
            turn: 0,
            now: Time(0),
            events: VecDeque::new(),
            planted: FaultSwitch::NONE,
        }
    }

    /// Plants a fault, for tests of the simulator.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Puts a page. Returns its version, under which its bytes are to be sealed and kept; earlier versions
    /// are void. Always succeeds: without room the page stays pending.
    pub fn put(&mut self, page: Page) -> u64 {
        let version = self.reserve();
        self.put_as(page, version);
        version
    }

    /// Reserves a version for a page that will be put, so that it can be sealed meanwhile.
    pub fn reserve(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// As [`put`](Self::put), under a reserved version.
    pub fn put_as(&mut self, page: Page, version: u64) {
        let index = page.0 as usize;
        if index >= self.pages.len() {
            self.pages.resize(index + 1, PageEntry::default());
        }
        assert!(version <= self.version, "the version was reserved");
        assert!(
            version > self.pages[index].version,
            "a page is put under a new version"
        );
        self.gets.remove(&page);
        if !self.planted.is(PlantedFault::OldBlocksGiven) {
            self.cancel_picks(page);
        }
        let entry = &mut self.pages[index];
        (entry.version, entry.pending, entry.lost) = (version, true, LenderSet::default());
        for spot in &mut entry.copies {
            let Some(place) = spot else { continue };
            let lender = &mut self.lenders[usize::from(place.lender)];
            if lender.takes() {
                place.confirmed = false;
                lender.put(SlotPage {
                    page,
                    version,
                    slot: place.slot,
                });
            } else {
                if !self.planted.is(PlantedFault::SlotLeaked) {
                    lender.give(place.slot);
                }
                *spot = None;
            }
        }
        self.place(page);
        self.settle(page);
    }

    /// Looks up a page and requests it if it is remote.
    pub fn get(&mut self, page: Page) -> DirectoryLookup {
        let Some(entry) = self.entry(page) else {
            return DirectoryLookup::Never;
        };
        if entry.pending {
            return DirectoryLookup::Pending;
        }
        if entry.copies == [None; COPIES_MAX] {
            return DirectoryLookup::Lost(entry.lost);
        }
        let get = self.gets.entry(page).or_default();
        get.wanted = true;
        if get.requested.is_empty() {
            self.route(page);
        }
        DirectoryLookup::Requested
    }

    /// Forgets a page: it is zeros from now on. The caller tells its waiters.
    pub fn forget(&mut self, page: Page) {
        let Some(entry) = self.pages.get_mut(page.0 as usize) else {
            return;
        };
        for spot in entry.copies.iter().flatten() {
            self.lenders[usize::from(spot.lender)].give(spot.slot);
        }
        *entry = PageEntry::default();
        self.gets.remove(&page);
        self.cancel_picks(page);
        self.short.remove(&page);
        self.waiting.remove(&page);
        self.moving.remove(&page);
    }

    /// Number of the session that is about to begin with a lender.
    pub fn next_session(&mut self, lender: usize) -> Epoch {
        let lender = &mut self.lenders[lender];
        assert!(!lender.linked);
        lender.epoch = lender.epoch.next();
        lender.epoch
    }

    /// A session has begun: the lender answered `Deposited`. It keeps the deposit for `lease` after the
    /// session.
    ///
    /// # Errors
    ///
    /// Fails if another configured lender has the same life: both are one, and two copies there would be one
    /// copy.
    pub fn on_linked(
        &mut self,
        lender: usize,
        life: Incarnation,
        slots: u32,
        lease: Nanos,
    ) -> Result<(), MisconductError> {
        let others = self.lenders.iter().enumerate().filter(|(at, _)| *at != lender);
        if { others }.any(|(_, other)| other.life == Some(life)) {
            return Err(MisconductError);
        }
        let known = self.lenders[lender].life;
        let same = known == Some(life) && slots >= self.lenders[lender].slots.count();
        let ignored = known.is_some() && self.planted.is(PlantedFault::DepositLifeIgnored);
        if !(same || ignored) {
            self.lose_all(lender);
        }
        self.lenders[lender].on_linked(life, slots, lease);
        self.reroute();
        self.replace_all();
        self.repair();
        Ok(())
    }

    /// The link has ended, or the session did not begin.
    pub fn on_unlinked(&mut self, lender: usize, now: Time) {
        if !self.lenders[lender].linked {
            return;
        }
        let wished = self.lenders[lender].slots.has_reclaim();
        for item in self.lenders[lender].on_unlinked(now) {
            let Some(entry) = self.pages.get_mut(item.page.0 as usize) else {
                continue;
            };
            let spot = entry
                .copies
                .iter_mut()
                .find(|spot| spot.is_some_and(|spot| spot.is(lender, item.slot)));
            if let Some(spot) = spot.filter(|spot| spot.is_some_and(|spot| !spot.confirmed)) {
                *spot = None;
                self.lenders[lender].give(item.slot);
                self.place(item.page);
                self.settle(item.page);
            }
        }
        self.gets
            .values_mut()
            .for_each(|get| get.requested.remove(lender));
        if wished {
            self.note_all(lender);
        }
        self.reroute();
        self.replace_all();
    }

    /// The lender is about to stop: its pages go elsewhere.
    pub fn on_withdraw(&mut self, lender: usize) {
        self.lenders[lender].leaving = true;
        self.shun(lender);
        self.replace_all();
        self.repair();
    }

    /// Handles a `Deposited` frame that answers a `Resize`.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if no such `Resize` was sent.
    pub fn on_resized(&mut self, lender: usize, slots: u32) -> Result<(), MisconductError> {
        let resized = |flight: &InFlightFrame| *flight == InFlightFrame::Resize(slots);
        self.lenders[lender].land(resized, self.now)?;
        self.lenders[lender].on_slots(slots);
        self.replace_all();
        self.repair();
        Ok(())
    }

    /// The lender has no room for a `Resize`; `possible` slots are available in all.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if no `Resize` was sent.
    pub fn on_no_room(&mut self, lender: usize, possible: u32, now: Time) -> Result<(), MisconductError> {
        self.look(now);
        let refused =
            |flight: &InFlightFrame| matches!(flight, InFlightFrame::Resize(asked) if possible < *asked);
        self.lenders[lender].land(refused, now)?;
        self.lenders[lender].on_no_room(possible, now);
        self.replace_all();
        Ok(())
    }

    /// Handles a `Stashed` frame.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if no such `Put` was sent.
    pub fn on_stashed(&mut self, lender: usize, number: u32) -> Result<(), MisconductError> {
        let sent = |flight: &InFlightFrame| matches!(flight, InFlightFrame::Put(sent, _) if *sent == number);
        for item in self.lenders[lender].land(sent, self.now)?.items() {
            let Some(entry) = self.pages.get_mut(item.page.0 as usize) else {
                continue;
            };
            // The page may have been put anew or forgotten meanwhile.
            let same = entry.version == item.version || self.planted.is(PlantedFault::OldAckCounts);
            for spot in entry.copies.iter_mut().flatten() {
                spot.confirmed |= same && spot.is(lender, item.slot);
            }
            if same {
                self.settle(item.page);
            }
        }
        self.lenders[lender].want_fewer();
        Ok(())
    }

    /// Handles a `Got` frame. Returns the pages in it that are still wanted.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if no such `Get` was sent.
    pub fn on_got(
        &mut self,
        lender: usize,
        number: u32,
        cut: &FramePages<'_>,
    ) -> Result<Vec<ArrivedPage>, MisconductError> {
        let answers = |items: &[SlotPage]| {
            let asked = items.iter().map(|item| (item.slot, item.version));
            asked.eq(cut.pages().iter().map(|page| (page.slot, page.version)))
        };
        let sent = |flight: &InFlightFrame| matches!(flight, InFlightFrame::Get(sent, items) if *sent == number && answers(items));
        let items = self.lenders[lender].land(sent, self.now)?.items();
        let mut due = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if !self.awaits(item.page, item.version, lender) {
                continue;
            }
            if cut.pages()[index].bytes.is_empty() {
                self.damaged(lender, item.page, item.version);
            } else {
                due.push(ArrivedPage {
                    index,
                    page: item.page,
                    version: item.version,
                });
            }
        }
        self.lenders[lender].want_fewer();
        Ok(due)
    }

    /// The page arrived and is what was sent.
    pub fn take(&mut self, lender: usize, page: Page, version: u64) -> PagePurpose {
        assert!(
            self.awaits(page, version, lender),
            "the page was requested from this lender in this version"
        );
        let get = self.gets.remove(&page).unwrap_or_default();
        // A page verifies blocks that were given before it, not those given after it.
        self.cancel_picks(page);
        let aside = get.repair && self.next_place(page).is_some();
        if aside {
            self.pages[page.0 as usize].pending = true;
            self.place(page);
            self.settle(page);
        }
        if get.repair {
            self.repair();
        }
        PagePurpose {
            wanted: get.wanted,
            pending: aside,
        }
    }

    /// The lender does not have the page, or gave other bytes: that copy is gone.
    pub fn damaged(&mut self, lender: usize, page: Page, version: u64) {
        if self.entry(page).is_some_and(|entry| entry.version == version) {
            self.drop_copies(page, lender);
        }
    }

    /// Sets the time. To be called before the events of a frame.
    pub fn look(&mut self, now: Time) {
        self.now = now;
    }

    /// Handles the passing of time. To be called a few times a second.
    pub fn tick(&mut self, now: Time) {
        self.look(now);
        for lender in 0..self.lenders.len() {
            let away = !self.lenders[lender].linked && self.lenders[lender].life.is_some();
            let since = now.since(self.lenders[lender].away_since);
            if away && since >= self.lenders[lender].lease {
                self.lose_all(lender);
            } else if away && since >= DEPOSIT_DETECT && !self.lenders[lender].shunned {
                self.shun(lender);
            }
            self.lenders[lender].tick(now);
        }
        self.hedge();
        self.replace_all();
        self.repair();
    }

    /// The next frame for a lender. `None`: there is none, or enough is in flight.
    pub fn poll(&mut self, lender: usize, now: Time) -> Option<DepositCommand> {
        self.look(now);
        if self.lenders[lender].is_turn_of_picks()
            && let Some(send) = self.poll_picks(lender, now)
        {
            return Some(send);
        }
        let pages = self.poll_pages(lender, now);
        pages.or_else(|| self.poll_picks(lender, now))
    }

    /// The next event about a page.
    pub fn next_event(&mut self) -> Option<DirectoryEvent> {
        self.events.pop_front()
    }

    fn entry(&self, page: Page) -> Option<&PageEntry> {
        self.pages.get(page.0 as usize).filter(|entry| entry.version > 0)
    }
}

impl PageCopy {
    fn is(&self, lender: usize, slot: u32) -> bool {
        usize::from(self.lender) == lender && self.slot == slot
    }
}
