//! A session's link, and the answers that wait in it.
//!
//! A peer that does not read its answers is not read from either: nothing is taken while an answer waits, so
//! the answers of one turn always fit the link's buffer, and the peer's own sends come to a stop.

use std::time::{Duration, Instant};

use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};
use netram_transport::link::SEND_BUFFER_BYTES;
use netram_transport::{Interest, Link, LinkError, Poller};

/// Bytes that the link adds to a packet: its length and a tag.
const PACKET_OVERHEAD_BYTES: usize = 2 + 16;
/// The most that one request adds to the link's buffer: an acknowledgement that was held back, and the
/// answer.
const ANSWER_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + 2 * (FRAME_HEADER_BYTES + PACKET_OVERHEAD_BYTES);

const _: () = assert!(
    ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES,
    "an empty link takes any answer"
);

/// What a session's time is up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionTimeout {
    /// Nothing was heard for too long.
    Idle,
    /// The peer did not read its answers.
    SlowReader,
}

pub(crate) struct Outbox {
    pub(crate) link: Link,
    /// Bytes given to the link since it was last empty; an upper bound of what waits there.
    queued: usize,
    /// Since when the link has held bytes that the peer does not take.
    blocked_since: Option<Instant>,
    /// Whether the poller was told to wait for room to write.
    waits_to_write: bool,
    last_contact: Instant,
}

impl Outbox {
    pub(crate) fn new(link: Link, now: Instant) -> Outbox {
        Outbox {
            link,
            queued: 0,
            blocked_since: None,
            waits_to_write: false,
            last_contact: now,
        }
    }

    /// Whether the session waits for the peer to read, rather than for it to write.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Whether one more request may be taken: its answer fits.
    pub(crate) fn has_room(&self) -> bool {
        self.queued + ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES
    }

    /// Something was heard of the peer.
    pub(crate) fn note_contact(&mut self, now: Instant) {
        self.last_contact = now;
    }

    /// Whether the session's time is up.
    pub(crate) fn timeout(&self, now: Instant, idle: Duration, slow: Duration) -> Option<SessionTimeout> {
        match self.blocked_since {
            Some(since) => (now.duration_since(since) > slow).then_some(SessionTimeout::SlowReader),
            None => (now.duration_since(self.last_contact) > idle).then_some(SessionTimeout::Idle),
        }
    }

    /// Queues one frame, its header and its body in any number of parts.
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> Result<(), LinkError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.queued += bytes + PACKET_OVERHEAD_BYTES;
        self.link.queue(parts)
    }

    /// Sends what waits, as far as the peer takes it.
    pub(crate) fn flush(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.link.flush()? {
            self.queued = 0;
            self.blocked_since = None;
        } else {
            self.blocked_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Before anything is taken: whether what had waited is gone.
    pub(crate) fn ready(&mut self, now: Instant) -> Result<bool, LinkError> {
        if self.is_blocked() {
            self.flush(now)?;
        }
        Ok(!self.is_blocked())
    }

    /// Waits for room to write while answers wait, and only then.
    pub(crate) fn watch(&mut self, poller: &Poller, index: usize) -> std::io::Result<()> {
        if self.is_blocked() == self.waits_to_write {
            return Ok(());
        }
        self.waits_to_write = self.is_blocked();
        let interest = if self.is_blocked() {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        poller.modify(&self.link, index as u64, interest)
    }
}
