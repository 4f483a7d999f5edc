//! Eventcount: lets threads wait until something happens, without knowing which event. Costs nothing while no
//! thread waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Number of events, with the threads that wait for more.
#[derive(Default)]
pub(super) struct EventCount {
    watchers: AtomicU32,
    count: AtomicU64,
    asleep: Mutex<()>,
    more: Condvar,
}

/// Registration of a waiting thread, which ends on drop.
pub(super) struct EventWatcher<'n>(&'n EventCount);

impl EventCount {
    /// Registers the calling thread: from now on events are counted. The caller must check once for earlier
    /// events.
    pub(super) fn watch(&self) -> EventWatcher<'_> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        // Either the watcher sees the event, or the thread that caused it sees the watcher.
        fence(Ordering::SeqCst);
        EventWatcher(self)
    }

    /// Number of events so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts an event whose effect is visible already.
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

    /// Sleeps until more events than `seen` have happened, or for `longest`.
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
