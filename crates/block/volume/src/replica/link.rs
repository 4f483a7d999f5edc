//! Messages over a link, for threads that may wait for them.

use std::time::{Duration, Instant};

use netram_block_machine::ReplicaMessage;
use netram_proto::wire::{Frame, FrameError};
use netram_transport::{Interest, Link, LinkError, Poller, Waker};

/// The link's name for the poller, and the waker's.
const LINK: u64 = 0;
const WAKER: u64 = 1;
/// A peer that takes nothing for so long is gone.
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaLinkError {
    /// The peer went, or the link broke.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// What came is no frame.
    #[error("the peer sent what makes no sense: {0}")]
    Frame(#[from] FrameError),
    /// The peer takes nothing any more.
    #[error("the peer reads nothing")]
    Stuck,
    /// The system has no descriptors left.
    #[error("waiting for the link: {0}")]
    System(#[from] std::io::Error),
}

/// A link, and waiting for it.
pub(crate) struct ReplicaLink {
    link: Link,
    poller: Poller,
    /// The link has bytes that its socket did not take.
    unflushed: bool,
}

impl ReplicaLink {
    pub(crate) fn new(link: Link) -> Result<ReplicaLink, ReplicaLinkError> {
        let poller = Poller::new()?;
        poller.add(&link, LINK, Interest::Read)?;
        Ok(ReplicaLink {
            link,
            poller,
            unflushed: false,
        })
    }

    /// The other end, for people.
    pub(crate) fn peer(&self) -> &str {
        self.link.peer()
    }

    /// Has `waker` end waits too.
    pub(crate) fn wake_on(&self, waker: &Waker) -> Result<(), ReplicaLinkError> {
        Ok(self.poller.add(waker, WAKER, Interest::Read)?)
    }

    /// Queues a message, waiting while the peer is slow. [`ReplicaLink::flush`] sends it.
    pub(crate) fn queue(&mut self, message: &ReplicaMessage) -> Result<(), ReplicaLinkError> {
        let head = message.header.encode(message.body.len());
        let deadline = Instant::now() + STUCK_MAX;
        loop {
            match self.link.queue(&[&head, &message.body]) {
                Ok(()) => return Ok(()),
                Err(LinkError::Congested) => self.drain(deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the socket did not take everything.
    pub(crate) fn is_full(&self) -> bool {
        self.unflushed
    }

    /// Gives the socket what it takes.
    pub(crate) fn flush(&mut self) -> Result<(), ReplicaLinkError> {
        self.unflushed = !self.link.flush()?;
        Ok(())
    }

    /// Sends one message now.
    pub(crate) fn send(&mut self, message: &ReplicaMessage) -> Result<(), ReplicaLinkError> {
        self.queue(message)?;
        self.flush()
    }

    /// Waits for the socket to take everything that waits.
    fn drain(&mut self, deadline: Instant) -> Result<(), ReplicaLinkError> {
        self.flush()?;
        while self.unflushed {
            if Instant::now() >= deadline {
                return Err(ReplicaLinkError::Stuck);
            }
            self.sleep(Duration::from_millis(100))?;
            self.flush()?;
        }
        Ok(())
    }

    /// The next message that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<ReplicaMessage>, ReplicaLinkError> {
        let Some(packet) = self.link.receive()? else {
            return Ok(None);
        };
        let frame = Frame::parse(packet)?;
        Ok(Some(ReplicaMessage {
            header: frame.header,
            body: frame.body.to_vec(),
        }))
    }

    /// The next message, waited for until `deadline`.
    pub(crate) fn await_next(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<ReplicaMessage>, ReplicaLinkError> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.flush()?;
            self.sleep(left)?;
        }
    }

    /// Waits until the link can go on, the waker was woken, or `longest` has passed.
    pub(crate) fn sleep(&mut self, longest: Duration) -> Result<(), ReplicaLinkError> {
        if self.link.has_buffered() {
            return Ok(());
        }
        let interest = match self.unflushed {
            true => Interest::ReadWrite,
            false => Interest::Read,
        };
        self.poller.modify(&self.link, LINK, interest)?;
        self.poller.sleep(Some(longest))?;
        Ok(())
    }
}
