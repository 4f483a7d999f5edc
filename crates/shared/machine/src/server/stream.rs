//! Chooses what is sent over a link next. Messages are made only when the link has room, so that a slow node
//! costs no memory besides the ring.

use super::peer::{PageProgress, ServerPeer};
use super::{NodeState, RegionServer, SessionId};
use crate::limit::OUTBOX_BYTES_MAX;
use crate::message::ToNode;
use crate::{NodeId, Position};

/// Output for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkOutput<P> {
    /// Send this message.
    Message(ToNode<P>),
    /// Send a `Page` with these bytes of the region as it is after all actions; nothing, if they are all
    /// zeros.
    Page {
        /// Offset in the region, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Close the link when everything was sent.
    Close,
}

/// Next output for a node.
enum Next<P> {
    Nothing,
    Send(LinkOutput<P>),
    Behind,
}

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// Next output for a link. Call it when the link has room and all actions of [`RegionServer::poll`] are
    /// done.
    pub fn poll_send(&mut self, session: SessionId) -> Option<LinkOutput<P>> {
        loop {
            let wire = self.wires.get_mut(&session)?;
            if let Some(message) = wire.urgent.pop_front() {
                return Some(LinkOutput::Message(message));
            }
            if wire.closing {
                self.wires.remove(&session);
                return Some(LinkOutput::Close);
            }
            let node = wire.node?;
            match self.next_of(node) {
                Next::Nothing => return None,
                Next::Send(outgoing) => return Some(outgoing),
                Next::Behind => self.send_rejoin(node),
            }
        }
    }

    /// Queues a message after all records that there are now, if the node is alive and has a link. A node
    /// that reads so slowly that too many wait has to rejoin.
    pub(super) fn put(&mut self, node: NodeId, message: ToNode<P>) {
        let newest = self.ring.newest();
        let takes = |peer: &&mut ServerPeer<P>| peer.session.is_some() && peer.state == NodeState::Live;
        let Some(peer) = self.peers.get_mut(&node).filter(takes) else {
            return;
        };
        peer.outbox.push_back((newest, message));
        if peer.outbox.len() > OUTBOX_BYTES_MAX / size_of::<(Position, ToNode<P>)>() {
            self.send_rejoin(node);
        }
    }

    fn next_of(&mut self, node: NodeId) -> Next<P> {
        if let Some(news) = self.next_peer_update(node) {
            return Next::Send(LinkOutput::Message(news));
        }
        let (visible, newest) = (self.visible(), self.ring.newest());
        let Some(peer) = self.peers.get_mut(&node) else {
            return Next::Nothing;
        };
        if core::mem::take(&mut peer.durable_due)
            && let Some(kept) = peer.durable_message()
        {
            return Next::Send(LinkOutput::Message(kept));
        }
        if peer.state != NodeState::Live {
            return Next::Nothing;
        }
        // The node has its own records.
        peer.next = self.ring.next_for(node, peer.next);
        while let Some(own) = self.ring.get(peer.next) {
            if own.node != node || peer.next > visible {
                break;
            }
            peer.next = peer.next.next();
        }
        let due = |peer: &ServerPeer<P>| {
            let after = peer.outbox.front().map(|(after, _)| *after);
            after.filter(|after| *after < peer.next && *after <= visible)
        };
        if due(peer).is_some() {
            let message = peer
                .outbox
                .pop_front()
                .map(|(_, message)| LinkOutput::Message(message));
            return message.map_or(Next::Nothing, Next::Send);
        }
        if let Some(page) = next_page(
            peer,
            newest,
            visible,
            self.config.opening.bytes,
            self.config.page_bytes,
        ) {
            return Next::Send(page);
        }
        self.next_record(node, visible)
    }

    fn next_record(&mut self, node: NodeId, visible: Position) -> Next<P> {
        let Some(peer) = self.peers.get_mut(&node) else {
            return Next::Nothing;
        };
        let wanted = peer
            .outbox
            .front()
            .map_or(peer.wanted, |(after, _)| peer.wanted.max(*after));
        let until = match peer.lazy && peer.pages == PageProgress::Done {
            true => visible.min(wanted),
            false => visible,
        };
        if peer.next > until {
            return Next::Nothing;
        }
        if peer.next < self.ring.first() {
            return Next::Behind;
        }
        let position = peer.next;
        let Some(record) = self.ring.get(position) else {
            return Next::Nothing;
        };
        peer.next = position.next();
        peer.page_first = true;
        Next::Send(LinkOutput::Message(ToNode::Record {
            position,
            node: record.node,
            number: record.number,
            payload: record.payload.clone(),
        }))
    }
}

/// Next page for a joining node, which gets pages and records in turn. A page is as new as the region. The
/// region is complete when the stream has reached the position at which the last page was made.
fn next_page<P>(
    peer: &mut ServerPeer<P>,
    newest: Position,
    visible: Position,
    bytes: u64,
    page_bytes: u64,
) -> Option<LinkOutput<P>> {
    match peer.pages {
        PageProgress::Done => None,
        // Not yet: `JoinReply` comes first, and pages contain no unproven records.
        PageProgress::From(_) if !peer.outbox.is_empty() || visible != newest => None,
        PageProgress::From(offset) if offset >= bytes => {
            peer.pages = PageProgress::Until(newest);
            None
        }
        PageProgress::From(_) if peer.next <= visible && !peer.page_first => None,
        PageProgress::From(offset) => {
            peer.page_first = false;
            let bytes = page_bytes.min(bytes - offset);
            peer.pages = PageProgress::From(offset + bytes);
            Some(LinkOutput::Page { offset, bytes })
        }
        PageProgress::Until(position) if peer.next > position => {
            peer.pages = PageProgress::Done;
            Some(LinkOutput::Message(ToNode::Current))
        }
        PageProgress::Until(_) => None,
    }
}
