//! Messages of a node to the server.

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::{NODE_LINKS_MAX, NODE_NAME_BYTES_MAX, REGION_LOCKS_MAX, REGION_NODES_MAX};
use crate::lock::{ToService, TokenClaim};
use crate::{GrantNumber, LockVersion, NodeId, Position, RecordNumber, RegionId};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, SLOT_BYTES};
use netram_proto::wire::{ByteReader, ChainPoint, put_varint};

use super::{Decoded, MessageError, PeerEndpoint, lock};

/// Request of a new node to join a region. The node has applied nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Region to join; `None`: whichever the server has.
    pub region: Option<RegionId>,
    /// Machine and process, for people.
    pub name: String,
    /// Newest view of the node's journal.
    pub view: View,
    /// Key that seals the journal's records, with which the server reads them when the node is dead; empty:
    /// they are not sealed.
    pub key: Vec<u8>,
    /// Where the node's first record will begin in its journal.
    pub begins: ChainPoint,
    /// Whether the node wants records only before a grant, or when it asks.
    pub lazy: bool,
    /// Number of links that the node has opened so far: see [`ToServer::Resume`].
    pub link: u64,
}

/// Identifies a journal that an earlier node id left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanJournalId {
    /// Node that wrote the journal.
    pub node: NodeId,
    /// Identity of the journal.
    pub journal: JournalId,
}

/// Message of a node to the server. `P` is a record's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToServer<P> {
    /// First message of a node without an id.
    Join(JoinRequest),
    /// First message of a node with an id over a new link.
    Resume {
        /// The node's region.
        region: RegionId,
        /// The node's id.
        node: NodeId,
        /// Number of links that the node has opened so far, including this one. The first message over an
        /// earlier link may arrive after that of a later one; the server ignores it then.
        link: u64,
        /// Whether the node has had the whole region; if not, it is sent from the beginning.
        whole: bool,
        /// Last record of each node that this node has applied.
        applied: Vec<(NodeId, RecordNumber)>,
    },
    /// The node's tokens; ends a resumption. It follows the records that were sent again, so the node gave
    /// back every token that is not claimed after its records.
    Claims(Vec<TokenClaim>),
    /// A record of the node's journal.
    Record {
        /// Its number.
        number: RecordNumber,
        /// Where it ends in the node's journal; the next record chains to this.
        end: ChainPoint,
        /// Whether the record is safe already. If not, nobody may see it before it is durable at the server.
        acked: bool,
        /// Stamp and ranges.
        payload: P,
    },
    /// Message to the lock service: a token wanted or given back, or a request that must not wait.
    Lock(ToService),
    /// A view of the node's journal. It takes effect when it is durable at the server.
    View(View),
    /// Asks whether the server is there, and renews the node's lease.
    Ping {
        /// Identifies the ping.
        nonce: u64,
        /// Position up to which the node has applied the server's order.
        applied: Position,
    },
    /// Asks for all records, for a lazy node.
    Pull,
    /// Asks for the outcome of a record.
    Outcome {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
    },
    /// Offers the journal of an earlier node id, read to its end.
    OfferOrphan {
        /// The journal.
        old: OrphanJournalId,
        /// The journal's last record; 0: it has none.
        last: RecordNumber,
    },
    /// A record of an offered journal, from the first one that was wanted.
    OrphanRecord {
        /// Node that wrote it.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// The node has sent everything, and gives all tokens back.
    Leave,
    /// The node exchanges records with its peers directly; they reach it here. Sent over each new link, and
    /// on changes.
    Endpoint(PeerEndpoint),
}

impl<P> ToServer<P> {
    /// Whether a transaction may be waiting for the server to handle this. None waits for a safe record: a
    /// node that needs it waits for a lock.
    pub fn is_awaited(&self) -> bool {
        !matches!(
            self,
            ToServer::Record { acked: true, .. }
                | ToServer::View(_)
                | ToServer::Ping { .. }
                | ToServer::Endpoint(_)
        )
    }

