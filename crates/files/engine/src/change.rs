//! What is done to a folder, as the payload of a journal's record.
//!
//! ```text
//! kind 64, bytes that were written:     kind 65, all else:
//!  0  node u64                           0  which u8, and its fields:
//!  8  offset u64                            numbers of seven bits a byte; names and values with their length before them
//! 16  the bytes
//! ```

use netram_proto::id::Lsn;
use netram_proto::port::Kind;
use netram_proto::wire::{Cursor, Short, put_varint};

use crate::limit::{LABEL_BYTES_MAX, NAME_BYTES_MAX, NODE_NUMBER_END, TARGET_BYTES_MAX};
use crate::names::Identity;

/// Bytes that were written to a file.
pub const KIND_WRITE: Kind = Kind(64);
/// Any other change.
pub const KIND_CHANGE: Kind = Kind(65);

/// A node that is made on the disk after its record, and one that is made before it.
const MADE_AFTER: u8 = 2;
const MADE_BEFORE: u8 = 9;

/// Bytes before those that were written.
pub(crate) const WRITE_HEADER_BYTES: usize = 16;

/// A file, a folder or a symbolic link, whatever its names are. Never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

impl Node {
    /// The folder itself.
    pub const ROOT: Node = Node(1);
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink,
}

/// Whose a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

/// A new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made<'a> {
    /// What it is.
    pub kind: NodeKind,
    /// Its permissions.
    pub mode: u32,
    /// Whose it is.
    pub owner: Owner,
    /// Where a symbolic link leads; else empty.
    pub target: &'a [u8],
}

/// A name in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The folder.
    pub folder: Node,
    /// The name.
    pub name: &'a [u8],
}

/// A moment: seconds since 1970, and nanoseconds behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Whole seconds; before 1970 they are negative.
    pub s: i64,
    /// Less than a second.
    pub ns: u32,
}

/// What is set of a node. `None`: it stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// The user's number.
    pub user: Option<u32>,
    /// The group's number.
    pub group: Option<u32>,
    /// When it was read last.
    pub accessed: Option<Moment>,
    /// When it was written last.
    pub modified: Option<Moment>,
}

/// How a part of a file is allocated, as `fallocate(2)` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
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

impl Allocation {
    /// All of them.
    pub const ALL: [Allocation; 5] = [
        Allocation::Extend,
        Allocation::KeepSize,
        Allocation::Punch,
        Allocation::Zero,
        Allocation::ZeroKeepSize,
    ];
}

/// What is done to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Bytes are written.
    Write {
        /// The file.
        node: Node,
        /// Where.
        offset: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// A file gets another length.
    Resize {
        /// The file.
        node: Node,
        /// Its length.
        size: u64,
    },
    /// A part of a file is allocated.
    Allocate {
        /// The file.
        node: Node,
        /// How.
        how: Allocation,
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// A node is made.
    Make {
        /// Its name, which there was not.
        at: Place<'a>,
        /// Which it is.
        node: Node,
        /// What it is.
        made: Made<'a>,
        /// The disk's file, which is made before its record. `None`: a folder or a link, which are made after it.
        identity: Option<Identity>,
    },
    /// A file gets one more name.
    Link {
        /// The file.
        node: Node,
        /// The name, which there was not.
        at: Place<'a>,
    },
    /// A name goes; with the last one its node, which is no folder, or an empty one.
    Remove {
        /// The name.
        at: Place<'a>,
    },
    /// A node gets another name. What had that is gone, or has the first one.
    Rename {
        /// The name that it has.
        from: Place<'a>,
        /// The one that it gets.
        to: Place<'a>,
        /// Both there are, and change places.
        exchange: bool,
    },
    /// Attributes are set.
    Set {
        /// Of which node.
        node: Node,
        /// Which.
        attributes: Attributes,
    },
    /// An extended attribute is set, or taken away.
    Label {
        /// Of which node.
        node: Node,
        /// Its name.
        name: &'a [u8],
        /// What it is then. `None`: nothing.
        value: Option<&'a [u8]>,
    },
    /// The change in the record there was refused by the disk: it has never been done, and whoever wanted it knows.
    Refused {
        /// Where that record begins.
        lsn: Lsn,
    },
}

/// Why a record is of no use to a folder: it is damaged, or of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A kind that folders do not have.
    #[error("its kind {0} is none of a folder's")]
    Kind(u8),
    /// No such change.
    #[error("it names a change {0} that there is not")]
    Which(u8),
    /// A field is missing, too long or makes no sense.
    #[error("its fields are not those of its kind")]
    Fields,
}

