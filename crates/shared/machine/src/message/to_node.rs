//! Messages of the server to a node.

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::{GROUP_BYTES_MAX, REGION_LOCKS_MAX, REGION_NODES_MAX, SETTINGS_BYTES_MAX};
use crate::lock::ToCache;
use crate::{LockId, LockVersion, NodeId, Position, RecordNumber, RegionId};
use netram_proto::time::Nanos;
use netram_proto::wire::{ByteReader, ChainPoint, put_varint};

use super::{Decoded, MessageError, PeerEndpoint, lock};

/// Description of a region for a joining node. The driver makes it; it is the same for all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionOpening {
    /// Identity of the region.
    pub region: RegionId,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Address at which all nodes map the region; 0: each node chooses.
    pub address: u64,
    /// Start and length of the bytes that each lock covers, ascending by lock.
    pub spans: Vec<(LockId, u64, u64)>,
    /// Size of the longest record that the server surely has room for, in bytes. A node commits no longer
    /// one: it could be acknowledged and never be merged.
    pub record_bytes_max: u64,
    /// Settings of the lenders that a node's journal should have, in the settings' format.
    pub settings: Vec<u8>,
}

/// Answer to a `JoinRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    /// Id of the node from now on.
    pub node: NodeId,
    /// Time for which the node may be silent and still be a node.
    pub lease: Nanos,
    /// Position after which the stream begins; the pages contain every record up to it.
    pub position: Position,
    /// Description of the region.
    pub opening: RegionOpening,
    /// Last record of each node up to `position`.
    pub applied: Vec<(NodeId, RecordNumber)>,
    /// Version of each lock at `position`, without locks that were never written under.
    pub versions: Vec<(LockId, LockVersion)>,
}

/// Outcome of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The record is in the region for good.
    Committed,
    /// The record will never be in the region.
    Aborted,
    /// The outcome is not known yet; ask again.
    Open,
    /// The node is gone for so long that its records are not remembered. The outcome cannot be learned any
    /// more; do not ask again.
    Forgotten,
}

/// Reason why a node may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// The server has another region than the one asked for.
    Region,
    /// The journal belonged to another node id. Offer it, and join with a new journal.
    Journal,
    /// The server remembers as many node ids as it can.
    Full,
    /// The journal has an owner, and the link has no proof that the node is it.
    Owner,
}

/// Message of the server to a node. `P` is a record's payload, or bytes of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToNode<P> {
    /// Answer to a `Join`: the node is admitted.
    Joined(JoinReply),
    /// Bytes of the region. They may contain effects of records that are still to come; that does no harm,
    /// since all records are sent, in order.
    Page {
        /// Offset in the region, in bytes.
        offset: u64,
        /// The bytes.
        bytes: P,
    },
    /// All pages have been sent: the region is complete.
    Current,
    /// Answer to a `Resume`. The node sends its unmerged records again, and then its claims.
    Resumed {
        /// The node's last merged record.
        merged: RecordNumber,
        /// The node has every record up to this position, or is sent it now.
        position: Position,
        /// Other nodes' records that the node has and the server's order does not contain yet.
        ahead: Vec<(NodeId, RecordNumber)>,
    },
    /// Next record in the server's order.
    Record {
        /// Its position.
        position: Position,
        /// Node that wrote it.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// Message of the lock service: a grant, a recall, or that a request must not wait.
    Lock(ToCache),
    /// Part of the node's journal that is durable at the server.
    Durable {
        /// Last durable record.
        number: RecordNumber,
        /// Where that record ends in the node's journal.
        end: ChainPoint,
        /// Version of the newest durable view.
        view: u64,
    },
    /// Answer to a `Ping`.
    Pong {
        /// Nonce of the ping.
        nonce: u64,
        /// Position of the newest record.
        newest: Position,
    },
    /// Answer to an `Outcome`.
    Outcome {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The record's outcome.
        fate: RecordOutcome,
    },
    /// Answer to an `OfferOrphan`.
    OrphanWanted {
        /// Node whose journal was offered.
        node: NodeId,
        /// First record that is wanted; `None`: nothing of it is needed any more.
        from: Option<RecordNumber>,
    },
    /// The node has left in order.
    Left,
    /// The node has fallen behind the records that are kept for it. It sends what it has, leaves and joins
    /// again.
    Rejoin,
    /// The server refuses the node.
    Refused(JoinRefusal),
    /// The node id is void. Transactions that were not acknowledged may have committed or not.
    Fenced,
    /// Answer to an `Endpoint`. Messages about the node's peers follow.
    PeerGroup {
        /// Multicast group to send to; empty: none.
        group: String,
    },
    /// How a peer is reached from now on.
    Peer {
        /// The peer.
        node: NodeId,
        /// Its endpoint; `None`: it cannot be reached, and nothing that it sends is to be applied.
        reach: Option<PeerEndpoint>,
    },
    /// A node is gone. All of its records that count have been sent before.
    Gone {
        /// The node.
        node: NodeId,
        /// Its last record.
        last: RecordNumber,
    },
}

