//! State of the FUSE file system, and operations that several requests share.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_files::limit::NAME_BYTES_MAX;
use netram_files::{AttributeChange, ChangeError, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec};
use netram_fuse::{FuseAttributes, FuseCaller, FuseDevice, FuseOperation, ReplyBody, open_flag};
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use super::TTL;
use super::attributes::{PERMISSIONS, attributes, disk_errno, errno, fuse_time};
use super::handles::{Handles, IoMode, OpenHandle};
use crate::backing_directory::is_reserved;
use crate::mount::MountState;

/// Set-user-id and set-group-id bits: writing clears them.
const SET_IDS: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;

/// The file system that the kernel sees.
pub(crate) struct FuseFilesystem {
    pub(super) state: Arc<MountState>,
    /// The kernel's end of the session.
    pub(super) device: Arc<FuseDevice>,
    pub(super) handles: Handles,
    /// Whether the kernel reads a file itself when all users open it read-only.
    pub(super) passthrough: bool,
    /// Whether another server can take over when this one is killed.
    pub(super) survives: bool,
    /// Last attributes of inodes without a name, until the kernel forgets them. Programs may have such a
    /// directory open or as their working directory.
    pub(super) unlinked: Mutex<HashMap<InodeId, FuseAttributes>>,
}

impl FuseFilesystem {
    /// The file system of a mount. `passes`: the kernel reads files itself. `survives`: another server can
    /// take over. `taken_over`: this one has.
    pub(crate) fn new(
        held: Arc<MountState>,
        device: Arc<FuseDevice>,
        passes: bool,
        survives: bool,
        taken_over: bool,
    ) -> FuseFilesystem {
        FuseFilesystem {
            state: held,
            device,
            handles: Handles::new(taken_over),
            passthrough: passes,
            survives,
            unlinked: Mutex::default(),
        }
    }

    /// Attributes of an inode. An open file is asked directly, since it may have no name left.
    pub(super) fn attributes_of(&self, node: InodeId) -> Result<FuseAttributes, Errno> {
        if let Some(file) = self.state.journaled.open_file_of(node) {
            let there = fstat(file.inner())?;
            return Ok(self.counted(attributes(node, InodeKind::File, &there)));
        }
        let names = self.state.journaled.names();
        let (Some(kind), Some(path)) = (names.kind(node), names.path(node)) else {
            return self.unlinked().get(&node).copied().ok_or(Errno::NOENT);
        };
        drop(names);
        let there = self.state.journaled.tree().stat(&path).map_err(disk_errno)?;
        Ok(self.counted(attributes(node, kind, &there)))
    }

    /// The attributes without the hidden name of a file that has lost its last one.
    fn counted(&self, attributes: FuseAttributes) -> FuseAttributes {
        let is_orphan = self.survives && self.state.journaled.names().is_orphan(InodeId(attributes.node));
        match is_orphan {
            true => FuseAttributes {
                links: 0,
                ..attributes
            },
            false => attributes,
        }
    }

