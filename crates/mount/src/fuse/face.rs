//! The file system that the kernel sees: what several of its questions need.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{Errno, FileAttr, FopenFlags, OpenAccMode, OpenFlags, ReplyEntry, Request};
use netram_files::{Attributes, ChangeError, Made, Node, NodeKind, Owner, Place};
use rustix::fs::{OFlags, fstat};

use super::attributes::{attributes, errno, of_disk};
use super::handles::{Handles, Way};
use super::{GENERATION, KEPT};
use crate::ground::is_kept;
use crate::mount::Held;

/// Set-user-id and set-group-id: writing takes them away.
const SET_IDS: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;

/// The file system that the kernel sees.
pub(crate) struct Face {
    pub(super) held: Arc<Held>,
    pub(super) handles: Handles,
    /// Files that are only read are read by the kernel itself.
    pub(super) passes: bool,
}

impl Face {
    pub(crate) fn new(held: Arc<Held>, passes: bool) -> Face {
        Face {
            held,
            handles: Handles::default(),
            passes,
        }
    }

    /// Of a file that is open the disk's file is asked: it may have no name any more.
    pub(super) fn look(&self, node: Node) -> Result<FileAttr, Errno> {
        if let Some(file) = self.held.folder.opened(node) {
            let there = fstat(file.inner()).map_err(|errno| Errno::from_i32(errno.raw_os_error()))?;
            return Ok(attributes(node, NodeKind::File, &there));
        }
        let names = self.held.folder.names();
        let kind = names.kind(node).ok_or(Errno::ENOENT)?;
        let path = names.path(node).ok_or(Errno::ENOENT)?;
        let there = self.held.folder.tree().stat(&path).map_err(of_disk)?;
        Ok(attributes(node, kind, &there))
    }

    pub(super) fn path(&self, node: Node) -> Result<Vec<u8>, Errno> {
        self.held.folder.names().path(node).ok_or(Errno::ENOENT)
    }

    /// Tells of a node that was found or made.
    pub(super) fn entry(&self, node: Result<Node, Errno>, reply: ReplyEntry) {
        match node.and_then(|node| self.look(node)) {
            Ok(attributes) => reply.entry(&KEPT, &attributes, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    /// Makes a node as whoever asks for it.
    pub(super) fn make(
        &self,
        request: &Request,
        at: Place<'_>,
        kind: NodeKind,
        mode: u32,
        target: &[u8],
    ) -> Result<Node, Errno> {
        is_allowed(at)?;
        let folder = self.look(at.folder)?;
        let inherits = u32::from(folder.perm) & SET_GROUP_ID != 0;
        let owner = Owner {
            user: request.uid(),
            group: if inherits { folder.gid } else { request.gid() },
        };
        // A folder passes that on.
        let inherited = if inherits && kind == NodeKind::Folder {
            SET_GROUP_ID
        } else {
            0
        };
        let made = Made {
            kind,
            mode: mode & 0o7777 | inherited,
            owner,
            target,
        };
        self.held.folder.make(at, made).map_err(|error| errno(&error))
    }

    /// Opens a file for a program.
    pub(super) fn open_file(&self, node: Node, flags: i32, passes: bool) -> Result<Opening, Errno> {
        let file = self.held.folder.open_file(node).map_err(|error| errno(&error))?;
        let reads_only = OpenFlags(flags).acc_mode() == OpenAccMode::O_RDONLY;
        let synced = is_synced(flags) && !reads_only;
        let way = self.handles.way(node, reads_only, synced, passes);
        Ok(Opening { file, synced, way })
    }

    pub(super) fn set_size(&self, node: Node, size: u64) -> Result<(), ChangeError> {
        let file = self.held.folder.open_file(node)?;
        self.held.folder.resize(&file, size)
    }
}

/// Some names in the folder itself are netram's own beneath the mount.
pub(super) fn is_allowed(at: Place<'_>) -> Result<(), Errno> {
    match at.folder == Node::ROOT && is_kept(OsStr::from_bytes(at.name)) {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// A file on its way to be open.
pub(super) struct Opening {
    pub(super) file: Arc<netram_files::File<std::fs::File>>,
    pub(super) synced: bool,
    pub(super) way: Way,
}

impl Opening {
    /// Nothing is done at a close, so that nobody has to be asked.
    pub(super) fn flags(&self) -> FopenFlags {
        FopenFlags::FOPEN_NOFLUSH
            | match self.way {
                Way::Cached => FopenFlags::FOPEN_KEEP_CACHE,
                Way::Direct => FopenFlags::FOPEN_DIRECT_IO,
                Way::Passed => FopenFlags::FOPEN_PASSTHROUGH,
            }
    }
}

impl Face {
    pub(super) fn label_of(&self, node: Node, name: &OsStr) -> Result<Option<Vec<u8>>, Errno> {
        let path = self.path(node)?;
        self.held
            .folder
            .tree()
            .label_of(&path, name.as_bytes())
            .map_err(of_disk)
    }

    pub(super) fn take_ids(&self, node: Node) -> Result<(), ChangeError> {
        let mode = self.look(node).map_or(0, |attributes| u32::from(attributes.perm));
        if mode & SET_IDS == 0 {
            return Ok(());
        }
        let without = Attributes {
            mode: Some(mode & !SET_IDS),
            ..Attributes::default()
        };
        self.held.folder.set(node, without)
    }
}

/// Whether writes by way of a file that was opened so wait as a sync does.
pub(super) fn is_synced(flags: i32) -> bool {
    OFlags::from_bits_retain(flags.cast_unsigned()).intersects(OFlags::DSYNC | OFlags::SYNC)
}