impl<P> ToNode<P> {
    /// Converts the payload.
    pub fn map<Q>(self, map: impl FnOnce(P) -> Q) -> ToNode<Q> {
        match self {
            ToNode::Joined(joined) => ToNode::Joined(joined),
            ToNode::Page { offset, bytes } => ToNode::Page {
                offset,
                bytes: map(bytes),
            },
            ToNode::Current => ToNode::Current,
            ToNode::Resumed {
                merged,
                position,
                ahead,
            } => ToNode::Resumed {
                merged,
                position,
                ahead,
            },
            ToNode::Record {
                position,
                node,
                number,
                payload,
            } => {
                let payload = map(payload);
                ToNode::Record {
                    position,
                    node,
                    number,
                    payload,
                }
            }
            ToNode::Lock(message) => ToNode::Lock(message),
            ToNode::Durable { number, end, view } => ToNode::Durable { number, end, view },
            ToNode::Pong { nonce, newest } => ToNode::Pong { nonce, newest },
            ToNode::Outcome { node, number, fate } => ToNode::Outcome { node, number, fate },
            ToNode::OrphanWanted { node, from } => ToNode::OrphanWanted { node, from },
            ToNode::Left => ToNode::Left,
            ToNode::Rejoin => ToNode::Rejoin,
            ToNode::Refused(why) => ToNode::Refused(why),
            ToNode::Fenced => ToNode::Fenced,
            ToNode::PeerGroup { group } => ToNode::PeerGroup { group },
            ToNode::Peer { node, reach } => ToNode::Peer { node, reach },
            ToNode::Gone { node, last } => ToNode::Gone { node, last },
        }
    }

