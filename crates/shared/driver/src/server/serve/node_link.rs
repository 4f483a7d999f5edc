//! One session: its channel, and what is waited for.

use std::sync::Arc;
use std::time::Instant;

use netram_shared_machine::{NodeId, ToNode, ToServer};
use netram_transport::{Interest, Poller};

use crate::channel::{AcceptedSession, Channel, ChannelError, SessionPermit};
use crate::limit::{CLOSE_TIMEOUT, PENDING_SILENCE_MAX};

/// A record's bytes, in the region's order and on the way to all nodes.
pub(super) type ServerPayload = Arc<[u8]>;

/// A message that has to wait for the end of a reading.
pub(super) struct DeferredMessage {
    pub(super) node: NodeId,
    pub(super) message: ToServer<ServerPayload>,
}

/// One session.
pub(super) struct NodeLink {
    pub(super) channel: Channel,
    /// The last word is on its way: what comes is thrown away, and it is over when the peer closes it, at the
    /// latest now. Closed here at once, with something unread, the link would be reset, and the last word
    /// with it.
    pub(super) closing: Option<Instant>,
    /// What waits for the end of a reading.
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

    /// Whether messages are taken from it. One that waits with an offer may go on, for it must keep its
    /// lease; one with a part of what it offered may not: the next part would overtake.
    pub(super) fn is_open(&self) -> bool {
        let held = self.deferred.as_ref().map(|held| &held.message);
        !matches!(held, Some(ToServer::OrphanRecord { .. }))
    }

    /// Takes long messages from now on.
    pub(super) fn admit(&mut self) {
        if !self.admitted {
            self.admitted = true;
            self.channel.allow_long_messages();
        }
    }

    /// Nothing counts that comes, and nothing is said but what is queued.
    pub(super) fn close(&mut self, now: Instant) {
        self.closing.get_or_insert(now + CLOSE_TIMEOUT);
    }

    /// Queues a message. There is room.
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

    /// Whether there is no more time for the last word.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.closing.is_some_and(|until| until <= now)
    }

    /// Whether it has been silent for longer than somebody may who is no node.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now.duration_since(self.heard_at) > PENDING_SILENCE_MAX
    }

    /// Waits for what it can go on with: for something to read only if that `may` be read.
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
