//! The multicast group of nodes: this one's channel, and those of its peers.

use std::collections::BTreeMap;
use std::io;

use netram_proto::cast::Tune;
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;
use netram_shared_machine::message::{Hint, ToPeer};
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{Caster, Ear, Group, Interest, Poller};

use super::pieces::{Pieces, header};

/// Datagrams that are taken before the links have their turn.
const DATAGRAMS_A_TURN: usize = 256;

/// See the module.
pub(super) struct Cast {
    caster: Caster,
    ear: Ear,
    /// Counts the channels of this node.
    channel: u32,
    message: u32,
    /// Whom it listens to, by the ear's name for it.
    heard: BTreeMap<usize, Sender>,
    names: usize,
}

struct Sender {
    node: NodeId,
    pieces: Pieces,
}

/// The group that the server names; `None`: it names none, or none that can be.
pub(super) fn named(text: &str) -> Option<Group> {
    if text.is_empty() {
        return None;
    }
    let group = text.parse();
    if let Err(error) = &group {
        tracing::error!(%error, "the multicast group that the server names");
    }
    group.ok()
}

impl Cast {
    pub(super) fn open(group: &Group, token: u64, poller: &Poller) -> io::Result<Cast> {
        let mut caster = Caster::open(group, None, TTL_DEFAULT)?;
        let ear = Ear::open(group)?;
        poller.add(&ear, token, Interest::Read)?;
        caster.tune(1);
        Ok(Cast {
            caster,
            ear,
            channel: 1,
            message: 0,
            heard: BTreeMap::new(),
            names: 0,
        })
    }

    pub(super) fn group(&self) -> &Group {
        self.caster.group()
    }

    /// How peers listen to this node.
    pub(super) fn tune(&mut self) -> Tune {
        self.caster.tune(self.channel)
    }

    /// Begins another channel when this one's key has sealed enough.
    pub(super) fn renew(&mut self) -> bool {
        let worn = self.caster.is_worn();
        self.channel += u32::from(worn);
        worn
    }

    /// Listens to a peer from now on; `None`: not any more. Whether it can be heard.
    pub(super) fn listen(&mut self, node: NodeId, tune: Option<&Tune>) -> bool {
        let known = self.heard.iter().find(|(_, sender)| sender.node == node);
        let known = known.map(|(name, _)| *name);
        let Some(tune) = tune.filter(|tune| self.group().is_named_by(tune)) else {
            if let Some(name) = known {
                self.ear.forget(name);
                self.heard.remove(&name);
            }
            return false;
        };
        let name = known.unwrap_or_else(|| {
            self.names += 1;
            self.names
        });
        let pieces = Pieces::default();
        self.heard.insert(name, Sender { node, pieces });
        self.ear.listen(tune, name)
    }

    /// Sends a message to all, once.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.message = self.message.wrapping_add(1);
        // Of a lost one nobody is told: the server's stream brings it.
        self.caster.send(&header(self.message, message.len()), message);
    }

    /// Takes what has come. Whether there may be more.
    pub(super) fn receive<P: for<'a> From<&'a [u8]>>(
        &mut self,
        hints: &mut Vec<Hint<P>>,
    ) -> io::Result<bool> {
        for _ in 0..DATAGRAMS_A_TURN {
            let Some(heard) = self.ear.receive()? else {
                return Ok(self.ear.has_buffered());
            };
            let Some(sender) = self.heard.get_mut(&heard.listener) else {
                continue;
            };
            let Ok(frame) = Frame::parse(heard.packet) else {
                continue;
            };
            let message = sender.pieces.take(&frame.header, frame.body);
            let message = message.and_then(|bytes| ToPeer::decode(bytes).ok());
            match message.map(|message| message.map(P::from)) {
                Some(ToPeer::Hint(hint)) if hint.node == sender.node => hints.push(hint),
                _ => (),
            }
        }
        Ok(true)
    }
}
