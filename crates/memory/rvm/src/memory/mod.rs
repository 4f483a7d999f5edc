//! The bytes of a region, their placement, the detection of stores to them, and the crate's only unsafe code.
//!
//! [`RegionMemory`] owns either a private mapping of a segment file or, in the simulator, plain heap bytes.
//! The lock in [`crate::region`] decides when they may be read and written.
#![allow(unsafe_code)]

mod dirty;
mod trap;
mod watch;

pub(crate) use dirty::DirtyPages;
pub(crate) use trap::{PageTrap, TrapError};
pub(crate) use watch::PageWatch;

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;

use netram_proto::port::IoError;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a page; equal to the system's page size where stores are found by page.
pub(crate) const PAGE: usize = crate::limit::PAGE_BYTES as usize;

/// Origin of the bytes, which decides how they are released.
#[derive(Debug, Clone, Copy)]
enum Backing {
    Mapped,
    Heap,
    /// The bytes are never released: the program uses them for the rest of its life.
    Leaked,
}

/// Placement of a region in the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement(PlacementKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlacementKind {
    Anywhere,
    At(usize),
    Over(usize),
}

impl Placement {
    /// Any free addresses that the system chooses.
    pub const ANYWHERE: Placement = Placement(PlacementKind::Anywhere);

    /// Exactly at `address`, a multiple of the page size; refused (EEXIST) where anything is mapped.
    pub const fn at(address: usize) -> Placement {
        Placement(PlacementKind::At(address))
    }

    /// Exactly at `address`, replacing whatever is mapped there.
    ///
    /// # Safety
    ///
    /// The caller must own the pages from `address` on, for the length of the mapping, and give them up:
    /// nothing may refer to them any more. They are unmapped with the region.
    pub const unsafe fn over(address: usize) -> Placement {
        Placement(PlacementKind::Over(address))
    }

    /// The requested address; `None` means anywhere.
    pub const fn address(self) -> Option<usize> {
        match self.0 {
            PlacementKind::Anywhere => None,
            PlacementKind::At(address) | PlacementKind::Over(address) => Some(address),
        }
    }
}

/// Bytes owned by one region.
///
/// A private mapping reads pages from the file when they are first touched, so mapping a large segment costs
/// nothing. A page that was stored to belongs to the process from then on; any other page continues to show
/// the file.
///
/// That is sound for two reasons. An exclusive lock on the file keeps other processes away. And truncation
/// writes only bytes that this process logged from the same memory: a store made the page private before, and
/// a range declared without a store has the bytes already shown. Recovery writes before the first mapping
/// exists.
#[derive(Debug)]
pub struct RegionMemory {
    start: NonNull<u8>,
    length: usize,
    backing: Backing,
}

// SAFETY: `RegionMemory` owns its bytes like a `Box<[u8]>` does; nothing in it is tied to a thread.
unsafe impl Send for RegionMemory {}
// SAFETY: `&RegionMemory` only reads; writing needs `&mut RegionMemory`.
unsafe impl Sync for RegionMemory {}

/// The address of a region's first byte, for code that bypasses the safe interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionAddress(*mut u8);

// SAFETY: an address is a number until it is dereferenced, which is unsafe there.
unsafe impl Send for RegionAddress {}
// SAFETY: as above.
unsafe impl Sync for RegionAddress {}

impl RegionAddress {
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

impl RegionMemory {
    /// Maps `length` bytes of `file` from `offset`, privately and lazily.
    ///
    /// The file must not be shortened or written by others while it is mapped; [`crate::RealStorage`] holds
    /// an exclusive lock on it for that.
    pub(crate) fn map_private(
        file: impl AsFd,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Without a reservation, a segment larger than memory plus swap can still be opened.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let flags = match placement.0 {
            PlacementKind::Anywhere => flags,
            PlacementKind::At(_) => flags | MapFlags::FIXED_NOREPLACE,
            PlacementKind::Over(_) => flags | MapFlags::FIXED,
        };
        let wanted = placement.address().unwrap_or(0);
        let hint = std::ptr::without_provenance_mut(wanted);
        // SAFETY: without `FIXED` the kernel chooses unused addresses or refuses, so no other object is
        // replaced. With it, the caller of `Placement::over` has given up the pages.
        let start =
            unsafe { rustix::mm::mmap(hint, length, protection, flags, file, offset) }.map_err(|error| {
                IoError {
                    errno: error.raw_os_error(),
                }
            })?;
        let start = NonNull::new(start.cast()).expect("the page at address zero is never mapped");
        let memory = RegionMemory {
            start,
            length,
            backing: Backing::Mapped,
        };
        if wanted != 0 && memory.address().get().addr() != wanted {
            // A kernel before 4.17 treats the address as a hint. EEXIST is the error of newer ones.
            return Err(IoError { errno: 17 });
        }
        Ok(memory)
    }

