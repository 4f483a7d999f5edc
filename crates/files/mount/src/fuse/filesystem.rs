//! State of the FUSE file system, and operations that several requests share.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{
    Errno, FileAttr, FopenFlags, OpenAccMode, OpenFlags, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
};
use netram_files::limit::{NAME_BYTES_MAX, XATTR_BYTES_MAX};
use netram_files::{AttributeChange, ChangeError, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec};
use rustix::fs::{OFlags, fstat};

use super::attributes::{attributes, disk_errno, errno, time};
use super::handles::{Handles, IoMode};
use super::{ATTRIBUTE_TTL, GENERATION};
use crate::backing_directory::is_reserved;
use crate::mount::MountState;

/// Set-user-id and set-group-id bits: writing clears them.
const SET_IDS: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;

/// The file system that the kernel sees.
pub(crate) struct FuseFilesystem {
    pub(super) state: Arc<MountState>,
    pub(super) handles: Handles,
    /// Whether the kernel reads a file itself when all users open it read-only.
    pub(super) passthrough: bool,
    /// Last attributes of inodes without a name, until the kernel forgets them. Programs may have such a
    /// directory open or as their working directory.
    pub(super) unlinked: Mutex<HashMap<InodeId, FileAttr>>,
}

impl FuseFilesystem {
    pub(crate) fn new(held: Arc<MountState>, passes: bool) -> FuseFilesystem {
        FuseFilesystem {
            state: held,
            handles: Handles::default(),
            passthrough: passes,
            unlinked: Mutex::default(),
        }
    }

    /// Attributes of an inode. An open file is asked directly, since it may have no name left.
    pub(super) fn attributes_of(&self, node: InodeId) -> Result<FileAttr, Errno> {
        if let Some(file) = self.state.journaled.open_file_of(node) {
            let there = fstat(file.inner()).map_err(|errno| Errno::from_i32(errno.raw_os_error()))?;
            return Ok(attributes(node, InodeKind::File, &there));
        }
        let names = self.state.journaled.names();
        let (Some(kind), Some(path)) = (names.kind(node), names.path(node)) else {
            return self.unlinked().get(&node).copied().ok_or(Errno::ENOENT);
        };
        let there = self.state.journaled.tree().stat(&path).map_err(disk_errno)?;
        Ok(attributes(node, kind, &there))
    }

    pub(super) fn unlinked(&self) -> MutexGuard<'_, HashMap<InodeId, FileAttr>> {
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the attributes of an inode that loses a name: programs that have it open may still ask for them.
    pub(super) fn unlink_node(
        &self,
        at: DirectoryEntry<'_>,
        act: impl FnOnce() -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let node = self.state.journaled.names().look_up(at);
        let before = node.and_then(|node| self.attributes_of(node).ok());
        act()?;
        if let (Some(node), Some(before)) = (node, before)
            && self.state.journaled.names().kind(node).is_none()
        {
            self.unlinked().insert(node, FileAttr { nlink: 0, ..before });
        }
        Ok(())
    }

    /// Sets attributes of an inode that has no name left and is not an open file.
    pub(super) fn set_unlinked_attributes(&self, node: InodeId, set: &AttributeChange) -> bool {
        let mut ghosts = self.unlinked();
        let Some(ghost) = ghosts.get_mut(&node) else {
            return false;
        };
        let known = |moment: Option<netram_files::FileTime>| moment.map(|moment| time(moment.s, moment.ns));
        ghost.perm = set.mode.map_or(ghost.perm, |mode| mode as u16);
        ghost.uid = set.user.unwrap_or(ghost.uid);
        ghost.gid = set.group.unwrap_or(ghost.gid);
        ghost.atime = known(set.accessed).unwrap_or(ghost.atime);
        ghost.mtime = known(set.modified).unwrap_or(ghost.mtime);
        true
    }

    pub(super) fn path(&self, node: InodeId) -> Result<Vec<u8>, Errno> {
        self.state.journaled.names().path(node).ok_or(Errno::ENOENT)
    }

