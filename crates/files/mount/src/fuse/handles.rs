//! Files and directories that programs have open.
//!
//! The kernel keeps a handle's number as long as a program has the file open, also when the server that gave
//! it is killed. Any server understands the number: it says how the file is open, and the request says which
//! file.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use netram_files::{InodeId, OpenFile as NodeFile};
use netram_fuse::BackingFile;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

use super::listing::ListingEntry;

/// A file that a program has open.
#[derive(Debug)]
pub(super) struct OpenHandle {
    pub(super) file: Arc<NodeFile<File>>,
    /// Whether each write waits like a sync (`O_SYNC`, `O_DSYNC`).
    pub(super) synced: bool,
    io_mode: IoMode,
    /// Whether a server before this one gave the number: what that one opened the file for is not known.
    pub(super) adopted: bool,
    /// Registration by which the kernel reads the file itself, for as long as it lives.
    passthrough: OnceLock<Arc<BackingFile>>,
}

/// A directory's entries, as of the last time a program began to read them.
#[derive(Debug, Default)]
pub(super) struct DirectoryListing {
    pub(super) entries: Mutex<Vec<ListingEntry>>,
}

/// Number of open handles of an inode, by I/O mode.
#[derive(Debug, Default)]
struct InodeUses {
    /// Handles through FUSE's page cache.
    cached: u32,
    /// Handles in the modes `Passthrough` and `WriteBeside`.
    passthrough: u32,
    /// The kernel's registration of the backing file, shared by all handles.
    backing: Option<Arc<BackingFile>>,
}

