//! Wire format of NBD: numbers, parsers and encoders, without state or decisions. Everything is big-endian.
//!
//! The NBD project's `doc/proto.md` describes the protocol; names here are its names without prefix.

pub mod option;
pub mod reply;
pub mod request;

/// First word of the server's greeting.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// First word of every option, and second word of the greeting.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of every request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply's chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// First word of a chunk with an extended header.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Flags of the greeting and of the client's answer to it.
pub mod hello {
    /// Options other than `EXPORT_NAME` are supported.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros after an export's description are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Capability flags of an export.
pub mod export {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `FUA` is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// A read can request its reply in one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes completed on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `FAST_ZERO` is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// `BLOCK_STATUS` may name the contexts that it wants.
    pub const BLOCK_STAT_PAYLOAD: u16 = 1 << 12;
}

/// Kinds of [`Info`](option::OptionNumber::Info) that a server sends.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description in one line.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Name of the only metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Number of that context in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// State in `base:allocation`: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// State in `base:allocation`: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// Reads big-endian numbers and byte runs from the front of a slice; never reads past its end.
#[derive(Clone, Copy, Debug)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// Creates a reader of all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { rest: bytes }
    }

    /// Next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes after a length of four bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }

    /// Whether every byte was read.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}
