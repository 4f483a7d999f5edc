//! How a thread waits for the next message: it polls, then yields, then sleeps, as its `WaitPolicy` says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use netram_transport::{Interest, Poller, WaitPolicy, WaitStep, Waker};

use super::Channel;

const CHANNEL_TOKEN: u64 = 0;
const WAKER_TOKEN: u64 = 1;

/// Ends another thread's rest. Costs nothing while that thread is awake.
#[derive(Debug)]
pub struct ThreadWaker {
    waker: Waker,
    /// The thread sleeps in the kernel, or is about to.
    asleep: AtomicBool,
}

/// One channel's waiting.
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

    /// Sleeps by `sleep`, which a ring ends: the bell is among what it waits for. Does not begin when `news`
    /// says that the bell was about to ring: `None`.
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

    /// Has the thread look again, for something that has been made known to it before.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // A full counter is as good as a wake-up.
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
    /// Waits for this channel from now on, as hard as `policy` says.
    pub fn new(channel: &Channel, policy: WaitPolicy) -> io::Result<ChannelWait> {
        let (poller, bell) = (Poller::new()?, Arc::new(ThreadWaker::new()?));
        poller.add(channel, CHANNEL_TOKEN, Interest::Read)?;
        poller.add(&*bell, WAKER_TOKEN, Interest::Read)?;
        Ok(ChannelWait { poller, bell, policy })
    }

    /// What other threads end the rest with.
    pub fn waker(&self) -> Arc<ThreadWaker> {
        Arc::clone(&self.bell)
    }

    /// Rests once, after a look at the channel, `idle` after the last that found something, that found
    /// nothing: `flushed` is what the flush before has returned. A sleep ends when the channel can go on,
    /// when the bell is rung, or after `longest`; it does not begin when `news` says that the bell was about
    /// to ring.
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
            WaitStep::Yield => std::thread::yield_now(),
            WaitStep::Block => return self.sleep(channel, flushed, longest, news),
        }
        Ok(())
    }

    /// Sleeps at once, whatever the policy is. As a sleep of [`ChannelWait::wait`]; not while the channel has
    /// something buffered.
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
