//! Gathers: blocks of pages that stay remote. Those of one page are requested from one of its copies, in one
//! frame with blocks of other pages.
//!
//! A *pick* is the part of a request that concerns one page in one version. It is answered in that version or
//! not at all. If the page is put or forgotten meanwhile, the waiter is told to look it up again.

use alloc::vec::Vec;

use super::lender::InFlightFrame;
use super::request::{BlockPick, GatherOutcome, GatherResult, GatherTicket, OpenPick, PickId, PickState};
use super::{DepositCommand, DirectoryEvent, LenderSet, MisconductError, Page, PageCopy, PageDirectory};
use crate::deposit::blocks::{self, BlockRequest};
use crate::limit::HEDGES_MAX;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Time;

/// Blocks of one page that arrived in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatheredBlocks<'a> {
    /// The page.
    pub page: Page,
    /// Version of the page.
    pub version: u64,
    /// Numbers of the blocks.
    pub numbers: &'a [u8],
    /// Bytes of the blocks, in the same order.
    pub bytes: &'a [u8],
}

impl PageDirectory {
    /// Requests blocks of pages that stay remote. `here` says which pages have arrived and were not taken
    /// yet. The result comes from [`take_gathered`](Self::take_gathered).
    pub fn gather(&mut self, wanted: BlockRequest, here: impl Fn(Page) -> bool) -> GatherTicket {
        let ticket = self.requests.next();
        let mut picks = Vec::with_capacity(wanted.len());
        for (page, _) in wanted.iter() {
            let pick = match here(page) {
                true => BlockPick::missed(GatherOutcome::Local),
                false => self.choose_pick(page),
            };
            if let PickState::Requested(Some(lender)) = pick.state {
                let index = picks.len() as u32;
                self.lenders[usize::from(lender)].pick(PickId { ticket, index });
            }
            picks.push(pick);
        }
        self.requests.begin(ticket, wanted, picks);
        ticket
    }

    /// Whether every page of a request has an outcome.
    pub fn has_gathered(&self, ticket: GatherTicket) -> bool {
        self.requests.is_whole(ticket)
    }

    /// Takes the result of a request, once, when every page has an outcome.
    pub fn take_gathered(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        self.requests.take(ticket)
    }

    /// Lender to ask for blocks of a page, or an outcome if there is nothing to ask.
    fn choose_pick(&self, page: Page) -> BlockPick {
        let Some(entry) = self.entry(page) else {
            return BlockPick::missed(GatherOutcome::Never);
        };
        if entry.pending {
            return BlockPick::missed(GatherOutcome::Local);
        }
        if entry.copies.iter().all(Option::is_none) {
            return BlockPick::missed(GatherOutcome::Lost(entry.lost));
        }
        let spot = self.reachable(entry);
        if spot.is_some_and(|spot| self.is_spill(spot)) {
            return BlockPick::missed(GatherOutcome::Spilled);
        }
        BlockPick {
            version: entry.version,
            state: PickState::Requested(spot.map(|spot| spot.lender)),
        }
    }

