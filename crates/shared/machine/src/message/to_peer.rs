//! Messages between nodes, and how nodes reach each other.

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::HINT_NEEDS_MAX;
use crate::{NodeId, RecordNumber, RegionId};
use netram_proto::limit::ADDRESS_BYTES_MAX;
use netram_proto::multicast::{ChannelInvite, INVITE_BYTES};
use netram_proto::wire::{ByteReader, put_varint};

use super::{Decoded, MessageError};

/// How a node's peers connect to it and receive its multicast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// Address at which the node accepts peers; empty: it accepts none and connects to them.
    pub address: String,
    /// Channel to which the node multicasts. A node with a channel also receives from the group.
    pub tune: Option<ChannelInvite>,
}

/// A record that its node sends to peers directly. Losing it costs time only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHint<P> {
    /// Node that wrote the record.
    pub node: NodeId,
    /// Its number.
    pub number: RecordNumber,
    /// Other nodes' records that must be applied before this one, ascending by node.
    pub needs: Vec<(NodeId, RecordNumber)>,
    /// Stamp and ranges.
    pub payload: P,
}

/// Message from a node to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPeer<P> {
    /// First message in each direction.
    Hello {
        /// Region of both nodes.
        region: RegionId,
        /// Sender.
        from: NodeId,
        /// Intended receiver.
        to: NodeId,
    },
    /// A record.
    Hint(PeerHint<P>),
}

impl<P> ToPeer<P> {
    /// Converts the payload.
    pub fn map<Q>(self, map: impl FnOnce(P) -> Q) -> ToPeer<Q> {
        match self {
            ToPeer::Hello { region, from, to } => ToPeer::Hello { region, from, to },
            ToPeer::Hint(hint) => ToPeer::Hint(PeerHint {
                node: hint.node,
                number: hint.number,
                needs: hint.needs,
                payload: map(hint.payload),
            }),
        }
    }

    /// Payload, which follows the bytes of [`ToPeer::head`].
    pub fn payload(&self) -> Option<&P> {
        match self {
            ToPeer::Hello { .. } => None,
            ToPeer::Hint(hint) => Some(&hint.payload),
        }
    }

    /// Appends the message's bytes up to its payload.
    pub fn head(&self, to: &mut Vec<u8>) {
        match self {
            ToPeer::Hello {
                region,
                from,
                to: whom,
            } => {
                to.push(1);
                to.extend_from_slice(&region.0.to_le_bytes());
                put_varint(to, from.0);
                put_varint(to, whom.0);
            }
            ToPeer::Hint(hint) => hint.head(to),
        }
    }
}

impl<P> PeerHint<P> {
    /// Appends the message's bytes up to its payload.
    pub fn head(&self, to: &mut Vec<u8>) {
        assert!(self.needs.len() <= HINT_NEEDS_MAX);
        to.push(2);
        put_varint(to, self.node.0);
        put_varint(to, self.number.0);
        super::put_pairs(to, self.needs.iter().map(|(node, number)| (node.0, number.0)));
    }
}

impl<'a> ToPeer<&'a [u8]> {
    /// Decodes a message and borrows its payload.
    ///
    /// # Errors
    ///
    /// [`MessageError`] if the bytes are no message of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<ToPeer<&'a [u8]>, MessageError> {
        let mut from = super::open(bytes)?;
        match from.u8()? {
            1 => {
                let hello = ToPeer::Hello {
                    region: RegionId(from.u128()?),
                    from: super::node(&mut from)?,
                    to: super::node(&mut from)?,
                };
                super::close(hello, &from)
            }
            2 => Ok(ToPeer::Hint(PeerHint {
                node: super::node(&mut from)?,
                number: super::number(&mut from)?,
                needs: super::numbers(&mut from, HINT_NEEDS_MAX)?,
                payload: from.rest(),
            })),
            kind => Err(MessageError::Kind(kind)),
        }
    }
}

impl PeerEndpoint {
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        assert!(self.address.len() <= ADDRESS_BYTES_MAX);
        super::put_bytes(to, self.address.as_bytes());
        to.push(u8::from(self.tune.is_some()));
        if let Some(tune) = &self.tune {
            to.extend_from_slice(&tune.encode());
        }
    }

    pub(super) fn decode(from: &mut ByteReader<'_>) -> Decoded<PeerEndpoint> {
        let address = super::text(from, ADDRESS_BYTES_MAX, "address")?;
        let tune = match super::flag(from)? {
            false => None,
            true => {
                let tune = ChannelInvite::parse(from.bytes(INVITE_BYTES)?);
                Some(tune.ok_or(MessageError::Field("channel"))?)
            }
        };
        Ok(PeerEndpoint { address, tune })
    }
}
