//! Replies to requests: simple ones, and chunks of structured ones.
//!
//! ```text
//! simple   | magic (4) | error (4) | cookie (8) | data of a read ...
//! chunk    | magic (4) | flags (2) | kind (2) | cookie (8) | length (4) | data ...
//! extended | magic (4) | flags (2) | kind (2) | cookie (8) | the request's offset (8) | length (8) | data ...
//! ```

use netram_block::DeviceError;

use super::{CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, SIMPLE_REPLY_MAGIC};

/// Bytes of a simple reply without data.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of a chunk without data.
pub const CHUNK_BYTES: usize = 20;
/// Bytes of a chunk with an extended header, without data.
pub const EXTENDED_CHUNK_BYTES: usize = 32;

/// Flag of a request's last chunk.
pub const DONE: u16 = 1;

/// Kinds of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ChunkKind {
    /// The request succeeded; no data.
    None = 0,
    /// An offset, and the bytes from there.
    OffsetData = 1,
    /// An offset, and the number of zeros from there.
    OffsetHole = 2,
    /// A context's number, and runs of (length, state).
    BlockStatus = 5,
    /// A context's number, the number of runs, and runs of (length, state) of 64 bits each.
    BlockStatusExtended = 6,
    /// An error number, and a message.
    Error = (1 << 15) + 1,
}

/// The protocol's errors, with Linux's numbers. No others appear on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdErrorCode {
    /// The export is read-only.
    Permission = 1,
    /// The device failed.
    Io = 5,
    /// The request is malformed, unaligned or out of range.
    Invalid = 22,
    /// No space is left, or a write is beyond the end.
    NoSpace = 28,
    /// The reply is too long for one chunk.
    Overflow = 75,
    /// The request would not be fast.
    NotSupported = 95,
    /// The server is stopping; ask again on another connection.
    Shutdown = 108,
}

impl NbdErrorCode {
    /// The closest error of the protocol.
    pub fn of(error: &DeviceError) -> NbdErrorCode {
        match error.errno() {
            1 | 30 => NbdErrorCode::Permission,
            22 => NbdErrorCode::Invalid,
            28 => NbdErrorCode::NoSpace,
            95 => NbdErrorCode::NotSupported,
            108 => NbdErrorCode::Shutdown,
            _ => NbdErrorCode::Io,
        }
    }

    /// Message for chunks that carry one.
    pub fn message(self) -> &'static str {
        match self {
            NbdErrorCode::Permission => "the export is read-only",
            NbdErrorCode::Io => "the volume failed the request; see the server's log",
            NbdErrorCode::Invalid => {
                "not whole sectors of 512 bytes inside the export, or an unknown flag or command"
            }
            NbdErrorCode::NoSpace => "beyond the end of the export, or no space left on the server",
            NbdErrorCode::Overflow => "too long for one chunk; ask without DF or for less",
            NbdErrorCode::NotSupported => "allocated zeros are not faster than writing them",
            NbdErrorCode::Shutdown => "the server is stopping",
        }
    }
}

/// A simple reply's header; the whole reply unless data of a read follow.
pub fn simple(cookie: u64, error: Option<NbdErrorCode>) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, |code| code as u32).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// A chunk's header, for `length` bytes of data.
pub fn chunk(cookie: u64, kind: ChunkKind, flags: u16, length: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// A chunk's extended header, for the request at `offset`.
pub fn extended_chunk(
    cookie: u64,
    offset: u64,
    kind: ChunkKind,
    flags: u16,
    length: u32,
) -> [u8; EXTENDED_CHUNK_BYTES] {
    let mut bytes = [0; EXTENDED_CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&EXTENDED_CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..32].copy_from_slice(&u64::from(length).to_be_bytes());
    bytes
}
