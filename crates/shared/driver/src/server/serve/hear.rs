//! Hearing what links bring: what a driver has to check is checked here, before the machine hears of it.

use netram_shared_machine::message::{Join, OldJournal, Refused};
use netram_shared_machine::server::{Closed, Session};
use netram_shared_machine::{ToNode, ToServer};
use netram_transport::{Events, LinkError};

use super::ServeError;
use super::driver::{BELL, Driver};
use super::line::{Held, Line, Payload};
use super::readings::is_key;
use crate::channel::ChannelError;
use crate::limit::{ANSWERS_MAX, MESSAGES_A_TURN};
use crate::server::store::RecordError;
use crate::server::table::NODES_MAX;

impl Driver {
    pub(super) fn take_links(&mut self, events: &Events) -> Result<bool, ServeError> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(
            events
                .iter()
                .filter(|ready| ready.token != BELL)
                .map(|ready| Session(ready.token)),
        );
        let moved = !due.is_empty();
        for session in due.drain(..) {
            self.read(session)?;
        }
        // Nothing was added meanwhile: that is done when links are filled.
        std::mem::swap(&mut self.due, &mut due);
        Ok(moved)
    }

    /// Takes some of what a link has brought, as far as its answers find room.
    fn read(&mut self, session: Session) -> Result<(), ServeError> {
        if self.lines.get(&session).is_some_and(Line::is_deaf) {
            return self.lose(session, &ChannelError::Link(LinkError::Closed));
        }
        for _ in 0..MESSAGES_A_TURN {
            if !self.may_read(session) {
                return Ok(());
            }
            let Some(line) = self.lines.get_mut(&session) else {
                return Ok(());
            };
            let closing = line.closing.is_some();
            let message = match line.channel.receive() {
                Ok(Some(_)) if closing => continue,
                Ok(Some(bytes)) => ToServer::decode(bytes).map(|message| message.map(Payload::from)),
                Ok(None) => return Ok(()),
                Err(error) => return self.lose(session, &error),
            };
            line.heard(self.now);
            match message {
                Ok(message) => self.hear(session, message)?,
                Err(error) => {
                    tracing::error!(peer = line.channel.peer(), %error, "what a peer said is no message");
                    return self.accuse(session, "its bytes are no messages");
                }
            }
        }
        Ok(())
    }

    fn may_read(&self, session: Session) -> bool {
        self.lines.get(&session).is_some_and(Line::is_open) && self.server.urgent(session) < ANSWERS_MAX
    }

    /// Hands a message in, once it is checked.
    pub(super) fn hear(&mut self, session: Session, message: ToServer<Payload>) -> Result<(), ServeError> {
        if message.is_awaited() {
            self.asked = self.now;
        }
        match &message {
            ToServer::Offer { old, .. } => {
                let node = self.store.table().node(old.node);
                if node.is_some_and(|node| node.view.journal == old.journal) {
                    self.readings.offered(old.node, session, self.now);
                }
            }
            ToServer::OldTail { node, .. } => self.readings.goes_on(*node, session, self.now),
            _ => (),
        }
        match &message {
            ToServer::Offer {
                old: OldJournal { node, .. },
                ..
            }
            | ToServer::OldTail { node, .. }
                if self.readings.is_running(*node) =>
            {
                let node = *node;
                if let Some(line) = self.lines.get_mut(&session) {
                    line.held = Some(Held { node, message });
                }
                return Ok(());
            }
            // Of a node that is not one any more, and has not heard of that yet.
            ToServer::Tail { .. } if self.server.node(session).is_none() => return Ok(()),
            ToServer::Tail { number, payload, .. } | ToServer::OldTail { number, payload, .. } => {
                if let Err(error) = self.check(payload) {
                    let node = self.server.node(session).map_or(0, |node| node.0);
                    tracing::error!(node, number = number.0, %error, "a record is refused");
                    return self.accuse(session, "it sent a record that is none of the region");
                }
            }
            ToServer::Join(join) => {
                if let Some(refused) = self.refusal(join) {
                    return self.refuse(session, refused);
                }
                self.make_place()?;
            }
            _ => (),
        }
        self.server.handle(self.time(), session, message);
        if self.server.node(session).is_some()
            && let Some(line) = self.lines.get_mut(&session)
        {
            line.let_in();
        }
        self.do_deeds()
    }

    /// Whether a record is one of the region, stays in the spans of the locks that it wrote under, and finds room in the log.
    pub(super) fn check(&self, payload: &[u8]) -> Result<(), Unfit> {
        if payload.len() > self.payload_bytes_max {
            return Err(Unfit::Long {
                bytes: payload.len(),
                most: self.payload_bytes_max,
            });
        }
        self.store.check(payload).map(drop).map_err(Unfit::Record)
    }

    /// Why a node that wants to join is turned away before the machine hears of it.
    fn refusal(&self, join: &Join) -> Option<Refused> {
        if !is_key(&join.key) {
            tracing::error!(
                bytes = join.key.len(),
                "a node has a key that none of ours has made"
            );
            return Some(Refused::Journal);
        }
        let table = self.store.table();
        let known = table
            .nodes
            .iter()
            .any(|node| node.view.journal == join.view.journal);
        (!known && table.nodes.len() >= NODES_MAX).then_some(Refused::Full)
    }

    /// Where nodes that are gone have all other places, one of them gives up its own.
    fn make_place(&mut self) -> Result<(), ServeError> {
        let table = self.store.table();
        if table.nodes.len() + table.buried.len() < NODES_MAX {
            return Ok(());
        }
        if let Some(node) = self.server.forgo() {
            tracing::warn!(
                node = node.0,
                "lenders that do not know yet that a node is gone are not told any more: its place is needed. What they have of it is theirs again when they are restarted"
            );
        }
        self.do_deeds()
    }

    fn refuse(&mut self, session: Session, refused: Refused) -> Result<(), ServeError> {
        // The machine may know the session by something that it asked.
        self.server.on_closed(self.time(), session, Closed::Broken);
        self.readings.closed(session);
        if let Some(line) = self.lines.get_mut(&session) {
            // Whoever asks and takes no answers has no room for this one.
            if line.channel.has_room() {
                line.say(&ToNode::<Payload>::Refused(refused), &mut self.scratch);
            }
            line.close(self.now);
        }
        self.do_deeds()
    }

    /// Somebody has done what no node does.
    fn accuse(&mut self, session: Session, what: &'static str) -> Result<(), ServeError> {
        match self.server.node(session) {
            Some(node) => {
                self.server.accuse(node, what);
                self.do_deeds()
            }
            // It has been told so already, or is about to be.
            None if self.server.urgent(session) > 0 => Ok(()),
            None => self.end(session, what, Closed::Broken),
        }
    }

    /// A link is of no further use.
    pub(super) fn lose(&mut self, session: Session, error: &ChannelError) -> Result<(), ServeError> {
        let closed = match error {
            ChannelError::Link(LinkError::Closed) => Closed::HungUp,
            _ => Closed::Broken,
        };
        self.end(session, &error.to_string(), closed)
    }

    /// Ends a session.
    pub(super) fn end(&mut self, session: Session, why: &str, closed: Closed) -> Result<(), ServeError> {
        if let Some(line) = self.lines.remove(&session) {
            let node = self.server.node(session).map(|node| node.0);
            tracing::info!(peer = line.channel.peer(), node, why, "a session has ended");
        }
        self.readings.closed(session);
        self.server.on_closed(self.time(), session, closed);
        self.plan_tick();
        self.do_deeds()
    }
}

/// Why a record cannot be merged.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// Its node errs, or lies.
    #[error("{0}")]
    Record(RecordError),
    /// It is longer than any that the log surely takes.
    #[error(
        "it has {bytes} bytes, and the server's log takes {most}; give the server a larger window (`window` in its netram.toml)"
    )]
    Long {
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that find room.
        most: usize,
    },
}
