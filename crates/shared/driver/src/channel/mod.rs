//! Whole messages, in order, between a node and the server, over one authenticated and encrypted link.
//!
//! `docs/protocol.md` ("Shared region sessions") draws the bytes. A node [opens](Channel::open) a channel;
//! the server's [`SessionAcceptor`] lets them in. Messages are queued, and go with the next flush: many small
//! ones in one packet and one system call. How hard a thread waits for the next one is [`ChannelWait`]'s
//! affair.
//!
//! What the messages mean is `netram_shared_machine`'s.

mod acceptor;
mod stream;
mod wait;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_shared_machine::limit::SHARED_MESSAGE_BYTES_MAX;
use netram_transport::link::PACKET_BYTES_MAX;
use netram_transport::{ConnectError, Interest, Link, LinkError, NetAddress, Poller, Security, connect};

pub use acceptor::{
    AcceptedSession, AcceptorConfig, AcceptorError, SessionAcceptor, SessionHandler, SessionKind,
    SessionPermit,
};
pub use wait::{ChannelWait, ThreadWaker};

use crate::limit::{GREETING_BYTES_MAX, QUEUED_BYTES_MAX};
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
    /// Packets that have come.
    packets: u64,
    fault: Option<ChannelError>,
}

/// Why a channel is of no further use. Drop it; a node resumes over another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer went, or the link broke.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The peer announced a message that cannot be.
    #[error("the peer sent a message of {length} bytes; no message has that length here")]
    Length {
        /// The announced length.
        length: usize,
    },
}

/// Why no channel came about.
#[derive(Debug, thiserror::Error)]
pub enum ChannelOpenError {
    /// No link.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The link broke before the peer had answered.
    #[error("the server closed the connection before it answered: {0}")]
    Link(#[from] LinkError),
    /// The peer lends memory.
    #[error(
        "this is a lender, not the server of a shared region; name the address that `netram shared serve` listens to"
    )]
    Lender,
    /// The peer belongs to a shared region, and tells no status.
    #[error(
        "this is no server that tells its status: a node's own address, or a server of an older release; name the address that \
         `netram shared serve` listens to"
    )]
    NoStatus,
    /// As many as may are being told the status.
    #[error("too many ask the region's server for its status at once; ask again")]
    Busy,
    /// The server is stopping.
    #[error("the region's server is stopping; try again when it has been started")]
    Stopping,
    /// The peer said what no server says.
    #[error("the other side does not serve a shared region")]
    NotAServer,
    /// The peer did not answer.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The system has no descriptors left.
    #[error("waiting for the server: {0}")]
    System(#[from] std::io::Error),
}

impl Channel {
    /// A node's end: connects to the server, and is greeted by it, within `timeout`. Blocks.
    pub fn open(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
    ) -> Result<Channel, ChannelOpenError> {
        let mut channel = Channel::greeted(address, security, timeout, FrameKind::Share)?;
        channel.allow_long_messages();
        Ok(channel)
    }

    /// Asks a server for its status, within `timeout`: the answer, which is of at most `bytes_max`. Blocks.
    pub(crate) fn ask_status(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<Vec<u8>, ChannelOpenError> {
        let deadline = Instant::now() + timeout;
        let mut channel = Channel::greeted(address, security, timeout, FrameKind::Status)?;
        channel.inbox.set_max(bytes_max);
        let poller = Poller::new()?;
        poller.add(&channel, 0, Interest::Read)?;
        loop {
            match channel.receive() {
                Ok(Some(answer)) => return Ok(answer.to_vec()),
                Ok(None) => sleep_until(&poller, deadline)?,
                Err(ChannelError::Link(error)) => return Err(error.into()),
                Err(ChannelError::Length { .. }) => return Err(ChannelOpenError::NotAServer),
            }
        }
    }

    /// Connects, says what for, and hears that this is the place.
    fn greeted(
        address: &NetAddress,
        security: &Security,
        timeout: Duration,
        errand: FrameKind,
    ) -> Result<Channel, ChannelOpenError> {
        let deadline = Instant::now() + timeout;
        let mut link = connect(address, security, timeout)?;
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

    /// Over a link whose greeting is over. Long messages are not taken yet.
    fn new(link: Link) -> Channel {
        Channel {
            link,
            inbox: Inbox::new(GREETING_BYTES_MAX),
            outbox: StreamBuffer::default(),
            packets: 0,
            fault: None,
        }
    }

    /// Takes messages of any allowed length from now on: the peer has been let in.
    pub fn allow_long_messages(&mut self) {
        self.inbox.set_max(SHARED_MESSAGE_BYTES_MAX);
    }

    /// The other end, for people.
    pub fn peer(&self) -> &str {
        self.link.peer()
    }

    /// Whether another message may be queued. A peer that reads slowly makes it `false`.
    pub fn has_room(&self) -> bool {
        self.outbox.waiting().len() < QUEUED_BYTES_MAX
    }

    /// Bytes that wait for the link to take them.
    pub fn queued_bytes(&self) -> usize {
        self.outbox.waiting().len()
    }

    /// Queues the concatenation of `parts` as one message of 1 to [`SHARED_MESSAGE_BYTES_MAX`] bytes;
    /// [`flush`](Self::flush) sends it. Only while there [is room](Self::has_room).
    pub fn queue(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(
            (1..=SHARED_MESSAGE_BYTES_MAX).contains(&length),
            "a message of {length} bytes"
        );
        assert!(self.has_room(), "the caller asks first");
        self.outbox.put_message(parts);
    }

    /// Gives the socket what waits. `true`: nothing waits any more.
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

    /// The next message that has arrived whole.
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

    /// Takes packets until a whole message is there, or the socket has no more.
    fn find(&mut self) -> Result<Option<usize>, ChannelError> {
        loop {
            if let Some(length) = self.inbox.whole()? {
                return Ok(Some(length));
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

    /// How many packets have come. A long message comes in many: while this grows the peer is not silent.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether [`receive`](Self::receive) can return something without asking the socket. Before sleeping
    /// this must be `false`: the kernel does not tell of bytes that have left it.
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

/// Whether the peer's first packet lets us in.
fn check_greeting(packet: &[u8]) -> Result<(), ChannelOpenError> {
    let frame = Frame::parse(packet).map_err(|_| ChannelOpenError::NotAServer)?;
    match (frame.header.kind, RefusalReason::from_byte(frame.header.flags)) {
        (FrameKind::ShareAck, _) => Ok(()),
        (FrameKind::Refuse, Some(RefusalReason::Stopping)) => Err(ChannelOpenError::Stopping),
        // A lender of before there were shared regions knows no `Share`.
        (
            FrameKind::Refuse,
            Some(RefusalReason::NoRegion | RefusalReason::DataOnly | RefusalReason::Malformed),
        ) => Err(ChannelOpenError::Lender),
        // Asked for its status. A lender has room for everybody who asks.
        (FrameKind::Refuse, Some(RefusalReason::NoRoom)) => Err(ChannelOpenError::Busy),
        // It was asked for its status, and has told it.
        (FrameKind::Report, _) => Err(ChannelOpenError::Lender),
        // Asked for its status: one of before that could be asked for, or a node's, where others come in.
        (FrameKind::Refuse, Some(RefusalReason::RegionOnly)) => Err(ChannelOpenError::NoStatus),
        _ => Err(ChannelOpenError::NotAServer),
    }
}
