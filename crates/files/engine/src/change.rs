//! A change of a directory, encoded as the payload of a journal record.
//!
//! ```text
//! kind 64, bytes written to a file:     kind 65, any other change:
//!  0  inode u64                          0  operation u8, then its fields:
//!  8  offset u64                            numbers as varints (seven bits a byte); names and values after their length
//! 16  the bytes
//!
//! A change of names or of an extended attribute, on a mount that outlives its server, ends with its request:
//! reign and number. A file that loses its last name is then kept under a hidden one.
//! ```

use netram_proto::id::Lsn;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ByteReader, ShortInputError, put_varint};

use crate::executed::RequestId;
use crate::limit::{INODE_ID_END, NAME_BYTES_MAX, TARGET_BYTES_MAX, XATTR_BYTES_MAX};
use crate::name_table::InodeIdentity;

/// Record kind of bytes written to a file.
pub const KIND_WRITE: RecordKind = RecordKind(64);
/// Record kind of any other change.
pub const KIND_CHANGE: RecordKind = RecordKind(65);

/// Operation codes of [`DirectoryChange::Make`]: the inode is made on the disk after its record, or before
/// it.
const MADE_AFTER: u8 = 2;
const MADE_BEFORE: u8 = 9;

/// Length of the header before the written bytes.
pub(crate) const WRITE_HEADER_BYTES: usize = 16;

/// Number of a file, directory or symbolic link. It stays the same across renames and is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The journaled directory itself.
    pub const ROOT: InodeId = InodeId(1);
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// User and group that own an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOwner {
    /// Numeric user id.
    pub user: u32,
    /// Numeric group id.
    pub group: u32,
}

/// Attributes of an inode that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSpec<'a> {
    /// Type of the inode.
    pub kind: InodeKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub owner: FileOwner,
    /// Target of a symbolic link; empty for other types.
    pub target: &'a [u8],
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Directory that contains the name.
    pub directory: InodeId,
    /// The name.
    pub name: &'a [u8],
}

/// A point in time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTime {
    /// Whole seconds, negative before 1970.
    pub s: i64,
    /// Nanoseconds after `s`, below 1,000,000,000.
    pub ns: u32,
}

/// Attributes to set on an inode; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Numeric user id.
    pub user: Option<u32>,
    /// Numeric group id.
    pub group: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<FileTime>,
    /// Time of the last modification.
    pub modified: Option<FileTime>,
}

/// Mode of an allocation, as in `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocates blocks; the file grows to the end of the range if it is shorter.
    Extend,
    /// Allocates blocks; the length stays.
    KeepSize,
    /// Punches a hole; the length stays.
    Punch,
    /// Zeros the range; the file grows to its end if it is shorter.
    Zero,
    /// Zeros the range; the length stays.
    ZeroKeepSize,
}

impl FallocateMode {
    /// All modes; a mode's index is its number in a record.
    pub const ALL: [FallocateMode; 5] = [
        FallocateMode::Extend,
        FallocateMode::KeepSize,
        FallocateMode::Punch,
        FallocateMode::Zero,
        FallocateMode::ZeroKeepSize,
    ];
}

/// A change of a directory: of a file's content, of names or of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryChange<'a> {
    /// Writes bytes to a file.
    Write {
        /// File to write to.
        node: InodeId,
        /// First byte to overwrite.
        offset: u64,
        /// Bytes to write.
        bytes: &'a [u8],
    },
    /// Sets a file's length.
    Resize {
        /// File to resize.
        node: InodeId,
        /// New length in bytes.
        size: u64,
    },
    /// Allocates, zeros or punches out a range of a file.
    Allocate {
        /// File to change.
        node: InodeId,
        /// Kind of allocation.
        mode: FallocateMode,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
    /// Makes an inode.
    Make {
        /// Name of the inode; it must be free.
        at: DirectoryEntry<'a>,
        /// Number of the inode.
        node: InodeId,
        /// Type, permissions, owner and link target.
        spec: InodeSpec<'a>,
        /// Identity of the inode, if it is made on the disk before its record: files are, and on a mount that
        /// outlives its server everything is.
        identity: Option<InodeIdentity>,
    },
    /// Gives a file one more name.
    Link {
        /// File to link.
        node: InodeId,
        /// New name; it must be free.
        at: DirectoryEntry<'a>,
    },
    /// Removes a name, and with its last name the inode. A directory must be empty.
    Remove {
        /// Name to remove.
        at: DirectoryEntry<'a>,
    },
    /// Renames an inode. The target, if there is one, is replaced or exchanged.
    Rename {
        /// Name to rename.
        from: DirectoryEntry<'a>,
        /// New name.
        to: DirectoryEntry<'a>,
        /// Whether the two inodes exchange their names; both must exist.
        exchange: bool,
    },
    /// Sets attributes.
    SetAttributes {
        /// Inode whose attributes are set.
        node: InodeId,
        /// Attributes to set.
        attributes: AttributeChange,
    },
    /// Sets or removes an extended attribute.
    SetXattr {
        /// Inode whose extended attribute changes.
        node: InodeId,
        /// Name of the extended attribute.
        name: &'a [u8],
        /// New value; `None` removes the attribute.
        value: Option<&'a [u8]>,
    },
    /// Revokes an earlier record. The disk refused that change, so it was never made; its caller got the
    /// error.
    Revoked {
        /// LSN of the revoked record.
        lsn: Lsn,
    },
}