    /// Answers a look-up or creation with the inode's attributes.
    pub(super) fn entry(&self, node: Result<InodeId, Errno>, reply: ReplyEntry) {
        match node.and_then(|node| self.attributes_of(node)) {
            Ok(attributes) => reply.entry(&ATTRIBUTE_TTL, &attributes, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    /// Attributes of a new inode, owned by the caller.
    pub(super) fn inode_spec<'t>(
        &self,
        request: &Request,
        at: DirectoryEntry<'_>,
        kind: InodeKind,
        mode: u32,
        target: &'t [u8],
    ) -> Result<InodeSpec<'t>, Errno> {
        is_allowed(at)?;
        let directory = self.attributes_of(at.directory)?;
        let inherits = u32::from(directory.perm) & SET_GROUP_ID != 0;
        let owner = FileOwner {
            user: request.uid(),
            group: if inherits { directory.gid } else { request.gid() },
        };
        // A new directory inherits the set-group-id bit.
        let inherited = if inherits && kind == InodeKind::Directory {
            SET_GROUP_ID
        } else {
            0
        };
        Ok(InodeSpec {
            kind,
            mode: mode & 0o7777 | inherited,
            owner,
            target,
        })
    }

    /// Makes an inode owned by the caller.
    pub(super) fn make(
        &self,
        request: &Request,
        at: DirectoryEntry<'_>,
        kind: InodeKind,
        mode: u32,
        target: &[u8],
    ) -> Result<InodeId, Errno> {
        let made = self.inode_spec(request, at, kind, mode, target)?;
        self.state.journaled.make(at, made).map_err(|error| errno(&error))
    }

    /// Opens a file for a program.
    pub(super) fn open_file(&self, node: InodeId, flags: i32) -> Result<OpenPlan, Errno> {
        let file = match OpenFlags(flags).acc_mode() {
            OpenAccMode::O_RDONLY => self.state.journaled.open_file(node),
            _ => self.state.journaled.open_to_write(node),
        };
        self.open_plan(file.map_err(|error| errno(&error))?, flags, self.passthrough)
    }

    /// Chooses the I/O mode for a program's open of a file.
    pub(super) fn open_plan(
        &self,
        file: Arc<netram_files::OpenFile<std::fs::File>>,
        flags: i32,
        passes: bool,
    ) -> Result<OpenPlan, Errno> {
        let access = OpenFlags(flags).acc_mode();
        let synced = is_synced(flags) && access != OpenAccMode::O_RDONLY;
        let way = self.handles.reserve_io_mode(file.node(), access, synced, passes);
        let way = way.ok_or(Errno::ETXTBSY)?;
        Ok(OpenPlan {
            file,
            synced,
            io_mode: way,
        })
    }

    /// Sets a file's length. Unless the caller is root this clears set-user-id and set-group-id, as a write
    /// does.
    pub(super) fn set_size(&self, request: &Request, node: InodeId, size: u64) -> Result<(), ChangeError> {
        let file = self.state.journaled.open_to_write(node)?;
        self.state.journaled.resize(&file, size)?;
        match request.uid() {
            0 => Ok(()),
            _ => self.clear_set_ids(node),
        }
    }
}

/// Checks a name's length, which the kernel does not bound at 255 bytes.
pub(super) fn check_name_length(at: DirectoryEntry<'_>) -> Result<DirectoryEntry<'_>, Errno> {
    match at.name.len() > NAME_BYTES_MAX {
        true => Err(Errno::ENAMETOOLONG),
        false => Ok(at),
    }
}

/// Refuses names in the root that netram itself uses below the mount.
pub(super) fn is_allowed(at: DirectoryEntry<'_>) -> Result<(), Errno> {
    check_name_length(at)?;
    match at.directory == InodeId::ROOT && is_reserved(OsStr::from_bytes(at.name)) {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// A file about to be opened for a program.
pub(super) struct OpenPlan {
    pub(super) file: Arc<netram_files::OpenFile<std::fs::File>>,
    pub(super) synced: bool,
    pub(super) io_mode: IoMode,
}

impl OpenPlan {
    /// Flags of the reply. Closing needs no request (`FOPEN_NOFLUSH`).
    pub(super) fn flags(&self) -> FopenFlags {
        FopenFlags::FOPEN_NOFLUSH
            | match self.io_mode {
                IoMode::Cached => FopenFlags::FOPEN_KEEP_CACHE,
                IoMode::Direct => FopenFlags::FOPEN_DIRECT_IO,
                IoMode::Passthrough => FopenFlags::FOPEN_PASSTHROUGH,
                IoMode::WriteBeside => FopenFlags::FOPEN_PASSTHROUGH | FopenFlags::FOPEN_DIRECT_IO,
            }
    }
}

impl FuseFilesystem {
    pub(super) fn xattr_of(&self, node: InodeId, name: &OsStr) -> Result<Option<Vec<u8>>, Errno> {
        let directory = &self.state.journaled;
        let label = match (self.path(node), directory.open_file_of(node)) {
            (Err(_), Some(file)) => directory.tree().xattr_of_file(file.inner(), name.as_bytes()),
            (path, _) => directory.tree().xattr_of(&path?, name.as_bytes()),
        };
        label.map_err(disk_errno)
    }

    pub(super) fn xattrs_of(&self, node: InodeId) -> Result<Vec<u8>, Errno> {
        let directory = &self.state.journaled;
        let labels = match (self.path(node), directory.open_file_of(node)) {
            (Err(_), Some(file)) => directory.tree().xattrs_of_file(file.inner()),
            (path, _) => directory.tree().xattrs_of(&path?),
        };
        labels.map_err(disk_errno)
    }

    pub(super) fn clear_set_ids(&self, node: InodeId) -> Result<(), ChangeError> {
        let mode = self
            .attributes_of(node)
            .map_or(0, |attributes| u32::from(attributes.perm));
        if mode & SET_IDS == 0 {
            return Ok(());
        }
        let without = AttributeChange {
            mode: Some(mode & !SET_IDS),
            ..AttributeChange::default()
        };
        self.state.journaled.set_attributes(node, without)
    }
}

/// Whether writes through a descriptor opened with these flags are synchronous.
pub(super) fn is_synced(flags: i32) -> bool {
    OFlags::from_bits_retain(flags.cast_unsigned()).intersects(OFlags::DSYNC | OFlags::SYNC)
}

impl FuseFilesystem {
    pub(super) fn remove(&self, at: DirectoryEntry<'_>, directory: bool, reply: ReplyEmpty) {
        match check_name_length(at) {
            Ok(at) => reply_done(
                self.unlink_node(at, || self.state.journaled.remove(at, directory)),
                reply,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    /// Entries of a directory; none if it is gone.
    pub(super) fn list(&self, directory: InodeId) -> Vec<(InodeId, InodeKind, Vec<u8>)> {
        let names = self.state.journaled.names();
        if names.kind(directory) != Some(InodeKind::Directory) {
            return Vec::new();
        }
        let own = [
            (directory, InodeKind::Directory, b".".to_vec()),
            (names.parent(directory), InodeKind::Directory, b"..".to_vec()),
        ];
        let inside = { names.children(directory) }.map(|(name, node)| {
            let kind = names.kind(node).unwrap_or(InodeKind::File);
            (node, kind, name.to_vec())
        });
        own.into_iter().chain(inside).collect()
    }
}

/// Access control lists and other system attributes: the kernel would have to enforce them, and does not for
/// this file system.
pub(super) fn is_system_xattr(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.")
}

pub(super) fn reply_value(value: &[u8], size: u32, reply: ReplyXattr) {
    const _: () = assert!(XATTR_BYTES_MAX <= u32::MAX as usize);
    match size as usize {
        0 => reply.size(value.len() as u32),
        room if room >= value.len() => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Answers a request whose only result is success or an error.
pub(super) fn reply_done(done: Result<(), ChangeError>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}
