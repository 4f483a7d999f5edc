//! A session's link, and the answers queued in it.
//!
//! Nothing is read from a peer while an answer to it is queued. The answers of one turn therefore always fit
//! the link's buffer, and backpressure reaches the peer's own sends.

use std::time::{Duration, Instant};

use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};
use netram_proto::wire::RefusalReason;
use netram_transport::link::SEND_BUFFER_BYTES;
use netram_transport::{Interest, Link, LinkError, Poller};

/// Bytes that the link adds to a packet: its length and a tag.
const PACKET_OVERHEAD_BYTES: usize = 2 + 16;
/// Maximum bytes that one request adds to the link's buffer: an acknowledgement that was held back, and the
/// answer.
const ANSWER_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + 2 * (FRAME_HEADER_BYTES + PACKET_OVERHEAD_BYTES);

const _: () = assert!(
    ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES,
    "an empty send buffer holds any answer"
);

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The peer closed the connection, or the link failed.
    Link(LinkError),
    /// The session was refused, and its peer told: its frame is invalid here, or it is fenced.
    Refused(RefusalReason),
    /// A later session of the same deposit has begun.
    Replaced,
    /// The client's key is no longer accepted.
    Revoked,
    /// The peer was silent for too long.
    Idle,
    /// The peer did not read its answers.
    SlowReader,
    /// The spilled window to which the session was bound has given way to memory of another incarnation.
    Outlived,
    /// The lender is stopping.
    Stopping,
    /// The client was asked to move away, and may return.
    Undrained,
}

impl From<LinkError> for SessionEnd {
    fn from(error: LinkError) -> SessionEnd {
        SessionEnd::Link(error)
    }
}

pub(crate) struct Outbox {
    pub(crate) link: Link,
    /// Bytes given to the link since it was last empty; an upper bound of the bytes queued in it.
    queued: usize,
    /// When the link first had bytes that the peer does not read.
    blocked_since: Option<Instant>,
    /// The events that the poller reports.
    interest: Interest,
    last_contact: Instant,
}

impl Outbox {
    pub(crate) fn new(link: Link, now: Instant) -> Outbox {
        Outbox {
            link,
            queued: 0,
            blocked_since: None,
            interest: Interest::Read,
            last_contact: now,
        }
    }

    /// Whether the session waits for the peer to read its answers.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Whether the answer to one more request fits.
    pub(crate) fn has_room(&self) -> bool {
        self.queued + ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES
    }

    /// Notes that a frame of the peer has arrived.
    pub(crate) fn note_contact(&mut self, now: Instant) {
        self.last_contact = now;
    }

    /// The limit that the session exceeds, if any.
    pub(crate) fn timeout(&self, now: Instant, idle: Duration, slow: Duration) -> Option<SessionEnd> {
        match self.blocked_since {
            Some(since) => (now.duration_since(since) > slow).then_some(SessionEnd::SlowReader),
            None => (now.duration_since(self.last_contact) > idle).then_some(SessionEnd::Idle),
        }
    }

    /// Queues one frame, its header and its body in any number of parts.
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> Result<(), LinkError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.queued += bytes + PACKET_OVERHEAD_BYTES;
        self.link.queue(parts)
    }

    /// Sends queued bytes, as far as the socket takes them.
    pub(crate) fn flush(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.link.flush()? {
            self.queued = 0;
            self.blocked_since = None;
        } else {
            self.blocked_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Whether requests may be read, which requires that queued answers are gone. Tries to send them first.
    pub(crate) fn ready(&mut self, now: Instant) -> Result<bool, LinkError> {
        if self.is_blocked() {
            self.flush(now)?;
        }
        Ok(!self.is_blocked())
    }

    /// Polls for writability while answers are queued, and for readability while frames are read, which a
    /// `paused` session does not do. A socket polled for what its session does not take would keep the thread
    /// awake.
    pub(crate) fn watch(&mut self, poller: &Poller, index: usize, paused: bool) -> std::io::Result<()> {
        let interest = match (self.is_blocked(), paused) {
            (true, _) => Interest::Write,
            (false, true) => Interest::Nothing,
            (false, false) => Interest::Read,
        };
        if interest == self.interest {
            return Ok(());
        }
        self.interest = interest;
        poller.modify(&self.link, index as u64, interest)
    }
}
