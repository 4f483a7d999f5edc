//! Who has the links: whoever waits for something that comes by them.
//!
//! Between two who wait they lie free. Who waits takes them, sends what is to be sent, and polls until he has
//! what he waits for: on a page's way no thread is woken, neither to send nor to be told. The others who wait
//! meanwhile *follow*: who has the links tells them. Nobody but the *keeper*, a thread of the depot's own,
//! sleeps on the links. He takes them when they have lain for long, when something is
//! [due](LinkLeadership::hasten), and when who waits has polled so long for nothing that it had better sleep;
//! he gives them to the first who comes to wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netram_transport::Waker;

use super::driver::LinkDriver;
use super::{ClientGuard, Inner};
use crate::sys::SignalsBlocked;

/// How long the links lie before the keeper takes them.
const UNLED_MAX: Duration = Duration::from_millis(2);
/// How long anybody else has them: signals wait meanwhile.
pub(super) const LEADER_TIME_MAX: Duration = Duration::from_millis(5);

/// What a thread can do while it waits.
pub(crate) trait IdleWork {
    /// Called between two looks at the links. Must not wait.
    fn look(&mut self);
    /// The thread is about to sleep.
    fn will_sleep(&mut self);
}

/// Nothing.
impl IdleWork for () {
    fn look(&mut self) {}
    fn will_sleep(&mut self) {}
}

pub(super) struct LinkLeadership {
    slot: Mutex<LeaderSlot>,
    /// The keeper is to look.
    released: Condvar,
    /// Ends the keeper's sleep on the links.
    waker: Waker,
    /// He sleeps on them, or is about to.
    asleep: AtomicBool,
    /// Somebody wants the links that he has.
    wanted: AtomicBool,
    /// Who follows: changed under the shelf's lock.
    followers: AtomicUsize,
}

struct LeaderSlot {
    driver: Option<Box<LinkDriver>>,
    /// He is to take it at once.
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

    /// There is something to send that nobody waits for yet: it goes with what is sent next, in [`UNLED_MAX`]
    /// at the latest. To be called after the shelf has been told.
    pub(super) fn nudge(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "the depot's links could not be woken; they are looked at a little later");
        }
    }

    /// The links are taken at once if nobody has them. This touches no descriptor: any thread may call it,
    /// even one that has others (`netram run`).
    pub(super) fn hasten(&self) {
        let mut place = self.slot();
        if place.driver.is_some() && !std::mem::replace(&mut place.due, true) {
            self.released.notify_one();
        }
    }

    /// Something has come that only who has the links can take.
    pub(super) fn summon(&self) {
        self.nudge();
        self.hasten();
    }

    /// Whether somebody waits whom who has the links has to tell.
    pub(super) fn has_followers(&self) -> bool {
        self.followers.load(Ordering::SeqCst) > 0
    }

    /// Whether the keeper is to give the links away.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// From now on whoever has something for the links ends the keeper's sleep.
    pub(super) fn will_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_slept(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The links, if nobody has them. The keeper gives them away soon.
    fn take(&self) -> Option<Box<LinkDriver>> {
        let driver = self.slot().driver.take();
        if driver.is_none() {
            self.want();
        }
        driver
    }

    /// Whether nobody has the links.
    fn is_free(&self) -> bool {
        let lies = self.slot().driver.is_some();
        if !lies {
            self.want();
        }
        lies
    }

    fn want(&self) {
        // One who is not the keeper lays them soon anyway.
        self.wanted.store(true, Ordering::SeqCst);
        self.nudge();
    }

    /// The keeper waits for the links. `None`: all is over.
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
        // Nothing panics under this lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links, as long as a thread has them. Signals wait meanwhile: a handler that needed a page would wait
/// for whom it interrupted.
struct LinkLeaderGuard<'a> {
    shared: &'a Inner,
    driver: Option<Box<LinkDriver>>,
    /// The keeper is to take them next.
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

    /// `false`: it is time to sleep, and not here.
    fn drive(&mut self, enough: impl FnMut() -> bool, meanwhile: &mut dyn IdleWork) -> bool {
        let done = { self.driver.as_mut() }.is_none_or(|driver| driver.drive(enough, meanwhile));
        self.yields = !done;
        done
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
            // Whoever has seen that the links were taken, and is about to wait, has the lock.
            drop(self.shared.lock());
        }
        // One of those who still wait takes them.
        self.shared.changed.notify_all();
    }
}

impl Inner {
    /// Waits until it is `enough`, or the depot has failed, or for `patience`.
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
                may_lead = lead.drive(|| enough(&mut self.lock()) || is_over(), meanwhile);
                drop(lead);
                shelf = self.lock();
                continue;
            }
            drop(shelf);
            meanwhile.will_sleep();
            shelf = self.lock();
            // Before all is looked at once more: who changes it later tells.
            self.leadership.followers.fetch_add(1, Ordering::SeqCst);
            let is_up = enough(&mut shelf) || is_over() || may_lead && self.leadership.is_free();
            if !is_up {
                shelf = self.follow(shelf, until);
            }
            self.leadership.followers.fetch_sub(1, Ordering::SeqCst);
            may_lead = true;
        }
    }

    /// Sends what is to be sent, if nobody has the links; else who has them does.
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

    /// Sleeps until something has come, or the links lie free.
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

    /// Tells those who follow, if there are any.
    pub(super) fn tell(&self) {
        if self.leadership.has_followers() {
            self.changed.notify_all();
        }
    }
}

/// What the keeper does, as long as there is a depot.
pub(super) fn keep(shared: &Arc<Inner>, driver: LinkDriver) {
    // Nobody else ends him, and no signal's handler runs here.
    let _signals = SignalsBlocked::here();
    shared.leadership.release(Box::new(driver), true);
    while let Some(driver) = shared.leadership.wait_for_links(shared) {
        LinkLeaderGuard::new(shared, driver).keep();
    }
    // Whoever had the links had the depot, which is about to go: they lie here, or somebody has failed.
    let driver = shared.leadership.slot().driver.take();
    if let Some(mut driver) = driver {
        driver.give_all_back();
    }
}
