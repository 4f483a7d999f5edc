//! Messages over a link, for threads that may block.

use std::time::{Duration, Instant};

use netram_block_machine::ReplicaMessage;
use netram_journal::owner::JournalOwner;
use netram_proto::wire::{Frame, FrameError};
use netram_transport::{Interest, Link, LinkError, Poller, Waker};

/// Tokens of the link and the waker in the poller.
const LINK: u64 = 0;
const WAKER: u64 = 1;
/// Time after which a peer that reads nothing counts as gone.
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Reason for the end of a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaLinkError {
    /// The peer closed the link, or the link broke.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The peer sent bytes that are no frame.
    #[error("the peer sent an invalid frame: {0}")]
    Frame(#[from] FrameError),
    /// The peer does not read.
    #[error("the peer does not read")]
    Stuck,
    /// The operating system failed the wait, for example because file descriptors have run out.
    #[error("cannot wait for the link: {0}")]
    System(#[from] std::io::Error),
}

/// A link that can be waited for.
pub(crate) struct ReplicaLink {
    link: Link,
    poller: Poller,
    /// Whether the link has bytes that its socket did not accept.
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

    /// A link to a data lender on which the owner of a volume's journal proves itself first.
    pub(crate) fn of_owner(mut link: Link, owner: &JournalOwner) -> Result<ReplicaLink, ReplicaLinkError> {
        owner.introduce(&mut link)?;
        ReplicaLink::new(link)
    }

    /// Name of the peer, for messages.
    pub(crate) fn peer(&self) -> &str {
        self.link.peer()
    }

    /// Whether the peer's key is no longer accepted, so that the session must end.
    pub(crate) fn is_revoked(&self) -> bool {
        self.link.is_revoked()
    }

    /// Also ends waits when `waker` is woken.
    pub(crate) fn wake_on(&self, waker: &Waker) -> Result<(), ReplicaLinkError> {
        Ok(self.poller.add(waker, WAKER, Interest::Read)?)
    }

    /// Queues a message, and waits while the peer is slow. [`ReplicaLink::flush`] sends it.
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

    /// Whether the socket did not accept everything.
    pub(crate) fn is_full(&self) -> bool {
        self.unflushed
    }

    /// Writes to the socket as much as it accepts.
    pub(crate) fn flush(&mut self) -> Result<(), ReplicaLinkError> {
        self.unflushed = !self.link.flush()?;
        Ok(())
    }

    /// Sends one message now.
    pub(crate) fn send(&mut self, message: &ReplicaMessage) -> Result<(), ReplicaLinkError> {
        self.queue(message)?;
        self.flush()
    }

    /// Waits until the socket has accepted all queued bytes.
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

    /// Whether [`next`](Self::next) returns a message without reading the socket.
    pub(crate) fn has_buffered(&self) -> bool {
        self.link.has_buffered()
    }

    /// The next message; waits for it until `deadline`. Messages after the deadline do not count, since a
    /// peer that sends others than the awaited one without end would never be late.
    pub(crate) fn await_next(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<ReplicaMessage>, ReplicaLinkError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(message) = self.next()? {
                return Ok(Some(message));
            }
            self.flush()?;
            self.sleep(left)?;
        }
    }

    /// Waits until the link is ready, the waker is woken, or `longest` has passed.
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

#[cfg(test)]
mod tests {
    use netram_proto::wire::{FrameHeader, FrameKind};
    use netram_transport::both_ends::link_pair;
    use netram_transport::{NetAddress, Security};

    use super::*;

    /// A data lender that sent other messages without end was waited for without end.
    #[test]
    fn a_message_after_the_deadline_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let address = NetAddress::Unix(directory.path().join("data"));
        let (link, mut peer) = link_pair(&address, &Security::Insecure);
        for _ in 0..2 {
            peer.send(&[&FrameHeader::new(FrameKind::Pong).encode(0)])
                .unwrap();
        }
        let mut wire = ReplicaLink::new(link).unwrap();
        let later = Instant::now() + Duration::from_secs(20);
        assert!(wire.await_next(later).unwrap().is_some());
        assert!(wire.await_next(Instant::now()).unwrap().is_none());
    }
}
