//! Leadership of the links: a waiting thread drives them.
//!
//! Between waits the links are free. A waiting thread takes them, sends what is to be sent, and polls until
//! it has what it waits for. A page's fetch thus wakes no other thread. Other waiting threads *follow*: the
//! leader notifies them. Only the *maintenance thread* sleeps on the links. It takes them when they were free
//! for long, when something is [due](LinkLeadership::hasten), and when a leader has polled long in vain. It
//! yields them to the next thread that waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netram_transport::Waker;

use super::driver::LinkDriver;
use super::{ClientGuard, Inner};
use crate::sys::SignalsBlocked;

/// Time for which the links may be free before the maintenance thread takes them.
const UNLED_MAX: Duration = Duration::from_millis(2);
/// Maximum time for which another thread leads: its signals are blocked meanwhile.
pub(super) const LEADER_TIME_MAX: Duration = Duration::from_millis(5);

/// Work that a thread can do while it waits.
pub(crate) trait IdleWork {
    /// Called between two polls of the links. Must not block. Returns whether the thread has other work, so
    /// that it stops waiting.
    fn look(&mut self) -> bool;
    /// Called before the thread sleeps.
    fn will_sleep(&mut self);
}

/// No work.
impl IdleWork for () {
    fn look(&mut self) -> bool {
        false
    }
    fn will_sleep(&mut self) {}
}

pub(super) struct LinkLeadership {
    slot: Mutex<LeaderSlot>,
    /// Signalled when the maintenance thread should look.
    released: Condvar,
    /// Ends the maintenance thread's sleep on the links.
    waker: Waker,
    /// Whether it sleeps on them, or is about to.
    asleep: AtomicBool,
    /// Whether a thread wants the links that it has.
    wanted: AtomicBool,
    /// Number of followers. Changed under the client's lock.
    followers: AtomicUsize,
}

struct LeaderSlot {
    driver: Option<Box<LinkDriver>>,
    /// Whether the maintenance thread should take the links at once.
    due: bool,
    released_at: Instant,
}

impl LinkLeadership {
    pub(super) fn new(waker: Waker) -> LinkLeadership {
        LinkLeadership {
            slot: Mutex::new(LeaderSlot {
                driver: None,
                due: true,
                released_at: Instant::now(),
            }),
            released: Condvar::new(),
            waker,
            asleep: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            followers: AtomicUsize::new(0),
        }
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Notes that a frame should be sent for which no thread waits. It goes with the next one, after
    /// [`UNLED_MAX`] at the latest. To be called after the client was told.
    pub(super) fn nudge(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "the thread with the links could not be woken; frames are sent a little later");
        }
    }

    /// Has the links taken at once if they are free. Touches no descriptor, so that a thread with another
    /// descriptor table may call it (`netram run`).
    pub(super) fn hasten(&self) {
        let mut place = self.slot();
        if place.driver.is_some() && !std::mem::replace(&mut place.due, true) {
            self.released.notify_one();
        }
    }

    /// Notes that another thread has a result that only the leader can take.
    pub(super) fn summon(&self) {
        self.nudge();
        self.hasten();
    }

    /// Whether threads follow that the leader must notify.
    pub(super) fn has_followers(&self) -> bool {
        self.followers.load(Ordering::SeqCst) > 0
    }

    /// Whether the maintenance thread should yield the links.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Announces that the maintenance thread is about to sleep, so that later notes wake it.
    pub(super) fn will_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_slept(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Takes the links if they are free. Otherwise the maintenance thread will yield them soon.
    fn take(&self) -> Option<Box<LinkDriver>> {
        let driver = self.slot().driver.take();
        if driver.is_none() {
            self.want();
        }
        driver
    }

    /// Whether the links are free.
    fn is_free(&self) -> bool {
        let lies = self.slot().driver.is_some();
        if !lies {
            self.want();
        }
        lies
    }

    fn want(&self) {
        // A leader other than the maintenance thread releases them soon anyway.
        self.wanted.store(true, Ordering::SeqCst);
        self.nudge();
    }

    /// Waits until the maintenance thread should take the links. `None`: everything has ended.
    fn wait_for_links(&self, shared: &Inner) -> Option<Box<LinkDriver>> {
        let mut place = self.slot();
        loop {
            if shared.is_stopping() {
                return None;
            }
            let rest = match place.driver {
                Some(_) if place.due => Duration::ZERO,
                Some(_) => UNLED_MAX.saturating_sub(place.released_at.elapsed()),
                None => UNLED_MAX,
            };
            if rest.is_zero() {
                place.due = false;
                self.wanted.store(false, Ordering::SeqCst);
                return place.driver.take();
            }
            let waited = self.released.wait_timeout(place, rest);
            place = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn release(&self, driver: Box<LinkDriver>, due: bool) {
        let mut place = self.slot();
        place.driver = Some(driver);
        place.released_at = Instant::now();
        place.due |= due;
        if place.due {
            self.released.notify_one();
        }
    }

    fn slot(&self) -> MutexGuard<'_, LeaderSlot> {
        // No code panics under this lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriveEnd {
    /// The leader has its pages.
    Enough,
    /// The leader has [other work](IdleWork::look).
    Interrupted,
    /// The leader would sleep, which it must not do.
    Idle,
}

/// The links, while a thread leads. Signals are blocked: a handler that needs a page would wait for the
/// thread that it interrupted.
struct LinkLeaderGuard<'a> {
    shared: &'a Inner,
    driver: Option<Box<LinkDriver>>,
    /// Whether the maintenance thread should take the links next.
    yields: bool,
    _signals: SignalsBlocked,
}

impl<'a> LinkLeaderGuard<'a> {
    fn new(shared: &'a Inner, driver: Box<LinkDriver>) -> LinkLeaderGuard<'a> {
        LinkLeaderGuard {
            shared,
            driver: Some(driver),
            yields: false,
            _signals: SignalsBlocked::here(),
        }
    }

    fn drive(&mut self, enough: impl FnMut() -> bool, meanwhile: &mut dyn IdleWork) -> DriveEnd {
        let driver = self.driver.as_mut();
        let end = driver.map_or(DriveEnd::Enough, |driver| driver.drive(enough, meanwhile));
        self.yields = end == DriveEnd::Idle;
        end
    }

    fn send(&mut self) {
        self.driver.iter_mut().for_each(|driver| driver.settle());
    }

    fn keep(&mut self) {
        self.driver.iter_mut().for_each(|driver| driver.maintain());
    }
}

impl Drop for LinkLeaderGuard<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else {
            return;
        };
        if std::thread::panicking() {
            self.shared.fail();
        } else {
            self.shared.leadership.release(driver, self.yields);
            if !self.shared.leadership.has_followers() {
                return;
            }
            // Synchronise with a thread that saw the links taken and is about to wait under this lock.
            drop(self.shared.lock());
        }
        // One of the remaining waiters takes the links.
        self.shared.changed.notify_all();
    }
}

