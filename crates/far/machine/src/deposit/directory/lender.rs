//! State of one lender, as its owner sees it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::request::PickId;
use super::rtt::LenderRtt;
use super::slots::LenderSlots;
use super::{DepositCommand, DepositLenderStatus, MisconductError, SlotPage};
use crate::limit::{
    DEPOSIT_FRAMES_MAX, DEPOSIT_RETRY, DEPOSIT_SLOTS_MAX, DEPOSIT_TIMEOUT, FRAME_PAGES_MAX, PUT_BACKLOG_PAGES,
};
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::time::{Nanos, Time};

/// A frame without an answer yet. Lenders answer in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InFlightFrame {
    Resize(u32),
    Put(u32, Vec<SlotPage>),
    Get(u32, Vec<SlotPage>),
    /// Number of the frame, and each pick with its number of blocks.
    Gather(u32, Vec<(PickId, u16)>),
}

impl InFlightFrame {
    /// Pages of the frame.
    pub(super) fn items(self) -> Vec<SlotPage> {
        match self {
            InFlightFrame::Put(_, items) | InFlightFrame::Get(_, items) => items,
            InFlightFrame::Resize(_) | InFlightFrame::Gather(..) => Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct LenderState {
    /// Maximum number of slots to ask for.
    slots_max: u32,
    /// Number of slots requested at a time.
    grow: u32,
    /// Number of the last session.
    pub(super) epoch: Epoch,
    /// Life of the deposit; `None`: there is none.
    pub(super) life: Option<Incarnation>,
    pub(super) linked: bool,
    /// Time since when it is not linked.
    pub(super) away_since: Time,
    /// Time for which it keeps the deposit after a session.
    pub(super) lease: Nanos,
    /// Its copies no longer count, and its pages get another copy.
    pub(super) shunned: bool,
    /// Set when it has announced that it stops.
    pub(super) leaving: bool,
    pub(super) slots: LenderSlots,
    /// Most slots ever requested.
    requested_max: u32,
    /// No slots are requested before one is needed, so that an unused spill file causes no disk access.
    unused: bool,
    /// Number of slots to ask for with the next frame.
    wanted: Option<u32>,
    /// Time to ask again, after it had no room.
    full_until: Option<Time>,
    puts: VecDeque<SlotPage>,
    gets: VecDeque<SlotPage>,
    picks: VecDeque<PickId>,
    /// The previous frame was a `Gather`.
    picked: bool,
    /// The previous frame was a `Get`.
    got: bool,
    /// Frames in flight, each with the time it was sent.
    pub(super) in_flight: VecDeque<(Time, InFlightFrame)>,
    number: u32,
    /// Its response times.
    rtt: LenderRtt,
    /// An answer has been outstanding for longer than usual.
    late: bool,
}

impl LenderState {
    pub(super) fn new(slots_max: u32, grow: u32) -> LenderState {
        LenderState {
            slots_max: slots_max.min(DEPOSIT_SLOTS_MAX),
            grow: grow.max(1),
            epoch: Epoch(0),
            life: None,
            linked: false,
            away_since: Time(0),
            lease: Nanos(0),
            shunned: true,
            leaving: false,
            slots: LenderSlots::none(),
            requested_max: 0,
            unused: false,
            wanted: None,
            full_until: None,
            puts: VecDeque::new(),
            gets: VecDeque::new(),
            picks: VecDeque::new(),
            picked: false,
            got: false,
            in_flight: VecDeque::new(),
            number: 0,
            rtt: LenderRtt::default(),
            late: false,
        }
    }

    /// State of the spill file.
    pub(super) fn spill(slots_max: u32, grow: u32) -> LenderState {
        LenderState {
            unused: true,
            ..LenderState::new(slots_max, grow)
        }
    }

    pub(super) fn status(&self) -> DepositLenderStatus {
        DepositLenderStatus {
            linked: self.linked,
            full: self.is_full(),
            slots: self.slots.count(),
            used: self.slots.used(),
            asked_back: self.slots.asked_back(),
        }
    }

    /// Whether pages may go there, now or when it has given more slots.
    pub(super) fn takes(&self) -> bool {
        self.linked && !self.leaving
    }

    /// Whether a page may go there now.
    pub(super) fn has_free(&self) -> bool {
        self.takes() && self.slots.free() > 0
    }

    /// Whether it wants this slot back.
    pub(super) fn wants_back(&self, slot: u32) -> bool {
        self.takes() && self.slots.wants_back(slot)
    }

    /// Whether more slots may come.
    pub(super) fn may_grow(&self) -> bool {
        let more = |slots: u32| slots > self.slots.count();
        self.asking().any(more) || (more(self.slots_most()) && self.full_until.is_none())
    }

    /// Maximum number of slots to ask for.
    fn slots_most(&self) -> u32 {
        self.slots_max.min(self.slots.keep())
    }

    /// Numbers of slots that it is or will be asked for.
    fn asking(&self) -> impl Iterator<Item = u32> {
        let sent = self.in_flight.iter().filter_map(|(_, flight)| match flight {
            InFlightFrame::Resize(slots) => Some(*slots),
            _ => None,
        });
        sent.chain(self.wanted)
    }

    fn is_asking(&self) -> bool {
        self.asking().next().is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.full_until.is_some()
    }

    /// Takes a free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.unused = false;
        let slot = self.slots.take();
        self.want_more();
        slot
    }

    /// Notes that a page needs room there.
    pub(super) fn want_room(&mut self) {
        self.unused = false;
        self.want_more();
    }

    pub(super) fn give(&mut self, slot: u32) {
        self.slots.give(slot);
    }

    /// Asks for more slots before the free ones run out.
    pub(super) fn want_more(&mut self) {
        let enough = self.slots.free() > self.grow / 4;
        if self.unused || enough || self.is_asking() || !self.takes() || self.full_until.is_some() {
            return;
        }
        let wanted = { self.slots.count() }.saturating_add(self.grow);
        let wanted = wanted.min(self.slots_most());
        if wanted > self.slots.count() {
            self.wanted = Some(wanted);
        }
    }

    /// Gives back vacated slots: all of them if it is about to stop, otherwise those that it wants back.
    pub(super) fn want_fewer(&mut self) {
        let fewer = match self.leaving {
            true => (self.slots.count() > 0 && self.slots.used() == 0).then_some(0),
            false => self.slots.is_vacated().then_some(self.slots.keep()),
        };
        if fewer.is_some() && self.linked && !self.is_asking() {
            self.wanted = fewer;
        }
    }

    /// The lender wants back all slots from `keep` on. This replaces its earlier request.
    pub(super) fn on_asked_back(&mut self, keep: u32) {
        self.slots.ask_back(keep);
        // A planned request that was not sent is planned anew.
        self.wanted = None;
        self.want_more();
        self.want_fewer();
    }

    /// Plans to give up all slots from this one on.
    pub(super) fn want(&mut self, slots: u32) {
        self.wanted = Some(slots);
    }

    pub(super) fn on_linked(&mut self, life: Incarnation, slots: u32, lease: Nanos) {
        self.life = Some(life);
        self.lease = lease;
        self.linked = true;
        self.shunned = false;
        self.leaving = false;
        self.full_until = None;
        // Slots beyond those requested would cost memory here.
        self.on_slots(slots.min(self.requested_max));
    }

    /// The deposit has this many slots now.
    pub(super) fn on_slots(&mut self, slots: u32) {
        self.slots.resize(slots);
        self.want_more();
        self.want_fewer();
    }

    /// Slots that a `Resize` gives up count no more, answered or not: the lender may have received it.
    pub(super) fn on_given_up(&mut self, slots: u32) {
        if slots < self.slots.count() {
            self.slots.resize(slots);
        }
    }

    /// The lender has no room for the request; `possible` slots are available in all.
    pub(super) fn on_no_room(&mut self, possible: u32, now: Time) {
        let possible = possible.min(self.slots_most());
        if possible > self.slots.count() {
            self.wanted = Some(possible);
        } else {
            self.full_until = Some(now + DEPOSIT_RETRY);
        }
    }

    pub(super) fn tick(&mut self, now: Time) {
        let first = self.in_flight.front();
        self.late = first.is_some_and(|(sent, _)| now.since(*sent) >= self.rtt.timeout());
        if self.full_until.is_some_and(|until| until <= now) {
            self.full_until = None;
        }
        self.want_more();
        self.want_fewer();
    }

    /// Accepts an answer. Lenders answer in order, so it must fit the frame sent first.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if it does not; frames in flight stay so until the link is closed.
    pub(super) fn land(
        &mut self,
        fits: impl FnOnce(&InFlightFrame) -> bool,
        now: Time,
    ) -> Result<InFlightFrame, MisconductError> {
        let landed = self.in_flight.pop_front_if(|(_, flight)| fits(flight));
        let (sent, flight) = landed.ok_or(MisconductError)?;
        self.rtt.record(now.since(sent));
        self.late = false;
        Ok(flight)
    }

    /// Whether an answer has been outstanding for longer than usual. Other lenders are asked for what they
    /// have too.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Queues a pick.
    pub(super) fn pick(&mut self, id: PickId) {
        self.picks.push_back(id);
    }

    /// Queues a pick that did not fit, as the first.
    pub(super) fn pick_first(&mut self, id: PickId) {
        self.picks.push_front(id);
    }

    /// The next pick, if a frame may be sent.
    pub(super) fn next_pick(&mut self) -> Option<PickId> {
        self.may_send().then(|| self.picks.pop_front()).flatten()
    }

    /// Picks and pages alternate, so that neither delays the other.
    pub(super) fn is_turn_of_picks(&self) -> bool {
        !self.picked
    }

    /// Notes that a `Gather` is in flight. Returns its number.
    pub(super) fn gather(&mut self, asked: Vec<(PickId, u16)>, now: Time) -> u32 {
        let number = self.next_number();
        self.in_flight
            .push_back((now, InFlightFrame::Gather(number, asked)));
        self.picked = true;
        number
    }

    fn may_send(&self) -> bool {
        self.linked && self.in_flight.len() < DEPOSIT_FRAMES_MAX
    }

    /// Whether an answer has been outstanding for so long that none will come.
    pub(super) fn is_silent(&self, now: Time) -> bool {
        let first = self.in_flight.front();
        first.is_some_and(|(sent, _)| now.since(*sent) >= DEPOSIT_TIMEOUT)
    }

    /// The link is gone. Returns the puts that are not known to have arrived.
    pub(super) fn on_unlinked(&mut self, now: Time) -> Vec<SlotPage> {
        self.linked = false;
        self.late = false;
        self.away_since = now;
        self.wanted = None;
        // A reclaim request ends with its session.
        self.slots.ask_back(DEPOSIT_SLOTS_MAX);
        self.gets.clear();
        self.picks.clear();
        let mut puts: Vec<SlotPage> = Vec::new();
        for (_, flight) in self.in_flight.drain(..) {
            if let InFlightFrame::Put(_, items) = flight {
                puts.extend(items);
            }
        }
        puts.extend(self.puts.drain(..));
        puts
    }

    /// Everything stored there is gone.
    pub(super) fn forget(&mut self) {
        self.life = None;
        self.slots = LenderSlots::none();
    }

    pub(super) fn put(&mut self, item: SlotPage) {
        self.puts.push_back(item);
    }

    /// Number of pages waiting to be sent there.
    pub(super) fn queued(&self) -> usize {
        self.puts.len()
    }

    pub(super) fn get(&mut self, item: SlotPage) {
        self.gets.push_back(item);
    }

    /// The next frame: requests first, in turns with puts if those have piled up. `put_matters` and
    /// `get_matters` say which are still current.
    pub(super) fn poll(
        &mut self,
        now: Time,
        mut put_matters: impl FnMut(&SlotPage) -> bool,
        get_matters: impl FnMut(&SlotPage) -> bool,
    ) -> Option<DepositCommand> {
        if !self.may_send() {
            return None;
        }
        self.picked = false;
        // Piled-up puts take frames of the cap, and the two use opposite directions of the link.
        if core::mem::take(&mut self.got)
            && self.puts.len() > PUT_BACKLOG_PAGES
            && let Some(send) = self.poll_puts(now, &mut put_matters)
        {
            return Some(send);
        }
        let gets = batch(&mut self.gets, get_matters);
        if !gets.is_empty() {
            self.got = true;
            let number = self.next_number();
            self.in_flight
                .push_back((now, InFlightFrame::Get(number, gets.clone())));
            return Some(DepositCommand::Get(number, gets));
        }
        if let Some(slots) = self.wanted.take() {
            self.in_flight.push_back((now, InFlightFrame::Resize(slots)));
            self.requested_max = self.requested_max.max(slots);
            return Some(DepositCommand::Resize(slots));
        }
        self.poll_puts(now, put_matters)
    }

    fn poll_puts(&mut self, now: Time, matters: impl FnMut(&SlotPage) -> bool) -> Option<DepositCommand> {
        let puts = batch(&mut self.puts, matters);
        if puts.is_empty() {
            return None;
        }
        let number = self.next_number();
        self.in_flight
            .push_back((now, InFlightFrame::Put(number, puts.clone())));
        Some(DepositCommand::Put(number, puts))
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

/// A frame's worth of current items, each page once. A page may be queued twice: requested, received from
/// another copy, and requested again.
fn batch(queue: &mut VecDeque<SlotPage>, mut matters: impl FnMut(&SlotPage) -> bool) -> Vec<SlotPage> {
    let mut items = Vec::new();
    while items.len() < FRAME_PAGES_MAX
        && let Some(item) = queue.pop_front()
    {
        let twice = items.iter().any(|other: &SlotPage| other.page == item.page);
        if !twice && matters(&item) {
            items.push(item);
        }
    }
    items
}
