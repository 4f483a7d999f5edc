//! Whole messages, in order, between a node and the server, over one authenticated and encrypted link.
//!
//! The bytes are specified in `docs/design/protocol.md` ("Shared region sessions"). A node
//! [opens](Channel::open) a channel; the server's [`SessionAcceptor`] accepts it. Messages are queued, and
//! sent with the next flush: many small ones in one packet and one system call. [`ChannelWait`] lets a thread
//! wait for the next message.
//!
//! `netram_shared_machine` gives the messages their meaning.

mod acceptor;
mod stream;
mod wait;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netram_proto::wire::{ClientLimitRefusal, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_shared_machine::limit::SHARED_MESSAGE_BYTES_MAX;
use netram_transport::link::PACKET_BYTES_MAX;
use netram_transport::{
    ConnectError, Interest, Link, LinkError, NetAddress, OwnerKey, Poller, Security, connect,
};

pub use acceptor::{
    AcceptedSession, AcceptorConfig, AcceptorError, SessionAcceptor, SessionHandler, SessionKind,
    SessionPermit,
};
pub use wait::{ChannelWait, ThreadWaker};

use crate::limit::{GREETING_BYTES_MAX, PACKETS_A_TURN, QUEUED_BYTES_MAX};
use stream::{BadLength, Inbox, StreamBuffer};

/// One end of a session between a node and the server.
///
/// Methods never block. A caller that sleeps waits for readability when [`receive`](Self::receive) has
/// returned `None`, and also for writability while [`flush`](Self::flush) returns `false`. After an error the
/// channel is of no further use.
#[derive(Debug)]
pub struct Channel {
    link: Link,
    inbox: Inbox,
    outbox: StreamBuffer,
    /// Number of packets that were received.
    packets: u64,
    fault: Option<ChannelError>,
}

/// Failure after which a channel is unusable. Drop it; a node resumes over another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer closed the link, or the link broke.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The peer announced a message of an invalid length.
    #[error("the peer announced a message of {length} bytes, which is not a valid length")]
    Length {
        /// The announced length in bytes.
        length: usize,
    },
}

/// Failure to open a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelOpenError {
    /// The link could not be opened.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The link broke before the peer had answered.
    #[error("the server closed the connection before it answered: {0}")]
    Link(#[from] LinkError),
    /// The peer is a lender.
    #[error(
        "the peer is a lender, not the server of a shared region; use the address that `netram shared serve` listens on"
    )]
    Lender,
    /// The peer belongs to a shared region, but does not report a status.
    #[error(
        "the peer does not report a status: it is a node, or a server of an older release; use the address that \
         `netram shared serve` listens on"
    )]
    NoStatus,
    /// The server has the maximum number of status sessions.
    #[error("too many clients ask the region's server for its status at once; try again")]
    Busy,
    /// The server's operator has not given the name of this program's key what it asks for.
    #[error("the region's server refuses: {0}")]
    OverClientLimit(ClientLimitRefusal),
    /// The server is stopping.
    #[error("the region's server is stopping; try again after it has restarted")]
    Stopping,
    /// The peer's answer is none of a region's server.
    #[error("the peer does not serve a shared region")]
    NotAServer,
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The system has no file descriptors left.
    #[error("waiting for the server: {0}")]
    System(#[from] std::io::Error),
}

impl Channel {
    /// Whether the client's key is no longer accepted, so that the session must end.
    pub fn is_revoked(&self) -> bool {
        self.link.is_revoked()
    }

    /// Connects to the server and waits for its greeting, for at most `timeout`. Blocks.
    ///
    /// # Errors
    ///
    /// [`ChannelOpenError`] if the server cannot be reached, refuses, or does not answer in time.
    pub fn open(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
    ) -> Result<Channel, ChannelOpenError> {
        Channel::open_as(address, security, timeout, None)
    }

