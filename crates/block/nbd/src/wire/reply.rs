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
/// The same with an extended header.
pub const EXTENDED_CHUNK_BYTES: usize = 32;

/// No further chunk about this request.
pub const DONE: u16 = 1;

/// Kinds of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ChunkKind {
    /// Nothing: the request succeeded.
    None = 0,
    /// An offset, and the bytes from there.
    OffsetData = 1,
    /// An offset, and how many zeros from there.
    OffsetHole = 2,
    /// A context's number, and runs of (length, state).
    BlockStatus = 5,
    /// A context's number, how many runs, and runs of (length, state), of 64 bits each.
    BlockStatusExtended = 6,
    /// An error number, and a message.
    Error = (1 << 15) + 1,
}

/// The errors that the protocol knows, by Linux's numbers. There are no others on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdErrorCode {
    /// The export is read-only.
    Permission = 1,
    /// The device failed.
    Io = 5,
    /// Malformed, unaligned or beyond the end.
    Invalid = 22,
    /// No room, or a write beyond the end.
    NoSpace = 28,
    /// Too long for one chunk.
    Overflow = 75,
    /// Would not be fast.
    NotSupported = 95,
    /// The server is leaving; ask again at another connection.
    Shutdown = 108,
}

impl NbdErrorCode {
    /// The nearest that the protocol has.
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

    /// A word for people, in chunks that carry one.
    pub fn message(self) -> &'static str {
        match self {
            NbdErrorCode::Permission => "the export is read-only",
            NbdErrorCode::Io => "the volume could not do it; its log says why",
            NbdErrorCode::Invalid => {
                "not whole sectors of 512 bytes inside the export, or an unknown flag or command"
            }
            NbdErrorCode::NoSpace => "beyond the end of the export, or no room behind it",
            NbdErrorCode::Overflow => "too long to come in one chunk; ask without DF or for less",
            NbdErrorCode::NotSupported => "zeros that are stored take as long as writing them",
            NbdErrorCode::Shutdown => "the server is stopping",
        }
    }
}

/// A simple reply's first bytes; all of it unless it carries a read's data.
pub fn simple(cookie: u64, error: Option<NbdErrorCode>) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, |code| code as u32).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// A chunk's first bytes, for `length` bytes of data.
pub fn chunk(cookie: u64, kind: ChunkKind, flags: u16, length: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The same with an extended header, for the request at `offset`.
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
