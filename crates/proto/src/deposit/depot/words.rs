//! Blocks of pages that stay where they are: asked of one of a page's places, in one frame with those of other pages.
//!
//! A *pick* is some blocks of one page in one version. Its answer is of that version, or there is none; when the page is put or forgotten
//! meanwhile, whoever waits is told to look again.

use alloc::vec::Vec;

use super::lender::Flight;
use super::{Depot, LenderSet, Misconduct, News, Page, Send, Spot};
use crate::deposit::words::{self, Blocks};
use crate::limit::FRAME_BODY_BYTES_MAX;
use crate::time::Time;

/// A pick's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Where blocks were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    /// The page was never put, or has been forgotten: zeros.
    Never,
    /// Its bytes are here: aside, or they have come.
    Here,
    /// No lender that is linked has it, but the spill file: a disk gives it whole for the price of a block.
    Spilled,
    /// They are asked for. [`Depot::on_gathered`] gives them, or [`News::Unpicked`] tells why not.
    Asked(Ticket),
    /// Every place that the page had is gone. These lenders had it.
    Lost(LenderSet),
}

/// Some blocks that were asked for.
#[derive(Clone, Debug)]
pub(super) struct Pick {
    version: u64,
    blocks: Blocks,
    /// Whom they were asked of; `None`: nobody who has the page is linked.
    at: Option<u8>,
}

/// A run of a `Gather` frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickItem {
    /// The slot that has the page.
    pub slot: u32,
    /// Its version.
    pub version: u64,
    /// What is wanted of it.
    pub blocks: Blocks,
}

/// A pick whose blocks have come, in the frame that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<'a> {
    /// Which.
    pub ticket: Ticket,
    /// The page.
    pub page: Page,
    /// Its version.
    pub version: u64,
    /// Which blocks.
    pub blocks: Blocks,
    /// What is in them, in that order.
    pub bytes: &'a [u8],
}

impl Depot {
    /// Some blocks of the page are wanted, and the page stays where it is.
    pub fn pick(&mut self, page: Page, blocks: Blocks) -> Picked {
        let Some(entry) = self.entry(page) else {
            return Picked::Never;
        };
        if entry.aside {
            return Picked::Here;
        }
        if entry.spots.iter().all(Option::is_none) {
            return Picked::Lost(entry.lost);
        }
        if self.reachable(entry).is_some_and(|spot| self.is_spill(spot)) {
            return Picked::Spilled;
        }
        let version = entry.version;
        self.ticket += 1;
        let ticket = Ticket(self.ticket);
        let at = None;
        self.picks.insert((page, ticket), Pick { version, blocks, at });
        self.route_pick(page, ticket);
        Picked::Asked(ticket)
    }

