//! Options: what a client asks before it chooses an export, and how it is answered.
//!
//! ```text
//! option   | IHAVEOPT (8) | number (4) | length (4) | data ...
//! reply    | magic (8)    | number (4) | kind (4)   | length (4) | data ...
//! ```

use super::{OPTION_MAGIC, OPTION_REPLY_MAGIC, WireReader};

/// Bytes before an option's data.
pub const HEADER_BYTES: usize = 16;

/// What a client may ask. Numbers that are not here are answered with [`OptionReply::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionNumber {
    /// Choose an export, the old way: no reply but its size.
    ExportName,
    /// Leave.
    Abort,
    /// Name all exports.
    List,
    /// Encrypt from here on.
    StartTls,
    /// Describe an export.
    Info,
    /// Describe an export, and choose it.
    Go,
    /// Replies in chunks.
    StructuredReply,
    /// Name metadata contexts.
    ListMetaContext,
    /// Choose metadata contexts.
    SetMetaContext,
    /// Lengths of 64 bits, and replies in chunks.
    ExtendedHeaders,
}

impl OptionNumber {
    /// The option of this number.
    pub fn of(number: u32) -> Option<OptionNumber> {
        Some(match number {
            1 => OptionNumber::ExportName,
            2 => OptionNumber::Abort,
            3 => OptionNumber::List,
            5 => OptionNumber::StartTls,
            6 => OptionNumber::Info,
            7 => OptionNumber::Go,
            8 => OptionNumber::StructuredReply,
            9 => OptionNumber::ListMetaContext,
            10 => OptionNumber::SetMetaContext,
            11 => OptionNumber::ExtendedHeaders,
            _ => return None,
        })
    }
}

/// An option's first bytes, with the number as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option.
    pub number: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl OptionHeader {
    /// `None`: these are not the first bytes of an option.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<OptionHeader> {
        let mut reader = WireReader::new(bytes);
        let magic = reader.u64()?;
        let header = OptionHeader {
            number: reader.u32()?,
            length: reader.u32()?,
        };
        (magic == OPTION_MAGIC).then_some(header)
    }
}

/// Kinds of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptionReply {
    /// Done; nothing more about this option.
    Ack = 1,
    /// One export.
    Server = 2,
    /// One piece of information about an export.
    Info = 3,
    /// One metadata context.
    MetaContext = 4,
    /// No such option here.
    Unsupported = (1 << 31) + 1,
    /// Not allowed on this server.
    Policy = (1 << 31) + 2,
    /// Malformed, or at the wrong time.
    Invalid = (1 << 31) + 3,
    /// Only after [`OptionNumber::StartTls`].
    TlsRequired = (1 << 31) + 5,
    /// No such export.
    Unknown = (1 << 31) + 6,
    /// Longer than this server reads.
    TooBig = (1 << 31) + 9,
    /// Not after [`OptionNumber::ExtendedHeaders`].
    ExtendedHeadersRequired = (1 << 31) + 10,
}

/// Appends a reply to option `number` with the data of `parts`, one after the other.
pub fn reply(out: &mut Vec<u8>, number: u32, kind: OptionReply, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // Parts are names, descriptions and messages of ours, each bounded; a reply never comes near 4 GiB.
    let length = u32::try_from(length).expect("an option's reply is a few KiB");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&(kind as u32).to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// The data of [`OptionNumber::Info`] and [`OptionNumber::Go`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// The export asked about, as it came.
    pub name: &'a [u8],
    /// The client wants its canonical name.
    pub wants_name: bool,
    /// The client wants its description.
    pub wants_description: bool,
}

impl<'a> InfoQuery<'a> {
    /// `None`: the data are malformed. Kinds of information that nobody knows are skipped.
    pub fn parse(data: &'a [u8]) -> Option<InfoQuery<'a>> {
        let mut reader = WireReader::new(data);
        let mut query = InfoQuery {
            name: reader.counted()?,
            wants_name: false,
            wants_description: false,
        };
        for _ in 0..reader.u16()? {
            match reader.u16()? {
                super::info::NAME => query.wants_name = true,
                super::info::DESCRIPTION => query.wants_description = true,
                _ => (),
            }
        }
        reader.is_done().then_some(query)
    }
}

/// The data of [`OptionNumber::ListMetaContext`] and [`OptionNumber::SetMetaContext`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// The export asked about, as it came.
    pub name: &'a [u8],
    /// How many queries there were.
    pub queries: u32,
    /// One of them was `base:allocation`.
    pub names_allocation: bool,
    /// One of them was `base:`, which asks for all of that namespace.
    pub names_base: bool,
}

impl<'a> ContextQuery<'a> {
    /// `None`: the data are malformed. A lying count ends with the data, not with the count.
    pub fn parse(data: &'a [u8]) -> Option<ContextQuery<'a>> {
        let mut reader = WireReader::new(data);
        let name = reader.counted()?;
        let queries = reader.u32()?;
        let mut query = ContextQuery {
            name,
            queries,
            names_allocation: false,
            names_base: false,
        };
        for _ in 0..queries {
            let text = reader.counted()?;
            query.names_allocation |= text == super::BASE_ALLOCATION.as_bytes();
            query.names_base |= text == b"base:";
        }
        reader.is_done().then_some(query)
    }
}
