//! The file system that the kernel sees: what several of its questions need.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{Errno, FileAttr, FopenFlags, OpenAccMode, OpenFlags, ReplyEntry, Request};
use netram_files::limit::NAME_BYTES_MAX;
use netram_files::{Attributes, ChangeError, Made, Node, NodeKind, Owner, Place};
use rustix::fs::{OFlags, fstat};

use super::attributes::{attributes, errno, of_disk, time};
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
    /// What has no name any more, as it was when it lost it: programs stand in a folder that is gone, or hold it open. Until the kernel forgets it.
    pub(super) ghosts: Mutex<HashMap<Node, FileAttr>>,
}

impl Face {
    pub(crate) fn new(held: Arc<Held>, passes: bool) -> Face {
        Face {
            held,
            handles: Handles::default(),
            passes,
            ghosts: Mutex::default(),
        }
    }

    /// Of a file that is open the disk's file is asked: it may have no name any more.
    pub(super) fn look(&self, node: Node) -> Result<FileAttr, Errno> {
        if let Some(file) = self.held.folder.opened(node) {
            let there = fstat(file.inner()).map_err(|errno| Errno::from_i32(errno.raw_os_error()))?;
            return Ok(attributes(node, NodeKind::File, &there));
        }
        let names = self.held.folder.names();
        let (Some(kind), Some(path)) = (names.kind(node), names.path(node)) else {
            return self.ghosts().get(&node).copied().ok_or(Errno::ENOENT);
        };
        let there = self.held.folder.tree().stat(&path).map_err(of_disk)?;
        Ok(attributes(node, kind, &there))
    }

    pub(super) fn ghosts(&self) -> MutexGuard<'_, HashMap<Node, FileAttr>> {
        self.ghosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name is taken away, or another node put in its place: whoever has that open may still ask for its attributes.
    pub(super) fn bereave(
        &self,
        at: Place<'_>,
        act: impl FnOnce() -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let node = self.held.folder.names().look_up(at);
        let before = node.and_then(|node| self.look(node).ok());
        act()?;
        if let (Some(node), Some(before)) = (node, before)
            && self.held.folder.names().kind(node).is_none()
        {
            self.ghosts().insert(node, FileAttr { nlink: 0, ..before });
        }
        Ok(())
    }

    /// Sets attributes of what has no name any more, and is not an open file.
    pub(super) fn haunt(&self, node: Node, set: &Attributes) -> bool {
        let mut ghosts = self.ghosts();
        let Some(ghost) = ghosts.get_mut(&node) else {
            return false;
        };
        let known = |moment: Option<netram_files::Moment>| moment.map(|moment| time(moment.s, moment.ns));
        ghost.perm = set.mode.map_or(ghost.perm, |mode| mode as u16);
        ghost.uid = set.user.unwrap_or(ghost.uid);
        ghost.gid = set.group.unwrap_or(ghost.gid);
        ghost.atime = known(set.accessed).unwrap_or(ghost.atime);
        ghost.mtime = known(set.modified).unwrap_or(ghost.mtime);
        true
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

    /// A new node as whoever asks for it makes it.
    pub(super) fn made<'t>(
        &self,
        request: &Request,
        at: Place<'_>,
        kind: NodeKind,
        mode: u32,
        target: &'t [u8],
    ) -> Result<Made<'t>, Errno> {
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
        Ok(Made {
            kind,
            mode: mode & 0o7777 | inherited,
            owner,
            target,
        })
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
        let made = self.made(request, at, kind, mode, target)?;
        self.held.folder.make(at, made).map_err(|error| errno(&error))
    }

    /// Opens a file for a program.
    pub(super) fn open_file(&self, node: Node, flags: i32) -> Result<Opening, Errno> {
        let file = match OpenFlags(flags).acc_mode() {
            OpenAccMode::O_RDONLY => self.held.folder.open_file(node),
            _ => self.held.folder.open_to_write(node),
        };
        self.opening(file.map_err(|error| errno(&error))?, flags, self.passes)
    }

    /// A file that is open on the disk, for a program.
    pub(super) fn opening(
        &self,
        file: Arc<netram_files::File<std::fs::File>>,
        flags: i32,
        passes: bool,
    ) -> Result<Opening, Errno> {
        let access = OpenFlags(flags).acc_mode();
        let synced = is_synced(flags) && access != OpenAccMode::O_RDONLY;
        let way = self.handles.way(file.node(), access, synced, passes);
        let way = way.ok_or(Errno::ETXTBSY)?;
        Ok(Opening { file, synced, way })
    }

    /// Whoever is not root takes set-user-id and set-group-id away with that, as by writing.
    pub(super) fn set_size(&self, request: &Request, node: Node, size: u64) -> Result<(), ChangeError> {
        let file = self.held.folder.open_to_write(node)?;
        self.held.folder.resize(&file, size)?;
        match request.uid() {
            0 => Ok(()),
            _ => self.take_ids(node),
        }
    }
}

/// Whether there could be such a name: the kernel lets longer ones through.
pub(super) fn fits(at: Place<'_>) -> Result<Place<'_>, Errno> {
    match at.name.len() > NAME_BYTES_MAX {
        true => Err(Errno::ENAMETOOLONG),
        false => Ok(at),
    }
}

/// Some names in the folder itself are netram's own beneath the mount.
pub(super) fn is_allowed(at: Place<'_>) -> Result<(), Errno> {
    fits(at)?;
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
                Way::Beside => FopenFlags::FOPEN_PASSTHROUGH | FopenFlags::FOPEN_DIRECT_IO,
            }
    }
}

impl Face {
    pub(super) fn label_of(&self, node: Node, name: &OsStr) -> Result<Option<Vec<u8>>, Errno> {
        let folder = &self.held.folder;
        let label = match (self.path(node), folder.opened(node)) {
            (Err(_), Some(file)) => folder.tree().label_of_file(file.inner(), name.as_bytes()),
            (path, _) => folder.tree().label_of(&path?, name.as_bytes()),
        };
        label.map_err(of_disk)
    }

    pub(super) fn labels_of(&self, node: Node) -> Result<Vec<u8>, Errno> {
        let folder = &self.held.folder;
        let labels = match (self.path(node), folder.opened(node)) {
            (Err(_), Some(file)) => folder.tree().labels_of_file(file.inner()),
            (path, _) => folder.tree().labels_of(&path?),
        };
        labels.map_err(of_disk)
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
