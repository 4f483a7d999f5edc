//! That something has happened, for those who wait for they know not which event. Costs nothing while nobody
//! waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(super) struct EventCount {
    watchers: AtomicU32,
    count: AtomicU64,
    asleep: Mutex<()>,
    more: Condvar,
}

/// Somebody waits, until it is dropped.
pub(super) struct EventWatcher<'n>(&'n EventCount);

impl EventCount {
    /// From now on news are counted. What happened before must be looked at once.
    pub(super) fn watch(&self) -> EventWatcher<'_> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        // Either the watcher sees what happened, or whoever made it happen sees the watcher.
        fence(Ordering::SeqCst);
        EventWatcher(self)
    }

    /// How much has happened.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Something has happened, and can be seen.
    #[inline]
    pub(super) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.notify_watchers();
        }
    }

    #[cold]
    fn notify_watchers(&self) {
        let asleep = self.asleep.lock().expect("nothing panics under this lock");
        self.count.fetch_add(1, Ordering::Release);
        drop(asleep);
        self.more.notify_all();
    }

    /// Sleeps until more has happened than was `seen`, or so long.
    pub(super) fn wait(&self, seen: u64, longest: Duration) {
        let asleep = self.asleep.lock().expect("nothing panics under this lock");
        if self.count() == seen {
            let rested = self.more.wait_timeout(asleep, longest);
            drop(rested.expect("nothing panics under this lock"));
        }
    }
}

impl Drop for EventWatcher<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
