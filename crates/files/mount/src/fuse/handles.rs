//! What programs have open.

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
    /// Each write waits as a sync does.
    pub(super) synced: bool,
    io_mode: IoMode,
    /// The kernel reads by itself, as long as this is there.
    passthrough: OnceLock<Arc<BackingId>>,
}

/// What is in a directory, as it was when somebody began to read it.
#[derive(Debug)]
pub(super) struct DirectoryListing {
    pub(super) directory: InodeId,
    pub(super) entries: Mutex<Vec<(InodeId, InodeKind, Vec<u8>)>>,
}

/// How a node is open, in all handles.
#[derive(Debug, Default)]
struct InodeUses {
    /// By way of the page cache of FUSE.
    cached: u32,
    /// By the kernel itself, or beside that.
    passthrough: u32,
    /// What the kernel reads from: one for all.
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

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Handles(RwLock<HandleState>);

/// By which way a file is to be opened. The kernel wants one way for all who have a file open at a time, but
/// for those who go past its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoMode {
    /// The kernel caches what is read.
    Cached,
    /// Each read and write comes here.
    Direct,
    /// The kernel reads from the disk's file.
    Passthrough,
    /// The same file is read so by others, and this one is only written: each write comes here.
    WriteBeside,
}

impl IoMode {
    /// Whether the kernel has to be told of the disk's file.
    pub(super) fn is_passthrough(self) -> bool {
        matches!(self, IoMode::Passthrough | IoMode::WriteBeside)
    }
}

impl Handles {
    /// By which way a file is opened, for which there is room from now on until [`Handles::drop`] or
    /// [`Handles::release_io_mode`]. `passes`: a file that is only read by whoever has it open is read by the
    /// kernel itself.
    ///
    /// `None`: others read it so, and this one is to be read and written. It could be mapped, and nobody here
    /// would hear of what is written to the map.
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
            // A write that is synced is one request then, and not two. Who maps the file would not see it at
            // once.
            () if synced && uses.cached == 0 => IoMode::Direct,
            () => IoMode::Cached,
        };
        uses.cached += u32::from(way == IoMode::Cached);
        uses.passthrough += u32::from(way.is_passthrough());
        Some(way)
    }

    /// What the kernel reads a node from, made unless it is there: all who have it open name the same one.
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

    /// The file is not opened after all.
    pub(super) fn release_io_mode(&self, node: InodeId, way: IoMode) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.release_io_mode(node, way);
    }

    /// The file is open.
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

    /// What the kernel reads by stays until the file is closed.
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
