//! What the server says.

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::{GROUP_BYTES_MAX, REGION_LOCKS_MAX, REGION_NODES_MAX, SETTINGS_BYTES_MAX};
use crate::lock::ToCache;
use crate::{LockId, LockVersion, NodeId, Position, RecordNumber, RegionId};
use netram_proto::time::Nanos;
use netram_proto::wire::{ByteReader, ChainPoint, put_varint};

use super::{Decoded, MessageError, PeerEndpoint, lock};

/// What a region is, for whoever joins it. The same for all, and made by the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionOpening {
    /// Which region.
    pub region: RegionId,
    /// Its bytes.
    pub bytes: u64,
    /// The address that all nodes map it at; 0: each where it likes.
    pub address: u64,
    /// What each lock covers: where it begins, how long it is. Ascending by lock.
    pub spans: Vec<(LockId, u64, u64)>,
    /// Bytes of the longest record that the server surely has room for. A node commits none that is longer:
    /// it could be acknowledged, and never be merged.
    pub record_bytes_max: u64,
    /// Which lenders a node's journal should have, as settings are written.
    pub settings: Vec<u8>,
}

/// The answer to a `JoinRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    /// Who the node is from now on.
    pub node: NodeId,
    /// How long it may be silent, and still be a node.
    pub lease: Nanos,
    /// Where the stream begins: everything up to here is in the pages.
    pub position: Position,
    /// The region.
    pub opening: RegionOpening,
    /// The last record of each node up to `position`.
    pub applied: Vec<(NodeId, RecordNumber)>,
    /// The version of each lock at `position`, but for those that were never written under.
    pub versions: Vec<(LockId, LockVersion)>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It counts, everywhere and for good.
    Committed,
    /// It never will.
    Aborted,
    /// Not known yet: ask again.
    Open,
    /// The node is gone, and for so long that its records are not remembered. Nobody knows any more; do not
    /// ask again.
    Forgotten,
}

/// Why nobody joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// The region that was asked for is another one.
    Region,
    /// The journal was another node id's: offer that, and join with a new one.
    Journal,
    /// No more node ids are remembered than there are.
    Full,
}

/// A message of the server. `P` is a record's payload, or bytes of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToNode<P> {
    /// Welcome.
    Joined(JoinReply),
    /// Bytes of the region. What it has of records that are still to come does no harm: they come all, and in
    /// order.
    Page {
        /// Where.
        offset: u64,
        /// What.
        bytes: P,
    },
    /// The region is whole.
    Current,
    /// The answer to a `Resume`. What was not merged is to be sent again, and then the claims.
    Resumed {
        /// The node's last record that is merged.
        merged: RecordNumber,
        /// Everything up to this place is in the node's memory, or comes now.
        position: Position,
        /// What the node has of others that is not in the server's order: it is still to come.
        ahead: Vec<(NodeId, RecordNumber)>,
    },
    /// The next record in the server's order.
    Record {
        /// Its place there.
        position: Position,
        /// Whose it is.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// Of locks: tokens, recalls, and that one must not wait.
    Lock(ToCache),
    /// What is durable here of the node's journal.
    Durable {
        /// Its records up to this one.
        number: RecordNumber,
        /// Where that ends.
        end: ChainPoint,
        /// Its view up to this one.
        view: u64,
    },
    /// I am.
    Pong {
        /// The question's.
        nonce: u64,
        /// The newest record's place.
        newest: Position,
    },
    /// The answer to an `Outcome`.
    Outcome {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
        /// What became of it.
        fate: RecordOutcome,
    },
    /// The answer to an `Offer`.
    OrphanWanted {
        /// Whose journal.
        node: NodeId,
        /// From which record on; `None`: nothing of it is needed any more.
        from: Option<RecordNumber>,
    },
    /// The node is gone in peace.
    Left,
    /// The node has fallen behind what is kept for it: it is to send what it has, to leave, and to join
    /// again.
    Rejoin,
    /// This is not the server of what was asked for.
    Refused(JoinRefusal),
    /// The node id is void. Whatever was not acknowledged may have happened or not.
    Fenced,
    /// The answer to a `PeerEndpoint`: its peers come.
    PeerGroup {
        /// The multicast group to send to; empty: none.
        group: String,
    },
    /// A peer, and how it is reached, from now on.
    Peer {
        /// Who.
        node: NodeId,
        /// How; `None`: it is not, and nothing that it sends is to be taken.
        reach: Option<PeerEndpoint>,
    },
    /// A node is gone. All that counts of it has been sent before.
    Gone {
        /// Who.
        node: NodeId,
        /// Its last record.
        last: RecordNumber,
    },
}

impl<P> ToNode<P> {
    /// The same with another payload.
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

    /// What stands behind [`ToNode::head`].
    pub fn payload(&self) -> Option<&P> {
        match self {
            ToNode::Page { bytes, .. } => Some(bytes),
            ToNode::Record { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Appends the message up to its payload.
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
            ToNode::Peer { node, reach } => {
                to.push(18);
                put_varint(to, node.0);
                to.push(u8::from(reach.is_some()));
                if let Some(reach) = reach {
                    reach.encode(to);
                }
            }
            ToNode::Gone { node, last } => {
                to.push(19);
                put_varint(to, node.0);
                put_varint(to, last.0);
            }
        }
    }
}

impl<'a> ToNode<&'a [u8]> {
    /// Reads a message.
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
            _ => return Err(MessageError::Field("refusal")),
        }),
        17 => ToNode::PeerGroup {
            group: super::text(from, GROUP_BYTES_MAX, "group")?,
        },
        18 => ToNode::Peer {
            node: super::node(from)?,
            reach: match super::flag(from)? {
                true => Some(PeerEndpoint::decode(from)?),
                false => None,
            },
        },
        19 => ToNode::Gone {
            node: super::node(from)?,
            last: RecordNumber(from.varint()?),
        },
        _ => return Err(MessageError::Kind(kind)),
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

    /// The spans lie in the region, and their locks ascend; that none lies over another is for whoever made
    /// the region.
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