#[derive(Debug)]
struct HandleState {
    files: HashMap<u64, Arc<OpenHandle>>,
    listings: HashMap<u64, Arc<DirectoryListing>>,
    uses: HashMap<InodeId, InodeUses>,
    /// Part of the next handle's number that no other handle of the mount has.
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
#[derive(Debug)]
pub(super) struct Handles {
    state: RwLock<HandleState>,
    /// Whether programs may have files open that a server before this one opened. This one does not know how.
    taken_over: bool,
}

/// I/O mode of an open file. The kernel requires one mode for all handles of a file, except for those that
/// bypass its page cache. A mode's number is part of a handle's, so it never changes.
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

/// A handle's number, as the kernel keeps it: mode (2 bits) | synced (1 bit) | the rest, which makes it unique.
fn handle_number(unique: u64, synced: bool, io_mode: IoMode) -> u64 {
    unique << 3 | u64::from(synced) << 2 | io_mode as u64
}

/// Whether the handle with this number is synced, and its mode.
fn handle_kind(number: u64) -> (bool, IoMode) {
    let modes = [
        IoMode::Cached,
        IoMode::Direct,
        IoMode::Passthrough,
        IoMode::WriteBeside,
    ];
    (number & 4 != 0, modes[(number & 3) as usize])
}

impl Handles {
    pub(super) fn new(taken_over: bool) -> Handles {
        // Servers before this one have given fewer numbers than nanoseconds have passed.
        let now = clock_gettime(ClockId::Boottime);
        let elapsed_ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        Handles {
            state: RwLock::new(HandleState {
                files: HashMap::new(),
                listings: HashMap::new(),
                uses: HashMap::new(),
                next: elapsed_ns,
            }),
            taken_over,
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, HandleState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, HandleState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the I/O mode of an open and counts it until [`Handles::drop`] or [`Handles::release_io_mode`].
    /// `passes`: the kernel may read a file itself while all its users only read.
    ///
    /// `None`: the file is open in `Passthrough` mode and is to be opened for reading and writing. It could
    /// then be mapped, and writes to the map would bypass this process.
    pub(super) fn reserve_io_mode(
        &self,
        node: InodeId,
        access: OFlags,
        synced: bool,
        passes: bool,
    ) -> Option<IoMode> {
        let mut inside = self.write();
        let uses = inside.uses.entry(node).or_default();
        let reads_only = access == OFlags::RDONLY;
        let way = match () {
            () if passes && reads_only && uses.cached == 0 => IoMode::Passthrough,
            () if uses.passthrough > 0 && access == OFlags::WRONLY => IoMode::WriteBeside,
            () if uses.passthrough > 0 => return None,
            // A synchronous write is then one request instead of two. A map of the file does not show it at
            // once.
            () if synced && uses.cached == 0 && !self.taken_over => IoMode::Direct,
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
        make: impl FnOnce() -> io::Result<BackingFile>,
    ) -> io::Result<Arc<BackingFile>> {
        let mut inside = self.write();
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
        let mut inside = self.write();
        inside.release_io_mode(node, way);
    }

    /// Adds a handle.
    pub(super) fn add(&self, file: Arc<NodeFile<File>>, synced: bool, way: IoMode) -> u64 {
        let mut inside = self.write();
        inside.next += 1;
        let number = handle_number(inside.next, synced, way);
        let handle = OpenHandle {
            file,
            synced,
            io_mode: way,
            adopted: false,
            passthrough: OnceLock::new(),
        };
        inside.files.insert(number, Arc::new(handle));
        number
    }

    /// Adds the handle of a number that another server gave for this file.
    pub(super) fn adopt(&self, number: u64, file: Arc<NodeFile<File>>) -> Arc<OpenHandle> {
        let mut inside = self.write();
        if let Some(handle) = inside.files.get(&number) {
            return Arc::clone(handle);
        }
        let (synced, io_mode) = handle_kind(number);
        let uses = inside.uses.entry(file.node()).or_default();
        uses.cached += u32::from(io_mode == IoMode::Cached);
        uses.passthrough += u32::from(io_mode.is_passthrough());
        let handle = Arc::new(OpenHandle {
            file,
            synced,
            io_mode,
            adopted: true,
            passthrough: OnceLock::new(),
        });
        inside.files.insert(number, Arc::clone(&handle));
        handle
    }

    /// Keeps the kernel's registration until the handle is closed.
    pub(super) fn keep_backing(&self, number: u64, passed: Arc<BackingFile>) {
        if let Some(handle) = self.get(number) {
            let _ = handle.passthrough.set(passed);
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<OpenHandle>> {
        let inside = self.read();
        inside.files.get(&number).cloned()
    }

    pub(super) fn drop(&self, number: u64) {
        let mut inside = self.write();
        if let Some(handle) = inside.files.remove(&number) {
            inside.release_io_mode(handle.file.node(), handle.io_mode);
        }
    }

    /// Number of a listing of a directory, which is read when a program asks for it.
    pub(super) fn add_listing(&self) -> u64 {
        let mut inside = self.write();
        inside.next += 1;
        handle_number(inside.next, false, IoMode::Cached)
    }

    /// The listing of this number; empty if the program has not begun to read it here.
    pub(super) fn listing(&self, number: u64) -> Arc<DirectoryListing> {
        Arc::clone(self.write().listings.entry(number).or_default())
    }

    pub(super) fn drop_listing(&self, number: u64) {
        let mut inside = self.write();
        inside.listings.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that continued a mount would have given a number again that a program's open file has.
    #[test]
    fn a_number_tells_any_server_how_the_file_is_open_and_is_given_once() {
        let mut unique = 0;
        for server in 0..3 {
            let handles = Handles::new(server > 0);
            assert!(handles.read().next > unique, "server {server}");
            for _ in 0..100 {
                let number = handles.add_listing();
                assert!(number >> 3 > unique);
                unique = number >> 3;
            }
        }
        let modes = [
            IoMode::Cached,
            IoMode::Direct,
            IoMode::Passthrough,
            IoMode::WriteBeside,
        ];
        for (mode, synced) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            assert_eq!(handle_kind(handle_number(unique, synced, mode)), (synced, mode));
        }
    }

    #[test]
    fn a_server_that_knows_not_all_users_of_a_file_leaves_it_to_the_page_cache() {
        let mode =
            |taken_over| Handles::new(taken_over).reserve_io_mode(InodeId(5), OFlags::RDWR, true, false);
        assert_eq!(mode(false), Some(IoMode::Direct));
        assert_eq!(mode(true), Some(IoMode::Cached));
    }
}
