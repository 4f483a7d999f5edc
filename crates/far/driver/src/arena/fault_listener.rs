//! Who hears of faults: one handler at a time. The others sleep where no fault wakes them, until he has
//! something for them.
//!
//! If all waited for the kernel, a fault woke one that sleeps, though another one polls: a wake-up for
//! nothing, and a core that the program or the lender needs.

use std::sync::PoisonError;
use std::time::Instant;

use netram_transport::{WaitPolicy, WaitStep};
use rustix::event::epoll;
use rustix::io::Errno;

use super::moves::{ArenaCore, PageFault};
use crate::remote_pages::IdleWork;

/// What a handler is to do.
pub(super) enum HandlerTask {
    Fault(PageFault),
    /// Faults that no message tells of.
    Waiting,
}

/// A handler's: with it it hears, if no other one does.
pub(super) struct FaultListener<'a> {
    core: &'a ArenaCore,
    epoll: std::os::fd::OwnedFd,
    policy: WaitPolicy,
    listens: bool,
}

impl FaultListener<'_> {
    pub(super) fn new(
        core: &ArenaCore,
        epoll: std::os::fd::OwnedFd,
        policy: WaitPolicy,
    ) -> FaultListener<'_> {
        FaultListener {
            core,
            epoll,
            policy,
            listens: false,
        }
    }

    /// Waits for something to do. `None`: all is over.
    pub(super) fn wait(&mut self) -> Option<HandlerTask> {
        let hub = &self.core.monitor;
        let mut idle_since = Instant::now();
        loop {
            let mut state = hub.lock();
            if hub.has_ended() {
                return None;
            }
            if state.has_waiting() {
                return Some(HandlerTask::Waiting);
            }
            if !self.listens && state.listening {
                state.idle += 1;
                state = hub.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            }
            (state.listening, self.listens) = (true, true);
            drop(state);
            if let Some(fault) = self.core.next_fault() {
                return Some(HandlerTask::Fault(fault));
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
        let hub = &self.core.monitor;
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
        if let Err(error) = hub.waker.drain() {
            panic!("the bell of an arena failed: {error}");
        }
    }
}

/// Between two looks at the links a handler hears of other faults, and gives them to those who have nothing
/// to do.
impl IdleWork for FaultListener<'_> {
    fn look(&mut self) {
        if !self.listens {
            let mut state = self.core.monitor.lock();
            if state.listening {
                return;
            }
            (state.listening, self.listens) = (true, true);
        }
        while let Some(fault) = self.core.next_fault() {
            self.core.monitor.defer(fault);
        }
    }

    fn will_sleep(&mut self) {
        if std::mem::replace(&mut self.listens, false) {
            let mut state = self.core.monitor.lock();
            state.listening = false;
            if state.idle > 0 {
                self.core.monitor.idle.notify_one();
            }
        }
    }
}
