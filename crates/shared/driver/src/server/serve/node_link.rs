//! One session: its channel and its waiting state.

use std::sync::Arc;
use std::time::Instant;

use netram_shared_machine::{NodeId, ToNode, ToServer};
use netram_transport::{Interest, Poller};

use crate::channel::{AcceptedSession, Channel, ChannelError, SessionPermit};
use crate::limit::{CLOSE_TIMEOUT, PENDING_SILENCE_MAX};

/// A record's bytes, shared by the region's order and all links.
pub(super) type ServerPayload = Arc<[u8]>;

/// A message that waits for the end of a reading.
pub(super) struct DeferredMessage {
    pub(super) node: NodeId,
    pub(super) message: ToServer<ServerPayload>,
}

/// A session of a node or another client.
pub(super) struct NodeLink {
    pub(super) channel: Channel,
    /// Set while the last message is on its way: further input is dropped, and the session ends when the peer
    /// closes it, or at this time. If this side closed it with unread input, the link would be reset and the
    /// last message lost.
    pub(super) closing: Option<Instant>,
    /// Message that waits for the end of a reading.
    pub(super) deferred: Option<DeferredMessage>,
    heard_at: Instant,
    admitted: bool,
    flushed: bool,
    interest: Interest,
    _permit: SessionPermit,
}

impl NodeLink {
    pub(super) fn new(arrival: AcceptedSession, now: Instant) -> NodeLink {
        NodeLink {
            channel: arrival.channel,
            closing: None,
            deferred: None,
            heard_at: now,
            admitted: false,
            flushed: true,
            interest: Interest::Read,
            _permit: arrival.permit,
        }
    }

    pub(super) fn on_heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Whether messages are read. While an offer waits reading goes on, since its node must keep its lease.
    /// While a record of an offer waits it does not: the next record would overtake it.
    pub(super) fn is_open(&self) -> bool {
        let held = self.deferred.as_ref().map(|held| &held.message);
        !matches!(held, Some(ToServer::OrphanRecord { .. }))
    }

    /// Accepts long messages from now on.
    pub(super) fn admit(&mut self) {
        if !self.admitted {
            self.admitted = true;
            self.channel.allow_long_messages();
        }
    }

    /// Closes the session: input is dropped, and only queued messages are still sent.
    pub(super) fn close(&mut self, now: Instant) {
        self.closing.get_or_insert(now + CLOSE_TIMEOUT);
    }

    /// Queues a message, for which there must be room. Returns its bytes.
    pub(super) fn queue(&mut self, message: &ToNode<impl AsRef<[u8]>>, scratch: &mut Vec<u8>) -> usize {
        scratch.clear();
        message.head(scratch);
        let payload: &[u8] = message.payload().map_or(&[], |payload| payload.as_ref());
        self.channel.queue(&[scratch.as_slice(), payload]);
        scratch.len() + payload.len()
    }

    pub(super) fn flush(&mut self) -> Result<(), ChannelError> {
        self.flushed = self.channel.flush()?;
        Ok(())
    }

    /// Whether the time for the last message is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.closing.is_some_and(|until| until <= now)
    }

    /// Whether a session without a node has been silent for too long.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now.duration_since(self.heard_at) > PENDING_SILENCE_MAX
    }

    /// Sets the poller's interest: reading only if `may_read`, and writing while output waits.
    pub(super) fn wait_for(&mut self, may_read: bool, poller: &Poller, token: u64) -> std::io::Result<()> {
        let interest = match (may_read, self.flushed) {
            (true, true) => Interest::Read,
            (true, false) => Interest::ReadWrite,
            (false, false) => Interest::Write,
            (false, true) => Interest::Nothing,
        };
        if interest != self.interest {
            poller.modify(&self.channel, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Whether a report of the poller can only mean that the link is dead.
    pub(super) fn is_dead(&self) -> bool {
        self.interest == Interest::Nothing
    }
}
