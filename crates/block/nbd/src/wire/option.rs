//! Options: what a client asks before it chooses an export, and how it is answered.
//!
//! ```text
//! option   | IHAVEOPT (8) | number (4) | length (4) | data ...
//! reply    | magic (8)    | number (4) | kind (4)   | length (4) | data ...
//! ```

use super::{OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader};

/// Bytes before an option's data.
pub const HEADER_BYTES: usize = 16;

/// What a client may ask. Numbers that are not here are answered with [`Reply::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
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

impl Number {
    /// The option of this number.
    pub fn of(number: u32) -> Option<Number> {
        Some(match number {
            1 => Number::ExportName,
            2 => Number::Abort,
            3 => Number::List,
            5 => Number::StartTls,
            6 => Number::Info,
            7 => Number::Go,
            8 => Number::StructuredReply,
            9 => Number::ListMetaContext,
            10 => Number::SetMetaContext,
            11 => Number::ExtendedHeaders,
            _ => return None,
        })
    }
}

/// An option's first bytes, with the number as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which option.
    pub number: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl Header {
    /// `None`: these are not the first bytes of an option.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u64()?;
        let header = Header {
            number: reader.u32()?,
            length: reader.u32()?,
        };
        (magic == OPTION_MAGIC).then_some(header)
    }
}

/// Kinds of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reply {
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
    /// Only after [`Number::StartTls`].
    TlsRequired = (1 << 31) + 5,
    /// No such export.
    Unknown = (1 << 31) + 6,
    /// Longer than this server reads.
    TooBig = (1 << 31) + 9,
    /// Not after [`Number::ExtendedHeaders`].
    ExtendedHeadersRequired = (1 << 31) + 10,
}

/// Appends a reply to option `number` with the data of `parts`, one after the other.
pub fn reply(out: &mut Vec<u8>, number: u32, kind: Reply, parts: &[&[u8]]) {
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

/// The data of [`Number::Info`] and [`Number::Go`].
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
        let mut reader = Reader::new(data);
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

/// The data of [`Number::ListMetaContext`] and [`Number::SetMetaContext`].
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
        let mut reader = Reader::new(data);
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
