//! The multicast group of nodes: this one's channel, and those of its peers.

use std::collections::BTreeMap;
use std::io;

use netram_proto::multicast::ChannelInvite;
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;
use netram_shared_machine::message::{PeerHint, ToPeer};
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{Interest, MulticastGroup, MulticastReceiver, MulticastSender, Poller};

use super::reassembly::{HintReassembly, header};

/// Datagrams that are taken before the links have their turn.
const DATAGRAMS_A_TURN: usize = 256;

/// See the module.
pub(super) struct HintMulticast {
    sender: MulticastSender,
    receiver: MulticastReceiver,
    /// Counts the channels of this node.
    channel: u32,
    message: u32,
    /// Whom it listens to, by the ear's name for it.
    senders: BTreeMap<usize, Sender>,
    names: usize,
}

struct Sender {
    node: NodeId,
    reassembly: HintReassembly,
}

/// The group that the server names; `None`: it names none, or none that can be.
pub(super) fn parse_group(text: &str) -> Option<MulticastGroup> {
    if text.is_empty() {
        return None;
    }
    let group = text.parse();
    if let Err(error) = &group {
        tracing::error!(%error, "the multicast group that the server names");
    }
    group.ok()
}

impl HintMulticast {
    pub(super) fn open(group: &MulticastGroup, token: u64, poller: &Poller) -> io::Result<HintMulticast> {
        let mut caster = MulticastSender::open(group, None, TTL_DEFAULT)?;
        let ear = MulticastReceiver::open(group)?;
        poller.add(&ear, token, Interest::Read)?;
        caster.invite(1);
        Ok(HintMulticast {
            sender: caster,
            receiver: ear,
            channel: 1,
            message: 0,
            senders: BTreeMap::new(),
            names: 0,
        })
    }

    pub(super) fn group(&self) -> &MulticastGroup {
        self.sender.group()
    }

    /// How peers listen to this node.
    pub(super) fn tune(&mut self) -> ChannelInvite {
        self.sender.invite(self.channel)
    }

    /// Begins another channel when this one's key has sealed enough.
    pub(super) fn renew(&mut self) -> bool {
        let worn = self.sender.is_exhausted();
        self.channel += u32::from(worn);
        worn
    }

    /// Listens to a peer from now on; `None`: not any more. Whether it can be heard.
    pub(super) fn listen(&mut self, node: NodeId, tune: Option<&ChannelInvite>) -> bool {
        let known = self.senders.iter().find(|(_, sender)| sender.node == node);
        let known = known.map(|(name, _)| *name);
        let Some(tune) = tune.filter(|tune| self.group().is_named_by(tune)) else {
            if let Some(name) = known {
                self.receiver.forget(name);
                self.senders.remove(&name);
            }
            return false;
        };
        let name = known.unwrap_or_else(|| {
            self.names += 1;
            self.names
        });
        let pieces = HintReassembly::default();
        self.senders.insert(
            name,
            Sender {
                node,
                reassembly: pieces,
            },
        );
        self.receiver.listen(tune, name)
    }

    /// Sends a message to all, once.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.message = self.message.wrapping_add(1);
        // Of a lost one nobody is told: the server's stream brings it.
        self.sender.send(&header(self.message, message.len()), message);
    }

    /// Takes what has come. Whether there may be more.
    pub(super) fn receive<P: for<'a> From<&'a [u8]>>(
        &mut self,
        hints: &mut Vec<PeerHint<P>>,
    ) -> io::Result<bool> {
        for _ in 0..DATAGRAMS_A_TURN {
            let Some(heard) = self.receiver.receive()? else {
                return Ok(self.receiver.has_buffered());
            };
            let Some(sender) = self.senders.get_mut(&heard.listener) else {
                continue;
            };
            let Ok(frame) = Frame::parse(heard.packet) else {
                continue;
            };
            let message = sender.reassembly.take(&frame.header, frame.body);
            let message = message.and_then(|bytes| ToPeer::decode(bytes).ok());
            match message.map(|message| message.map(P::from)) {
                Some(ToPeer::Hint(hint)) if hint.node == sender.node => hints.push(hint),
                _ => (),
            }
        }
        Ok(true)
    }
}
