//! Waiting for the next message: a thread polls, then yields, then sleeps, as its `WaitPolicy` says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use netram_transport::{Interest, Poller, WaitPolicy, WaitStep, Waker, yield_core};

use super::Channel;

const CHANNEL_TOKEN: u64 = 0;
const WAKER_TOKEN: u64 = 1;

/// Wakes another thread from its sleep. Costs nothing while that thread is awake.
#[derive(Debug)]
pub struct ThreadWaker {
    waker: Waker,
    /// Whether the thread sleeps in the kernel, or is about to.
    asleep: AtomicBool,
}

/// Wait state of one channel's thread.
#[derive(Debug)]
pub struct ChannelWait {
    poller: Poller,
    bell: Arc<ThreadWaker>,
    policy: WaitPolicy,
}

impl ThreadWaker {
    pub(crate) fn new() -> io::Result<ThreadWaker> {
        Ok(ThreadWaker {
            waker: Waker::new()?,
            asleep: AtomicBool::new(false),
        })
    }

    /// Calls `sleep`, which waits for this waker among others. Does not sleep if `news` returns `true`,
    /// because a wake-up is coming; then the result is `None`.
    pub(crate) fn sleep_until_woken<T>(
        &self,
        news: impl Fn() -> bool,
        sleep: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let slept = match news() {
            true => Ok(None),
            false => sleep().map(Some),
        };
        self.asleep.store(false, Ordering::Relaxed);
        self.waker.drain()?;
        slept
    }

    /// Wakes the thread, to look at something that was made visible to it before.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // If the counter is full, the thread is woken anyway.
            let _ = self.waker.wake();
        }
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl ChannelWait {
    /// Creates the wait state of this channel with a policy.
    ///
    /// # Errors
    ///
    /// The system's error, if it has no descriptors left.
    pub fn new(channel: &Channel, policy: WaitPolicy) -> io::Result<ChannelWait> {
        let (poller, bell) = (Poller::new()?, Arc::new(ThreadWaker::new()?));
        poller.add(channel, CHANNEL_TOKEN, Interest::Read)?;
        poller.add(&*bell, WAKER_TOKEN, Interest::Read)?;
        Ok(ChannelWait { poller, bell, policy })
    }

    /// Waker with which other threads end the wait.
    pub fn waker(&self) -> Arc<ThreadWaker> {
        Arc::clone(&self.bell)
    }

    /// Waits once after the channel had nothing to receive. `flushed`: the result of the last flush. `idle`:
    /// time since the channel last had something. A sleep ends when the channel is ready, when the waker is
    /// called, or after `longest`. It does not begin if `news` returns `true`, because a wake-up is coming.
    ///
    /// # Errors
    ///
    /// The system's error, if it cannot wait.
    pub fn wait(
        &self,
        channel: &Channel,
        flushed: bool,
        idle: Duration,
        longest: Duration,
        news: impl Fn() -> bool,
    ) -> io::Result<()> {
        if channel.has_buffered() {
            return Ok(());
        }
        match self.policy.step(idle) {
            WaitStep::Poll => std::hint::spin_loop(),
            WaitStep::Yield => yield_core(),
            WaitStep::Block => return self.sleep(channel, flushed, longest, news),
        }
        Ok(())
    }

    /// Sleeps at once, whatever the policy is; otherwise like [`ChannelWait::wait`]. Not to be called while
    /// the channel has something buffered.
    ///
    /// # Errors
    ///
    /// The system's error, if it cannot wait.
    pub fn sleep(
        &self,
        channel: &Channel,
        flushed: bool,
        longest: Duration,
        news: impl Fn() -> bool,
    ) -> io::Result<()> {
        let interest = match flushed {
            true => Interest::Read,
            false => Interest::ReadWrite,
        };
        self.poller.modify(channel, CHANNEL_TOKEN, interest)?;
        self.bell
            .sleep_until_woken(news, || self.poller.sleep(Some(longest)))
            .map(drop)
    }
}
