//! Requests for blocks, as long as somebody waits for them.
//!
//! A request is of many pages, and in one piece: what is wanted, what became of each page, and room for all
//! answers, to which they are copied as they come. Whoever names a *pick*, one page of a request, names its
//! place in that, so nothing is searched for.

use alloc::vec;
use alloc::vec::Vec;

use super::{LenderSet, Page};
use crate::deposit::blocks::BlockRequest;
use crate::limit::BLOCK_BYTES;

/// A request's number. None is given twice in a row to what lies in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatherTicket {
    slot: u32,
    turn: u32,
}

/// What became of blocks of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherOutcome {
    /// They came, as they are in the page of this version. Nothing proves them until it comes home.
    Arrived(u64),
    /// The page was never put, or has been forgotten: zeros.
    Never,
    /// Its bytes are here: aside, or they have come.
    Local,
    /// No lender that is linked has it, but the spill file: a disk gives it whole for the price of a block.
    Spilled,
    /// The page was put or forgotten meanwhile, or has come: it is to be looked for again.
    Retry,
    /// Every place that the page had is gone. These lenders had it.
    Lost(LenderSet),
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct GatherResult {
    wanted: BlockRequest,
    picks: Vec<BlockPick>,
    /// The blocks' bytes, one behind the other as they were asked for; zeros where none were given.
    pub bytes: Vec<u8>,
}

impl GatherResult {
    /// What was asked for.
    pub fn wanted(&self) -> &BlockRequest {
        &self.wanted
    }

    /// What became of one of the pages.
    pub fn outcome(&self, index: usize) -> GatherOutcome {
        let BlockPick { version, state } = self.picks[index];
        match state {
            PickState::Answered => GatherOutcome::Arrived(version),
            PickState::Missed(outcome) => outcome,
            PickState::Requested(_) => unreachable!("nothing is missing of what is given out"),
        }
    }

    /// Of each page: its version, and which blocks of it were asked for.
    pub fn names(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let versions = self.picks.iter().map(|pick| pick.version);
        versions.zip(self.wanted.iter().map(|(_, numbers)| numbers))
    }
}

/// Blocks of one page that were asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockPick {
    /// Where it was asked for, in which version. 0: nowhere.
    pub(super) version: u64,
    pub(super) state: PickState,
}

impl BlockPick {
    /// There is nobody to be asked.
    pub(super) fn missed(outcome: GatherOutcome) -> BlockPick {
        BlockPick {
            version: 0,
            state: PickState::Missed(outcome),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PickState {
    /// Of whom; `None`: nobody who has the page is linked.
    Requested(Option<u8>),
    Answered,
    Missed(GatherOutcome),
}

/// Names a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PickId {
    pub(super) ticket: GatherTicket,
    pub(super) index: u32,
}

/// A pick that nothing has come of yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenPick<'a> {
    pub(super) page: Page,
    pub(super) version: u64,
    pub(super) numbers: &'a [u8],
    pub(super) at: Option<u8>,
}

/// All requests.
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
    /// Picks that nothing has come of yet.
    open: usize,
}

impl GatherRequests {
    /// The number of the next request.
    pub(super) fn next(&mut self) -> GatherTicket {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot::default());
            (self.slots.len() - 1) as u32
        });
        let turn = self.slots[place as usize].turn;
        GatherTicket { slot: place, turn }
    }

    /// The request with the number that was given out last.
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

    /// Whether nothing is missing any more.
    pub(super) fn is_whole(&self, ticket: GatherTicket) -> bool {
        self.request(ticket).is_some_and(|request| request.open == 0)
    }

    /// What came of a request, once, if nothing is missing.
    pub(super) fn take(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        let place = self.slots.get_mut(ticket.slot as usize)?;
        let whole = |request: &mut GatherRequest| place.turn == ticket.turn && request.open == 0;
        let request = place.request.take_if(whole)?;
        place.turn = place.turn.wrapping_add(1);
        self.free.push(ticket.slot);
        Some(request.gathered)
    }

    /// A pick, as long as nothing has come of it.
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

    /// It is asked of this lender, or waits for one.
    pub(super) fn ask(&mut self, id: PickId, lender: Option<u8>) {
        if let Some((_, pick)) = self.open_pick(id) {
            pick.state = PickState::Requested(lender);
        }
    }

    /// Its blocks have come. Whether its request waits for nothing more.
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

    /// Its blocks do not come. Whether its request waits for nothing more.
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

    /// The picks of a page of which nothing has come yet.
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

    /// The picks that are asked of nobody, or of one of whom this is not true.
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

    /// Those that wait for something.
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
    fn a_request_is_given_out_once_when_nothing_of_it_is_missing() {
        let mut requests = GatherRequests::default();
        let ticket = begun(&mut requests, &[3, 5]);
        let id = |index| PickId { ticket, index };
        assert!(!requests.give(id(1), &[7; 32]));
        assert!(!requests.give(id(1), &[8; 32]), "the first answer counts");
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
    fn what_is_said_of_a_request_that_is_over_is_not_said_of_the_one_in_its_place() {
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
    fn picks_are_found_by_their_page_and_by_whom_they_are_asked_of() {
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
