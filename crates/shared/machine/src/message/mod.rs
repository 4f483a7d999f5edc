//! Messages between nodes and their server, as bytes.
//!
//! The first byte is the kind. Numbers are varints ([`ByteReader::varint`]); bytes of unknown length follow
//! their length. A payload comes last and without a length: it ends where the message ends, so that it is
//! never copied to be sent or read. The enums are generic over it: [`ToServer::decode`] borrows it from the
//! message, and [`ToServer::map`] converts it to the driver's type.
//!
//! Messages arrive whole and in order; splitting and encryption belong to the channel. Everything in a
//! message that can be checked without knowing the region is checked here, once.

mod lock;
mod to_node;
mod to_peer;
mod to_server;

pub use to_node::{JoinRefusal, JoinReply, RecordOutcome, RegionOpening, ToNode};
pub use to_peer::{PeerEndpoint, PeerHint, ToPeer};
pub use to_server::{JoinRequest, OrphanJournalId, ToServer};

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{LockId, LockMode, NodeId, RecordNumber};
use crate::limit::SHARED_MESSAGE_BYTES_MAX;
use netram_proto::id::Lsn;
use netram_proto::wire::{ByteReader, ChainPoint, ShortInputError, put_varint};

/// An invalid message. Its sender does not speak this version of the protocol; the link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// No message of this version begins with this byte.
    Kind(u8),
    /// The message is too short.
    Short,
    /// Bytes follow the end of the message, or it is longer than [`SHARED_MESSAGE_BYTES_MAX`].
    Long,
    /// The named field has an invalid value.
    Field(&'static str),
}

impl fmt::Display for MessageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Kind(kind) => write!(
                out,
                "unknown message kind {kind}: the peer may run another version of netram"
            ),
            MessageError::Short => out.write_str("the message is too short"),
            MessageError::Long => out.write_str("the message is too long"),
            MessageError::Field(name) => write!(out, "the message has an invalid {name}"),
        }
    }
}

impl core::error::Error for MessageError {}

impl From<ShortInputError> for MessageError {
    fn from(_: ShortInputError) -> MessageError {
        MessageError::Short
    }
}

type Decoded<T> = Result<T, MessageError>;

fn open(bytes: &[u8]) -> Decoded<ByteReader<'_>> {
    match bytes.len() <= SHARED_MESSAGE_BYTES_MAX {
        true => Ok(ByteReader::new(bytes)),
        false => Err(MessageError::Long),
    }
}

fn close<T>(value: T, cursor: &ByteReader<'_>) -> Decoded<T> {
    match cursor.rest().is_empty() {
        true => Ok(value),
        false => Err(MessageError::Long),
    }
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn bytes<'a>(from: &mut ByteReader<'a>, most: usize, name: &'static str) -> Decoded<&'a [u8]> {
    let count = counted(from, most, name)?;
    Ok(from.bytes(count)?)
}

fn text(from: &mut ByteReader<'_>, most: usize, name: &'static str) -> Decoded<String> {
    let text = core::str::from_utf8(bytes(from, most, name)?);
    text.map(String::from).map_err(|_| MessageError::Field(name))
}

/// Reads a count of at most `most`, and at most the remaining bytes, so that no memory is reserved for more
/// than was sent.
fn counted(from: &mut ByteReader<'_>, most: usize, name: &'static str) -> Decoded<usize> {
    let count = usize::try_from(from.varint()?)
        .ok()
        .filter(|count| *count <= most);
    let count = count.ok_or(MessageError::Field(name))?;
    match count <= from.rest().len() {
        true => Ok(count),
        false => Err(MessageError::Short),
    }
}

fn lock(from: &mut ByteReader<'_>) -> Decoded<LockId> {
    let lock = u32::try_from(from.varint()?);
    lock.map(LockId).map_err(|_| MessageError::Field("lock"))
}

/// Reads a node id, which is never zero.
fn node(from: &mut ByteReader<'_>) -> Decoded<NodeId> {
    match from.varint()? {
        0 => Err(MessageError::Field("node id")),
        id => Ok(NodeId(id)),
    }
}

/// Reads a record's number, which counts from 1.
fn number(from: &mut ByteReader<'_>) -> Decoded<RecordNumber> {
    match from.varint()? {
        0 => Err(MessageError::Field("number")),
        number => Ok(RecordNumber(number)),
    }
}

fn put_hold(to: &mut Vec<u8>, hold: Option<LockMode>) {
    to.push(match hold {
        None => 0,
        Some(LockMode::Shared) => 1,
        Some(LockMode::Exclusive) => 2,
    });
}

fn optional_hold(from: &mut ByteReader<'_>) -> Decoded<Option<LockMode>> {
    match from.u8()? {
        0 => Ok(None),
        1 => Ok(Some(LockMode::Shared)),
        2 => Ok(Some(LockMode::Exclusive)),
        _ => Err(MessageError::Field("mode")),
    }
}

fn hold(from: &mut ByteReader<'_>) -> Decoded<LockMode> {
    optional_hold(from)?.ok_or(MessageError::Field("mode"))
}

fn flag(from: &mut ByteReader<'_>) -> Decoded<bool> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::Field("flag")),
    }
}

fn put_link(to: &mut Vec<u8>, link: ChainPoint) {
    put_varint(to, link.lsn.0);
    to.extend_from_slice(&link.chain.to_le_bytes());
}

fn link(from: &mut ByteReader<'_>) -> Decoded<ChainPoint> {
    Ok(ChainPoint {
        lsn: Lsn(from.varint()?),
        chain: from.u32()?,
    })
}

/// Writes pairs that ascend by their first number, each as the difference to the one before.
fn put_pairs(to: &mut Vec<u8>, pairs: impl ExactSizeIterator<Item = (u64, u64)>) {
    put_varint(to, pairs.len() as u64);
    let mut before = 0;
    for (key, value) in pairs {
        put_varint(to, key - before);
        put_varint(to, value);
        before = key;
    }
}

/// Reads numbers of nodes, ascending by node.
fn numbers(from: &mut ByteReader<'_>, most: usize) -> Decoded<Vec<(NodeId, RecordNumber)>> {
    let pairs = pairs(from, most, "numbers")?.into_iter();
    Ok(pairs
        .map(|(node, number)| (NodeId(node), RecordNumber(number)))
        .collect())
}

fn pairs(from: &mut ByteReader<'_>, most: usize, name: &'static str) -> Decoded<Vec<(u64, u64)>> {
    let count = counted(from, most, name)?;
    let mut pairs: Vec<(u64, u64)> = Vec::with_capacity(count);
    for _ in 0..count {
        let step = from.varint()?;
        let key = match pairs.last() {
            None => Some(step),
            Some((before, _)) if step > 0 => before.checked_add(step),
            Some(_) => None,
        };
        let key = key.ok_or(MessageError::Field(name))?;
        pairs.push((key, from.varint()?));
    }
    Ok(pairs)
}