/// A decoded record: the change and its request. `None`: the record is the journal's own.
pub type DecodedRecord<'a> = Option<(DirectoryChange<'a>, Option<RequestId>)>;

/// Why a record is not a change of a directory: it is damaged, or belongs to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryDecodeError {
    /// No change of a directory has this record kind.
    #[error("record kind {0} is not a directory change")]
    Kind(u8),
    /// The operation code is unknown.
    #[error("operation {0} is unknown")]
    Operation(u8),
    /// A field is missing, too long or out of range.
    #[error("a field is missing, too long or out of range")]
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

    /// Encodes everything except the bytes of a write.
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
                spec,
                identity,
            } => put_made(&mut to, at, node, &spec, identity),
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

    /// The bytes of a write; empty for other changes.
    pub(crate) fn tail(&self) -> &'a [u8] {
        match self {
            DirectoryChange::Write { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// Decodes a record with the request that asked for the change, if it has one. `None` for a record kind
    /// that belongs to the journal itself.
    ///
    /// # Errors
    ///
    /// See [`DirectoryDecodeError`].
    pub fn decode(kind: RecordKind, payload: &'a [u8]) -> Result<DecodedRecord<'a>, DirectoryDecodeError> {
        let mut from = ByteReader::new(payload);
        match kind {
            KIND_WRITE => {
                let change = DirectoryChange::Write {
                    node: InodeId(from.u64()?),
                    offset: from.u64()?,
                    bytes: from.rest(),
                };
                Ok(Some((change, None)))
            }
            KIND_CHANGE => {
                let change = decode(from.u8()?, &mut from)?;
                let request = match change.has_request() && !from.rest().is_empty() {
                    true => Some(RequestId::read(&mut from)?),
                    false => None,
                };
                match from.rest() {
                    [] => Ok(Some((change, request))),
                    _ => Err(DirectoryDecodeError::Fields),
                }
            }
            RecordKind(own) if own < 16 => Ok(None),
            RecordKind(other) => Err(DirectoryDecodeError::Kind(other)),
        }
    }

    /// Whether a record of the change may name its request: executed twice, the change would have another
    /// result.
    pub(crate) fn has_request(&self) -> bool {
        self.is_of_names() || matches!(self, DirectoryChange::SetXattr { .. })
    }

    /// The inode that the reply to the change's request names; the root if it names none.
    pub(crate) fn replied_node(&self) -> InodeId {
        match self {
            DirectoryChange::Make { node, .. } | DirectoryChange::Link { node, .. } => *node,
            _ => InodeId::ROOT,
        }
    }

    /// Whether the change concerns names, not only the content or attributes of an inode.
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
        MADE_AFTER | MADE_BEFORE => decode_made(which, from)?,
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

fn put_made(
    to: &mut Vec<u8>,
    at: DirectoryEntry<'_>,
    node: InodeId,
    spec: &InodeSpec<'_>,
    identity: Option<InodeIdentity>,
) {
    let FileOwner { user, group } = spec.owner;
    let which = if identity.is_some() {
        MADE_BEFORE
    } else {
        MADE_AFTER
    };
    let kind = spec.kind as u64;
    put(
        to,
        which,
        &[node.0, kind, spec.mode.into(), user.into(), group.into()],
    );
    if let Some(InodeIdentity { inode, made_ns }) = identity {
        put_varint(to, inode);
        put_varint(to, made_ns);
    }
    put_place(to, at);
    put_bytes(to, spec.target);
}

fn decode_made<'a>(
    which: u8,
    from: &mut ByteReader<'a>,
) -> Result<DirectoryChange<'a>, DirectoryDecodeError> {
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
    Ok(DirectoryChange::Make {
        node,
        identity,
        at: place(from)?,
        spec: InodeSpec {
            kind,
            mode,
            owner: FileOwner { user, group },
            target: bytes(from, TARGET_BYTES_MAX)?,
        },
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

/// Reads the number of a made inode. It must have a successor.
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
