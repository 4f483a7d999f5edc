//! Reads of single blocks of remote pages.

use netram_far_machine::deposit::{BlockRequest, GatherOutcome, GatherResult};

use super::{ClientGuard, RemotePages};

/// Number of pages requested under one hold of the lock, which takes 0.1 ms.
const ASKED_AT_ONCE: usize = 1024;

/// Result of a gather, decrypted.
pub(crate) struct GatheredWords(Vec<GatherResult>);

impl GatheredWords {
    /// The blocks of each page, in order. `None`: the page must be fetched whole, or is lost as
    /// [`RemotePages::get`] reports.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.0.iter().flat_map(|part| {
            let page = |index| match part.outcome(index) {
                GatherOutcome::Arrived(_) => Some(&part.bytes[part.wanted().bytes(index)]),
                _ => None,
            };
            (0..part.wanted().len()).map(page)
        })
    }
}

impl RemotePages {
    /// Whether gathered blocks can still be remembered until they are verified. If not, fetch whole pages.
    pub(crate) fn may_gather(&self) -> bool {
        self.shared.lock().may_gather()
    }

    /// Reads blocks of pages. All are requested before any is awaited.
    pub(crate) fn gather(&self, wanted: BlockRequest) -> GatheredWords {
        let mut tickets = Vec::with_capacity(wanted.len().div_ceil(ASKED_AT_ONCE));
        for part in parts(wanted) {
            tickets.push(self.shared.lock().gather(part));
            self.shared.send();
        }
        let mut words = Vec::with_capacity(tickets.len());
        let mut shelf = self.shared.lock();
        for ticket in tickets {
            let has_words = |shelf: &mut ClientGuard<'_>| shelf.has_words(ticket);
            shelf = self.shared.wait_until(shelf, has_words, None, &mut ());
            words.extend(shelf.take_words(ticket));
        }
        drop(shelf);
        for part in &mut words {
            let mut bytes = std::mem::take(&mut part.bytes);
            self.shared.blocks.open(part.names(), &mut bytes);
            part.bytes = bytes;
        }
        GatheredWords(words)
    }
}

fn parts(wanted: BlockRequest) -> Vec<BlockRequest> {
    if wanted.len() <= ASKED_AT_ONCE {
        return vec![wanted];
    }
    let part = |from: usize| wanted.part(from..wanted.len().min(from + ASKED_AT_ONCE));
    (0..wanted.len()).step_by(ASKED_AT_ONCE).map(part).collect()
}
