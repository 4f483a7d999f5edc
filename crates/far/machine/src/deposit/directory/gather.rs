//! Blocks of pages that stay where they are: asked of one of a page's places, in one frame with those of
//! other pages.
//!
//! A *pick* is what a request wants of one page, in one version. Its answer is of that version, or there is
//! none; when the page is put or forgotten meanwhile, whoever waits is told to look again.

use alloc::vec::Vec;

use super::lender::InFlightFrame;
use super::request::{BlockPick, GatherOutcome, GatherResult, GatherTicket, OpenPick, PickId, PickState};
use super::{DepositCommand, DirectoryEvent, LenderSet, MisconductError, Page, PageCopy, PageDirectory};
use crate::deposit::blocks::{self, BlockRequest};
use crate::limit::HEDGES_MAX;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Time;

/// Blocks of one page that have come, in the frame that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatheredBlocks<'a> {
    /// The page.
    pub page: Page,
    /// Its version.
    pub version: u64,
    /// Which blocks.
    pub numbers: &'a [u8],
    /// What is in them, in that order.
    pub bytes: &'a [u8],
}

impl PageDirectory {
    /// Blocks of pages are wanted, and the pages stay where they are. `here` tells which have come and were
    /// not taken yet. What comes of it is given out by [`take_gathered`](Self::take_gathered).
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

    /// Whether something has become of each page of a request.
    pub fn has_gathered(&self, ticket: GatherTicket) -> bool {
        self.requests.is_whole(ticket)
    }

    /// What came of a request, once, when something has become of each of its pages.
    pub fn take_gathered(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        self.requests.take(ticket)
    }

    /// Of whom blocks of a page are asked, if that can be done.
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

    /// A `Gathered` frame. `given` is told what comes by it of what is still wanted. Returns for how many
    /// requests nothing is missing any more.
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
            // If that place had been given up already, nothing above has asked elsewhere.
            if self.asked_of(lender, id).is_some() {
                self.route_pick(id);
            }
        }
        self.lenders[lender].want_fewer();
        Ok(whole)
    }

    /// The next `Gather` for a lender: as many picks as fit, there and back.
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
                // It got another place while this waited to be sent.
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

    /// The page was put or forgotten, or has come home: what is wanted of it is elsewhere.
    pub(super) fn cancel_picks(&mut self, page: Page) {
        for id in self.requests.of_page(page) {
            self.miss(id, GatherOutcome::Retry);
        }
    }

    /// The page is lost.
    pub(super) fn lose_picks(&mut self, page: Page, lenders: LenderSet) {
        for id in self.requests.of_page(page) {
            self.miss(id, GatherOutcome::Lost(lenders));
        }
    }

    /// A place of the page is gone: what was asked there is asked elsewhere.
    pub(super) fn reroute_picks_of(&mut self, page: Page, lender: usize) {
        for id in self.requests.of_page(page) {
            if self.asked_of(lender, id).is_some() {
                self.route_pick(id);
            }
        }
    }

    /// Who is late is asked no more for what another one has.
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

    /// A lender is not linked any more, or another one is.
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
            // No lender has to be waited for.
            self.miss(id, GatherOutcome::Retry);
            return;
        }
        self.requests.ask(id, spot.map(|spot| spot.lender));
        if let Some(spot) = spot {
            self.lenders[usize::from(spot.lender)].pick(id);
        }
    }

    /// Nothing comes of a pick.
    fn miss(&mut self, id: PickId, outcome: GatherOutcome) {
        if self.requests.miss(id, outcome) {
            self.events.push_back(DirectoryEvent::Gathered(id.ticket));
        }
    }

    /// A pick that is asked of this lender, and of which nothing has come.
    fn asked_of(&self, lender: usize, id: PickId) -> Option<OpenPick<'_>> {
        let asked = self.requests.asked(id);
        asked.filter(|asked| asked.at == Some(lender as u8))
    }

    fn is_spill(&self, spot: PageCopy) -> bool {
        self.spill == Some(spot.lender.into())
    }
}