    /// `length` bytes of zeros that take memory only where they are stored to.
    pub(crate) fn reserve(length: usize) -> Result<RegionMemory, IoError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses unused addresses.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let start = start.map_err(|error| IoError {
            errno: error.raw_os_error(),
        })?;
        Ok(RegionMemory {
            start: NonNull::new(start.cast()).expect("the page at address zero is never mapped"),
            length,
            backing: Backing::Mapped,
        })
    }

    /// Whether the bytes are whole mapped pages.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.backing, Backing::Mapped)
    }

    /// Keeps the bytes mapped for the rest of the process's life, even after `self` is dropped.
    pub(crate) fn keep(&mut self) {
        self.backing = Backing::Leaked;
    }

    /// Takes ownership of heap bytes, for storage that maps by copying.
    pub fn from_bytes(bytes: Box<[u8]>) -> RegionMemory {
        let length = bytes.len();
        let start = NonNull::from(Box::leak(bytes)).cast();
        RegionMemory {
            start,
            length,
            backing: Backing::Heap,
        }
    }

    pub(crate) fn address(&self) -> RegionAddress {
        RegionAddress(self.start.as_ptr())
    }

    /// Copies bytes out without forming a reference to the rest of the region, which users of
    /// [`crate::Region::as_ptr`] may be writing.
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u8]) {
        assert!(offset <= self.length);
        assert!(target.len() <= self.length - offset);
        // SAFETY: the assertions keep the offset inside the bytes `self` owns.
        let source = unsafe { self.start.add(offset) };
        // SAFETY: `target.len()` bytes remain at `source`, and `target` is exclusive, so they are disjoint.
        unsafe {
            source
                .as_ptr()
                .copy_to_nonoverlapping(target.as_mut_ptr(), target.len())
        }
    }

    /// Copies bytes in without forming a reference to the rest of the region.
    pub(crate) fn copy_in(&mut self, offset: usize, source: &[u8]) {
        assert!(offset <= self.length);
        assert!(source.len() <= self.length - offset);
        // SAFETY: the assertions keep the offset inside the bytes `self` owns.
        let target = unsafe { self.start.add(offset) };
        // SAFETY: `source.len()` bytes remain at `target`; `&mut self` is the only safe path to them, and a
        // live `source` cannot borrow from `self`.
        unsafe {
            target
                .as_ptr()
                .copy_from_nonoverlapping(source.as_ptr(), source.len())
        }
    }
}

impl Deref for RegionMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `self` owns `length` initialised bytes at `start`, and `&self` keeps safe writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for RegionMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `self` owns `length` initialised bytes at `start`, and `&mut self` is the only safe path.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        match self.backing {
            Backing::Mapped => {
                // SAFETY: `start` and `length` are what `mmap` returned; no borrow outlives `self`.
                let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
                debug_assert!(unmapped.is_ok());
            }
            Backing::Heap => {
                let bytes = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.length);
                // SAFETY: `from_bytes` leaked exactly this box.
                drop(unsafe { Box::from_raw(bytes) });
            }
            Backing::Leaked => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_memory_reads_back_what_was_copied_in() {
        let mut memory = RegionMemory::from_bytes(vec![0; 16].into_boxed_slice());
        memory.copy_in(3, b"abc");
        let mut out = [0; 5];
        memory.copy_out(2, &mut out);
        assert_eq!(&out, b"\0abc\0");
        assert_eq!(memory.len(), 16);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn copies_outside_the_region_panic() {
        RegionMemory::from_bytes(vec![0; 4].into_boxed_slice()).copy_out(3, &mut [0; 2]);
    }

    #[test]
    fn a_private_mapping_never_changes_its_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut memory = RegionMemory::map_private(&file, 4096, 4096, Placement::ANYWHERE).unwrap();
        memory[0] = 7;
        let mut out = [9];
        std::os::unix::fs::FileExt::read_at(&file, &mut out, 4096).unwrap();
        assert_eq!((memory[0], out), (7, [0]));
    }

    #[test]
    fn a_mapping_over_given_up_pages_replaces_them() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &[7; 8192], 0).unwrap();
        let mut reserved = RegionMemory::map_private(&file, 0, 8192, Placement::ANYWHERE).unwrap();
        reserved[4096] = 1;
        let address = reserved.address().get().addr();
        let taken = RegionMemory::map_private(&file, 0, 4096, Placement::at(address + 4096));
        assert_eq!(taken.err(), Some(IoError { errno: 17 }));
        reserved.keep();
        drop(reserved);
        // SAFETY: `reserved` was leaked, and nothing refers to its pages.
        let over = unsafe { Placement::over(address + 4096) };
        let memory = RegionMemory::map_private(&file, 0, 4096, over).unwrap();
        assert_eq!((memory.address().get().addr(), memory[0]), (address + 4096, 7));
        drop(memory);
        let again = RegionMemory::map_private(&file, 0, 4096, Placement::at(address + 4096)).unwrap();
        assert_eq!(again[4095], 7, "the addresses are free again");
    }
}
