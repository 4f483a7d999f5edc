//! The shared index, mapped into the memory of every process with the database open.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

use netram_sqlite_machine::{INDEX_WORDS, SharedWords};
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::database_disk::lock_file;

const BYTES: usize = INDEX_WORDS * size_of::<u64>();

/// A file of words, mapped shared.
pub(crate) struct IndexMapping {
    base: NonNull<AtomicU64>,
    file: File,
}

// SAFETY: the words are atomic and stay mapped while the value lives.
unsafe impl Send for IndexMapping {}
// SAFETY: as above.
unsafe impl Sync for IndexMapping {}

impl IndexMapping {
    /// Maps the file, creating it with zeros if needed.
    pub(crate) fn of(path: &Path) -> io::Result<IndexMapping> {
        let file = lock_file(path)?;
        if file.metadata()?.len() < BYTES as u64 {
            // Allocate blocks instead of only setting the length: on a full disk, a write to a hole would
            // raise a bus error.
            loop {
                match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64) {
                    Err(rustix::io::Errno::INTR) => (),
                    Err(rustix::io::Errno::OPNOTSUPP) => break file.set_len(BYTES as u64)?,
                    allocated => break allocated?,
                }
            }
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choosing aliases nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &file, 0) }?;
        Ok(IndexMapping {
            base: NonNull::new(base.cast()).expect("the kernel never maps page zero"),
            file,
        })
    }

    /// Inode number of the file.
    pub(crate) fn number(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }
}

impl SharedWords for IndexMapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: that many words are mapped and page-aligned, any bit pattern is valid, and other processes
        // access them atomically too.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), INDEX_WORDS) }
    }
}

impl Drop for IndexMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and no reference outlives the value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
