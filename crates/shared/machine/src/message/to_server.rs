//! What a node says.

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::{NODE_NAME_BYTES_MAX, REGION_LOCKS_MAX, REGION_NODES_MAX};
use crate::lock::{ToService, TokenClaim};
use crate::{GrantNumber, LockVersion, NodeId, Position, RecordNumber, RegionId};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, SLOT_BYTES};
use netram_proto::wire::{ByteReader, ChainPoint, put_varint};

use super::{Decoded, MessageError, PeerEndpoint, lock};

/// A node that wants to have the region. It has applied nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Which region it means; `None`: whichever this is.
    pub region: Option<RegionId>,
    /// For people: machine and process.
    pub name: String,
    /// The newest view of its journal.
    pub view: View,
    /// The key that seals the journal's records, for whoever reads them when the node is gone; empty: they
    /// are not sealed.
    pub key: Vec<u8>,
    /// Where its first record will stand.
    pub begins: ChainPoint,
    /// It wants records only before a grant, or when it asks.
    pub lazy: bool,
    /// How many links it has had so far: see [`ToServer::Resume`].
    pub link: u64,
}

/// Journals that an earlier node id left, told from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanJournalId {
    /// Whose it was.
    pub node: NodeId,
    /// Which it is.
    pub journal: JournalId,
}

/// A message of a node. `P` is a record's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToServer<P> {
    /// The first message of a node without an id.
    Join(JoinRequest),
    /// The first message of a node over a new link.
    Resume {
        /// Which region.
        region: RegionId,
        /// Who it is.
        node: NodeId,
        /// How many links it has had so far, this one counted. What it said first over an earlier one may
        /// come after what it says over a later one, and is void then.
        link: u64,
        /// It has had the whole region; if not, it needs it from the beginning.
        whole: bool,
        /// The last record of each node that it has applied.
        applied: Vec<(NodeId, RecordNumber)>,
    },
    /// Ends a resuming: the tokens that it has. It stands behind the tails that were sent again, so that what
    /// is not claimed was given back behind its records.
    Claims(Vec<TokenClaim>),
    /// A record of its journal.
    Record {
        /// Its number.
        number: RecordNumber,
        /// Where it ends in the node's journal, and what the next one chains to.
        end: ChainPoint,
        /// It is safe already. If not, it is to be shown to nobody before it is durable at the server.
        acked: bool,
        /// Stamp and ranges.
        payload: P,
    },
    /// Of locks: tokens wanted, given back, or not to be waited for.
    Lock(ToService),
    /// A view of its journal, which counts when it is durable here.
    View(View),
    /// Are you there? The node is.
    Ping {
        /// Names the question.
        nonce: u64,
        /// What it has applied of the server's order.
        applied: Position,
    },
    /// A lazy node wants what there is.
    Pull,
    /// What became of a record?
    Outcome {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
    },
    /// It has the journal of an earlier node id, and read it to its end.
    OfferOrphan {
        /// Which.
        old: OrphanJournalId,
        /// The journal's last record; 0: it has none.
        last: RecordNumber,
    },
    /// A record of an offered journal, from where it was wanted.
    OrphanRecord {
        /// Whose.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// It has sent everything, and gives all tokens back.
    Leave,
    /// It takes records from its peers, and gives them its own: how they reach it. Said anew over each link,
    /// and when it changes.
    Endpoint(PeerEndpoint),
}

impl<P> ToServer<P> {
    /// Whether somebody may wait for what the server makes of it. Nobody does for a record that is safe:
    /// whoever needs it waits for a lock.
    pub fn is_awaited(&self) -> bool {
        !matches!(
            self,
            ToServer::Record { acked: true, .. }
                | ToServer::View(_)
                | ToServer::Ping { .. }
                | ToServer::Endpoint(_)
        )
    }

    /// The same with another payload.
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

    /// What stands behind [`ToServer::head`].
    pub fn payload(&self) -> Option<&P> {
        match self {
            ToServer::Record { payload, .. } | ToServer::OrphanRecord { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Appends the message up to its payload.
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
    /// Reads a message.
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
            link: from.varint()?,
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
            link: from.varint()?,
        })
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

/// Claims ascend by their locks, so that none is claimed twice.
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
