//! What an arena needs of its depot beside pages: whether one has to be sent at all, how many are still here,
//! and an end to waiting.

use std::sync::atomic::Ordering;

use netram_far_machine::deposit::Page;

use super::{ClientGuard, RemotePages};
use crate::compression::PlainPage;
use crate::seal::PageTag;

/// A page that is about to leave.
struct PutPlan {
    /// The version that stands, and what proves it.
    stored: Option<(u64, PageTag)>,
    /// The one under which it leaves if it is another page.
    next: u64,
}

impl PutPlan {
    fn of(shelf: &mut ClientGuard<'_>, page: Page) -> PutPlan {
        let stood = shelf.current_version(page).zip(shelf.seals().tag(page));
        PutPlan {
            stored: stood,
            next: shelf.reserve(),
        }
    }
}

impl RemotePages {
    /// As [`put`](RemotePages::put) for each of these, but for those that are what they were when they left
    /// last, and whose copies still stand: nothing is sent of them.
    ///
    /// A page is sealed once more under the version that it had: the same tag means the same bytes. 1.2 us,
    /// and no write of the program has to be watched. Nobody else puts or forgets these pages meanwhile; they
    /// are sealed while others have the shelf.
    pub(crate) fn put_changed(&self, pages: &[(Page, PlainPage)]) {
        let mut shelf = self.shared.lock();
        let plans: Vec<PutPlan> = pages
            .iter()
            .map(|(page, _)| PutPlan::of(&mut shelf, *page))
            .collect();
        drop(shelf);
        let crypt = &self.shared.cipher;
        let sealed = { plans.iter().zip(pages) }.map(|(plan, (page, clear))| {
            let same = plan
                .stored
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
                None if shelf.current_version(*page) != plan.stored.map(|(version, _)| version) => {
                    shelf.put(*page, clear)
                }
                None => (),
            }
        }
        drop(shelf);
        // Who waits for what was there before takes this.
        self.shared.tell();
        self.shared.leadership.nudge();
    }

    /// Pages whose bytes are aside: in this machine's memory, because not all of their places have them.
    pub fn pending(&self) -> usize {
        self.shared.lock().pending()
    }

    /// This is called whenever bytes have gone from aside, by who has the links. It must not wait. The first
    /// one that is named stays.
    pub(crate) fn on_less_pending(&self, call: impl Fn() + Send + Sync + 'static) {
        // A second caller would be a second arena.
        let _ = self.shared.listener.set(Box::new(call));
    }

    /// The memory of what is aside is wanted: it is sent at once, even if nobody waits for anything of
    /// lenders.
    pub(crate) fn hasten(&self) {
        self.shared.leadership.hasten();
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
