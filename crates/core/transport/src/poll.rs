//! Waiting for many sockets with `epoll`, and a way to wake the waiting thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Events to wait for. A close of both directions and errors are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readability.
    Read,
    /// Readability and writability.
    ReadWrite,
    /// Writability only.
    Write,
    /// An exceptional condition, by which the kernel's files of stalls report one.
    Exception,
    /// Neither.
    Nothing,
}

/// A file descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// The token under which it was added.
    pub token: u64,
    /// A read will return data, the end of the stream or an error.
    pub readable: bool,
    /// A write will make progress or return an error.
    pub writable: bool,
}

/// Maximum events that one wait reports.
pub const EVENTS_MAX: usize = 256;

/// Buffer for the events of [`Poller::wait`].
pub struct ReadyEvents {
    capacity: usize,
    found: Vec<ReadyEvent>,
}

impl ReadyEvents {
    /// A buffer for `capacity` events, at most [`EVENTS_MAX`]. The next wait reports those that did not fit.
    pub fn with_capacity(capacity: usize) -> ReadyEvents {
        assert!(
            (1..=EVENTS_MAX).contains(&capacity),
            "a capacity of {capacity} events is out of bounds"
        );
        let found = Vec::with_capacity(capacity);
        ReadyEvents { capacity, found }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = ReadyEvent> + '_ {
        self.found.iter().copied()
    }

    /// Whether the last wait returned no event.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl ReadyEvent {
    /// The kernel's structure is packed, so fields are copied and never borrowed.
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

/// Level-triggered `epoll`: an unread descriptor is reported again. A call without waiting costs 150 ns, for
/// one idle connection or for 512.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller without descriptors.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds `source` under the number `token`. Closing `source` removes it.
    ///
    /// # Errors
    /// `source` was added before, or the system's limit of watches is reached.
    pub fn add(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            source,
            epoll::EventData::new_u64(token),
            flags(interest),
        )?)
    }

    /// Changes the events that are awaited on `source`.
    ///
    /// # Errors
    /// `source` was not added.
    pub fn modify(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            source,
            epoll::EventData::new_u64(token),
            flags(interest),
        )?)
    }

    /// Removes `source`.
    ///
    /// # Errors
    /// `source` was not added.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until a descriptor is ready or `timeout` has passed (`None`: no limit; zero: no waiting). A
    /// signal ends the wait without an event.
    ///
    /// # Errors
    /// The system call failed for another reason than a signal.
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

    /// Waits like [`wait`](Self::wait) but does not report which descriptors are ready, for a caller that
    /// examines all of them. Returns whether any is.
    ///
    /// # Errors
    /// The system call failed for another reason than a signal.
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
        // Not `RDHUP`: a closed peer would be reported again and again while its data is not wanted.
        Interest::Write => Flags::OUT,
        Interest::Exception => Flags::PRI,
        Interest::Nothing => Flags::empty(),
    }
}

/// Ends another thread's [`Poller::wait`]. Add it to the poller for reading, and [`drain`](Self::drain) it
/// when it is reported.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// A waker that is not in a poller yet.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Makes the waker readable. Several wakes before a drain count as one.
    ///
    /// # Errors
    /// The write to the eventfd failed.
    pub fn wake(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
                // A full counter is readable, too.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Makes the waker unreadable again. Check the awaited condition *after* this call, or a wake may be
    /// lost.
    ///
    /// # Errors
    /// The read of the eventfd failed.
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
