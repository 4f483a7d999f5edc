//! Who hears of faults: one handler at a time. The others sleep where no fault wakes them, until he has something for them.
//!
//! If all waited for the kernel, a fault woke one that sleeps, though another one polls: a wake-up for nothing, and a core that the program or
//! the lender needs.

use std::sync::PoisonError;
use std::time::Instant;

use netram_transport::{WaitPolicy, WaitStep};
use rustix::event::epoll;
use rustix::io::Errno;

use super::moves::{Core, Fault};
use crate::depot::Meanwhile;

/// What a handler is to do.
pub(super) enum Task {
    Fault(Fault),
    /// Faults that no message tells of.
    Waiting,
}

/// A handler's: with it it hears, if no other one does.
pub(super) struct Ear<'a> {
    core: &'a Core,
    epoll: std::os::fd::OwnedFd,
    policy: WaitPolicy,
    hears: bool,
}

impl Ear<'_> {
    pub(super) fn new(core: &Core, epoll: std::os::fd::OwnedFd, policy: WaitPolicy) -> Ear<'_> {
        Ear {
            core,
            epoll,
            policy,
            hears: false,
        }
    }

    /// Waits for something to do. `None`: all is over.
    pub(super) fn wait(&mut self) -> Option<Task> {
        let hub = &self.core.hub;
        let mut idle_since = Instant::now();
        loop {
            let mut state = hub.lock();
            if hub.has_ended() {
                return None;
            }
            if state.has_waiting() {
                return Some(Task::Waiting);
            }
            if !self.hears && state.hearing {
                state.idle += 1;
                state = hub.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            }
            (state.hearing, self.hears) = (true, true);
            drop(state);
            if let Some(fault) = self.core.hear() {
                return Some(Task::Fault(fault));
            }
            match self.policy.step(idle_since.elapsed()) {
                WaitStep::Poll => std::hint::spin_loop(),
                WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Block => {
                    self.sleep();
                    idle_since = Instant::now();
                }
            }
        }
    }

    /// Sleeps until the kernel has something to tell, or the bell rings.
    fn sleep(&self) {
        let hub = &self.core.hub;
        let mut state = hub.lock();
        if state.has_waiting() || hub.has_ended() {
            return;
        }
        state.sleeps = true;
        drop(state);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        match epoll::wait(&self.epoll, &mut events[..], None) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => panic!("waiting for faults failed: {error}"),
        }
        hub.lock().sleeps = false;
        if let Err(error) = hub.bell.drain() {
            panic!("the bell of an arena failed: {error}");
        }
    }
}

/// Between two looks at the links a handler hears of other faults, and gives them to those who have nothing to do.
impl Meanwhile for Ear<'_> {
    fn look(&mut self) {
        if !self.hears {
            let mut state = self.core.hub.lock();
            if state.hearing {
                return;
            }
            (state.hearing, self.hears) = (true, true);
        }
        while let Some(fault) = self.core.hear() {
            self.core.hub.defer(fault);
        }
    }

    fn will_sleep(&mut self) {
        if std::mem::replace(&mut self.hears, false) {
            let mut state = self.core.hub.lock();
            state.hearing = false;
            if state.idle > 0 {
                self.core.hub.idle.notify_one();
            }
        }
    }
}