impl From<Short> for DecodeError {
    fn from(_: Short) -> DecodeError {
        DecodeError::Fields
    }
}

impl<'a> Change<'a> {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Change::Write { .. } => KIND_WRITE,
            _ => KIND_CHANGE,
        }
    }

    /// Bytes before those that are written, or all there are.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(64);
        match *self {
            Change::Write { node, offset, .. } => {
                to.extend_from_slice(&node.0.to_le_bytes());
                to.extend_from_slice(&offset.to_le_bytes());
            }
            Change::Resize { node, size } => put(&mut to, 0, &[node.0, size]),
            Change::Allocate {
                node,
                how,
                offset,
                length,
            } => put(&mut to, 1, &[node.0, how as u64, offset, length]),
            Change::Make {
                at,
                node,
                made,
                identity,
            } => {
                let Owner { user, group } = made.owner;
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
                if let Some(Identity { inode, made_ns }) = identity {
                    put_varint(&mut to, inode);
                    put_varint(&mut to, made_ns);
                }
                put_place(&mut to, at);
                put_bytes(&mut to, made.target);
            }
            Change::Link { node, at } => {
                put(&mut to, 3, &[node.0]);
                put_place(&mut to, at);
            }
            Change::Remove { at } => {
                put(&mut to, 4, &[]);
                put_place(&mut to, at);
            }
            Change::Rename {
                from,
                to: target,
                exchange,
            } => {
                put(&mut to, 5, &[exchange.into()]);
                put_place(&mut to, from);
                put_place(&mut to, target);
            }
            Change::Set { node, attributes } => {
                put(&mut to, 6, &[node.0]);
                for number in [attributes.mode, attributes.user, attributes.group] {
                    put_varint(&mut to, number.map_or(0, |number| u64::from(number) + 1));
                }
                for moment in [attributes.accessed, attributes.modified] {
                    put_varint(&mut to, moment.map_or(0, |moment| u64::from(moment.ns) + 1));
                    put_varint(&mut to, moment.map_or(0, |moment| moment.s.cast_unsigned()));
                }
            }
            Change::Label { node, name, value } => {
                put(&mut to, 7, &[node.0, value.is_some().into()]);
                put_bytes(&mut to, name);
                put_bytes(&mut to, value.unwrap_or_default());
            }
            Change::Refused { lsn } => put(&mut to, 8, &[lsn.0]),
        }
        to
    }

    /// The bytes behind the head.
    pub(crate) fn tail(&self) -> &'a [u8] {
        match self {
            Change::Write { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// Reads a record. `None`: it is the journal's own.
    pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Option<Change<'a>>, DecodeError> {
        let mut from = Cursor::new(payload);
        match kind {
            KIND_WRITE => Ok(Some(Change::Write {
                node: Node(from.u64()?),
                offset: from.u64()?,
                bytes: from.rest(),
            })),
            KIND_CHANGE => {
                let change = decode(from.u8()?, &mut from)?;
                match from.rest() {
                    [] => Ok(Some(change)),
                    _ => Err(DecodeError::Fields),
                }
            }
            Kind(own) if own < 16 => Ok(None),
            Kind(other) => Err(DecodeError::Kind(other)),
        }
    }

    /// Whether it is of names, and not only of what is in a node.
    pub fn is_of_names(&self) -> bool {
        matches!(
            self,
            Change::Make { .. } | Change::Link { .. } | Change::Remove { .. } | Change::Rename { .. }
        )
    }
}