    /// Opens a channel like [`open`](Self::open), and proves first that the client is `owner`. A server of an
    /// earlier release, which does not ask for proofs, gets none.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_as(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
        owner: Option<&OwnerKey>,
    ) -> Result<Channel, ChannelOpenError> {
        let mut channel = Channel::greeted(address, security, timeout, FrameKind::Share, owner)?;
        channel.allow_long_messages();
        Ok(channel)
    }

    /// Asks a server for its status, for at most `timeout`. Returns the answer, which has at most `bytes_max`
    /// bytes. Blocks.
    pub(crate) fn ask_status(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<Vec<u8>, ChannelOpenError> {
        let deadline = Instant::now() + timeout;
        let mut channel = Channel::greeted(address, security, timeout, FrameKind::Status, None)?;
        channel.inbox.set_max(bytes_max);
        let poller = Poller::new()?;
        poller.add(&channel, 0, Interest::Read)?;
        loop {
            match channel.receive() {
                Ok(Some(answer)) => return Ok(answer.to_vec()),
                Ok(None) => (),
                Err(ChannelError::Link(error)) => return Err(error.into()),
                Err(ChannelError::Length { .. }) => return Err(ChannelOpenError::NotAServer),
            }
            if !channel.has_buffered() || Instant::now() >= deadline {
                sleep_until(&poller, deadline)?;
            }
        }
    }

    /// Connects, sends the purpose of the session, and waits for the greeting.
    fn greeted(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
        errand: FrameKind,
        owner: Option<&OwnerKey>,
    ) -> Result<Channel, ChannelOpenError> {
        let deadline = Instant::now() + timeout;
        let mut link = connect(address, security, timeout)?;
        if let Some(owner) = owner {
            owner.introduce(&mut link)?;
        }
        link.send(&[&FrameHeader::new(errand).encode(0)])?;
        let poller = Poller::new()?;
        poller.add(&link, 0, Interest::Read)?;
        loop {
            link.flush()?;
            if let Some(packet) = link.receive()? {
                check_greeting(packet)?;
                return Ok(Channel::new(link));
            }
            sleep_until(&poller, deadline)?;
        }
    }

    /// Creates a channel over a link whose greeting is done. Long messages are refused at first.
    fn new(link: Link) -> Channel {
        Channel {
            link,
            inbox: Inbox::new(GREETING_BYTES_MAX),
            outbox: StreamBuffer::default(),
            packets: 0,
            fault: None,
        }
    }

    /// Accepts messages of any valid length from now on, since the peer has been admitted.
    pub fn allow_long_messages(&mut self) {
        self.inbox.set_max(SHARED_MESSAGE_BYTES_MAX);
    }

    /// Address of the peer, for people.
    pub fn peer(&self) -> &str {
        self.link.peer()
    }

    /// Whether another message may be queued. It becomes `false` if the peer reads slowly.
    pub fn has_room(&self) -> bool {
        self.outbox.waiting().len() < QUEUED_BYTES_MAX
    }

    /// Number of bytes that wait for the link.
    pub fn queued_bytes(&self) -> usize {
        self.outbox.waiting().len()
    }

    /// Queues the concatenation of `parts` as one message of 1 to [`SHARED_MESSAGE_BYTES_MAX`] bytes.
    /// [`flush`](Self::flush) sends it. Panics unless there [is room](Self::has_room).
    pub fn queue(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(
            (1..=SHARED_MESSAGE_BYTES_MAX).contains(&length),
            "a message of {length} bytes"
        );
        assert!(self.has_room(), "the caller asks first");
        self.outbox.put_message(parts);
    }

    /// Writes queued bytes to the socket. Returns `true` if none are left.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Link`] if the link broke.
    pub fn flush(&mut self) -> Result<bool, ChannelError> {
        loop {
            let waiting = self.outbox.waiting();
            let piece = &waiting[..waiting.len().min(PACKET_BYTES_MAX)];
            if piece.is_empty() {
                return Ok(self.link.flush()?);
            }
            match self.link.queue(&[piece]) {
                Ok(()) => {
                    let sent = piece.len();
                    self.outbox.drop_front(sent);
                }
                // The link's buffer is full: if the socket takes all of it there may be room for more.
                Err(LinkError::Congested) if self.link.flush()? => (),
                Err(LinkError::Congested) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Next complete message, if one has arrived.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] if the link broke or the peer announced an invalid length; every later call fails,
    /// too.
    pub fn receive(&mut self) -> Result<Option<&[u8]>, ChannelError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        match self.find() {
            Ok(found) => Ok(found.map(|length| self.inbox.take(length))),
            Err(fault) => {
                self.fault = Some(fault);
                Err(fault)
            }
        }
    }

    /// Reads packets until a whole message is there, the socket has no more, or it is the turn of others: a
    /// message of the longest kind comes in a thousand packets.
    fn find(&mut self) -> Result<Option<usize>, ChannelError> {
        let first = self.packets;
        loop {
            if let Some(length) = self.inbox.whole()? {
                return Ok(Some(length));
            }
            if self.packets - first >= PACKETS_A_TURN {
                return Ok(None);
            }
            match self.link.receive()? {
                Some(packet) => {
                    self.packets += 1;
                    self.inbox.push(packet);
                }
                None => return Ok(None),
            }
        }
    }

    /// Number of received packets. A long message comes in many: while the number grows, the peer is not
    /// silent.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether [`receive`](Self::receive) can return something without reading the socket. This must be
    /// `false` before sleeping: the kernel does not report bytes that were read already.
    pub fn has_buffered(&self) -> bool {
        self.fault.is_some() || !matches!(self.inbox.whole(), Ok(None)) || self.link.has_buffered()
    }
}

impl From<BadLength> for ChannelError {
    fn from(bad: BadLength) -> ChannelError {
        ChannelError::Length { length: bad.0 }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn sleep_until(poller: &Poller, deadline: Instant) -> Result<(), ChannelOpenError> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ChannelOpenError::TimedOut),
        false => Ok(poller.sleep(Some(left)).map(drop)?),
    }
}

/// Whether the peer's first packet is a greeting.
fn check_greeting(packet: &[u8]) -> Result<(), ChannelOpenError> {
    let frame = Frame::parse(packet).map_err(|_| ChannelOpenError::NotAServer)?;
    match (frame.header.kind, RefusalReason::from_byte(frame.header.flags)) {
        (FrameKind::ShareAck, _) => Ok(()),
        (FrameKind::Refuse, Some(RefusalReason::Stopping)) => Err(ChannelOpenError::Stopping),
        (FrameKind::Refuse, Some(RefusalReason::OverClientLimit)) => {
            let (resource, limit) = (frame.header.lsn.0, frame.header.stable.0);
            let refusal = ClientLimitRefusal::from_numbers(resource, limit);
            Err(ChannelOpenError::OverClientLimit(refusal))
        }
        // A lender of a release without shared regions does not know `Share`.
        (
            FrameKind::Refuse,
            Some(RefusalReason::NoRegion | RefusalReason::DataOnly | RefusalReason::Malformed),
        ) => Err(ChannelOpenError::Lender),
        // Answer to a status request. A lender never answers it with `NoRoom`.
        (FrameKind::Refuse, Some(RefusalReason::NoRoom)) => Err(ChannelOpenError::Busy),
        // Answer of a lender to a status request.
        (FrameKind::Report, _) => Err(ChannelOpenError::Lender),
        // Answer to a status request of a server of an older release, or of a node's listener for peers.
        (FrameKind::Refuse, Some(RefusalReason::RegionOnly)) => Err(ChannelOpenError::NoStatus),
        _ => Err(ChannelOpenError::NotAServer),
    }
}
