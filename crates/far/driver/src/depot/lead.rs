//! Who has the links: whoever waits for something that comes by them.
//!
//! Between two who wait they lie free. Who waits takes them, sends what is to be sent, and polls until he has what he waits for: on a page's way
//! no thread is woken, neither to send nor to be told. The others who wait meanwhile *follow*: who has the links tells them.
//! Nobody but the *keeper*, a thread of the depot's own, sleeps on the links. He takes them when they have lain for long, when something is [due](Seat::hasten), and when
//! who waits has polled so long for nothing that it had better sleep; he gives them to the first who comes to wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netram_transport::Waker;

use super::driver::Driver;
use super::{Held, Shared};
use crate::sys::SignalsBlocked;

/// How long the links lie before the keeper takes them.
const REST: Duration = Duration::from_millis(2);
/// How long anybody else has them: signals wait meanwhile.
pub(super) const LEAD_MAX: Duration = Duration::from_millis(5);

/// What a thread can do while it waits.
pub(crate) trait Meanwhile {
    /// Called between two looks at the links. Must not wait.
    fn look(&mut self);
    /// The thread is about to sleep.
    fn will_sleep(&mut self);
}

/// Nothing.
impl Meanwhile for () {
    fn look(&mut self) {}
    fn will_sleep(&mut self) {}
}

pub(super) struct Seat {
    place: Mutex<Place>,
    /// The keeper is to look.
    laid: Condvar,
    /// Ends the keeper's sleep on the links.
    waker: Waker,
    /// He sleeps on them, or is about to.
    asleep: AtomicBool,
    /// Somebody wants the links that he has.
    wanted: AtomicBool,
    /// Who follows: changed under the shelf's lock.
    followers: AtomicUsize,
}

struct Place {
    driver: Option<Box<Driver>>,
    /// He is to take it at once.
    due: bool,
    laid: Instant,
}

impl Seat {
    pub(super) fn new(waker: Waker) -> Seat {
        Seat {
            place: Mutex::new(Place {
                driver: None,
                due: true,
                laid: Instant::now(),
            }),
            laid: Condvar::new(),
            waker,
            asleep: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            followers: AtomicUsize::new(0),
        }
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// There is something to send that nobody waits for yet: it goes with what is sent next, in [`REST`] at the latest. To be called after the shelf has been told.
    pub(super) fn nudge(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "the depot's links could not be woken; they are looked at a little later");
        }
    }

    /// The links are taken at once if nobody has them. This touches no descriptor: any thread may call it, even one that has others
    /// (`netram run`).
    pub(super) fn hasten(&self) {
        let mut place = self.place();
        if place.driver.is_some() && !std::mem::replace(&mut place.due, true) {
            self.laid.notify_one();
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
    fn take(&self) -> Option<Box<Driver>> {
        let driver = self.place().driver.take();
        if driver.is_none() {
            self.want();
        }
        driver
    }

    /// Whether nobody has the links.
    fn lies(&self) -> bool {
        let lies = self.place().driver.is_some();
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
    fn take_laid(&self, shared: &Shared) -> Option<Box<Driver>> {
        let mut place = self.place();
        loop {
            if shared.is_stopping() {
                return None;
            }
            let rest = match place.driver {
                Some(_) if place.due => Duration::ZERO,
                Some(_) => REST.saturating_sub(place.laid.elapsed()),
                None => REST,
            };
            if rest.is_zero() {
                place.due = false;
                self.wanted.store(false, Ordering::SeqCst);
                return place.driver.take();
            }
            let waited = self.laid.wait_timeout(place, rest);
            place = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lay(&self, driver: Box<Driver>, due: bool) {
        let mut place = self.place();
        place.driver = Some(driver);
        place.laid = Instant::now();
        place.due |= due;
        if place.due {
            self.laid.notify_one();
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // Nothing panics under this lock.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links, as long as a thread has them. Signals wait meanwhile: a handler that needed a page would wait for whom it interrupted.
struct Lead<'a> {
    shared: &'a Shared,
    driver: Option<Box<Driver>>,
    /// The keeper is to take them next.
    tired: bool,
    _signals: SignalsBlocked,
}

impl<'a> Lead<'a> {
    fn new(shared: &'a Shared, driver: Box<Driver>) -> Lead<'a> {
        Lead {
            shared,
            driver: Some(driver),
            tired: false,
            _signals: SignalsBlocked::here(),
        }
    }

    /// `false`: it is time to sleep, and not here.
    fn drive(&mut self, enough: impl FnMut() -> bool, meanwhile: &mut dyn Meanwhile) -> bool {
        let done = { self.driver.as_mut() }.is_none_or(|driver| driver.drive(enough, meanwhile));
        self.tired = !done;
        done
    }

    fn send(&mut self) {
        self.driver.iter_mut().for_each(|driver| driver.settle());
    }

    fn keep(&mut self) {
        self.driver.iter_mut().for_each(|driver| driver.keep());
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else {
            return;
        };
        if std::thread::panicking() {
            self.shared.fail();
        } else {
            self.shared.seat.lay(driver, self.tired);
            if !self.shared.seat.has_followers() {
                return;
            }
            // Whoever has seen that the links were taken, and is about to wait, has the lock.
            drop(self.shared.lock());
        }
        // One of those who still wait takes them.
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Waits until it is `enough`, or the depot has failed, or for `patience`.
    pub(super) fn wait_until<'a>(
        &'a self,
        mut shelf: Held<'a>,
        mut enough: impl FnMut(&mut Held<'_>) -> bool,
        patience: Option<Duration>,
        meanwhile: &mut dyn Meanwhile,
    ) -> Held<'a> {
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
            self.seat.followers.fetch_add(1, Ordering::SeqCst);
            let is_up = enough(&mut shelf) || is_over() || may_lead && self.seat.lies();
            if !is_up {
                shelf = self.follow(shelf, until);
            }
            self.seat.followers.fetch_sub(1, Ordering::SeqCst);
            may_lead = true;
        }
    }

    /// Sends what is to be sent, if nobody has the links; else who has them does.
    pub(super) fn send(&self) {
        match self.lead() {
            Some(mut lead) => lead.send(),
            None => self.seat.nudge(),
        }
    }

    fn lead(&self) -> Option<Lead<'_>> {
        let driver = self.seat.take()?;
        Some(Lead::new(self, driver))
    }

    /// Sleeps until something has come, or the links lie free.
    fn follow<'a>(&'a self, shelf: Held<'a>, until: Option<Instant>) -> Held<'a> {
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
        if self.seat.has_followers() {
            self.changed.notify_all();
        }
    }
}

/// What the keeper does, as long as there is a depot.
pub(super) fn keep(shared: &Arc<Shared>, driver: Driver) {
    // Nobody else ends him, and no signal's handler runs here.
    let _signals = SignalsBlocked::here();
    shared.seat.lay(Box::new(driver), true);
    while let Some(driver) = shared.seat.take_laid(shared) {
        Lead::new(shared, driver).keep();
    }
    // Whoever had the links had the depot, which is about to go: they lie here, or somebody has failed.
    let driver = shared.seat.place().driver.take();
    if let Some(mut driver) = driver {
        driver.give_all_back();
    }
}
