//! One lender, as its owner sees it.

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

/// A frame on its way. Lenders answer in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InFlightFrame {
    Resize(u32),
    Put(u32, Vec<SlotPage>),
    Get(u32, Vec<SlotPage>),
    /// Each pick, and how many blocks it is of.
    Gather(u32, Vec<(PickId, u16)>),
}

impl InFlightFrame {
    /// Its pages.
    pub(super) fn items(self) -> Vec<SlotPage> {
        match self {
            InFlightFrame::Put(_, items) | InFlightFrame::Get(_, items) => items,
            InFlightFrame::Resize(_) | InFlightFrame::Gather(..) => Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct LenderState {
    /// Slots that are wanted at most.
    slots_max: u32,
    /// How many are asked for at once.
    grow: u32,
    /// The number of the last session that was begun.
    pub(super) epoch: Epoch,
    /// The life of what is there; `None`: nothing is.
    pub(super) life: Option<Incarnation>,
    pub(super) linked: bool,
    /// Since when it is not linked.
    pub(super) away_since: Time,
    /// It keeps the deposit for so long.
    pub(super) lease: Nanos,
    /// Pages that are there are to have another place.
    pub(super) shunned: bool,
    /// It has said that it stops.
    pub(super) leaving: bool,
    pub(super) slots: LenderSlots,
    /// The most slots that it was ever asked for.
    requested_max: u32,
    /// No slots are asked for before one is needed: there are disks that want to be left alone.
    unused: bool,
    /// Slots to ask for with the next frame.
    wanted: Option<u32>,
    /// It had no room; asked again then.
    full_until: Option<Time>,
    puts: VecDeque<SlotPage>,
    gets: VecDeque<SlotPage>,
    picks: VecDeque<PickId>,
    /// The frame before was of picks.
    picked: bool,
    /// The frame before asked for pages.
    got: bool,
    /// What is on its way, and since when.
    pub(super) in_flight: VecDeque<(Time, InFlightFrame)>,
    number: u32,
    /// How long it takes to answer.
    rtt: LenderRtt,
    /// An answer has been due for longer than it usually takes.
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

    /// The spill file.
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

    /// Slots that it may be asked for.
    fn slots_most(&self) -> u32 {
        self.slots_max.min(self.slots.keep())
    }

    /// The numbers of slots that it is asked for, or is to be.
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

    /// A slot that is free now.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.unused = false;
        let slot = self.slots.take();
        self.want_more();
        slot
    }

    /// A page is to go there, and there is no room yet.
    pub(super) fn want_room(&mut self) {
        self.unused = false;
        self.want_more();
    }

    pub(super) fn give(&mut self, slot: u32) {
        self.slots.give(slot);
    }

    /// Asks for more slots before there are none.
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

    /// Gives slots back, once nothing is in them any more: all, if it is about to stop, and those that it
    /// wants back.
    pub(super) fn want_fewer(&mut self) {
        let fewer = match self.leaving {
            true => (self.slots.count() > 0 && self.slots.used() == 0).then_some(0),
            false => self.slots.is_vacated().then_some(self.slots.keep()),
        };
        if fewer.is_some() && self.linked && !self.is_asking() {
            self.wanted = fewer;
        }
    }

    /// It wants back all slots from `keep` on, and what it wanted before it does not want any more.
    pub(super) fn on_asked_back(&mut self, keep: u32) {
        self.slots.ask_back(keep);
        // What has been thought of and not said is thought of anew.
        self.wanted = None;
        self.want_more();
        self.want_fewer();
    }

    /// Gives up all slots from this one on.
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
        // What it claims beyond what it was asked for would cost memory here.
        self.on_slots(slots.min(self.requested_max));
    }

    /// The deposit has so many slots now.
    pub(super) fn on_slots(&mut self, slots: u32) {
        self.slots.resize(slots);
        self.want_more();
        self.want_fewer();
    }

    /// Slots that it is told to take back count no more, whether it answers or not: it may have heard that.
    pub(super) fn on_given_up(&mut self, slots: u32) {
        if slots < self.slots.count() {
            self.slots.resize(slots);
        }
    }

    /// There is no room for what was asked; so much could be had.
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

    /// An answer has come. Lenders answer in order, so it is to the frame that was sent first; if it does not
    /// fit that, it fits none, and what is on its way stays so until the link is closed.
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

    /// Whether it owes an answer for longer than it usually takes: what another one has is asked there.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Some blocks are to be asked for.
    pub(super) fn pick(&mut self, id: PickId) {
        self.picks.push_back(id);
    }

    /// One that did not fit.
    pub(super) fn pick_first(&mut self, id: PickId) {
        self.picks.push_front(id);
    }

    /// The next blocks to ask for, if a frame may be sent.
    pub(super) fn next_pick(&mut self) -> Option<PickId> {
        self.may_send().then(|| self.picks.pop_front()).flatten()
    }

    /// Picks and pages take turns: none of both keeps the other from it.
    pub(super) fn is_turn_of_picks(&self) -> bool {
        !self.picked
    }

    /// A `Gather` is on its way. Its number.
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

    /// Whether an answer has been due for so long that none will come.
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
        // A wish is over with its session.
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

    /// Nothing that was there is there any more.
    pub(super) fn forget(&mut self) {
        self.life = None;
        self.slots = LenderSlots::none();
    }

    pub(super) fn put(&mut self, item: SlotPage) {
        self.puts.push_back(item);
    }

    /// Pages that wait to be sent there.
    pub(super) fn queued(&self) -> usize {
        self.puts.len()
    }

    pub(super) fn get(&mut self, item: SlotPage) {
        self.gets.push_back(item);
    }

    /// The next frame to send: what is waited for first, in turns with puts that have piled up. `put_matters`
    /// and `get_matters` say which still matter.
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
        // What has piled up takes frames of the cap; and the link carries the two in different directions.
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

/// A frame's worth of what still matters, each page once: one that was asked for, came from another place and
/// is asked for again waits here twice.
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
