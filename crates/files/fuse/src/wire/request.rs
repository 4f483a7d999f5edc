//! Requests of the kernel, as values.

use super::init::FuseInit;
use super::{Fields, HEADER_BYTES};

/// Nanoseconds in a second, which a time's fraction is below.
const NS_IN_S: u32 = 1_000_000_000;

/// Fields that a request sets; others in it mean nothing.
const SETS_MODE: u32 = 1;
const SETS_USER: u32 = 1 << 1;
const SETS_GROUP: u32 = 1 << 2;
const SETS_SIZE: u32 = 1 << 3;
const SETS_ACCESSED: u32 = 1 << 4;
const SETS_MODIFIED: u32 = 1 << 5;
const ACCESSED_NOW: u32 = 1 << 7;
const MODIFIED_NOW: u32 = 1 << 8;

const WRITE_FROM_CACHE: u32 = 1;
const WRITE_CLEARS_SET_IDS: u32 = 1 << 2;

/// A request whose header is valid.
#[derive(Debug, PartialEq, Eq)]
pub struct FuseRequest<'a> {
    /// Id of the request for its reply. In a request that is sent again the highest bit is set, too.
    pub unique: u64,
    /// The inode.
    pub node: u64,
    /// The program that asks.
    pub caller: FuseCaller,
    /// The operation and its arguments.
    pub operation: FuseOperation<'a>,
}

/// A thread of a program, with the rights with which it acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseCaller {
    /// Numeric user id.
    pub user: u32,
    /// Numeric group id.
    pub group: u32,
    /// Thread id; zero for the kernel itself.
    pub thread: u32,
}

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseTime {
    /// Whole seconds since 1970, negative before.
    pub s: i64,
    /// Nanoseconds after `s`, below 1,000,000,000.
    pub ns: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The current time.
    Now,
    /// This time.
    At(FuseTime),
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions, as in stat(2).
    pub mode: Option<u32>,
    /// Numeric user id.
    pub user: Option<u32>,
    /// Numeric group id.
    pub group: Option<u32>,
    /// Size in bytes.
    pub bytes: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<NewTime>,
    /// Time of the last change of content.
    pub modified: Option<NewTime>,
}

