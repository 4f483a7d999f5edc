//! Requests: 28 bytes, and a payload behind a write. With extended headers 32 bytes, and a payload wherever
//! [`flag::PAYLOAD_LEN`] says so.
//!
//! ```text
//! | magic (4) | flags (2) | command (2) | cookie (8) | offset (8) | length (4 or 8) | payload ...
//! ```

use super::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, WireReader};

/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// The same with an extended header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of the payload of a `BLOCK_STATUS` that names one context: the length that it is about, and the
/// context's number.
pub const STATUS_PAYLOAD_BYTES: usize = 12;

/// Flags of a request.
pub mod flag {
    /// Answer when it is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Zeros are to be stored, not left out.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read is to come in one chunk.
    pub const DF: u16 = 1 << 2;
    /// A block status needs only its first run.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros only if that is faster than writing them.
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
    /// Leave; no answer.
    pub const DISC: u16 = 2;
    /// Make durable what was answered.
    pub const FLUSH: u16 = 3;
    /// Forget bytes.
    pub const TRIM: u16 = 4;
    /// Prepare for reads.
    pub const CACHE: u16 = 5;
    /// Write zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell data from holes.
    pub const BLOCK_STATUS: u16 = 7;
}

/// A request as it came: nothing in it is checked but that it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// See [`flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// The client's name for it, repeated in the answer.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl NbdRequest {
    /// `None`: these bytes begin no request. What follows cannot be told from payload, so the client is cut
    /// off.
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

    /// The same with an extended header.
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

    /// The bytes that [`parse`](Self::parse) takes. The length has 32 bits there.
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

    /// The bytes that [`parse_extended`](Self::parse_extended) takes.
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_BYTES] {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes[4..24].copy_from_slice(&self.encode()[4..24]);
        bytes[24..32].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}
