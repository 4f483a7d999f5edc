//! One link to a peer.

use std::io;

use netram_shared_machine::message::{PeerHint, ToPeer};
use netram_shared_machine::{NodeId, RegionId};
use netram_transport::{Interest, Poller};

use crate::channel::{Channel, ChannelError, SessionPermit};

/// A link to a peer, whichever side opened it.
pub(super) struct PeerLink {
    channel: Channel,
    token: u64,
    /// Peer that is sent records over this link: the one dialled, or the one that introduced itself.
    pub(super) to: Option<NodeId>,
    /// Peer that the other end introduced itself as.
    pub(super) from: Option<NodeId>,
    writing: bool,
    _permit: Option<SessionPermit>,
}

/// Region and node of this end.
#[derive(Clone, Copy)]
pub(super) struct HelloIdentity {
    pub(super) region: RegionId,
    pub(super) own: NodeId,
}

impl PeerLink {
    pub(super) fn new(
        channel: Channel,
        token: u64,
        to: Option<NodeId>,
        permit: Option<SessionPermit>,
    ) -> PeerLink {
        PeerLink {
            channel,
            token,
            to,
            from: None,
            writing: false,
            _permit: permit,
        }
    }

    pub(super) fn wait_for(&self, poller: &Poller) -> io::Result<()> {
        poller.add(&self.channel, self.token, Interest::Read)
    }

    /// Introduces this node to `to`.
    pub(super) fn greet(
        &mut self,
        names: HelloIdentity,
        to: NodeId,
        poller: &Poller,
    ) -> Result<(), ChannelError> {
        let hello: ToPeer<&[u8]> = ToPeer::Hello {
            region: names.region,
            from: names.own,
            to,
        };
        let mut bytes = Vec::new();
        hello.head(&mut bytes);
        self.send(&[&bytes], poller).map(drop)
    }

    /// Sends a message if there is room. Returns `false` if there was none.
    pub(super) fn send(&mut self, parts: &[&[u8]], poller: &Poller) -> Result<bool, ChannelError> {
        let room = self.channel.has_room();
        if room {
            self.channel.queue(parts);
        }
        self.flush(poller)?;
        Ok(room)
    }

    pub(super) fn flush(&mut self, poller: &Poller) -> Result<(), ChannelError> {
        let writing = !self.channel.flush()?;
        if writing != self.writing {
            let interest = match writing {
                true => Interest::ReadWrite,
                false => Interest::Read,
            };
            // If this fails, the next message flushes the link.
            self.writing = poller.modify(&self.channel, self.token, interest).is_ok() && writing;
        }
        Ok(())
    }

    /// Next message, or an error that ends the link.
    pub(super) fn receive<P: for<'a> From<&'a [u8]>>(
        &mut self,
        names: HelloIdentity,
    ) -> Result<Option<PeerMessage<P>>, PeerLinkError> {
        let Some(bytes) = self.channel.receive().map_err(|_| PeerLinkError::Broken)? else {
            return Ok(None);
        };
        let message = ToPeer::decode(bytes).map_err(|_| PeerLinkError::Invalid)?;
        match message.map(P::from) {
            ToPeer::Hello { region, from, to } => {
                let meant = region == names.region && to == names.own && from != names.own;
                let same = self.to.is_none_or(|node| node == from) && self.from.is_none();
                if !meant || !same {
                    return Err(PeerLinkError::Invalid);
                }
                self.from = Some(from);
                self.channel.allow_long_messages();
                Ok(Some(PeerMessage::Hello(from)))
            }
            ToPeer::Hint(hint) if self.from == Some(hint.node) => Ok(Some(PeerMessage::Hint(hint))),
            ToPeer::Hint(_) => Err(PeerLinkError::Invalid),
        }
    }

    pub(super) fn has_buffered(&self) -> bool {
        self.channel.has_buffered()
    }

    pub(super) fn peer(&self) -> &str {
        self.channel.peer()
    }
}

/// Message of a peer.
pub(super) enum PeerMessage<P> {
    Hello(NodeId),
    Hint(PeerHint<P>),
}

/// Failure after which a link is unusable.
pub(super) enum PeerLinkError {
    Broken,
    /// The bytes are no message of a peer.
    Invalid,
}
