//! Gather requests, for as long as a thread waits for them.
//!
//! A request covers many pages in one allocation: the wanted blocks, the outcome of each page, and room for
//! all answers. A *pick*, one page of a request, is identified by its index, so nothing is searched.

use alloc::vec;
use alloc::vec::Vec;

use super::{LenderSet, Page};
use crate::deposit::blocks::BlockRequest;
use crate::limit::BLOCK_BYTES;

/// Number of a request. A slot never has the same number twice in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatherTicket {
    slot: u32,
    turn: u32,
}

/// Outcome of the blocks of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherOutcome {
    /// The blocks arrived, in this version of the page. They are unverified until the page arrives.
    Arrived(u64),
    /// The page was never put, or was forgotten: zeros.
    Never,
    /// The page's bytes are here: it is pending or has arrived.
    Local,
    /// Only the spill file has it among linked lenders. A disk returns the whole page at the price of a
    /// block.
    Spilled,
    /// The page was put, forgotten or has arrived meanwhile: look it up again.
    Retry,
    /// Every copy of the page is gone. These lenders had one.
    Lost(LenderSet),
}

/// Result of a gather request.
#[derive(Clone, Debug)]
pub struct GatherResult {
    wanted: BlockRequest,
    picks: Vec<BlockPick>,
    /// Bytes of all blocks in the requested order; zeros for blocks that did not arrive.
    pub bytes: Vec<u8>,
}

impl GatherResult {
    /// The request.
    pub fn wanted(&self) -> &BlockRequest {
        &self.wanted
    }

    /// Outcome of the page at an index.
    pub fn outcome(&self, index: usize) -> GatherOutcome {
        let BlockPick { version, state } = self.picks[index];
        match state {
            PickState::Answered => GatherOutcome::Arrived(version),
            PickState::Missed(outcome) => outcome,
            PickState::Requested(_) => unreachable!("a returned result is complete"),
        }
    }

    /// Version and requested block numbers of each page.
    pub fn names(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let versions = self.picks.iter().map(|pick| pick.version);
        versions.zip(self.wanted.iter().map(|(_, numbers)| numbers))
    }
}

/// The part of a request that concerns one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockPick {
    /// Version that was requested; 0: none.
    pub(super) version: u64,
    pub(super) state: PickState,
}

