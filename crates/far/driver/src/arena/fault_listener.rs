//! Choice of the handler that receives faults from the kernel: one at a time. The others sleep where no fault
//! wakes them, until the listener has something for them.
//!
//! If all handlers waited on the kernel, each fault would wake a sleeping one even while another polls. That
//! would cost a needless wake-up, and a core that the program or the lender needs.

use std::sync::PoisonError;
use std::time::Instant;

use netram_transport::{WaitPolicy, WaitStep};
use rustix::event::epoll;
use rustix::io::Errno;

use super::moves::{ArenaCore, PageFault};
use crate::remote_pages::IdleWork;

/// Task for a handler.
pub(super) enum HandlerTask {
    Fault(PageFault),
    /// Waiting faults for which the kernel sends no message.
    Waiting,
}

/// A handler's access to faults: it listens if no other handler does.
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

    /// Waits for a task. `None`: the arena has ended.
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

    /// Sleeps until the kernel has a message or the waker is triggered.
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
            panic!("the waker of an arena failed: {error}");
        }
    }
}

/// While it waits for a lender, the listening handler also reads other faults, and hands them to idle
/// handlers.
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
