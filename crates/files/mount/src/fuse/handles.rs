//! Files and directories that programs have open.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use fuser::{BackingId, FileHandle, OpenAccMode};
use netram_files::{InodeId, InodeKind, OpenFile as NodeFile};

/// A file that a program has open.
#[derive(Debug)]
pub(super) struct OpenHandle {
    pub(super) file: Arc<NodeFile<File>>,
    /// Whether each write waits like a sync (`O_SYNC`, `O_DSYNC`).
    pub(super) synced: bool,
    io_mode: IoMode,
    /// Registration by which the kernel reads the file itself, for as long as it lives.
    passthrough: OnceLock<Arc<BackingId>>,
}

/// A directory's entries, as of the last time a program began to read them.
#[derive(Debug)]
pub(super) struct DirectoryListing {
    pub(super) directory: InodeId,
    pub(super) entries: Mutex<Vec<(InodeId, InodeKind, Vec<u8>)>>,
}

/// Number of open handles of an inode, by I/O mode.
#[derive(Debug, Default)]
struct InodeUses {
    /// Handles through FUSE's page cache.
    cached: u32,
    /// Handles in the modes `Passthrough` and `WriteBeside`.
    passthrough: u32,
    /// The kernel's registration of the backing file, shared by all handles.
    backing: Option<Arc<BackingId>>,
}

#[derive(Debug, Default)]
struct HandleState {
    files: HashMap<u64, Arc<OpenHandle>>,
    listings: HashMap<u64, Arc<DirectoryListing>>,
    uses: HashMap<InodeId, InodeUses>,
    next: u64,
}

impl HandleState {
    fn release_io_mode(&mut self, node: InodeId, way: IoMode) {
        let Some(uses) = self.uses.get_mut(&node) else {
            return;
        };
        uses.cached -= u32::from(way == IoMode::Cached);
        uses.passthrough -= u32::from(way.is_passthrough());
        if (uses.cached, uses.passthrough) == (0, 0) {
            self.uses.remove(&node);
        }
    }
}

/// All open handles.
#[derive(Debug, Default)]
pub(super) struct Handles(RwLock<HandleState>);

/// I/O mode of an open file. The kernel requires one mode for all handles of a file, except for those that
/// bypass its page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoMode {
    /// Reads go through the kernel's page cache.
    Cached,
    /// Each read and write is a request.
    Direct,
    /// The kernel reads the backing file itself.
    Passthrough,
    /// Write-only beside `Passthrough` readers: each write is a request.
    WriteBeside,
}

impl IoMode {
    /// Whether the kernel must know the backing file.
    pub(super) fn is_passthrough(self) -> bool {
        matches!(self, IoMode::Passthrough | IoMode::WriteBeside)
    }
}

impl Handles {
    /// Chooses the I/O mode of an open and counts it until [`Handles::drop`] or [`Handles::release_io_mode`].
    /// `passes`: the kernel may read a file itself while all its users only read.
    ///
    /// `None`: the file is open in `Passthrough` mode and is to be opened for reading and writing. It could
    /// then be mapped, and writes to the map would bypass this process.
    pub(super) fn reserve_io_mode(
        &self,
        node: InodeId,
        access: OpenAccMode,
        synced: bool,
        passes: bool,
    ) -> Option<IoMode> {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let uses = inside.uses.entry(node).or_default();
        let reads_only = access == OpenAccMode::O_RDONLY;
        let way = match () {
            () if passes && reads_only && uses.cached == 0 => IoMode::Passthrough,
            () if uses.passthrough > 0 && access == OpenAccMode::O_WRONLY => IoMode::WriteBeside,
            () if uses.passthrough > 0 => return None,
            // A synchronous write is then one request instead of two. A map of the file does not show it at
            // once.
            () if synced && uses.cached == 0 => IoMode::Direct,
            () => IoMode::Cached,
        };
        uses.cached += u32::from(way == IoMode::Cached);
        uses.passthrough += u32::from(way.is_passthrough());
        Some(way)
    }

    /// The kernel's registration of the backing file; made unless there is one. All handles must use the same
    /// one.
    pub(super) fn backing(
        &self,
        node: InodeId,
        make: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let uses = inside.uses.entry(node).or_default();
        if let Some(backing) = &uses.backing {
            return Ok(Arc::clone(backing));
        }
        let backing = Arc::new(make()?);
        uses.backing = Some(Arc::clone(&backing));
        Ok(backing)
    }

    /// Undoes a reservation: the file was not opened.
    pub(super) fn release_io_mode(&self, node: InodeId, way: IoMode) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.release_io_mode(node, way);
    }

    /// Adds a handle.
    pub(super) fn add(&self, file: Arc<NodeFile<File>>, synced: bool, way: IoMode) -> FileHandle {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.next += 1;
        let number = inside.next;
        let handle = OpenHandle {
            file,
            synced,
            io_mode: way,
            passthrough: OnceLock::new(),
        };
        inside.files.insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// Keeps the kernel's registration until the handle is closed.
    pub(super) fn keep_backing(&self, number: FileHandle, passed: Arc<BackingId>) {
        if let Some(handle) = self.get(number) {
            let _ = handle.passthrough.set(passed);
        }
    }

    pub(super) fn get(&self, number: FileHandle) -> Option<Arc<OpenHandle>> {
        let inside = self.0.read().unwrap_or_else(PoisonError::into_inner);
        inside.files.get(&number.0).cloned()
    }

    pub(super) fn drop(&self, number: FileHandle) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = inside.files.remove(&number.0) {
            inside.release_io_mode(handle.file.node(), handle.io_mode);
        }
    }

    pub(super) fn add_listing(&self, directory: InodeId) -> FileHandle {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.next += 1;
        let number = inside.next;
        let listing = DirectoryListing {
            directory,
            entries: Mutex::default(),
        };
        inside.listings.insert(number, Arc::new(listing));
        FileHandle(number)
    }

    pub(super) fn listing(&self, number: FileHandle) -> Option<Arc<DirectoryListing>> {
        let inside = self.0.read().unwrap_or_else(PoisonError::into_inner);
        inside.listings.get(&number.0).cloned()
    }

    pub(super) fn drop_listing(&self, number: FileHandle) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.listings.remove(&number.0);
    }
}
