//! What programs have open.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use fuser::{BackingId, FileHandle, OpenAccMode};
use netram_files::{File as NodeFile, Node, NodeKind};

/// A file that a program has open.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) file: Arc<NodeFile<File>>,
    /// Each write waits as a sync does.
    pub(super) synced: bool,
    way: Way,
    /// The kernel reads by itself, as long as this is there.
    passed: OnceLock<Arc<BackingId>>,
}

/// What is in a folder, as it was when somebody began to read it.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) folder: Node,
    pub(super) entries: Mutex<Vec<(Node, NodeKind, Vec<u8>)>>,
}

/// How a node is open, in all handles.
#[derive(Debug, Default)]
struct Uses {
    /// By way of the page cache of FUSE.
    cached: u32,
    /// By the kernel itself, or beside that.
    passed: u32,
    /// What the kernel reads from: one for all.
    backing: Option<Arc<BackingId>>,
}

#[derive(Debug, Default)]
struct Inside {
    files: HashMap<u64, Arc<Handle>>,
    listings: HashMap<u64, Arc<Listing>>,
    uses: HashMap<Node, Uses>,
    next: u64,
}

impl Inside {
    fn give_up(&mut self, node: Node, way: Way) {
        let Some(uses) = self.uses.get_mut(&node) else {
            return;
        };
        uses.cached -= u32::from(way == Way::Cached);
        uses.passed -= u32::from(way.is_passed());
        if (uses.cached, uses.passed) == (0, 0) {
            self.uses.remove(&node);
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Handles(RwLock<Inside>);

/// By which way a file is to be opened. The kernel wants one way for all who have a file open at a time, but for those who go past its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel caches what is read.
    Cached,
    /// Each read and write comes here.
    Direct,
    /// The kernel reads from the disk's file.
    Passed,
    /// The same file is read so by others, and this one is only written: each write comes here.
    Beside,
}

impl Way {
    /// Whether the kernel has to be told of the disk's file.
    pub(super) fn is_passed(self) -> bool {
        matches!(self, Way::Passed | Way::Beside)
    }
}

impl Handles {
    /// By which way a file is opened, for which there is room from now on until [`Handles::drop`] or [`Handles::give_up`]. `passes`: a file that is only read by
    /// whoever has it open is read by the kernel itself.
    ///
    /// `None`: others read it so, and this one is to be read and written. It could be mapped, and nobody here would hear of what is written to the map.
    pub(super) fn way(&self, node: Node, access: OpenAccMode, synced: bool, passes: bool) -> Option<Way> {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let uses = inside.uses.entry(node).or_default();
        let reads_only = access == OpenAccMode::O_RDONLY;
        let way = match () {
            () if passes && reads_only && uses.cached == 0 => Way::Passed,
            () if uses.passed > 0 && access == OpenAccMode::O_WRONLY => Way::Beside,
            () if uses.passed > 0 => return None,
            // A write that is synced is one request then, and not two. Who maps the file would not see it at once.
            () if synced && uses.cached == 0 => Way::Direct,
            () => Way::Cached,
        };
        uses.cached += u32::from(way == Way::Cached);
        uses.passed += u32::from(way.is_passed());
        Some(way)
    }

    /// What the kernel reads a node from, made unless it is there: all who have it open name the same one.
    pub(super) fn backing(
        &self,
        node: Node,
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
    pub(super) fn give_up(&self, node: Node, way: Way) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.give_up(node, way);
    }

    /// The file is open.
    pub(super) fn add(&self, file: Arc<NodeFile<File>>, synced: bool, way: Way) -> FileHandle {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.next += 1;
        let number = inside.next;
        let handle = Handle {
            file,
            synced,
            way,
            passed: OnceLock::new(),
        };
        inside.files.insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// What the kernel reads by stays until the file is closed.
    pub(super) fn keep(&self, number: FileHandle, passed: Arc<BackingId>) {
        if let Some(handle) = self.get(number) {
            let _ = handle.passed.set(passed);
        }
    }

    pub(super) fn get(&self, number: FileHandle) -> Option<Arc<Handle>> {
        let inside = self.0.read().unwrap_or_else(PoisonError::into_inner);
        inside.files.get(&number.0).cloned()
    }

    pub(super) fn drop(&self, number: FileHandle) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = inside.files.remove(&number.0) {
            inside.give_up(handle.file.node(), handle.way);
        }
    }

    pub(super) fn add_listing(&self, folder: Node) -> FileHandle {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.next += 1;
        let number = inside.next;
        let listing = Listing {
            folder,
            entries: Mutex::default(),
        };
        inside.listings.insert(number, Arc::new(listing));
        FileHandle(number)
    }

    pub(super) fn listing(&self, number: FileHandle) -> Option<Arc<Listing>> {
        let inside = self.0.read().unwrap_or_else(PoisonError::into_inner);
        inside.listings.get(&number.0).cloned()
    }

    pub(super) fn drop_listing(&self, number: FileHandle) {
        let mut inside = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inside.listings.remove(&number.0);
    }
}
