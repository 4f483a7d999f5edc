//! Options: requests of a client before it chooses an export, and their replies.
//!
//! ```text
//! option   | IHAVEOPT (8) | number (4) | length (4) | data ...
//! reply    | magic (8)    | number (4) | kind (4)   | length (4) | data ...
//! ```

use super::{OPTION_MAGIC, OPTION_REPLY_MAGIC, WireReader};

/// Bytes before an option's data.
pub const HEADER_BYTES: usize = 16;

/// Options that the server knows. Other numbers are answered with [`OptionReply::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionNumber {
    /// Choose an export the old way; the only reply is its size and flags.
    ExportName,
    /// End the connection.
    Abort,
    /// List all exports.
    List,
    /// Encrypt from here on.
    StartTls,
    /// Describe an export.
    Info,
    /// Describe an export and choose it.
    Go,
    /// Reply in chunks.
    StructuredReply,
    /// List metadata contexts.
    ListMetaContext,
    /// Choose metadata contexts.
    SetMetaContext,
    /// Use 64-bit lengths, and reply in chunks.
    ExtendedHeaders,
}

impl OptionNumber {
    /// The option with this number.
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

/// An option's header, with the number as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Number of the option.
    pub number: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl OptionHeader {
    /// Parses an option's header; `None` if the bytes are none.
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
    /// Success; the last reply to this option.
    Ack = 1,
    /// An export.
    Server = 2,
    /// One piece of information about an export.
    Info = 3,
    /// A metadata context.
    MetaContext = 4,
    /// The server does not know the option.
    Unsupported = (1 << 31) + 1,
    /// The server's configuration forbids the option.
    Policy = (1 << 31) + 2,
    /// The option is malformed, or came at the wrong time.
    Invalid = (1 << 31) + 3,
    /// The option needs [`OptionNumber::StartTls`] first.
    TlsRequired = (1 << 31) + 5,
    /// The export does not exist.
    Unknown = (1 << 31) + 6,
    /// The option is longer than the server reads.
    TooBig = (1 << 31) + 9,
    /// The option is not allowed after [`OptionNumber::ExtendedHeaders`].
    ExtendedHeadersRequired = (1 << 31) + 10,
}

/// Appends a reply to option `number` with the data of `parts`, one after the other.
pub fn reply(out: &mut Vec<u8>, number: u32, kind: OptionReply, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // Parts are names, descriptions and messages of the server, each bounded; a reply never comes near 4 GiB.
    let length = u32::try_from(length).expect("an option's reply is a few KiB");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&(kind as u32).to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Data of [`OptionNumber::Info`] and [`OptionNumber::Go`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// Name of the export, as received.
    pub name: &'a [u8],
    /// Whether the client wants its canonical name.
    pub wants_name: bool,
    /// Whether the client wants its description.
    pub wants_description: bool,
}

impl<'a> InfoQuery<'a> {
    /// Parses the data; `None` if malformed. Unknown kinds of information are skipped.
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

/// Data of [`OptionNumber::ListMetaContext`] and [`OptionNumber::SetMetaContext`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// Name of the export, as received.
    pub name: &'a [u8],
    /// Number of queries.
    pub queries: u32,
    /// Whether a query was `base:allocation`.
    pub names_allocation: bool,
    /// Whether a query was `base:`, which asks for all of that namespace.
    pub names_base: bool,
}

impl<'a> ContextQuery<'a> {
    /// Parses the data; `None` if malformed. A count that is too large fails at the end of the data.
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
