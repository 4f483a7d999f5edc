//! The multicast group of nodes: this node's channel, and those of its peers.

use std::collections::BTreeMap;
use std::io;

use netram_proto::multicast::ChannelInvite;
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;
use netram_shared_machine::message::{PeerHint, ToPeer};
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{Interest, MulticastGroup, MulticastReceiver, MulticastSender, Poller};

use super::reassembly::{HintReassembly, header};

/// Number of datagrams received before the links have their turn.
const DATAGRAMS_A_TURN: usize = 256;

/// Sender and receiver of multicast hints.
pub(super) struct HintMulticast {
    sender: MulticastSender,
    receiver: MulticastReceiver,
    /// Number of this node's present channel.
    channel: u32,
    message: u32,
    /// Peers that this node listens to, by the receiver's number for them.
    senders: BTreeMap<usize, Sender>,
    names: usize,
}

struct Sender {
    node: NodeId,
    reassembly: HintReassembly,
}

/// Parses the group that the server names; `None`: it names none, or an invalid one.
pub(super) fn parse_group(text: &str) -> Option<MulticastGroup> {
    if text.is_empty() {
        return None;
    }
    let group = text.parse();
    if let Err(error) = &group {
        tracing::error!(%error, "the server names an invalid multicast group");
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

    /// Invitation with which peers listen to this node.
    pub(super) fn tune(&mut self) -> ChannelInvite {
        self.sender.invite(self.channel)
    }

    /// Starts another channel if the present one's key has sealed enough. Returns whether it did.
    pub(super) fn renew(&mut self) -> bool {
        let worn = self.sender.is_exhausted();
        self.channel += u32::from(worn);
        worn
    }

    /// Listens to a peer from now on, or no longer if `tune` is `None`. Returns whether it can be received.
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

    /// Sends a message to all peers, once.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.message = self.message.wrapping_add(1);
        // Errors are ignored: the server's stream brings the record.
        self.sender.send(&header(self.message, message.len()), message);
    }

    /// Receives what has come. Returns whether there may be more.
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