    /// A `Gathered` frame. Returns what it gives of what is still wanted.
    pub fn on_gathered<'a>(
        &mut self,
        lender: usize,
        number: u32,
        body: &'a [u8],
    ) -> Result<Vec<Given<'a>>, Misconduct> {
        let mut parsed = None;
        let answers = |flight: &Flight| {
            let Flight::Gather(sent, asked) = flight else {
                return false;
            };
            let counts = asked.iter().map(|(_, _, count)| *count);
            parsed = words::parse_given(body, counts).filter(|_| *sent == number);
            parsed.is_some()
        };
        let Flight::Gather(_, asked) = self.lenders[lender].land(answers)? else {
            unreachable!("nothing else was answered");
        };
        let mut given = Vec::new();
        for ((page, ticket, _), bytes) in asked.into_iter().zip(parsed.into_iter().flatten()) {
            let at = |pick: &&Pick| pick.at == Some(lender as u8);
            let Some(version) = self
                .picks
                .get(&(page, ticket))
                .filter(at)
                .map(|pick| pick.version)
            else {
                continue;
            };
            if bytes.is_empty() {
                self.damaged(lender, page, version);
                // If that place had been given up already, nothing above has asked elsewhere.
                if self.picks.get(&(page, ticket)).filter(at).is_some() {
                    self.route_pick(page, ticket);
                }
            } else if let Some(pick) = self.picks.remove(&(page, ticket)) {
                given.push(Given {
                    ticket,
                    page,
                    version,
                    blocks: pick.blocks,
                    bytes,
                });
            }
        }
        self.lenders[lender].want_none();
        Ok(given)
    }

    /// The next `Gather` for a lender: as many picks as fit, there and back.
    pub(super) fn poll_picks(&mut self, lender: usize, now: Time) -> Option<Send> {
        let (mut items, mut asked) = (Vec::new(), Vec::new());
        let (mut there, mut back) = (0, 0);
        while let Some((page, ticket)) = self.lenders[lender].next_pick() {
            let at = |pick: &&Pick| pick.at == Some(lender as u8);
            let pick = self.picks.get(&(page, ticket)).filter(at);
            let spots = self.pages.get(page.0 as usize).map(|entry| entry.spots);
            let spot = spots
                .into_iter()
                .flatten()
                .flatten()
                .find(|spot| usize::from(spot.lender) == lender && spot.held);
            let Some(pick) = pick else { continue };
            let Some(spot) = spot else {
                // It got another place while this waited to be sent.
                self.route_pick(page, ticket);
                continue;
            };
            there += pick.blocks.asked_bytes();
            back += pick.blocks.given_bytes();
            if there.max(back) > FRAME_BODY_BYTES_MAX {
                self.lenders[lender].pick_first(page, ticket);
                break;
            }
            asked.push((page, ticket, pick.blocks.count()));
            items.push(PickItem {
                slot: spot.slot,
                version: pick.version,
                blocks: pick.blocks.clone(),
            });
        }
        if items.is_empty() {
            return None;
        }
        let number = self.lenders[lender].gather(asked, now);
        Some(Send::Gather(number, items))
    }

    /// The page was put or forgotten, or has come home: what is wanted of it is elsewhere.
    pub(super) fn unpick(&mut self, page: Page) {
        for ticket in self.picks_of(page) {
            self.picks.remove(&(page, ticket));
            self.news.push_back(News::Unpicked(ticket, None));
        }
    }

    /// The page is lost.
    pub(super) fn lose_picks(&mut self, page: Page, lenders: LenderSet) {
        for ticket in self.picks_of(page) {
            self.picks.remove(&(page, ticket));
            self.news.push_back(News::Unpicked(ticket, Some(lenders)));
        }
    }

    /// A place of the page is gone: what was asked there is asked elsewhere.
    pub(super) fn reroute_picks_of(&mut self, page: Page, lender: usize) {
        for ticket in self.picks_of(page) {
            let pick = self.picks.get(&(page, ticket));
            if pick.is_some_and(|pick| pick.at == Some(lender as u8)) {
                self.route_pick(page, ticket);
            }
        }
    }

    /// A lender is not linked any more, or another one is.
    pub(super) fn reroute_picks(&mut self) {
        let linked = |at: u8| self.lenders[usize::from(at)].linked;
        let homeless = self.picks.iter().filter(|(_, pick)| !pick.at.is_some_and(linked));
        let homeless: Vec<(Page, Ticket)> = homeless.map(|(key, _)| *key).collect();
        for (page, ticket) in homeless {
            self.route_pick(page, ticket);
        }
    }

    fn route_pick(&mut self, page: Page, ticket: Ticket) {
        let Some(entry) = self.entry(page) else {
            return;
        };
        let spot = self.reachable(entry);
        let spilled = spot.is_some_and(|spot| self.is_spill(spot));
        if spilled || spot.is_none() && entry.aside {
            // No lender has to be waited for.
            self.picks.remove(&(page, ticket));
            self.news.push_back(News::Unpicked(ticket, None));
            return;
        }
        if let Some(pick) = self.picks.get_mut(&(page, ticket)) {
            pick.at = spot.map(|spot| spot.lender);
        }
        if let Some(spot) = spot {
            self.lenders[usize::from(spot.lender)].pick(page, ticket);
        }
    }

    fn is_spill(&self, spot: Spot) -> bool {
        self.spill == Some(spot.lender.into())
    }

    fn picks_of(&self, page: Page) -> Vec<Ticket> {
        let all = (page, Ticket(0))..=(page, Ticket(u64::MAX));
        self.picks.range(all).map(|((_, ticket), _)| *ticket).collect()
    }
}
