//! What is done to a directory, as the payload of a journal's record.
//!
//! ```text
//! kind 64, bytes that were written:     kind 65, all else:
//!  0  node u64                           0  which u8, and its fields:
//!  8  offset u64                            numbers of seven bits a byte; names and values with their length before them
//! 16  the bytes
//! ```

use netram_proto::id::Lsn;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ByteReader, ShortInputError, put_varint};

use crate::limit::{INODE_ID_END, NAME_BYTES_MAX, TARGET_BYTES_MAX, XATTR_BYTES_MAX};
use crate::name_table::InodeIdentity;

/// Bytes that were written to a file.
pub const KIND_WRITE: RecordKind = RecordKind(64);
/// Any other change.
pub const KIND_CHANGE: RecordKind = RecordKind(65);

/// A node that is made on the disk after its record, and one that is made before it.
const MADE_AFTER: u8 = 2;
const MADE_BEFORE: u8 = 9;

/// Bytes before those that were written.
pub(crate) const WRITE_HEADER_BYTES: usize = 16;

/// A file, a directory or a symbolic link, whatever its names are. Never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The directory itself.
    pub const ROOT: InodeId = InodeId(1);
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// Whose a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOwner {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

/// A new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSpec<'a> {
    /// What it is.
    pub kind: InodeKind,
    /// Its permissions.
    pub mode: u32,
    /// Whose it is.
    pub owner: FileOwner,
    /// Where a symbolic link leads; else empty.
    pub target: &'a [u8],
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The directory.
    pub directory: InodeId,
    /// The name.
    pub name: &'a [u8],
}

/// A moment: seconds since 1970, and nanoseconds behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTime {
    /// Whole seconds; before 1970 they are negative.
    pub s: i64,
    /// Less than a second.
    pub ns: u32,
}

/// What is set of a node. `None`: it stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permissions.
    pub mode: Option<u32>,
    /// The user's number.
    pub user: Option<u32>,
    /// The group's number.
    pub group: Option<u32>,
    /// When it was read last.
    pub accessed: Option<FileTime>,
    /// When it was written last.
    pub modified: Option<FileTime>,
}

/// How a part of a file is allocated, as `fallocate(2)` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Blocks are there afterwards, and the file is as long.
    Extend,
    /// The same, and the file is as long as before.
    KeepSize,
    /// A hole, inside of the file.
    Punch,
    /// Zeros, and the file is as long.
    Zero,
    /// Zeros, and the file is as long as before.
    ZeroKeepSize,
}

impl FallocateMode {
    /// All of them.
    pub const ALL: [FallocateMode; 5] = [
        FallocateMode::Extend,
        FallocateMode::KeepSize,
        FallocateMode::Punch,
        FallocateMode::Zero,
        FallocateMode::ZeroKeepSize,
    ];
}

/// What is done to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryChange<'a> {
    /// Bytes are written.
    Write {
        /// The file.
        node: InodeId,
        /// Where.
        offset: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// A file gets another length.
    Resize {
        /// The file.
        node: InodeId,
        /// Its length.
        size: u64,
    },
    /// A part of a file is allocated.
    Allocate {
        /// The file.
        node: InodeId,
        /// How.
        mode: FallocateMode,
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// A node is made.
    Make {
        /// Its name, which there was not.
        at: DirectoryEntry<'a>,
        /// Which it is.
        node: InodeId,
        /// What it is.
        spec: InodeSpec<'a>,
        /// The disk's file, which is made before its record. `None`: a directory or a link, which are made
        /// after it.
        identity: Option<InodeIdentity>,
    },
    /// A file gets one more name.
    Link {
        /// The file.
        node: InodeId,
        /// The name, which there was not.
        at: DirectoryEntry<'a>,
    },
    /// A name goes; with the last one its node, which is no directory, or an empty one.
    Remove {
        /// The name.
        at: DirectoryEntry<'a>,
    },
    /// A node gets another name. What had that is gone, or has the first one.
    Rename {
        /// The name that it has.
        from: DirectoryEntry<'a>,
        /// The one that it gets.
        to: DirectoryEntry<'a>,
        /// Both there are, and change places.
        exchange: bool,
    },
    /// Attributes are set.
    SetAttributes {
        /// Of which node.
        node: InodeId,
        /// Which.
        attributes: AttributeChange,
    },
    /// An extended attribute is set, or taken away.
    SetXattr {
        /// Of which node.
        node: InodeId,
        /// Its name.
        name: &'a [u8],
        /// What it is then. `None`: nothing.
        value: Option<&'a [u8]>,
    },
    /// The change in the record there was refused by the disk: it has never been done, and whoever wanted it
    /// knows.
    Revoked {
        /// Where that record begins.
        lsn: Lsn,
    },
}

/// Why a record is of no use to a directory: it is damaged, or of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryDecodeError {
    /// A kind that directories do not have.
    #[error("its kind {0} is none of a directory's")]
    Kind(u8),
    /// No such change.
    #[error("it names a change {0} that there is not")]
    Operation(u8),
    /// A field is missing, too long or makes no sense.
    #[error("its fields are not those of its kind")]
    Fields,
}