    pub(super) fn unlinked(&self) -> MutexGuard<'_, HashMap<InodeId, FuseAttributes>> {
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel has no references to these inodes any more.
    pub(super) fn forget_all(&self, nodes: impl Iterator<Item = u64>) -> Result<(), Errno> {
        for node in nodes.map(InodeId) {
            self.unlinked().remove(&node);
            if let Err(error) = self.state.journaled.forget(node) {
                tracing::warn!(%error, "a file that no program has open any more stays until the directory is unmounted");
            }
        }
        Ok(())
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
            self.unlinked()
                .insert(node, FuseAttributes { links: 0, ..before });
        }
        Ok(())
    }

    /// Sets attributes of an inode that has no name left and is not an open file.
    pub(super) fn set_unlinked_attributes(&self, node: InodeId, set: &AttributeChange) -> bool {
        let mut ghosts = self.unlinked();
        let Some(ghost) = ghosts.get_mut(&node) else {
            return false;
        };
        let mode = set.mode.unwrap_or(ghost.mode);
        ghost.mode = ghost.mode & !PERMISSIONS | mode & PERMISSIONS;
        ghost.user = set.user.unwrap_or(ghost.user);
        ghost.group = set.group.unwrap_or(ghost.group);
        ghost.accessed = set.accessed.map_or(ghost.accessed, fuse_time);
        ghost.modified = set.modified.map_or(ghost.modified, fuse_time);
        true
    }

    pub(super) fn path(&self, node: InodeId) -> Result<Vec<u8>, Errno> {
        self.state.journaled.names().path(node).ok_or(Errno::NOENT)
    }

    /// Answers a request that a killed server executed, but did not answer.
    pub(super) fn answer_executed(
        &self,
        operation: &FuseOperation<'_>,
        node: InodeId,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        match operation {
            FuseOperation::Create { flags, .. } => {
                let attributes = self.attributes_of(node)?;
                let opening = self.open_file(node, *flags)?;
                self.reply_created(opening, &attributes, body);
                Ok(())
            }
            FuseOperation::MakeNode { .. }
            | FuseOperation::MakeDirectory { .. }
            | FuseOperation::Symlink { .. }
            | FuseOperation::Link { .. } => self.entry(node, body),
            _ => Ok(()),
        }
    }

    /// Answers a look-up or creation with the inode's attributes.
    pub(super) fn entry(&self, node: InodeId, body: &mut ReplyBody) -> Result<(), Errno> {
        body.entry(&self.attributes_of(node)?, TTL);
        Ok(())
    }

    /// Attributes of a new inode, owned by the caller.
    pub(super) fn inode_spec<'t>(
        &self,
        caller: FuseCaller,
        at: DirectoryEntry<'_>,
        kind: InodeKind,
        mode: u32,
        target: &'t [u8],
    ) -> Result<InodeSpec<'t>, Errno> {
        is_allowed(at)?;
        let directory = self.attributes_of(at.directory)?;
        let inherits = directory.mode & SET_GROUP_ID != 0;
        let owner = FileOwner {
            user: caller.user,
            group: if inherits { directory.group } else { caller.group },
        };
        // A new directory inherits the set-group-id bit.
        let inherited = if inherits && kind == InodeKind::Directory {
            SET_GROUP_ID
        } else {
            0
        };
        Ok(InodeSpec {
            kind,
            mode: mode & PERMISSIONS | inherited,
            owner,
            target,
        })
    }

    /// Opens a file for a program.
    pub(super) fn open_file(&self, node: InodeId, flags: u32) -> Result<OpenPlan, Errno> {
        let file = match access_mode(flags) {
            OFlags::RDONLY => self.state.journaled.open_file(node),
            _ => self.state.journaled.open_to_write(node),
        };
        self.open_plan(file.map_err(|error| errno(&error))?, flags, self.passthrough)
    }

    /// The handle of a number. A file that another server opened is opened here when it is first used.
    pub(super) fn handle(&self, number: u64, node: InodeId) -> Result<Arc<OpenHandle>, ChangeError> {
        match self.handles.get(number) {
            Some(handle) => Ok(handle),
            None => Ok(self.handles.adopt(number, self.state.journaled.open_file(node)?)),
        }
    }

    /// As [`FuseFilesystem::handle`], for a change of the file.
    pub(super) fn handle_to_write(&self, number: u64, node: InodeId) -> Result<Arc<OpenHandle>, ChangeError> {
        let handle = self.handle(number, node)?;
        if handle.adopted {
            self.state.journaled.open_to_write(node)?;
        }
        Ok(handle)
    }

    /// Chooses the I/O mode for a program's open of a file.
    pub(super) fn open_plan(
        &self,
        file: Arc<netram_files::OpenFile<std::fs::File>>,
        flags: u32,
        passes: bool,
    ) -> Result<OpenPlan, Errno> {
        let access = access_mode(flags);
        let synced = is_synced(flags) && access != OFlags::RDONLY;
        let way = self.handles.reserve_io_mode(file.node(), access, synced, passes);
        let way = way.ok_or(Errno::TXTBSY)?;
        Ok(OpenPlan {
            file,
            synced,
            io_mode: way,
        })
    }

    /// Sets a file's length. Unless the caller is root this clears set-user-id and set-group-id, as a write
    /// does.
    pub(super) fn set_size(&self, caller: FuseCaller, node: InodeId, size: u64) -> Result<(), ChangeError> {
        let file = self.state.journaled.open_to_write(node)?;
        self.state.journaled.resize(&file, size)?;
        match caller.user {
            0 => Ok(()),
            _ => self.clear_set_ids(node),
        }
    }
}

/// Checks a name's length, which the kernel does not bound at 255 bytes.
pub(super) fn check_name_length(at: DirectoryEntry<'_>) -> Result<DirectoryEntry<'_>, Errno> {
    match at.name.len() > NAME_BYTES_MAX {
        true => Err(Errno::NAMETOOLONG),
        false => Ok(at),
    }
}

/// Refuses names in the root that netram itself uses below the mount.
pub(super) fn is_allowed(at: DirectoryEntry<'_>) -> Result<(), Errno> {
    check_name_length(at)?;
    match at.directory == InodeId::ROOT && is_reserved(OsStr::from_bytes(at.name)) {
        true => Err(Errno::PERM),
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
    pub(super) fn flags(&self) -> u32 {
        open_flag::NOFLUSH
            | match self.io_mode {
                IoMode::Cached => open_flag::KEEP_CACHE,
                IoMode::Direct => open_flag::DIRECT_IO,
                IoMode::Passthrough => open_flag::PASSTHROUGH,
                IoMode::WriteBeside => open_flag::PASSTHROUGH | open_flag::DIRECT_IO,
            }
    }
}

impl FuseFilesystem {
    pub(super) fn clear_set_ids(&self, node: InodeId) -> Result<(), ChangeError> {
        let mode = self
            .attributes_of(node)
            .map_or(0, |attributes| attributes.mode & PERMISSIONS);
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

/// Whether a descriptor opened with these flags reads, writes, or both.
fn access_mode(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags) & OFlags::RWMODE
}

/// Whether writes through a descriptor opened with these flags are synchronous.
pub(super) fn is_synced(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).intersects(OFlags::DSYNC | OFlags::SYNC)
}

impl FuseFilesystem {
    pub(super) fn remove(
        &self,
        at: DirectoryEntry<'_>,
        directory: bool,
        asked: Option<u64>,
    ) -> Result<(), Errno> {
        let at = check_name_length(at)?;
        let removed = self.unlink_node(at, || self.state.journaled.remove(at, directory, asked));
        removed.map_err(|error| errno(&error))
    }
}