impl Inner {
    /// Waits until `enough` is true, the links have failed, `patience` has passed, or `meanwhile` has other
    /// work.
    pub(super) fn wait_until<'a>(
        &'a self,
        mut shelf: ClientGuard<'a>,
        mut enough: impl FnMut(&mut ClientGuard<'_>) -> bool,
        patience: Option<Duration>,
        meanwhile: &mut dyn IdleWork,
    ) -> ClientGuard<'a> {
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        let is_over = || self.has_failed() || until.is_some_and(|until| until <= Instant::now());
        let mut may_lead = true;
        loop {
            if enough(&mut shelf) || is_over() {
                return shelf;
            }
            if may_lead && let Some(mut lead) = self.lead() {
                drop(shelf);
                let end = lead.drive(|| enough(&mut self.lock()) || is_over(), meanwhile);
                drop(lead);
                shelf = self.lock();
                if end == DriveEnd::Interrupted {
                    return shelf;
                }
                may_lead = end != DriveEnd::Idle;
                continue;
            }
            drop(shelf);
            meanwhile.will_sleep();
            shelf = self.lock();
            // Register as a follower before the last check: a later change is notified.
            self.leadership.followers.fetch_add(1, Ordering::SeqCst);
            let is_up = enough(&mut shelf) || is_over() || may_lead && self.leadership.is_free();
            if !is_up {
                shelf = self.follow(shelf, until);
            }
            self.leadership.followers.fetch_sub(1, Ordering::SeqCst);
            may_lead = true;
        }
    }

    /// Sends pending frames if the links are free; otherwise their leader does.
    pub(super) fn send(&self) {
        match self.lead() {
            Some(mut lead) => lead.send(),
            None => self.leadership.nudge(),
        }
    }

    fn lead(&self) -> Option<LinkLeaderGuard<'_>> {
        let driver = self.leadership.take()?;
        Some(LinkLeaderGuard::new(self, driver))
    }

    /// Sleeps until something arrives or the links are free.
    fn follow<'a>(&'a self, shelf: ClientGuard<'a>, until: Option<Instant>) -> ClientGuard<'a> {
        match until {
            None => self.changed.wait(shelf).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout(shelf, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Notifies the followers, if there are any.
    pub(super) fn tell(&self) {
        if self.leadership.has_followers() {
            self.changed.notify_all();
        }
    }
}

/// Loop of the maintenance thread.
pub(super) fn keep(shared: &Arc<Inner>, driver: LinkDriver) {
    // Signal handlers do not run in this thread.
    let _signals = SignalsBlocked::here();
    shared.leadership.release(Box::new(driver), true);
    while let Some(driver) = shared.leadership.wait_for_links(shared) {
        LinkLeaderGuard::new(shared, driver).keep();
    }
    // All leaders held a reference that is about to go, so the links are free here, or a leader has failed.
    let driver = shared.leadership.slot().driver.take();
    if let Some(mut driver) = driver {
        driver.give_all_back();
    }
}
