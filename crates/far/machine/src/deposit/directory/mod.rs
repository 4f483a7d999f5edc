//! An owner's side: where each page is, and what is asked of which lender.
//!
//! A [`Depot`] is a value. Commands: [`put`](Depot::put), [`get`](Depot::get), [`forget`](Depot::forget).
//! What happened: `on_*`, [`take`](Depot::take), [`damaged`](Depot::damaged), [`tick`](Depot::tick). What to
//! do: [`poll`](Depot::poll) gives a lender's next frame, [`news`](Depot::news) what became of pages. The
//! pages' bytes are the caller's: from `put` on it keeps them *aside* until [`News::Stashed`], and gives the
//! newest whenever `poll` asks.
//!
//! Nothing waits for a lender that is away: what was on its way there goes elsewhere, and its slot is free
//! again. That is safe because a session that has begun fences all before it, and because a page is only ever
//! asked for by its version.
//!
//! The *spill file* is one more lender to it, numbered behind the last one, of a second class: it gets what
//! no lender may take, is asked for nothing that a lender can give, and what is in it moves to lenders when
//! they have room. So does what is in slots that a lender wants back.
//!
//! What it never does: let bytes go before all their places have them, ask for a page by a version that it is
//! not, count a place in a life that has ended, or use one slot for two pages.

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

/// What a depot is to be.
#[derive(Clone, Debug)]
pub struct DirectorySettings {
    /// In how many places a page is to be: 1 or 2.
    pub copies: usize,
    /// One a lender: the most slots that are asked of it.
    pub slots_max: Vec<u32>,
    /// How many are asked for at once; more are when a quarter of that is free.
    pub grow: u32,
    /// The most slots of the spill file; 0: there is none.
    pub spill_max: u32,
}

/// A page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPage {
    /// The page.
    pub page: Page,
    /// Its version.
    pub version: u64,
    /// Its slot at the lender.
    pub slot: u32,
}

/// A frame to be sent to a lender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DepositCommand {
    /// `Resize` to so many slots.
    Resize(u32),
    /// `Put` with this number, of the pages that are aside.
    Put(u32, Vec<SlotPage>),
    /// `Get` with this number.
    Get(u32, Vec<SlotPage>),
    /// `Gather` with this number and body.
    Gather(u32, Vec<u8>),
}

/// Where a page was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryLookup {
    /// It was never put, or has been forgotten: zeros.
    Never,
    /// Its bytes are aside.
    Pending,
    /// It is asked for: [`Depot::take`] or [`News::Lost`] will tell.
    Requested,
    /// Every place that it had is gone. These lenders had it.
    Lost(LenderSet),
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryEvent {
    /// All its places have this version, and there are so many: the bytes need not be kept aside any more.
    Stashed(Page, u64, usize),
    /// It was asked for, and every place that it had is gone. These lenders had it.
    Lost(Page, LenderSet),
    /// Of the blocks that this request waited for the last do not come.
    Gathered(GatherTicket),
}

/// A page of a `Got` frame, to be opened by whoever has the key, and then told to [`Depot::take`] or
/// [`Depot::damaged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedPage {
    /// Its place in the frame.
    pub index: usize,
    /// The page.
    pub page: Page,
    /// Its version.
    pub version: u64,
}

/// What a page that came back is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePurpose {
    /// Somebody waits for it.
    pub wanted: bool,
    /// Its bytes, as they came, go aside: it is to have another place.
    pub pending: bool,
}

/// The lender sent what answers nothing that it was asked. Its link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MisconductError;

/// How an owner's pages stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageDirectoryStatus {
    /// Pages whose bytes are aside.
    pub pending: u64,
    /// Pages that are in fewer places than they should.
    pub short: u64,
    /// Pages that every lender has lost.
    pub lost: u64,
    /// The lenders.
    pub lenders: Vec<DepositLenderStatus>,
    /// The spill file, if there is one.
    pub spill: Option<DepositLenderStatus>,
}

/// How one lender stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepositLenderStatus {
    /// Whether a session stands.
    pub linked: bool,
    /// It had no more slots when it was asked last.
    pub full: bool,
    /// Slots that the deposit has there.
    pub slots: u32,
    /// Of these, slots with a page.
    pub used: u32,
    /// Slots that the lender wants back.
    pub asked_back: u32,
}

/// A place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageCopy {
    lender: u8,
    /// It is known to have the page's version.
    confirmed: bool,
    slot: u32,
}

/// What is known of a page: 32 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PageEntry {
    /// 0: never put.
    version: u64,
    copies: [Option<PageCopy>; COPIES_MAX],
    /// The caller has its bytes.
    pending: bool,
    /// Who has lost this version.
    lost: LenderSet,
}

const _: () = assert!(size_of::<PageEntry>() <= 32, "docs/far.md says what a page costs");

/// A page that was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct PageGet {
    wanted: bool,
    repair: bool,
    /// Whom it was asked of; empty: nobody who has it is linked. Two: the first is late.
    requested: LenderSet,
}

