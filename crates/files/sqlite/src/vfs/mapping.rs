//! The ledger's page, in the memory of all processes that have the database open.

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

/// A file of words, mapped.
pub(crate) struct IndexMapping {
    base: NonNull<AtomicU64>,
    file: File,
}

// SAFETY: the words are atomic, and stay mapped as long as the value lives.
unsafe impl Send for IndexMapping {}
// SAFETY: as above.
unsafe impl Sync for IndexMapping {}

impl IndexMapping {
    /// Maps the file, which is made of zeros if there is none.
    pub(crate) fn of(path: &Path) -> io::Result<IndexMapping> {
        let file = lock_file(path)?;
        if file.metadata()?.len() < BYTES as u64 {
            // Not by its length alone: writing to a hole on a full disk is a bus error, and not one that is
            // returned.
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
            base: NonNull::new(base.cast()).expect("the kernel maps nothing at zero"),
            file,
        })
    }

    /// Which file of its file system it is.
    pub(crate) fn number(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }
}

impl SharedWords for IndexMapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, aligned to a page, and any bytes are words; others change them
        // atomically too.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), INDEX_WORDS) }
    }
}

impl Drop for IndexMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and no reference outlives the value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