    /// Converts the payload.
    pub fn map<Q>(self, map: impl FnOnce(P) -> Q) -> ToServer<Q> {
        match self {
            ToServer::Join(join) => ToServer::Join(join),
            ToServer::Resume {
                region,
                node,
                link,
                whole,
                applied,
            } => ToServer::Resume {
                region,
                node,
                link,
                whole,
                applied,
            },
            ToServer::Claims(claims) => ToServer::Claims(claims),
            ToServer::Record {
                number,
                end,
                acked,
                payload,
            } => {
                let payload = map(payload);
                ToServer::Record {
                    number,
                    end,
                    acked,
                    payload,
                }
            }
            ToServer::Lock(message) => ToServer::Lock(message),
            ToServer::View(view) => ToServer::View(view),
            ToServer::Ping { nonce, applied } => ToServer::Ping { nonce, applied },
            ToServer::Pull => ToServer::Pull,
            ToServer::Outcome { node, number } => ToServer::Outcome { node, number },
            ToServer::OfferOrphan { old, last } => ToServer::OfferOrphan { old, last },
            ToServer::OrphanRecord {
                node,
                number,
                payload,
            } => {
                let payload = map(payload);
                ToServer::OrphanRecord {
                    node,
                    number,
                    payload,
                }
            }
            ToServer::Leave => ToServer::Leave,
            ToServer::Endpoint(reach) => ToServer::Endpoint(reach),
        }
    }

    /// Payload, which follows the bytes of [`ToServer::head`].
    pub fn payload(&self) -> Option<&P> {
        match self {
            ToServer::Record { payload, .. } | ToServer::OrphanRecord { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Appends the message's bytes up to its payload.
    pub fn head(&self, to: &mut Vec<u8>) {
        match self {
            ToServer::Join(join) => join.encode(to),
            ToServer::Resume {
                region,
                node,
                link,
                whole,
                applied,
            } => {
                to.push(2);
                to.extend_from_slice(&region.0.to_le_bytes());
                put_varint(to, node.0);
                put_varint(to, *link);
                to.push(u8::from(*whole));
                super::put_pairs(to, applied.iter().map(|(node, number)| (node.0, number.0)));
            }
            ToServer::Claims(claims) => encode_claims(to, claims),
            ToServer::Record {
                number, end, acked, ..
            } => {
                to.push(4);
                put_varint(to, number.0);
                super::put_link(to, *end);
                to.push(u8::from(*acked));
            }
            ToServer::Lock(message) => lock::encode_to_service(to, message),
            ToServer::View(view) => {
                to.push(9);
                super::put_bytes(to, &view.encode());
            }
            ToServer::Ping { nonce, applied } => {
                to.push(10);
                put_varint(to, *nonce);
                put_varint(to, applied.0);
            }
            ToServer::Pull => to.push(11),
            ToServer::Outcome { node, number } => {
                to.push(12);
                put_varint(to, node.0);
                put_varint(to, number.0);
            }
            ToServer::OfferOrphan { old, last } => {
                to.push(13);
                put_varint(to, old.node.0);
                to.extend_from_slice(&old.journal.0.to_le_bytes());
                put_varint(to, last.0);
            }
            ToServer::OrphanRecord { node, number, .. } => {
                to.push(14);
                put_varint(to, node.0);
                put_varint(to, number.0);
            }
            ToServer::Leave => to.push(15),
            ToServer::Endpoint(reach) => {
                to.push(16);
                reach.encode(to);
            }
        }
    }
}

impl<'a> ToServer<&'a [u8]> {
    /// Decodes a message and borrows its payload.
    ///
    /// # Errors
    ///
    /// [`MessageError`] if the bytes are no message of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<ToServer<&'a [u8]>, MessageError> {
        let mut from = super::open(bytes)?;
        let message = decode(&mut from)?;
        match message.payload() {
            Some(_) => Ok(message),
            None => super::close(message, &from),
        }
    }
}

fn decode<'a>(from: &mut ByteReader<'a>) -> Decoded<ToServer<&'a [u8]>> {
    let kind = from.u8()?;
    Ok(match kind {
        1 => ToServer::Join(JoinRequest::decode(from)?),
        2 => ToServer::Resume {
            region: RegionId(from.u128()?),
            node: super::node(from)?,
            link: link_number(from)?,
            whole: super::flag(from)?,
            applied: super::numbers(from, REGION_NODES_MAX)?,
        },
        3 => ToServer::Claims(decode_claims(from)?),
        4 => ToServer::Record {
            number: super::number(from)?,
            end: super::link(from)?,
            acked: super::flag(from)?,
            payload: from.rest(),
        },
        5..=7 => ToServer::Lock(lock::decode_to_service(kind, from)?),
        9 => ToServer::View(view(from)?),
        10 => ToServer::Ping {
            nonce: from.varint()?,
            applied: Position(from.varint()?),
        },
        11 => ToServer::Pull,
        12 => ToServer::Outcome {
            node: super::node(from)?,
            number: super::number(from)?,
        },
        13 => ToServer::OfferOrphan {
            old: OrphanJournalId {
                node: super::node(from)?,
                journal: JournalId(from.u128()?),
            },
            last: RecordNumber(from.varint()?),
        },
        14 => ToServer::OrphanRecord {
            node: super::node(from)?,
            number: super::number(from)?,
            payload: from.rest(),
        },
        15 => ToServer::Leave,
        16 => ToServer::Endpoint(PeerEndpoint::decode(from)?),
        _ => return Err(MessageError::Kind(kind)),
    })
}