/// An owner's side of its deposits.
#[derive(Clone, Debug)]
pub struct PageDirectory {
    copies: usize,
    /// The spill file is the last one.
    lenders: Vec<LenderState>,
    /// Its number.
    spill: Option<usize>,
    pages: Vec<PageEntry>,
    /// The last version that was given out.
    version: u64,
    /// Pages in fewer places than they should be, and not lost.
    short: BTreeSet<Page>,
    /// Of these, those whose bytes are aside.
    waiting: BTreeSet<Page>,
    /// Pages that move when there is room: in the spill file, or in slots that their lender wants back.
    moving: BTreeSet<Page>,
    gets: BTreeMap<Page, PageGet>,
    /// Blocks that were asked for.
    requests: GatherRequests,
    /// Where the search for a short page to mend goes on.
    repair_from: Page,
    /// Where the search for a page that moves goes on.
    move_from: Page,
    /// The lender whose turn it is.
    turn: usize,
    /// When something was last said.
    now: Time,
    events: VecDeque<DirectoryEvent>,
    planted: FaultSwitch,
}

impl PageDirectory {
    /// A depot without a page.
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

    /// Plants a fault (tests of the simulator only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// The page's bytes leave. Returns their version, under which they are to be sealed and kept aside;
    /// whatever was put before is void. Always succeeds: without room they stay aside.
    pub fn put(&mut self, page: Page) -> u64 {
        let version = self.reserve();
        self.put_as(page, version);
        version
    }

    /// A version for a page that will be put: it may be sealed meanwhile.
    pub fn reserve(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// As [`put`](Self::put), under a version that was reserved for this.
    pub fn put_as(&mut self, page: Page, version: u64) {
        let index = page.0 as usize;
        if index >= self.pages.len() {
            self.pages.resize(index + 1, PageEntry::default());
        }
        assert!(version <= self.version, "it was reserved");
        assert!(
            version > self.pages[index].version,
            "a page leaves under a new version"
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

    /// The page is wanted back.
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

    /// The page is wanted no more: from now on it is zeros. Whoever waits for it is the caller's to tell.
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

    /// The number of the session that is about to begin with a lender.
    pub fn next_session(&mut self, lender: usize) -> Epoch {
        let lender = &mut self.lenders[lender];
        assert!(!lender.linked);
        lender.epoch = lender.epoch.next();
        lender.epoch
    }

    /// The session that was begun last stands: the lender answered `Deposited`. It keeps the deposit for
    /// `lease` when the session is over. Refused if another of the lenders has this very life: both are one,
    /// and two copies at one lender are one copy.
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

    /// The link has ended, or a session did not come about.
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

    /// The lender is about to stop: pages go elsewhere.
    pub fn on_withdraw(&mut self, lender: usize) {
        self.lenders[lender].leaving = true;
        self.shun(lender);
        self.replace_all();
        self.repair();
    }

    /// A `Deposited` frame that answers a `Resize`.
    pub fn on_resized(&mut self, lender: usize, slots: u32) -> Result<(), MisconductError> {
        let resized = |flight: &InFlightFrame| *flight == InFlightFrame::Resize(slots);
        self.lenders[lender].land(resized, self.now)?;
        self.lenders[lender].on_slots(slots);
        self.replace_all();
        self.repair();
        Ok(())
    }

    /// The lender has refused a `Resize` for want of room; so many slots could be had in all.
    pub fn on_no_room(&mut self, lender: usize, possible: u32, now: Time) -> Result<(), MisconductError> {
        self.look(now);
        let refused =
            |flight: &InFlightFrame| matches!(flight, InFlightFrame::Resize(asked) if possible < *asked);
        self.lenders[lender].land(refused, now)?;
        self.lenders[lender].on_no_room(possible, now);
        self.replace_all();
        Ok(())
    }

    /// A `Stashed` frame.
    pub fn on_stashed(&mut self, lender: usize, number: u32) -> Result<(), MisconductError> {
        let sent = |flight: &InFlightFrame| matches!(flight, InFlightFrame::Put(sent, _) if *sent == number);
        for item in self.lenders[lender].land(sent, self.now)?.items() {
            let Some(entry) = self.pages.get_mut(item.page.0 as usize) else {
                continue;
            };
            // It may have been put anew meanwhile, or forgotten.
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

    /// A `Got` frame. Returns the pages in it that somebody still wants.
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

    /// The page came back and is what left.
    pub fn take(&mut self, lender: usize, page: Page, version: u64) -> PagePurpose {
        assert!(
            self.awaits(page, version, lender),
            "a page is taken once, at once"
        );
        let get = self.gets.remove(&page).unwrap_or_default();
        // A page proves what was given of it before, not what is given behind it.
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

    /// The lender has not got the page, or gave something else: that place is gone.
    pub fn damaged(&mut self, lender: usize, page: Page, version: u64) {
        if self.entry(page).is_some_and(|entry| entry.version == version) {
            self.drop_copies(page, lender);
        }
    }

    /// It is now so late: to be told before what a lender says.
    pub fn look(&mut self, now: Time) {
        self.now = now;
    }

    /// Looks at the time: to be called a few times a second.
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

    /// The next frame for a lender, or `None` if there is none, or enough is on its way.
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

    /// The next thing that became of a page.
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
