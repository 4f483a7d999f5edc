//! Blocks of pages that stay away.

use netram_proto::deposit::{Blocks, Page, Picked, Ticket, Words};

use super::{Depot, Held};

/// Pages of which blocks are asked for while others wait for the lock.
const ASKED_AT_ONCE: usize = 512;

impl Depot {
    /// Blocks of pages, in the clear. All are asked for before any is waited for. `None`: the page is to be had whole, or is lost, and [`Depot::get`]
    /// will tell.
    pub(crate) fn gather(&self, wants: &[(Page, Blocks)]) -> Vec<Option<Vec<u8>>> {
        let mut tickets = Vec::with_capacity(wants.len());
        for wants in wants.chunks(ASKED_AT_ONCE) {
            let mut shelf = self.shared.lock();
            for (page, blocks) in wants {
                let picked = shelf.may_gather().then(|| shelf.gather(*page, blocks.clone()));
                tickets.push(match picked {
                    Some(Picked::Asked(ticket)) => Some(ticket),
                    _ => None,
                });
            }
            drop(shelf);
            self.shared.send();
        }
        let given = self.wait_for_words(&tickets);
        let opened = given.into_iter().zip(wants).map(|(words, (_, blocks))| {
            let Some(Words::Given(version, mut bytes)) = words else {
                return None;
            };
            self.shared.blocks.open(version, blocks.numbers(), &mut bytes);
            Some(bytes)
        });
        opened.collect()
    }

    fn wait_for_words(&self, tickets: &[Option<Ticket>]) -> Vec<Option<Words>> {
        let mut given = Vec::with_capacity(tickets.len());
        let mut shelf = self.shared.lock();
        for ticket in tickets {
            let Some(ticket) = *ticket else {
                given.push(None);
                continue;
            };
            let has_words = |shelf: &mut Held<'_>| shelf.has_words(ticket);
            shelf = self.shared.wait_until(shelf, has_words, None, &mut ());
            given.push(shelf.take_words(ticket));
        }
        given
    }
}