    /// Payload, which follows the bytes of [`ToNode::head`].
    pub fn payload(&self) -> Option<&P> {
        match self {
            ToNode::Page { bytes, .. } => Some(bytes),
            ToNode::Record { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Appends the message's bytes up to its payload.
    pub fn head(&self, to: &mut Vec<u8>) {
        match self {
            ToNode::Joined(joined) => joined.encode(to),
            ToNode::Page { offset, .. } => {
                to.push(2);
                put_varint(to, *offset);
            }
            ToNode::Current => to.push(3),
            ToNode::Resumed {
                merged,
                position,
                ahead,
            } => {
                to.push(4);
                put_varint(to, merged.0);
                put_varint(to, position.0);
                super::put_pairs(to, ahead.iter().map(|(node, number)| (node.0, number.0)));
            }
            ToNode::Record {
                position,
                node,
                number,
                ..
            } => {
                to.push(5);
                put_varint(to, position.0);
                put_varint(to, node.0);
                put_varint(to, number.0);
            }
            ToNode::Lock(message) => lock::encode_to_cache(to, message),
            ToNode::Durable { number, end, view } => {
                to.push(9);
                put_varint(to, number.0);
                super::put_link(to, *end);
                put_varint(to, *view);
            }
            ToNode::Pong { nonce, newest } => {
                to.push(10);
                put_varint(to, *nonce);
                put_varint(to, newest.0);
            }
            ToNode::Outcome { node, number, fate } => {
                to.push(11);
                put_varint(to, node.0);
                put_varint(to, number.0);
                to.push(*fate as u8);
            }
            ToNode::OrphanWanted { node, from } => {
                to.push(12);
                put_varint(to, node.0);
                put_varint(to, from.unwrap_or_default().0);
            }
            ToNode::Left => to.push(13),
            ToNode::Rejoin => to.push(14),
            ToNode::Fenced => to.push(15),
            ToNode::Refused(why) => to.extend_from_slice(&[16, *why as u8]),
            ToNode::PeerGroup { group } => {
                assert!(group.len() <= GROUP_BYTES_MAX);
                to.push(17);
                super::put_bytes(to, group.as_bytes());
            }
            ToNode::Peer { node, reach } => encode_peer(to, *node, reach.as_ref()),
            ToNode::Gone { node, last } => {
                to.push(19);
                put_varint(to, node.0);
                put_varint(to, last.0);
            }
        }
    }
}

impl<'a> ToNode<&'a [u8]> {
    /// Decodes a message and borrows its payload.
    ///
    /// # Errors
    ///
    /// [`MessageError`] if the bytes are no message of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<ToNode<&'a [u8]>, MessageError> {
        let mut from = super::open(bytes)?;
        let message = decode(&mut from)?;
        match message.payload() {
            Some(_) => Ok(message),
            None => super::close(message, &from),
        }
    }
}

fn decode<'a>(from: &mut ByteReader<'a>) -> Decoded<ToNode<&'a [u8]>> {
    let kind = from.u8()?;
    Ok(match kind {
        1 => ToNode::Joined(JoinReply::decode(from)?),
        2 => ToNode::Page {
            offset: from.varint()?,
            bytes: from.rest(),
        },
        3 => ToNode::Current,
        4 => ToNode::Resumed {
            merged: RecordNumber(from.varint()?),
            position: Position(from.varint()?),
            ahead: super::numbers(from, REGION_NODES_MAX)?,
        },
        5 => ToNode::Record {
            position: Position(from.varint()?),
            node: super::node(from)?,
            number: super::number(from)?,
            payload: from.rest(),
        },
        6..=8 => ToNode::Lock(lock::decode_to_cache(kind, from)?),
        9 => ToNode::Durable {
            number: RecordNumber(from.varint()?),
            end: super::link(from)?,
            view: from.varint()?,
        },
        10 => ToNode::Pong {
            nonce: from.varint()?,
            newest: Position(from.varint()?),
        },
        11 => ToNode::Outcome {
            node: super::node(from)?,
            number: super::number(from)?,
            fate: match from.u8()? {
                0 => RecordOutcome::Committed,
                1 => RecordOutcome::Aborted,
                2 => RecordOutcome::Open,
                3 => RecordOutcome::Forgotten,
                _ => return Err(MessageError::Field("fate")),
            },
        },
        12 => ToNode::OrphanWanted {
            node: super::node(from)?,
            from: Some(RecordNumber(from.varint()?)).filter(|number| number.0 > 0),
        },
        13 => ToNode::Left,
        14 => ToNode::Rejoin,
        15 => ToNode::Fenced,
        16 => ToNode::Refused(match from.u8()? {
            0 => JoinRefusal::Region,
            1 => JoinRefusal::Journal,
            2 => JoinRefusal::Full,
            3 => JoinRefusal::Owner,
            _ => return Err(MessageError::Field("refusal")),
        }),
        17 => ToNode::PeerGroup {
            group: super::text(from, GROUP_BYTES_MAX, "group")?,
        },
        18 => decode_peer(from)?,
        19 => ToNode::Gone {
            node: super::node(from)?,
            last: RecordNumber(from.varint()?),
        },
        _ => return Err(MessageError::Kind(kind)),
    })
}

