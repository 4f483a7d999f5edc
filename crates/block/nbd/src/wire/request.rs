//! Requests: 28 bytes, and a payload after a write. With extended headers 32 bytes, and a payload wherever
//! [`flag::PAYLOAD_LEN`] is set.
//!
//! ```text
//! | magic (4) | flags (2) | command (2) | cookie (8) | offset (8) | length (4 or 8) | payload ...
//! ```

use super::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, WireReader};

/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a request with an extended header, without its payload.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of the payload of a `BLOCK_STATUS` that names one context: the length of its range, and the
/// context's number.
pub const STATUS_PAYLOAD_BYTES: usize = 12;

/// Flags of a request.
pub mod flag {
    /// Reply only when the write is durable.
    pub const FUA: u16 = 1 << 0;
    /// Allocate space for zeros.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply to a read in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Report only the first run of a block status.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Write zeros only if that is faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload that follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Numbers of commands.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write the payload.
    pub const WRITE: u16 = 1;
    /// Disconnect; no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard bytes.
    pub const TRIM: u16 = 4;
    /// Prepare for reads.
    pub const CACHE: u16 = 5;
    /// Write zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report data and holes.
    pub const BLOCK_STATUS: u16 = 7;
}

/// A request as received; only its magic was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// Flags; see [`flag`].
    pub flags: u16,
    /// Number of the command; see [`command`].
    pub command: u16,
    /// The client's id of the request, repeated in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl NbdRequest {
    /// Parses a request; `None` if the bytes are none. Later bytes then cannot be told from payload, so the
    /// client is disconnected.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<NbdRequest> {
        let mut reader = WireReader::new(bytes);
        let magic = reader.u32()?;
        let request = NbdRequest {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?.into(),
        };
        (magic == REQUEST_MAGIC).then_some(request)
    }

    /// Parses a request with an extended header.
    pub fn parse_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Option<NbdRequest> {
        let mut reader = WireReader::new(bytes);
        let magic = reader.u32()?;
        let request = NbdRequest {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u64()?,
        };
        (magic == EXTENDED_REQUEST_MAGIC).then_some(request)
    }

    /// Encodes a request for [`parse`](Self::parse), with a length of 32 bits.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&(self.length as u32).to_be_bytes());
        bytes
    }

    /// Encodes a request for [`parse_extended`](Self::parse_extended).
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_BYTES] {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes[4..24].copy_from_slice(&self.encode()[4..24]);
        bytes[24..32].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}
