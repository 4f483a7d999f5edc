//! Operations for an arena: putting only changed pages, the number of pending pages, and the end of all
//! waiting.

use std::sync::atomic::Ordering;

use netram_far_machine::deposit::Page;

use super::{ClientGuard, RemotePages};
use crate::compression::PlainPage;
use crate::seal::PageTag;

/// A page that is about to be put.
struct PutPlan {
    /// Version that lenders have, with its tag.
    stored: Option<(u64, PageTag)>,
    /// Version for the page if it has changed.
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
    /// Puts pages, except those that are unchanged since they were put last and whose copies still exist:
    /// these are not sent.
    ///
    /// A page is sealed once more under its old version: an equal tag means equal bytes. That takes 1.2 µs,
    /// and no write of the program needs to be tracked. No other thread may put or forget these pages
    /// meanwhile. They are sealed without the client's lock.
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
                // A lender with a copy may have gone since.
                None if shelf.current_version(*page) != plan.stored.map(|(version, _)| version) => {
                    shelf.put(*page, clear)
                }
                None => (),
            }
        }
        drop(shelf);
        // Waiters for the old content get this one.
        self.shared.tell();
        self.shared.leadership.nudge();
    }

    /// Number of pending pages: their bytes are kept in local memory until all copies have them.
    pub fn pending(&self) -> usize {
        self.shared.lock().pending()
    }

    /// Sets a function that the thread with the links calls whenever fewer pages are pending. It must not
    /// block. Only the first call has an effect.
    pub(crate) fn on_less_pending(&self, call: impl Fn() + Send + Sync + 'static) {
        // A second caller would be a second arena.
        let _ = self.shared.listener.set(Box::new(call));
    }

    /// Has pending pages sent at once, because their memory is needed, even if no thread waits for lenders.
    pub(crate) fn hasten(&self) {
        self.shared.leadership.hasten();
    }

    /// Time that a byte takes on a lender's link under load, in ps; 0: not measured yet.
    pub(crate) fn byte_ps(&self) -> u64 {
        self.shared.byte_ps.load(Ordering::Relaxed)
    }

    /// Ends all waiting with an error: no page can be fetched from now on.
    pub(crate) fn close(&self) {
        self.shared.fail();
    }
}