impl BlockPick {
    /// A pick without a lender to ask.
    pub(super) fn missed(outcome: GatherOutcome) -> BlockPick {
        BlockPick {
            version: 0,
            state: PickState::Missed(outcome),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PickState {
    /// Requested from this lender; `None`: no linked lender has the page.
    Requested(Option<u8>),
    Answered,
    Missed(GatherOutcome),
}

/// Identifies a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PickId {
    pub(super) ticket: GatherTicket,
    pub(super) index: u32,
}

/// A pick without an outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenPick<'a> {
    pub(super) page: Page,
    pub(super) version: u64,
    pub(super) numbers: &'a [u8],
    pub(super) at: Option<u8>,
}

/// All open requests.
#[derive(Clone, Debug, Default)]
pub(super) struct GatherRequests {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct RequestSlot {
    turn: u32,
    request: Option<GatherRequest>,
}

#[derive(Clone, Debug)]
struct GatherRequest {
    gathered: GatherResult,
    /// Number of picks without an outcome.
    open: usize,
}

impl GatherRequests {
    /// Number for the next request.
    pub(super) fn next(&mut self) -> GatherTicket {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot::default());
            (self.slots.len() - 1) as u32
        });
        let turn = self.slots[place as usize].turn;
        GatherTicket { slot: place, turn }
    }

    /// Begins the request with the number given out last.
    pub(super) fn begin(&mut self, ticket: GatherTicket, wanted: BlockRequest, picks: Vec<BlockPick>) {
        assert_eq!(picks.len(), wanted.len());
        let open = picks
            .iter()
            .filter(|pick| matches!(pick.state, PickState::Requested(_)));
        let open = open.count();
        let bytes = vec![0; wanted.blocks() * BLOCK_BYTES];
        self.slots[ticket.slot as usize].request = Some(GatherRequest {
            gathered: GatherResult { wanted, picks, bytes },
            open,
        });
    }

    /// Whether every pick has an outcome.
    pub(super) fn is_whole(&self, ticket: GatherTicket) -> bool {
        self.request(ticket).is_some_and(|request| request.open == 0)
    }

    /// Takes the result, once, if every pick has an outcome.
    pub(super) fn take(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        let place = self.slots.get_mut(ticket.slot as usize)?;
        let whole = |request: &mut GatherRequest| place.turn == ticket.turn && request.open == 0;
        let request = place.request.take_if(whole)?;
        place.turn = place.turn.wrapping_add(1);
        self.free.push(ticket.slot);
        Some(request.gathered)
    }

    /// A pick, while it has no outcome.
    pub(super) fn asked(&self, id: PickId) -> Option<OpenPick<'_>> {
        let gathered = &self.request(id.ticket)?.gathered;
        let pick = gathered.picks.get(id.index as usize)?;
        let PickState::Requested(at) = pick.state else {
            return None;
        };
        let index = id.index as usize;
        Some(OpenPick {
            page: gathered.wanted.page(index),
            version: pick.version,
            numbers: gathered.wanted.numbers(index),
            at,
        })
    }

    /// Notes the lender that a pick is requested from.
    pub(super) fn ask(&mut self, id: PickId, lender: Option<u8>) {
        if let Some((_, pick)) = self.open_pick(id) {
            pick.state = PickState::Requested(lender);
        }
    }

    /// Stores a pick's blocks. Returns whether its request is complete.
    pub(super) fn give(&mut self, id: PickId, bytes: &[u8]) -> bool {
        if self.asked(id).is_some()
            && let Some(request) = self.request_mut(id.ticket)
        {
            let GatherResult {
                wanted, bytes: all, ..
            } = &mut request.gathered;
            all[wanted.bytes(id.index as usize)].copy_from_slice(bytes);
        }
        self.end(id, PickState::Answered)
    }

    /// Ends a pick without blocks. Returns whether its request is complete.
    pub(super) fn miss(&mut self, id: PickId, outcome: GatherOutcome) -> bool {
        self.end(id, PickState::Missed(outcome))
    }

    fn end(&mut self, id: PickId, state: PickState) -> bool {
        let Some((open, pick)) = self.open_pick(id) else {
            return false;
        };
        pick.state = state;
        *open -= 1;
        *open == 0
    }

    /// Picks of a page without an outcome.
    pub(super) fn of_page(&self, page: Page) -> Vec<PickId> {
        let find = |(ticket, request): (GatherTicket, &GatherRequest)| {
            let index = request.gathered.wanted.find(page)?;
            matches!(request.gathered.picks[index].state, PickState::Requested(_)).then_some(PickId {
                ticket,
                index: index as u32,
            })
        };
        self.open().filter_map(find).collect()
    }

    /// Picks without a lender, or whose lender does not satisfy `linked`.
    pub(super) fn unrouted(&self, linked: impl Fn(u8) -> bool) -> Vec<PickId> {
        let homeless = |pick: &BlockPick| match pick.state {
            PickState::Requested(at) => !at.is_some_and(&linked),
            PickState::Answered | PickState::Missed(_) => false,
        };
        let mut found = Vec::new();
        for (ticket, request) in self.open() {
            let picks = (0..).zip(&request.gathered.picks);
            let these = picks.filter(|(_, pick)| homeless(pick));
            found.extend(these.map(|(index, _)| PickId { ticket, index }));
        }
        found
    }

    /// Incomplete requests.
    fn open(&self) -> impl Iterator<Item = (GatherTicket, &GatherRequest)> {
        let places = (0..).zip(&self.slots);
        places.filter_map(|(place, RequestSlot { turn, request })| {
            let ticket = GatherTicket {
                slot: place,
                turn: *turn,
            };
            let request = request.as_ref().filter(|request| request.open > 0);
            Some((ticket, request?))
        })
    }

    fn open_pick(&mut self, id: PickId) -> Option<(&mut usize, &mut BlockPick)> {
        let request = self.request_mut(id.ticket)?;
        let pick = request.gathered.picks.get_mut(id.index as usize)?;
        matches!(pick.state, PickState::Requested(_)).then_some((&mut request.open, pick))
    }

    fn request(&self, ticket: GatherTicket) -> Option<&GatherRequest> {
        let place = self.slots.get(ticket.slot as usize)?;
        { place.request.as_ref() }.filter(|_| place.turn == ticket.turn)
    }

    fn request_mut(&mut self, ticket: GatherTicket) -> Option<&mut GatherRequest> {
        let place = self.slots.get_mut(ticket.slot as usize)?;
        { place.request.as_mut() }.filter(|_| place.turn == ticket.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pages: &[u32]) -> (BlockRequest, Vec<BlockPick>) {
        let mut wanted = BlockRequest::default();
        pages.iter().for_each(|page| wanted.extend(Page(*page), &[1, 2]));
        let state = PickState::Requested(Some(0));
        (wanted, vec![BlockPick { version: 9, state }; pages.len()])
    }

    fn begun(requests: &mut GatherRequests, pages: &[u32]) -> GatherTicket {
        let (wanted, picks) = asked(pages);
        let ticket = requests.next();
        requests.begin(ticket, wanted, picks);
        ticket
    }

    #[test]
    fn a_complete_request_is_returned_once() {
        let mut requests = GatherRequests::default();
        let ticket = begun(&mut requests, &[3, 5]);
        let id = |index| PickId { ticket, index };
        assert!(!requests.give(id(1), &[7; 32]));
        assert!(!requests.give(id(1), &[8; 32]), "only the first answer counts");
        assert!(!requests.is_whole(ticket) && requests.take(ticket).is_none());
        assert!(requests.miss(id(0), GatherOutcome::Retry));
        assert!(requests.is_whole(ticket));
        let gathered = requests.take(ticket).unwrap();
        assert_eq!(gathered.outcome(0), GatherOutcome::Retry);
        assert_eq!(gathered.outcome(1), GatherOutcome::Arrived(9));
        assert_eq!(gathered.bytes, [[0; 32], [7; 32]].concat());
        assert!(!requests.is_whole(ticket) && requests.take(ticket).is_none());
    }

    #[test]
    fn a_late_answer_does_not_reach_the_next_request_in_the_slot() {
        let mut requests = GatherRequests::default();
        let old = begun(&mut requests, &[3]);
        let id = PickId {
            ticket: old,
            index: 0,
        };
        assert!(requests.miss(id, GatherOutcome::Retry));
        assert!(requests.take(old).is_some());
        let new = begun(&mut requests, &[3]);
        assert_eq!(new.slot, old.slot);
        assert!(requests.asked(id).is_none() && !requests.give(id, &[7; 32]));
        assert!(requests.take(old).is_none());
        assert_eq!(
            requests.of_page(Page(3)),
            [PickId {
                ticket: new,
                index: 0
            }]
        );
    }

    #[test]
    fn picks_are_found_by_page_and_by_lender() {
        let mut requests = GatherRequests::default();
        let first = begun(&mut requests, &[3, 5, 8]);
        let second = begun(&mut requests, &[5]);
        let id = |ticket, index| PickId { ticket, index };
        assert_eq!(requests.of_page(Page(5)), [id(first, 1), id(second, 0)]);
        assert_eq!(requests.of_page(Page(4)), []);
        requests.ask(id(first, 2), None);
        requests.ask(id(first, 1), Some(1));
        assert_eq!(
            requests.unrouted(|lender| lender == 0),
            [id(first, 1), id(first, 2)]
        );
        requests.miss(id(first, 1), GatherOutcome::Never);
        assert_eq!(requests.of_page(Page(5)), [id(second, 0)]);
        assert_eq!(requests.unrouted(|lender| lender == 0), [id(first, 2)]);
    }
}