fn encode_peer(to: &mut Vec<u8>, node: NodeId, reach: Option<&PeerEndpoint>) {
    to.push(18);
    put_varint(to, node.0);
    to.push(u8::from(reach.is_some()));
    if let Some(reach) = reach {
        reach.encode(to);
    }
}

fn decode_peer<'a>(from: &mut ByteReader<'a>) -> Decoded<ToNode<&'a [u8]>> {
    Ok(ToNode::Peer {
        node: super::node(from)?,
        reach: match super::flag(from)? {
            true => Some(PeerEndpoint::decode(from)?),
            false => None,
        },
    })
}

impl JoinReply {
    fn encode(&self, to: &mut Vec<u8>) {
        to.push(1);
        put_varint(to, self.node.0);
        put_varint(to, self.lease.0);
        put_varint(to, self.position.0);
        self.opening.encode(to);
        super::put_pairs(to, self.applied.iter().map(|(node, number)| (node.0, number.0)));
        let versions = self.versions.iter();
        super::put_pairs(to, versions.map(|(lock, version)| (u64::from(lock.0), version.0)));
    }

    fn decode(from: &mut ByteReader<'_>) -> Decoded<JoinReply> {
        Ok(JoinReply {
            node: super::node(from)?,
            lease: Nanos(from.varint()?),
            position: Position(from.varint()?),
            opening: RegionOpening::decode(from)?,
            applied: super::numbers(from, REGION_NODES_MAX)?,
            versions: versions(from)?,
        })
    }
}

impl RegionOpening {
    fn encode(&self, to: &mut Vec<u8>) {
        assert!(self.spans.len() <= REGION_LOCKS_MAX);
        assert!(self.settings.len() <= SETTINGS_BYTES_MAX);
        to.extend_from_slice(&self.region.0.to_le_bytes());
        put_varint(to, self.bytes);
        put_varint(to, self.address);
        put_varint(to, self.spans.len() as u64);
        for (lock, start, length) in &self.spans {
            put_varint(to, u64::from(lock.0));
            put_varint(to, *start);
            put_varint(to, *length);
        }
        put_varint(to, self.record_bytes_max);
        super::put_bytes(to, &self.settings);
    }

    /// Checks that the spans lie in the region and that their locks ascend. The creator of the region ensures
    /// that spans do not overlap.
    fn decode(from: &mut ByteReader<'_>) -> Decoded<RegionOpening> {
        let mut opening = RegionOpening {
            region: RegionId(from.u128()?),
            bytes: from.varint()?,
            address: from.varint()?,
            ..RegionOpening::default()
        };
        let count = super::counted(from, REGION_LOCKS_MAX, "spans")?;
        opening.spans.reserve_exact(count);
        for _ in 0..count {
            let (lock, start, length) = (super::lock(from)?, from.varint()?, from.varint()?);
            let ascends = opening.spans.last().is_none_or(|(before, ..)| *before < lock);
            let end = start.checked_add(length);
            let inside = end.is_some_and(|end| end <= opening.bytes);
            if !ascends || !inside {
                return Err(MessageError::Field("spans"));
            }
            opening.spans.push((lock, start, length));
        }
        opening.record_bytes_max = from.varint()?;
        opening.settings = super::bytes(from, SETTINGS_BYTES_MAX, "settings")?.to_vec();
        Ok(opening)
    }
}

fn versions(from: &mut ByteReader<'_>) -> Decoded<Vec<(LockId, LockVersion)>> {
    let pairs = super::pairs(from, REGION_LOCKS_MAX, "versions")?;
    let locks = pairs.into_iter().map(|(lock, version)| {
        let lock = u32::try_from(lock).map_err(|_| MessageError::Field("versions"))?;
        Ok((LockId(lock), LockVersion(version)))
    });
    locks.collect()
}

const _: () = assert!(REGION_NODES_MAX <= REGION_LOCKS_MAX);