impl JoinRequest {
    fn encode(&self, to: &mut Vec<u8>) {
        assert!(self.name.len() <= NODE_NAME_BYTES_MAX);
        assert!(self.key.len() <= DATA_KEY_BYTES_MAX);
        to.push(1);
        to.push(u8::from(self.region.is_some()));
        to.extend_from_slice(&self.region.unwrap_or_default().0.to_le_bytes());
        super::put_bytes(to, self.name.as_bytes());
        super::put_bytes(to, &self.view.encode());
        super::put_bytes(to, &self.key);
        super::put_link(to, self.begins);
        to.push(u8::from(self.lazy));
        put_varint(to, self.link);
    }

    fn decode(from: &mut ByteReader<'_>) -> Decoded<JoinRequest> {
        let named = super::flag(from)?;
        let region = RegionId(from.u128()?);
        Ok(JoinRequest {
            region: named.then_some(region),
            name: super::text(from, NODE_NAME_BYTES_MAX, "name")?,
            view: view(from)?,
            key: super::bytes(from, DATA_KEY_BYTES_MAX, "key")?.to_vec(),
            begins: super::link(from)?,
            lazy: super::flag(from)?,
            link: link_number(from)?,
        })
    }
}

/// Reads a link's number. An unbounded one could be the last that the server ever accepts of its node.
fn link_number(from: &mut ByteReader<'_>) -> Decoded<u64> {
    let number = from.varint()?;
    match number <= NODE_LINKS_MAX {
        true => Ok(number),
        false => Err(MessageError::Field("link")),
    }
}

fn view(from: &mut ByteReader<'_>) -> Decoded<View> {
    let bytes = super::bytes(from, SLOT_BYTES, "view")?;
    View::decode(bytes).map_err(|_| MessageError::Field("view"))
}

fn encode_claims(to: &mut Vec<u8>, claims: &[TokenClaim]) {
    assert!(claims.len() <= REGION_LOCKS_MAX);
    to.push(3);
    put_varint(to, claims.len() as u64);
    for claim in claims {
        put_varint(to, u64::from(claim.lock.0));
        put_varint(to, claim.grant.0);
        super::put_hold(to, Some(claim.hold));
        put_varint(to, claim.version.0);
    }
}

/// Reads claims. They ascend by lock, so that none is claimed twice.
fn decode_claims(from: &mut ByteReader<'_>) -> Decoded<Vec<TokenClaim>> {
    let count = super::counted(from, REGION_LOCKS_MAX, "claims")?;
    let mut claims: Vec<TokenClaim> = Vec::with_capacity(count);
    for _ in 0..count {
        let claim = TokenClaim {
            lock: super::lock(from)?,
            grant: GrantNumber(from.varint()?),
            hold: super::hold(from)?,
            version: LockVersion(from.varint()?),
        };
        if claims.last().is_some_and(|before| before.lock >= claim.lock) {
            return Err(MessageError::Field("claims"));
        }
        claims.push(claim);
    }
    Ok(claims)
}
