//! Receives messages, and makes the driver's checks before the machine sees them.

use netram_shared_machine::message::{JoinRefusal, JoinRequest, OrphanJournalId};
use netram_shared_machine::server::{LinkEnd, SessionId};
use netram_shared_machine::{ToNode, ToServer};
use netram_transport::{LinkError, ReadyEvents};

use super::RegionServeError;
use super::driver::{ServeDriver, WAKER_TOKEN};
use super::node_link::{DeferredMessage, NodeLink, ServerPayload};
use super::readings::is_key_of;
use crate::channel::ChannelError;
use crate::limit::{MESSAGES_A_TURN, QUEUED_REPLIES_MAX};
use crate::server::store::PayloadError;
use crate::server::table::NODES_MAX;

impl ServeDriver {
    pub(super) fn take_links(&mut self, events: &ReadyEvents) -> Result<bool, RegionServeError> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(
            events
                .iter()
                .filter(|ready| ready.token != WAKER_TOKEN)
                .map(|ready| SessionId(ready.token)),
        );
        let moved = !due.is_empty();
        for session in due.drain(..) {
            self.read(session)?;
        }
        // Nothing was added in between: that happens when links are filled.
        std::mem::swap(&mut self.due, &mut due);
        Ok(moved)
    }

    /// Reads some messages of a link, while there is room for its answers.
    fn read(&mut self, session: SessionId) -> Result<(), RegionServeError> {
        if self.links.get(&session).is_some_and(NodeLink::is_dead) {
            return self.on_link_failed(session, &ChannelError::Link(LinkError::Closed));
        }
        for _ in 0..MESSAGES_A_TURN {
            if !self.may_read(session) {
                return Ok(());
            }
            let Some(line) = self.links.get_mut(&session) else {
                return Ok(());
            };
            let closing = line.closing.is_some();
            let message = match line.channel.receive() {
                Ok(Some(_)) if closing => continue,
                Ok(Some(bytes)) => ToServer::decode(bytes).map(|message| message.map(ServerPayload::from)),
                Ok(None) => return Ok(()),
                Err(error) => return self.on_link_failed(session, &error),
            };
            line.on_heard(self.now);
            match message {
                Ok(message) => self.on_message(session, message)?,
                Err(error) => {
                    tracing::error!(peer = line.channel.peer(), %error, "a peer sent an invalid message");
                    return self.report_violation(session, "its bytes are no messages");
                }
            }
        }
        Ok(())
    }

    fn may_read(&self, session: SessionId) -> bool {
        self.links.get(&session).is_some_and(NodeLink::is_open)
            && self.server.urgent(session) < QUEUED_REPLIES_MAX
    }

    /// Checks a message and hands it to the machine.
    pub(super) fn on_message(
        &mut self,
        session: SessionId,
        message: ToServer<ServerPayload>,
    ) -> Result<(), RegionServeError> {
        if message.is_awaited() {
            self.requested_at = self.now;
        }
        match &message {
            ToServer::OfferOrphan { old, .. } => {
                let node = self.store.table().node(old.node);
                if node.is_some_and(|node| node.view.journal == old.journal) {
                    self.readings.offered(old.node, session, self.now);
                }
            }
            ToServer::OrphanRecord { node, .. } => self.readings.on_offer_progress(*node, session, self.now),
            _ => (),
        }
        match &message {
            ToServer::OfferOrphan {
                old: OrphanJournalId { node, .. },
                ..
            }
            | ToServer::OrphanRecord { node, .. }
                if self.readings.is_running(*node) =>
            {
                let node = *node;
                if let Some(line) = self.links.get_mut(&session) {
                    line.deferred = Some(DeferredMessage { node, message });
                }
                return Ok(());
            }
            // From a node that has ended and has not heard of that yet.
            ToServer::Record { .. } if self.server.node(session).is_none() => return Ok(()),
            ToServer::Record { number, payload, .. } | ToServer::OrphanRecord { number, payload, .. } => {
                if let Err(error) = self.check(payload) {
                    let node = self.server.node(session).map_or(0, |node| node.0);
                    tracing::error!(node, number = number.0, %error, "a node's record is refused");
                    return self.report_violation(session, "it sent a record that is invalid for the region");
                }
            }
            ToServer::Join(join) => {
                if let Some(refused) = self.refusal(join) {
                    return self.refuse(session, refused);
                }
                self.free_slot()?;
            }
            _ => (),
        }
        self.server.handle(self.time(), session, message);
        if self.server.node(session).is_some()
            && let Some(line) = self.links.get_mut(&session)
        {
            line.admit();
        }
        self.run_actions()
    }

    /// Checks that a record is one of the region, stays in the spans of the locks that it wrote under, and
    /// fits the log.
    pub(super) fn check(&self, payload: &[u8]) -> Result<(), RecordRefusal> {
        if payload.len() > self.payload_bytes_max {
            return Err(RecordRefusal::Long {
                bytes: payload.len(),
                most: self.payload_bytes_max,
            });
        }
        self.store.check(payload).map(drop).map_err(RecordRefusal::Record)
    }

    /// Reason to refuse a join request before the machine sees it, if any.
    fn refusal(&self, join: &JoinRequest) -> Option<JoinRefusal> {
        if !is_key_of(join.view.journal, &join.key) {
            tracing::error!(
                bytes = join.key.len(),
                "a node's journal has a key of an invalid length, or another journal's"
            );
            return Some(JoinRefusal::Journal);
        }
        let table = self.store.table();
        let known = table
            .nodes
            .iter()
            .any(|node| node.view.journal == join.view.journal);
        (!known && table.nodes.len() >= NODES_MAX).then_some(JoinRefusal::Full)
    }

    /// If the nodes' table is full and has gone nodes, frees the entry of one of them.
    fn free_slot(&mut self) -> Result<(), RegionServeError> {
        let table = self.store.table();
        if table.nodes.len() + table.retired.len() < NODES_MAX {
            return Ok(());
        }
        if let Some(node) = self.server.abandon_forget() {
            tracing::warn!(
                node = node.0,
                "the table of nodes is full, so the lenders of a node that is gone are not told any more to free its memory; they free it when they restart"
            );
        }
        self.run_actions()
    }

    fn refuse(&mut self, session: SessionId, refused: JoinRefusal) -> Result<(), RegionServeError> {
        // The machine may know the session by an earlier question.
        self.server.on_closed(self.time(), session, LinkEnd::Broken);
        self.readings.closed(session);
        if let Some(line) = self.links.get_mut(&session) {
            // A client that does not read its answers has no room for this one.
            if line.channel.has_room() {
                line.queue(&ToNode::<ServerPayload>::Refused(refused), &mut self.scratch);
            }
            line.close(self.now);
        }
        self.run_actions()
    }

    /// Handles a violation of the protocol by a client.
    fn report_violation(&mut self, session: SessionId, what: &'static str) -> Result<(), RegionServeError> {
        match self.server.node(session) {
            Some(node) => {
                self.server.report_violation(node, what);
                self.run_actions()
            }
            // The client has been told already, or is about to be.
            None if self.server.urgent(session) > 0 => Ok(()),
            None => self.end(session, what, LinkEnd::Broken),
        }
    }

    /// Ends the session of a link that failed.
    pub(super) fn on_link_failed(
        &mut self,
        session: SessionId,
        error: &ChannelError,
    ) -> Result<(), RegionServeError> {
        let closed = match error {
            ChannelError::Link(LinkError::Closed) => LinkEnd::HungUp,
            _ => LinkEnd::Broken,
        };
        self.end(session, &error.to_string(), closed)
    }

    /// Ends a session.
    pub(super) fn end(
        &mut self,
        session: SessionId,
        why: &str,
        closed: LinkEnd,
    ) -> Result<(), RegionServeError> {
        if let Some(line) = self.links.remove(&session) {
            let node = self.server.node(session).map(|node| node.0);
            tracing::info!(peer = line.channel.peer(), node, why, "a session has ended");
        }
        self.readings.closed(session);
        self.server.on_closed(self.time(), session, closed);
        self.plan_tick();
        self.run_actions()
    }
}

/// Reason why a record cannot be merged.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordRefusal {
    /// The record is invalid: its node is faulty or hostile.
    #[error("{0}")]
    Record(PayloadError),
    /// The record is longer than the log can surely take.
    #[error(
        "it has {bytes} bytes, but the server's log takes at most {most}; give the server a larger window (`window` in its netram.toml)"
    )]
    Long {
        /// Bytes of the record.
        bytes: usize,
        /// Maximum bytes that fit the log.
        most: usize,
    },
}
