//! What goes over a link next. Nothing is made before the link has room for it, so that a slow node costs no
//! memory but the ring.

use super::peer::{PageProgress, ServerPeer};
use super::{NodeState, RegionServer, SessionId};
use crate::limit::OUTBOX_BYTES_MAX;
use crate::message::ToNode;
use crate::{NodeId, Position};

/// What a link is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkOutput<P> {
    /// A message.
    Message(ToNode<P>),
    /// A `Page` of these bytes of the region as it is when all deeds have been done; nothing, if they are all
    /// zeros.
    Page {
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Nothing more: close the link when what was sent is through.
    Close,
}

/// What the peer's part of the stream comes to.
enum Next<P> {
    Nothing,
    Send(LinkOutput<P>),
    Behind,
}

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// What goes over a link next. To be asked when it has room, and everything that [`RegionServer::poll`]
    /// had to say is done.
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

    /// Puts a message behind all records that there are now, for a node that takes any. One that takes so
    /// little that too many wait begins anew.
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
        // Its own records it has.
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

/// A joining node gets pages and records in turn. A page is as new as the region; the node is whole when the
/// stream has come to where the last page was made.
fn next_page<P>(
    peer: &mut ServerPeer<P>,
    newest: Position,
    visible: Position,
    bytes: u64,
    page_bytes: u64,
) -> Option<LinkOutput<P>> {
    match peer.pages {
        PageProgress::Done => None,
        // Not yet: `JoinReply` comes first, and what is not proven is in no page.
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