/// A request's operation and arguments. Names are as the kernel sends them: without a zero byte, but of any
/// length and with any other byte.
#[derive(Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "fields are named as in linux/fuse.h, and say what they are"
)]
pub enum FuseOperation<'a> {
    /// The handshake.
    Init(FuseInit),
    /// Find a name in the directory.
    Lookup(&'a [u8]),
    /// The kernel drops its references to the inode; no reply.
    Forget,
    /// The kernel drops its references to several inodes; no reply.
    ForgetAll(ForgetList<'a>),
    /// Attributes of the inode.
    Attributes,
    /// Set attributes.
    Set(SetAttributes),
    /// Target of the symbolic link.
    ReadLink,
    /// Make a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Make a file, or something else that `mode` says.
    MakeNode { name: &'a [u8], mode: u32 },
    /// Make a directory.
    MakeDirectory { name: &'a [u8], mode: u32 },
    /// Remove the name of a file.
    Unlink(&'a [u8]),
    /// Remove a directory.
    RemoveDirectory(&'a [u8]),
    /// Rename, with the flags of renameat2(2).
    Rename {
        name: &'a [u8],
        new_directory: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// Give the inode `node` a further name in the directory.
    Link { node: u64, name: &'a [u8] },
    /// Open a file.
    Open { flags: u32 },
    /// Make a file and open it.
    Create { name: &'a [u8], mode: u32, flags: u32 },
    /// Read bytes.
    Read { handle: u64, offset: u64, bytes: u32 },
    /// Write bytes.
    Write(FuseWrite<'a>),
    /// Space of the file system.
    Space,
    /// The last descriptor of an opened file was closed.
    Release { handle: u64 },
    /// Sync a file.
    Sync,
    /// Sync a directory.
    SyncDirectory,
    /// Set an extended attribute, with the flags of setxattr(2).
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    /// Value of an extended attribute; its size if `room` is zero.
    Xattr { name: &'a [u8], room: u32 },
    /// Names of the extended attributes; their size if `room` is zero.
    Xattrs { room: u32 },
    /// Remove an extended attribute.
    RemoveXattr(&'a [u8]),
    /// Open a directory.
    OpenDirectory,
    /// Entries of a directory from `offset` on.
    ReadDirectory { handle: u64, offset: u64, bytes: u32 },
    /// The last descriptor of an opened directory was closed.
    ReleaseDirectory { handle: u64 },
    /// Allocate or free a part of a file, with the mode of fallocate(2).
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// Find data or a hole, as lseek(2).
    Seek { handle: u64, offset: u64, whence: u32 },
    /// The file system is gone.
    Destroy,
    /// An operation that is not known here.
    Other,
    /// The arguments do not have the form of the operation.
    Malformed,
}

/// A write.
#[derive(Debug, PartialEq, Eq)]
pub struct FuseWrite<'a> {
    /// The server's number of the opened file.
    pub handle: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Flags of the descriptor; only a write that bypasses the page cache has them.
    pub flags: u32,
    /// Whether the bytes come from the page cache.
    pub from_cache: bool,
    /// Whether the file's set-id bits must be cleared.
    pub clears_set_ids: bool,
}

/// Inodes that the kernel forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetList<'a>(&'a [u8]);

impl ForgetList<'_> {
    /// Bytes of an entry: the inode and the number of references.
    const ENTRY_BYTES: usize = 16;

    /// The inodes.
    pub fn nodes(&self) -> impl Iterator<Item = u64> {
        let entries = self.0.chunks_exact(ForgetList::ENTRY_BYTES);
        entries.filter_map(|entry| Fields(entry).u64())
    }
}

/// Bit of a request's id by which the kernel says that it sends the request again.
const RESENT: u64 = 1 << 63;

impl FuseRequest<'_> {
    /// Whether the request was sent before, to a server that did not answer it.
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }

    /// Number of the request, the same each time it is sent.
    pub fn number(&self) -> u64 {
        self.unique & !RESENT
    }

    /// Whether every request that an earlier server left unanswered was read before this one. The kernel
    /// sends those first, but not before interruptions and what it forgets.
    pub(crate) fn follows_resent(&self) -> bool {
        let is_ordered = self.operation.is_answered() && self.operation != FuseOperation::Other;
        is_ordered && !self.is_resent()
    }
}

impl<'a> FuseRequest<'a> {
    /// Parses a request. `None`: not even the header is valid, so there is nothing to reply to.
    pub fn parse(bytes: &'a [u8]) -> Option<FuseRequest<'a>> {
        let mut header = Fields(bytes.get(..HEADER_BYTES)?);
        let (length, number) = (header.u32()?, header.u32()?);
        let (unique, node) = (header.u64()?, header.u64()?);
        let caller = FuseCaller {
            user: header.u32()?,
            group: header.u32()?,
            thread: header.u32()?,
        };
        if length as usize != bytes.len() {
            return None;
        }
        let operation = FuseOperation::parse(number, Fields(&bytes[HEADER_BYTES..]));
        Some(FuseRequest {
            unique,
            node,
            caller,
            operation: operation.unwrap_or(FuseOperation::Malformed),
        })
    }
}

impl<'a> FuseOperation<'a> {
    /// Whether the kernel waits for a reply.
    pub fn is_answered(&self) -> bool {
        !matches!(self, FuseOperation::Forget | FuseOperation::ForgetAll(_))
    }

    fn parse(number: u32, fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        Some(match number {
            1 => FuseOperation::Lookup(fields.last_text()?),
            2 => FuseOperation::Forget,
            3 => FuseOperation::Attributes,
            4 => FuseOperation::Set(SetAttributes::parse(fields)?),
            5 => FuseOperation::ReadLink,
            10 => FuseOperation::Unlink(fields.last_text()?),
            11 => FuseOperation::RemoveDirectory(fields.last_text()?),
            16 => FuseOperation::Write(FuseWrite::parse(fields)?),
            17 => FuseOperation::Space,
            20 => FuseOperation::Sync,
            24 => FuseOperation::RemoveXattr(fields.last_text()?),
            26 => FuseOperation::Init(FuseInit::parse(fields)?),
            27 => FuseOperation::OpenDirectory,
            30 => FuseOperation::SyncDirectory,
            38 => FuseOperation::Destroy,
            6 | 8 | 9 | 12 | 13 | 35 | 45 => return FuseOperation::parse_name(number, fields),
            14 | 15 | 18 | 28 | 29 | 43 | 46 => return FuseOperation::parse_file(number, fields),
            21..=23 => return FuseOperation::parse_xattr(number, fields),
            42 => return FuseOperation::parse_forget(fields),
            _ => FuseOperation::Other,
        })
    }

    /// Operations that make or change names.
    fn parse_name(number: u32, mut fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        Some(match number {
            6 => FuseOperation::Symlink {
                name: fields.text()?,
                target: fields.last_text()?,
            },
            8 => {
                let (mode, _device) = (fields.u32()?, fields.u32()?);
                let (_mask, _padding) = (fields.u32()?, fields.u32()?);
                let name = fields.last_text()?;
                FuseOperation::MakeNode { name, mode }
            }
            9 => {
                let (mode, _mask) = (fields.u32()?, fields.u32()?);
                let name = fields.last_text()?;
                FuseOperation::MakeDirectory { name, mode }
            }
            12 | 45 => {
                let new_directory = fields.u64()?;
                let flags = match number {
                    12 => 0,
                    _ => (fields.u32()?, fields.u32()?).0,
                };
                FuseOperation::Rename {
                    name: fields.text()?,
                    new_directory,
                    new_name: fields.last_text()?,
                    flags,
                }
            }
            13 => FuseOperation::Link {
                node: fields.u64()?,
                name: fields.last_text()?,
            },
            _ => {
                let (flags, mode) = (fields.u32()?, fields.u32()?);
                let (_mask, _more) = (fields.u32()?, fields.u32()?);
                let name = fields.last_text()?;
                FuseOperation::Create { name, mode, flags }
            }
        })
    }

    /// Operations on an opened file or directory, and opening.
    fn parse_file(number: u32, mut fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        if number == 14 {
            return Some(FuseOperation::Open { flags: fields.u32()? });
        }
        let handle = fields.u64()?;
        Some(match number {
            18 => FuseOperation::Release { handle },
            29 => FuseOperation::ReleaseDirectory { handle },
            43 => {
                let (offset, length) = (fields.u64()?, fields.u64()?);
                let mode = fields.u32()?;
                FuseOperation::Allocate {
                    handle,
                    offset,
                    length,
                    mode,
                }
            }
            46 => {
                let (offset, whence) = (fields.u64()?, fields.u32()?);
                FuseOperation::Seek {
                    handle,
                    offset,
                    whence,
                }
            }
            _ => {
                let (offset, bytes) = (fields.u64()?, fields.u32()?);
                match number {
                    15 => FuseOperation::Read {
                        handle,
                        offset,
                        bytes,
                    },
                    _ => FuseOperation::ReadDirectory {
                        handle,
                        offset,
                        bytes,
                    },
                }
            }
        })
    }

    fn parse_xattr(number: u32, mut fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        let (size, flags) = (fields.u32()?, fields.u32()?);
        Some(match number {
            21 => {
                let (name, value) = (fields.text()?, fields.0);
                if value.len() != size as usize {
                    return None;
                }
                FuseOperation::SetXattr { name, value, flags }
            }
            22 => FuseOperation::Xattr {
                name: fields.last_text()?,
                room: size,
            },
            _ => FuseOperation::Xattrs { room: size },
        })
    }

    fn parse_forget(mut fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        let (count, _padding) = (fields.u32()?, fields.u32()?);
        let bytes = (count as usize).checked_mul(ForgetList::ENTRY_BYTES)?;
        Some(FuseOperation::ForgetAll(ForgetList(fields.0.get(..bytes)?)))
    }
}

impl SetAttributes {
    fn parse(mut fields: Fields<'_>) -> Option<SetAttributes> {
        let (valid, _padding) = (fields.u32()?, fields.u32()?);
        let (_handle, bytes, _owner) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (accessed_s, modified_s, _changed_s) = (fields.i64()?, fields.i64()?, fields.i64()?);
        let (accessed_ns, modified_ns, _changed_ns) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (mode, _unused) = (fields.u32()?, fields.u32()?);
        let (user, group) = (fields.u32()?, fields.u32()?);
        let sets = |field: u32| valid & field != 0;
        let time = |set: u32, now: u32, s: i64, ns: u32| match () {
            () if !sets(set) => Some(None),
            () if sets(now) => Some(Some(NewTime::Now)),
            () if ns >= NS_IN_S => None,
            () => Some(Some(NewTime::At(FuseTime { s, ns }))),
        };
        Some(SetAttributes {
            mode: sets(SETS_MODE).then_some(mode),
            user: sets(SETS_USER).then_some(user),
            group: sets(SETS_GROUP).then_some(group),
            bytes: sets(SETS_SIZE).then_some(bytes),
            accessed: time(SETS_ACCESSED, ACCESSED_NOW, accessed_s, accessed_ns)?,
            modified: time(SETS_MODIFIED, MODIFIED_NOW, modified_s, modified_ns)?,
        })
    }
}

impl<'a> FuseWrite<'a> {
    fn parse(mut fields: Fields<'a>) -> Option<FuseWrite<'a>> {
        let (handle, offset) = (fields.u64()?, fields.u64()?);
        let (bytes, how) = (fields.u32()?, fields.u32()?);
        let (_owner, flags, _padding) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let data = fields.0;
        (data.len() == bytes as usize).then_some(FuseWrite {
            handle,
            offset,
            data,
            flags,
            from_cache: how & WRITE_FROM_CACHE != 0,
            clears_set_ids: how & WRITE_CLEARS_SET_IDS != 0,
        })
    }
}