    /// Handles a `Gathered` frame. `given` gets the blocks in it that are still wanted. Returns the number of
    /// requests that are complete now.
    ///
    /// # Errors
    ///
    /// [`MisconductError`] if the frame answers nothing that was asked.
    pub fn on_gathered(
        &mut self,
        lender: usize,
        number: u32,
        body: &[u8],
        mut given: impl FnMut(GatheredBlocks<'_>),
    ) -> Result<usize, MisconductError> {
        let answers = |flight: &InFlightFrame| {
            let InFlightFrame::Gather(sent, asked) = flight else {
                return false;
            };
            let counts = asked.iter().map(|(_, count)| usize::from(*count));
            *sent == number && blocks::answers(body, counts)
        };
        let InFlightFrame::Gather(_, asked) = self.lenders[lender].land(answers, self.now)? else {
            unreachable!("nothing else was answered");
        };
        let mut whole = 0;
        for ((id, _), bytes) in asked.into_iter().zip(blocks::given(body)) {
            let Some(pick) = self.asked_of(lender, id) else {
                continue;
            };
            let (page, version) = (pick.page, pick.version);
            if !bytes.is_empty() {
                given(GatheredBlocks {
                    page,
                    version,
                    numbers: pick.numbers,
                    bytes,
                });
                whole += usize::from(self.requests.give(id, bytes));
                continue;
            }
            self.damaged(lender, page, version);
            // If that copy had been given up already, nothing above has asked elsewhere.
            if self.asked_of(lender, id).is_some() {
                self.route_pick(id);
            }
        }
        self.lenders[lender].want_fewer();
        Ok(whole)
    }

    /// The next `Gather` for a lender: as many picks as fit the request and its answer.
    pub(super) fn poll_picks(&mut self, lender: usize, now: Time) -> Option<DepositCommand> {
        let (mut body, mut asked) = (Vec::new(), Vec::new());
        let mut back = 0;
        while let Some(id) = self.lenders[lender].next_pick() {
            let Some(pick) = self.asked_of(lender, id) else {
                continue;
            };
            let spots = self.pages.get(pick.page.0 as usize).map(|entry| entry.copies);
            let spot = spots
                .into_iter()
                .flatten()
                .flatten()
                .find(|spot| usize::from(spot.lender) == lender && spot.confirmed);
            let Some(spot) = spot else {
                // The page got another copy while the pick waited.
                self.route_pick(id);
                continue;
            };
            let (there, count) = (body.len(), pick.numbers.len());
            blocks::write_run(spot.slot, pick.version, pick.numbers, &mut body);
            back += blocks::given_bytes(count);
            if body.len().max(back) > FRAME_BODY_BYTES_MAX {
                body.truncate(there);
                self.lenders[lender].pick_first(id);
                break;
            }
            asked.push((id, count as u16));
        }
        if asked.is_empty() {
            return None;
        }
        let number = self.lenders[lender].gather(asked, now);
        Some(DepositCommand::Gather(number, body))
    }

    /// Ends the picks of a page that was put, forgotten or has arrived: its content is elsewhere.
    pub(super) fn cancel_picks(&mut self, page: Page) {
        for id in self.requests.of_page(page) {
            self.miss(id, GatherOutcome::Retry);
        }
    }

    /// Ends the picks of a lost page.
    pub(super) fn lose_picks(&mut self, page: Page, lenders: LenderSet) {
        for id in self.requests.of_page(page) {
            self.miss(id, GatherOutcome::Lost(lenders));
        }
    }

    /// Asks elsewhere after a copy of the page is gone.
    pub(super) fn reroute_picks_of(&mut self, page: Page, lender: usize) {
        for id in self.requests.of_page(page) {
            if self.asked_of(lender, id).is_some() {
                self.route_pick(id);
            }
        }
    }

    /// Asks another lender for picks that a late lender has.
    pub(super) fn hedge_picks(&mut self) {
        let in_time = |at: u8| !self.lenders[usize::from(at)].is_late();
        for id in self.requests.unrouted(in_time).into_iter().take(HEDGES_MAX) {
            let page = self.requests.asked(id).map(|pick| pick.page);
            let entry = page.and_then(|page| self.entry(page));
            let other = entry.and_then(|entry| self.reachable(entry));
            if other.is_some_and(|spot| !self.lenders[usize::from(spot.lender)].is_late()) {
                self.route_pick(id);
            }
        }
    }

    /// Asks elsewhere after a lender's link changed.
    pub(super) fn reroute_picks(&mut self) {
        let linked = |at: u8| self.lenders[usize::from(at)].linked;
        for id in self.requests.unrouted(linked) {
            self.route_pick(id);
        }
    }

    fn route_pick(&mut self, id: PickId) {
        let page = self.requests.asked(id).map(|pick| pick.page);
        let Some(entry) = page.and_then(|page| self.entry(page)) else {
            return;
        };
        let spot = self.reachable(entry);
        let spilled = spot.is_some_and(|spot| self.is_spill(spot));
        if spilled || spot.is_none() && entry.pending {
            // The page needs no lender now.
            self.miss(id, GatherOutcome::Retry);
            return;
        }
        self.requests.ask(id, spot.map(|spot| spot.lender));
        if let Some(spot) = spot {
            self.lenders[usize::from(spot.lender)].pick(id);
        }
    }

    /// Ends a pick without blocks.
    fn miss(&mut self, id: PickId, outcome: GatherOutcome) {
        if self.requests.miss(id, outcome) {
            self.events.push_back(DirectoryEvent::Gathered(id.ticket));
        }
    }

    /// A pick that was requested from this lender and is not answered.
    fn asked_of(&self, lender: usize, id: PickId) -> Option<OpenPick<'_>> {
        let asked = self.requests.asked(id);
        asked.filter(|asked| asked.at == Some(lender as u8))
    }

    fn is_spill(&self, spot: PageCopy) -> bool {
        self.spill == Some(spot.lender.into())
    }
}
