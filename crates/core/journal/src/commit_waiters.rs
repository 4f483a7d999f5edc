//! The threads that wait for commits: who leads, who sleeps, and how they are woken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use netram_transport::{Poller, Waker};

/// Maximum sleep of a thread: a missed wake-up costs a delay, not a hang.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(20);
/// The waker's token in the poller; a link's token is its lender's index.
const WAKER_TOKEN: u64 = u64::MAX;
/// State shared by the threads that wait.
pub(crate) struct CommitWaiters {
    pub(crate) leading: AtomicBool,
    /// Threads that wait, including those whose wait is over but that have not run since.
    pub(crate) waiters: AtomicUsize,
    /// The leader sleeps in the kernel: an append must send by itself, and a change of state must wake it.
    pub(crate) asleep: AtomicBool,
    /// Number of sleeping followers.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    poller: Poller,
    waker: Waker,
}

/// The right to poll the links, given up on drop.
pub(crate) struct LeaderGuard<'a>(&'a CommitWaiters);

impl CommitWaiters {
    pub(crate) fn new() -> std::io::Result<CommitWaiters> {
        let poller = Poller::new()?;
        let waker = Waker::new()?;
        poller.add(&waker, WAKER_TOKEN, netram_transport::Interest::Read)?;
        Ok(CommitWaiters {
            leading: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            poller,
            waker,
        })
    }

    /// Adds the link to the leader's poller. Closing the link's socket removes it.
    pub(crate) fn watch(&self, link: &netram_transport::Link, index: usize) -> std::io::Result<()> {
        self.poller
            .add(link, index as u64, netram_transport::Interest::Read)
    }

    /// Takes the right to poll, unless another thread has it.
    pub(crate) fn lead(&self) -> Option<LeaderGuard<'_>> {
        let free = !self.leading.load(Ordering::Relaxed) && !self.leading.swap(true, Ordering::Acquire);
        // Not `then_some`: it would construct a `LeaderGuard` in any case, whose drop takes the right from
        // the thread that has it.
        free.then(|| LeaderGuard(self))
    }

    /// Wakes the sleeping threads after a published change that they may be waiting for.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _lock = self.lock.lock().expect("nothing panics under this lock");
            self.wake.notify_all();
        }
        if self.asleep.load(Ordering::Relaxed) {
            // A full counter wakes the leader, too.
            let _ = self.waker.wake();
        }
    }

    /// Sleeps as a follower until `wake`, unless `done` is already true.
    pub(crate) fn follow(&self, done: impl Fn() -> bool) {
        let lock = self.lock.lock().expect("nothing panics under this lock");
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !done() && self.leading.load(Ordering::Relaxed) {
            let slept = self.wake.wait_timeout(lock, SLEEP_MAX);
            drop(slept.expect("nothing panics under this lock"));
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LeaderGuard<'_> {
    /// Sleeps until a link is ready, `wake`, or `longest` has passed, unless `done` is already true.
    pub(crate) fn sleep(&self, longest: Duration, done: impl Fn() -> bool) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !done() {
            // An error ends the sleep too: the caller's loop examines every link anyway.
            let _ = self.0.poller.sleep(Some(longest));
            let _ = self.0.waker.drain();
        }
        self.0.asleep.store(false, Ordering::Relaxed);
    }
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        self.0.leading.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.0.sleepers.load(Ordering::Relaxed) > 0 {
            let _lock = self.0.lock.lock().expect("nothing panics under this lock");
            // One follower suffices as the next leader; it passes on what it learns.
            self.0.wake.notify_one();
        }
    }
}