impl From<ShortInputError> for DirectoryDecodeError {
    fn from(_: ShortInputError) -> DirectoryDecodeError {
        DirectoryDecodeError::Fields
    }
}

impl<'a> DirectoryChange<'a> {
    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            DirectoryChange::Write { .. } => KIND_WRITE,
            _ => KIND_CHANGE,
        }
    }

    /// Bytes before those that are written, or all there are.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(64);
        match *self {
            DirectoryChange::Write { node, offset, .. } => {
                to.extend_from_slice(&node.0.to_le_bytes());
                to.extend_from_slice(&offset.to_le_bytes());
            }
            DirectoryChange::Resize { node, size } => put(&mut to, 0, &[node.0, size]),
            DirectoryChange::Allocate {
                node,
                mode: how,
                offset,
                length,
            } => put(&mut to, 1, &[node.0, how as u64, offset, length]),
            DirectoryChange::Make {
                at,
                node,
                spec: made,
                identity,
            } => {
                let FileOwner { user, group } = made.owner;
                let kind = made.kind as u64;
                let which = if identity.is_some() {
                    MADE_BEFORE
                } else {
                    MADE_AFTER
                };
                put(
                    &mut to,
                    which,
                    &[node.0, kind, made.mode.into(), user.into(), group.into()],
                );
                if let Some(InodeIdentity { inode, made_ns }) = identity {
                    put_varint(&mut to, inode);
                    put_varint(&mut to, made_ns);
                }
                put_place(&mut to, at);
                put_bytes(&mut to, made.target);
            }
            DirectoryChange::Link { node, at } => {
                put(&mut to, 3, &[node.0]);
                put_place(&mut to, at);
            }
            DirectoryChange::Remove { at } => {
                put(&mut to, 4, &[]);
                put_place(&mut to, at);
            }
            DirectoryChange::Rename {
                from,
                to: target,
                exchange,
            } => {
                put(&mut to, 5, &[exchange.into()]);
                put_place(&mut to, from);
                put_place(&mut to, target);
            }
            DirectoryChange::SetAttributes { node, attributes } => {
                put(&mut to, 6, &[node.0]);
                for number in [attributes.mode, attributes.user, attributes.group] {
                    put_varint(&mut to, number.map_or(0, |number| u64::from(number) + 1));
                }
                for moment in [attributes.accessed, attributes.modified] {
                    put_varint(&mut to, moment.map_or(0, |moment| u64::from(moment.ns) + 1));
                    put_varint(&mut to, moment.map_or(0, |moment| moment.s.cast_unsigned()));
                }
            }
            DirectoryChange::SetXattr { node, name, value } => {
                put(&mut to, 7, &[node.0, value.is_some().into()]);
                put_bytes(&mut to, name);
                put_bytes(&mut to, value.unwrap_or_default());
            }
            DirectoryChange::Revoked { lsn } => put(&mut to, 8, &[lsn.0]),
        }
        to
    }

    /// The bytes behind the head.
    pub(crate) fn tail(&self) -> &'a [u8] {
        match self {
            DirectoryChange::Write { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// Reads a record. `None`: it is the journal's own.
    pub fn decode(
        kind: RecordKind,
        payload: &'a [u8],
    ) -> Result<Option<DirectoryChange<'a>>, DirectoryDecodeError> {
        let mut from = ByteReader::new(payload);
        match kind {
            KIND_WRITE => Ok(Some(DirectoryChange::Write {
                node: InodeId(from.u64()?),
                offset: from.u64()?,
                bytes: from.rest(),
            })),
            KIND_CHANGE => {
                let change = decode(from.u8()?, &mut from)?;
                match from.rest() {
                    [] => Ok(Some(change)),
                    _ => Err(DirectoryDecodeError::Fields),
                }
            }
            RecordKind(own) if own < 16 => Ok(None),
            RecordKind(other) => Err(DirectoryDecodeError::Kind(other)),
        }
    }

    /// Whether it is of names, and not only of what is in a node.
    pub fn is_of_names(&self) -> bool {
        matches!(
            self,
            DirectoryChange::Make { .. }
                | DirectoryChange::Link { .. }
                | DirectoryChange::Remove { .. }
                | DirectoryChange::Rename { .. }
        )
    }
}

