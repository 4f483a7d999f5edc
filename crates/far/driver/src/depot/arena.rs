//! What an arena needs of its depot beside pages: whether one has to be sent at all, how many are still here, and an end to waiting.

use std::sync::atomic::Ordering;

use netram_far_machine::deposit::Page;

use super::{Depot, Held};
use crate::pack::Clear;
use crate::seal::Tag;

/// A page that is about to leave.
struct Plan {
    /// The version that stands, and what proves it.
    stood: Option<(u64, Tag)>,
    /// The one under which it leaves if it is another page.
    next: u64,
}

impl Plan {
    fn of(shelf: &mut Held<'_>, page: Page) -> Plan {
        let stood = shelf.standing(page).zip(shelf.seals().tag(page));
        Plan {
            stood,
            next: shelf.reserve(),
        }
    }
}

impl Depot {
    /// As [`put`](Depot::put) for each of these, but for those that are what they were when they left last, and whose copies still stand: nothing is sent of them.
    ///
    /// A page is sealed once more under the version that it had: the same tag means the same bytes. 1.2 us, and no write of the program
    /// has to be watched. Nobody else puts or forgets these pages meanwhile; they are sealed while others have the shelf.
    pub(crate) fn keep(&self, pages: &[(Page, Clear)]) {
        let mut shelf = self.shared.lock();
        let plans: Vec<Plan> = pages
            .iter()
            .map(|(page, _)| Plan::of(&mut shelf, *page))
            .collect();
        drop(shelf);
        let crypt = &self.shared.crypt;
        let sealed = { plans.iter().zip(pages) }.map(|(plan, (page, clear))| {
            let same = plan
                .stood
                .is_some_and(|(version, tag)| crypt.tag(*page, version, clear) == tag);
            (!same).then(|| crypt.seal(*page, plan.next, clear))
        });
        let sealed: Vec<_> = sealed.collect();
        let mut shelf = self.shared.lock();
        for (((page, clear), plan), sealed) in pages.iter().zip(&plans).zip(sealed) {
            match sealed {
                Some((sealed, tag)) => {
                    shelf.seals_mut().tell(*page, tag);
                    shelf.put_sealed(*page, plan.next, sealed, clear);
                }
                // A lender that had it may have gone since.
                None if shelf.standing(*page) != plan.stood.map(|(version, _)| version) => {
                    shelf.put(*page, clear)
                }
                None => (),
            }
        }
        drop(shelf);
        // Who waits for what was there before takes this.
        self.shared.tell();
        self.shared.seat.nudge();
    }

    /// Pages whose bytes are aside: in this machine's memory, because not all of their places have them.
    pub fn aside(&self) -> usize {
        self.shared.lock().aside()
    }

    /// This is called whenever bytes have gone from aside, by who has the links. It must not wait. The first one that is named stays.
    pub(crate) fn on_less_aside(&self, call: impl Fn() + Send + Sync + 'static) {
        // A second caller would be a second arena.
        let _ = self.shared.listener.set(Box::new(call));
    }

    /// The memory of what is aside is wanted: it is sent at once, even if nobody waits for anything of lenders.
    pub(crate) fn hasten(&self) {
        self.shared.seat.hasten();
    }

    /// What a byte that leaves takes of a lender's link while that has more to carry, in ps; 0: none had yet.
    pub(crate) fn byte_ps(&self) -> u64 {
        self.shared.byte_ps.load(Ordering::Relaxed)
    }

    /// Nobody gets a page any more; whoever waits for one learns that the depot has failed.
    pub(crate) fn close(&self) {
        self.shared.fail();
    }
}