fn decode<'a>(which: u8, from: &mut Cursor<'a>) -> Result<Change<'a>, DecodeError> {
    Ok(match which {
        0 => Change::Resize {
            node: Node(from.varint()?),
            size: from.varint()?,
        },
        1 => Change::Allocate {
            node: Node(from.varint()?),
            how: allocation(from.varint()?)?,
            offset: from.varint()?,
            length: from.varint()?,
        },
        MADE_AFTER | MADE_BEFORE => {
            let node = made_node(from)?;
            let (kind, mode) = (node_kind(from.varint()?)?, number(from)?);
            let (user, group) = (number(from)?, number(from)?);
            let identity = match which {
                MADE_BEFORE => Some(Identity {
                    inode: from.varint()?,
                    made_ns: from.varint()?,
                }),
                _ => None,
            };
            Change::Make {
                node,
                identity,
                at: place(from)?,
                made: Made {
                    kind,
                    mode,
                    owner: Owner { user, group },
                    target: bytes(from, TARGET_BYTES_MAX)?,
                },
            }
        }
        3 => Change::Link {
            node: Node(from.varint()?),
            at: place(from)?,
        },
        4 => Change::Remove { at: place(from)? },
        5 => Change::Rename {
            exchange: flag(from)?,
            from: place(from)?,
            to: place(from)?,
        },
        6 => {
            let node = Node(from.varint()?);
            let (mode, user, group) = (perhaps(from)?, perhaps(from)?, perhaps(from)?);
            Change::Set {
                node,
                attributes: Attributes {
                    mode,
                    user,
                    group,
                    accessed: moment(from)?,
                    modified: moment(from)?,
                },
            }
        }
        7 => {
            let (node, there) = (Node(from.varint()?), flag(from)?);
            let (name, value) = (bytes(from, NAME_BYTES_MAX)?, bytes(from, LABEL_BYTES_MAX)?);
            Change::Label {
                node,
                name,
                value: there.then_some(value),
            }
        }
        8 => Change::Refused {
            lsn: Lsn(from.varint()?),
        },
        other => return Err(DecodeError::Which(other)),
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

fn put_place(to: &mut Vec<u8>, place: Place<'_>) {
    put_varint(to, place.folder.0);
    put_bytes(to, place.name);
}

pub(crate) fn bytes<'a>(from: &mut Cursor<'a>, max: usize) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(from.varint()?).map_err(|_| DecodeError::Fields)?;
    match length <= max {
        true => Ok(from.bytes(length)?),
        false => Err(DecodeError::Fields),
    }
}

fn place<'a>(from: &mut Cursor<'a>) -> Result<Place<'a>, DecodeError> {
    Ok(Place {
        folder: Node(from.varint()?),
        name: bytes(from, NAME_BYTES_MAX)?,
    })
}

fn number(from: &mut Cursor<'_>) -> Result<u32, DecodeError> {
    u32::try_from(from.varint()?).map_err(|_| DecodeError::Fields)
}

fn perhaps(from: &mut Cursor<'_>) -> Result<Option<u32>, DecodeError> {
    let Some(number) = from.varint()?.checked_sub(1) else {
        return Ok(None);
    };
    u32::try_from(number).map(Some).map_err(|_| DecodeError::Fields)
}

fn moment(from: &mut Cursor<'_>) -> Result<Option<Moment>, DecodeError> {
    let (ns, s) = (perhaps(from)?, from.varint()?);
    let moment = |ns| Moment {
        s: s.cast_signed(),
        ns,
    };
    match ns {
        Some(1_000_000_000..) => Err(DecodeError::Fields),
        ns => Ok(ns.map(moment)),
    }
}

fn flag(from: &mut Cursor<'_>) -> Result<bool, DecodeError> {
    match from.varint()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Fields),
    }
}

/// A node that is made, or was: the next has a higher number.
pub(crate) fn made_node(from: &mut Cursor<'_>) -> Result<Node, DecodeError> {
    match from.varint()? {
        number if number < NODE_NUMBER_END => Ok(Node(number)),
        _ => Err(DecodeError::Fields),
    }
}

pub(crate) fn node_kind(number: u64) -> Result<NodeKind, DecodeError> {
    let kinds = [NodeKind::File, NodeKind::Folder, NodeKind::Symlink];
    { kinds.into_iter() }
        .find(|kind| *kind as u64 == number)
        .ok_or(DecodeError::Fields)
}

fn allocation(number: u64) -> Result<Allocation, DecodeError> {
    { Allocation::ALL.into_iter() }
        .find(|way| *way as u64 == number)
        .ok_or(DecodeError::Fields)
}

#[cfg(test)]
mod tests;
