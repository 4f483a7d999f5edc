//! Choice of the handler that receives faults from the kernel: one at a time. The others sleep where no fault
//! wakes them, until the listener has something for them.
//!
//! If all handlers waited on the kernel, each fault would wake a sleeping one even while another polls. That
//! would cost a needless wake-up, and a core that the program or the lender needs.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Instant;

use netram_far_machine::arena::Page;
use netram_transport::{WaitPolicy, WaitStep, yield_core};
use rustix::event::epoll;
use rustix::io::Errno;

use super::moves::ArenaCore;
use crate::remote_pages::IdleWork;

/// A thread's fault on a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFault {
    pub(super) page: Page,
    /// Byte of the arena, if the kernel reports it; otherwise the page's first byte.
    pub(super) at: u64,
    pub(super) thread: u32,
}

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
    /// Faults heard while the handler waited for lenders.
    heard: VecDeque<PageFault>,
    /// Maximum number of these. Further faults are left to other handlers.
    pub(super) room: usize,
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
            heard: VecDeque::new(),
            room: 0,
        }
    }

    /// Takes a fault that was heard while the handler waited for lenders.
    pub(super) fn next_heard(&mut self) -> Option<PageFault> {
        self.heard.pop_front()
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
                WaitStep::Yield => yield_core(),
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

/// While it waits for lenders, the listening handler also reads other faults. It stops waiting in order to
/// serve them; those it has no room for it hands to idle handlers.
impl IdleWork for FaultListener<'_> {
    fn look(&mut self) -> bool {
        if !self.listens {
            let mut state = self.core.monitor.lock();
            if state.listening {
                return false;
            }
            (state.listening, self.listens) = (true, true);
        }
        while let Some(fault) = self.core.next_fault() {
            match self.heard.len() < self.room {
                true => self.heard.push_back(fault),
                false => self.core.monitor.defer(fault),
            }
        }
        !self.heard.is_empty()
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
