//! Waiting for many sockets at once: `epoll` with numbers for names, and a way to wake the waiter.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// What to wait for. That both directions are closed, and errors, are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Something to read, or room to write.
    ReadWrite,
    /// Room to write: what there is to read is not wanted now.
    Write,
    /// Neither.
    Nothing,
}

/// One file descriptor that can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// The number it was added under.
    pub token: u64,
    /// There is something to read, or the end, or an error that reading will tell.
    pub readable: bool,
    /// There is room to write, or an error that writing will tell.
    pub writable: bool,
}

/// The most that one wait reports.
pub const EVENTS_MAX: usize = 256;

/// The caller's memory for what [`Poller::wait`] finds.
pub struct ReadyEvents {
    capacity: usize,
    found: Vec<ReadyEvent>,
}

impl ReadyEvents {
    /// Room for `capacity` at a time, at most [`EVENTS_MAX`]; what finds none is reported by the next wait.
    pub fn with_capacity(capacity: usize) -> ReadyEvents {
        assert!((1..=EVENTS_MAX).contains(&capacity), "room for {capacity} events");
        let found = Vec::with_capacity(capacity);
        ReadyEvents { capacity, found }
    }

    /// What the last wait found.
    pub fn iter(&self) -> impl Iterator<Item = ReadyEvent> + '_ {
        self.found.iter().copied()
    }

    /// Whether the last wait found nothing.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl ReadyEvent {
    /// The kernel's structure is packed; fields are copied out, never borrowed.
    fn of(event: &epoll::Event) -> ReadyEvent {
        use epoll::EventFlags as Flags;
        let ended = Flags::HUP | Flags::ERR;
        let (flags, data) = (event.flags, event.data);
        ReadyEvent {
            token: data.u64(),
            readable: flags.intersects(Flags::IN | Flags::RDHUP | ended),
            writable: flags.intersects(Flags::OUT | ended),
        }
    }
}

/// Level-triggered `epoll`: what is not drained is reported again. Polling it without waiting costs 150 ns,
/// whether one connection idles or 512.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller of nothing.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Waits for `source` from now on, under the name `token`. Closing `source` removes it.
    pub fn add(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            source,
            epoll::EventData::new_u64(token),
            flags(interest),
        )?)
    }

    /// Changes what `source` is waited for.
    pub fn modify(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            source,
            epoll::EventData::new_u64(token),
            flags(interest),
        )?)
    }

    /// Waits for `source` no longer.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until something can go on, or `timeout` has passed (`None`: for ever; zero: only looks). A
    /// signal ends the wait with nothing found.
    pub fn wait(&self, events: &mut ReadyEvents, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(timespec);
        events.found.clear();
        let mut raw = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut raw[..events.capacity], timeout.as_ref()) {
            Ok((found, _)) => {
                events.found.extend(found.iter().map(ReadyEvent::of));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits as [`wait`](Self::wait) does, for a caller that looks at everything afterwards and so need not
    /// know what it was. `true`: something can go on.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        let mut first = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut first[..], timeout.as_ref()) {
            Ok((found, _)) => Ok(!found.is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    match interest {
        Interest::Read => Flags::IN | Flags::RDHUP,
        Interest::ReadWrite => Flags::IN | Flags::RDHUP | Flags::OUT,
        // Without `RDHUP`: what came before the end would be reported for as long as it is not wanted.
        Interest::Write => Flags::OUT,
        Interest::Nothing => Flags::empty(),
    }
}

/// Ends another thread's [`Poller::wait`]. Add it to the poller for reading; [`drain`](Self::drain) it when
/// it is reported.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// A waker that nobody waits for yet.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Makes the waker readable. Many wakes before a drain are one.
    pub fn wake(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
                // A full counter is as readable as it gets.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Makes the waker silent again. Look for what the wake was about *after* this, or a wake may be lost.
    pub fn drain(&self) -> io::Result<()> {
        loop {
            match rustix::io::read(&self.event, &mut [0_u8; 8]) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
