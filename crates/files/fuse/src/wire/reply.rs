//! Replies: what a service writes, and the header in front.

use rustix::io::Errno;

use super::request::FuseTime;

/// Bytes of a reply's header.
pub(crate) const REPLY_HEADER_BYTES: usize = 16;
/// The kernel's largest error number.
const ERROR_NUMBER_MAX: i32 = 4095;
/// Bytes that the room for data grows by at least.
const GROWTH_BYTES: usize = 4096;
/// Bytes of a directory's entry before its name; entries are padded to eight.
const ENTRY_BYTES: usize = 24;

/// Attributes of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseAttributes {
    /// The kernel's number of the inode.
    pub node: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Units of 512 bytes on the disk.
    pub units: u64,
    /// Time of the last access.
    pub accessed: FuseTime,
    /// Time of the last change of content.
    pub modified: FuseTime,
    /// Time of the last change of attributes.
    pub changed: FuseTime,
    /// Type and permissions, as in stat(2).
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Numeric id of the owner.
    pub user: u32,
    /// Numeric id of the group.
    pub group: u32,
    /// Preferred size of reads and writes in bytes.
    pub block_bytes: u32,
}

/// Seconds for which the kernel may use an answer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseTtl {
    /// Seconds for the name.
    pub name_s: u64,
    /// Seconds for the attributes.
    pub attributes_s: u64,
}

/// An opened file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReply {
    /// The server's number of it, which comes with each request.
    pub handle: u64,
    /// [`open_flag`](crate::open_flag)s.
    pub flags: u32,
    /// The kernel's number of the registered file that it may read and write itself; else zero.
    pub backing: u32,
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseSpace {
    /// Blocks in all, of `fragment_bytes` each.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Blocks that are free for users other than root.
    pub available: u64,
    /// Files that there may be.
    pub files: u64,
    /// Files that there may be more.
    pub files_free: u64,
    /// Preferred size of reads and writes in bytes.
    pub block_bytes: u32,
    /// Maximum bytes of a name.
    pub name_bytes_max: u32,
    /// Bytes of a block.
    pub fragment_bytes: u32,
}

/// A reply's body, filled from the front. A thread uses one for all of its replies.
#[derive(Debug, Default)]
pub struct ReplyBody {
    /// Initialized bytes, of which the first `filled` are the body.
    bytes: Vec<u8>,
    filled: usize,
}

impl ReplyBody {
    /// The body so far.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Begins another reply.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Room for `bytes` more bytes. [`ReplyBody::take`] makes them part of the body.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.filled + bytes;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(GROWTH_BYTES), 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// Takes `bytes` bytes of the room into the body.
    pub fn take(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.filled);
        self.filled += bytes;
    }

    /// Adds `bytes` to the body.
    pub fn data(&mut self, bytes: &[u8]) -> &mut ReplyBody {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.take(bytes.len());
        self
    }

    pub(super) fn u16(&mut self, field: u16) -> &mut ReplyBody {
        self.data(&field.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, field: u32) -> &mut ReplyBody {
        self.data(&field.to_ne_bytes())
    }

    fn u64(&mut self, field: u64) -> &mut ReplyBody {
        self.data(&field.to_ne_bytes())
    }

    /// 88 bytes of attributes, the end of several kinds of replies.
    fn inode(&mut self, of: &FuseAttributes) -> &mut ReplyBody {
        self.u64(of.node).u64(of.bytes).u64(of.units);
        let times = [of.accessed, of.modified, of.changed];
        for time in times {
            self.u64(time.s.cast_unsigned());
        }
        for time in times {
            self.u32(time.ns);
        }
        self.u32(of.mode).u32(of.links).u32(of.user).u32(of.group);
        // Neither is a device, nor has it flags.
        self.u32(0).u32(of.block_bytes).u32(0)
    }

    /// Reply to a request for attributes, or one that sets them.
    pub fn attributes(&mut self, of: &FuseAttributes, ttl: FuseTtl) {
        self.u64(ttl.attributes_s).u32(0).u32(0).inode(of);
    }

    /// Reply to a look-up, or to what makes a name.
    pub fn entry(&mut self, of: &FuseAttributes, ttl: FuseTtl) -> &mut ReplyBody {
        // Numbers are never used again, so all have generation 0.
        self.u64(of.node).u64(0).u64(ttl.name_s).u64(ttl.attributes_s);
        self.u32(0).u32(0).inode(of)
    }

    /// Reply to an open; behind an entry: to the creation of a file.
    pub fn opened(&mut self, open: OpenReply) {
        self.u64(open.handle).u32(open.flags).u32(open.backing);
    }

    /// Reply to a write.
    pub fn written(&mut self, bytes: u32) {
        self.u32(bytes).u32(0);
    }

    /// Reply to a request for the size of extended attributes.
    pub fn size(&mut self, bytes: u32) {
        self.u32(bytes).u32(0);
    }

    /// Reply to a search for data or a hole.
    pub fn offset(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// Reply to a request for the file system's space.
    pub fn space(&mut self, space: &FuseSpace) {
        self.u64(space.blocks).u64(space.free).u64(space.available);
        self.u64(space.files).u64(space.files_free);
        self.u32(space.block_bytes).u32(space.name_bytes_max);
        self.u32(space.fragment_bytes).u32(0);
        self.u64(0).u64(0).u64(0);
    }

    /// Adds an entry of a directory, unless the reply would be longer than `limit` bytes. Reading goes on
    /// behind it at `next`; `mode` has its type, as in stat(2).
    pub fn directory_entry(&mut self, limit: usize, node: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let length = (ENTRY_BYTES + name.len()).next_multiple_of(8);
        if self.filled + length > limit {
            return false;
        }
        self.u64(node).u64(next);
        self.u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
        self.u32(mode >> 12 & 0o17).data(name);
        let padding = length - ENTRY_BYTES - name.len();
        self.data(&[0; 8][..padding]);
        true
    }
}

/// Header of a reply with `body_bytes` behind it, or of an error without.
pub fn reply_header(unique: u64, errno: i32, body_bytes: usize) -> [u8; REPLY_HEADER_BYTES] {
    let mut header = [0; REPLY_HEADER_BYTES];
    // Bodies are bounded by the requested length, 32 bits; the kernel checks.
    let length = u32::try_from(REPLY_HEADER_BYTES + body_bytes).unwrap_or(u32::MAX);
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&errno.wrapping_neg().to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// An error number for a program. One that is none becomes `EIO`.
pub fn error_number(number: i32) -> Errno {
    match number {
        1..=ERROR_NUMBER_MAX => Errno::from_raw_os_error(number),
        _ => Errno::IO,
    }
}

/// Tells the kernel to send unanswered requests again.
pub(crate) fn resend_notice() -> [u8; REPLY_HEADER_BYTES] {
    const NOTIFY_RESEND: i32 = 7;
    // The notice's number stands where an error is negative.
    reply_header(0, -NOTIFY_RESEND, 0)
}