fn decode<'a>(which: u8, from: &mut ByteReader<'a>) -> Result<DirectoryChange<'a>, DirectoryDecodeError> {
    Ok(match which {
        0 => DirectoryChange::Resize {
            node: InodeId(from.varint()?),
            size: from.varint()?,
        },
        1 => DirectoryChange::Allocate {
            node: InodeId(from.varint()?),
            mode: allocation(from.varint()?)?,
            offset: from.varint()?,
            length: from.varint()?,
        },
        MADE_AFTER | MADE_BEFORE => {
            let node = made_node(from)?;
            let (kind, mode) = (node_kind(from.varint()?)?, number(from)?);
            let (user, group) = (number(from)?, number(from)?);
            let identity = match which {
                MADE_BEFORE => Some(InodeIdentity {
                    inode: from.varint()?,
                    made_ns: from.varint()?,
                }),
                _ => None,
            };
            DirectoryChange::Make {
                node,
                identity,
                at: place(from)?,
                spec: InodeSpec {
                    kind,
                    mode,
                    owner: FileOwner { user, group },
                    target: bytes(from, TARGET_BYTES_MAX)?,
                },
            }
        }
        3 => DirectoryChange::Link {
            node: InodeId(from.varint()?),
            at: place(from)?,
        },
        4 => DirectoryChange::Remove { at: place(from)? },
        5 => DirectoryChange::Rename {
            exchange: flag(from)?,
            from: place(from)?,
            to: place(from)?,
        },
        6 => {
            let node = InodeId(from.varint()?);
            let (mode, user, group) = (perhaps(from)?, perhaps(from)?, perhaps(from)?);
            DirectoryChange::SetAttributes {
                node,
                attributes: AttributeChange {
                    mode,
                    user,
                    group,
                    accessed: moment(from)?,
                    modified: moment(from)?,
                },
            }
        }
        7 => {
            let (node, there) = (InodeId(from.varint()?), flag(from)?);
            let (name, value) = (bytes(from, NAME_BYTES_MAX)?, bytes(from, XATTR_BYTES_MAX)?);
            DirectoryChange::SetXattr {
                node,
                name,
                value: there.then_some(value),
            }
        }
        8 => DirectoryChange::Revoked {
            lsn: Lsn(from.varint()?),
        },
        other => return Err(DirectoryDecodeError::Operation(other)),
    })
}

fn put(to: &mut Vec<u8>, which: u8, numbers: &[u64]) {
    to.push(which);
    numbers.iter().for_each(|number| put_varint(to, *number));
}

pub(crate) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn put_place(to: &mut Vec<u8>, place: DirectoryEntry<'_>) {
    put_varint(to, place.directory.0);
    put_bytes(to, place.name);
}

pub(crate) fn bytes<'a>(from: &mut ByteReader<'a>, max: usize) -> Result<&'a [u8], DirectoryDecodeError> {
    let length = usize::try_from(from.varint()?).map_err(|_| DirectoryDecodeError::Fields)?;
    match length <= max {
        true => Ok(from.bytes(length)?),
        false => Err(DirectoryDecodeError::Fields),
    }
}

fn place<'a>(from: &mut ByteReader<'a>) -> Result<DirectoryEntry<'a>, DirectoryDecodeError> {
    Ok(DirectoryEntry {
        directory: InodeId(from.varint()?),
        name: bytes(from, NAME_BYTES_MAX)?,
    })
}

fn number(from: &mut ByteReader<'_>) -> Result<u32, DirectoryDecodeError> {
    u32::try_from(from.varint()?).map_err(|_| DirectoryDecodeError::Fields)
}

fn perhaps(from: &mut ByteReader<'_>) -> Result<Option<u32>, DirectoryDecodeError> {
    let Some(number) = from.varint()?.checked_sub(1) else {
        return Ok(None);
    };
    u32::try_from(number)
        .map(Some)
        .map_err(|_| DirectoryDecodeError::Fields)
}

fn moment(from: &mut ByteReader<'_>) -> Result<Option<FileTime>, DirectoryDecodeError> {
    let (ns, s) = (perhaps(from)?, from.varint()?);
    let moment = |ns| FileTime {
        s: s.cast_signed(),
        ns,
    };
    match ns {
        Some(1_000_000_000..) => Err(DirectoryDecodeError::Fields),
        ns => Ok(ns.map(moment)),
    }
}

fn flag(from: &mut ByteReader<'_>) -> Result<bool, DirectoryDecodeError> {
    match from.varint()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DirectoryDecodeError::Fields),
    }
}

/// A node that is made, or was: the next has a higher number.
pub(crate) fn made_node(from: &mut ByteReader<'_>) -> Result<InodeId, DirectoryDecodeError> {
    match from.varint()? {
        number if number < INODE_ID_END => Ok(InodeId(number)),
        _ => Err(DirectoryDecodeError::Fields),
    }
}

pub(crate) fn node_kind(number: u64) -> Result<InodeKind, DirectoryDecodeError> {
    let kinds = [InodeKind::File, InodeKind::Directory, InodeKind::Symlink];
    { kinds.into_iter() }
        .find(|kind| *kind as u64 == number)
        .ok_or(DirectoryDecodeError::Fields)
}

fn allocation(number: u64) -> Result<FallocateMode, DirectoryDecodeError> {
    { FallocateMode::ALL.into_iter() }
        .find(|way| *way as u64 == number)
        .ok_or(DirectoryDecodeError::Fields)
}

#[cfg(test)]
mod tests;
