//! The bytes of a region, and the crate's only unsafe code.
//!
//! [`Memory`] owns either a private mapping of a segment file or plain heap bytes (the simulator's way).
//! What may be read and written when is decided by the lock in [`crate::region`].
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;

use netram_proto::port::IoError;
use rustix::mm::{MapFlags, ProtFlags};

/// Where the bytes came from, so that they go back there.
#[derive(Debug, Clone, Copy)]
enum Backing {
    Mapped,
    Heap,
}

/// Bytes owned by one region.
///
/// A private mapping: pages are read from the file when first touched, so mapping a large segment costs
/// nothing. A page that was stored to is the process's own from then on; a page that was not keeps showing
/// the file. That is sound here because the segment file is this process's alone (an exclusive lock is held
/// on it) and truncation writes only bytes that this process logged from the very same memory: a store made
/// the page private before, and where a range was declared without a store the bytes written are the bytes
/// already shown. Recovery writes before the first mapping exists.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    length: usize,
    backing: Backing,
}

// SAFETY: `Memory` owns its bytes like a `Box<[u8]>` does; nothing in it is tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: `&Memory` only reads; writing needs `&mut Memory`.
unsafe impl Sync for Memory {}

/// The address of a region's first byte, for code that goes past the safe interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(*mut u8);

// SAFETY: an address is a number until somebody dereferences it, which is unsafe there.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

impl Memory {
    /// Maps `length` bytes of `file` from `offset`, privately and lazily.
    ///
    /// The file must not be cut shorter or written by others while mapped: [`crate::RealStorage`] holds an
    /// exclusive lock on it for that.
    pub(crate) fn map_private(file: impl AsFd, offset: u64, length: usize) -> Result<Memory, IoError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Without a reservation, a segment larger than memory plus swap can still be opened.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose unused addresses, so no other object is replaced.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, file, offset) }
                .map_err(|error| IoError {
                    errno: error.raw_os_error(),
                })?;
        let start = NonNull::new(start.cast()).expect("mmap answers a null hint with a real address");
        Ok(Memory {
            start,
            length,
            backing: Backing::Mapped,
        })
    }

    /// Takes over heap bytes, for storage that maps by copying.
    pub fn from_bytes(bytes: Box<[u8]>) -> Memory {
        let length = bytes.len();
        let start = NonNull::from(Box::leak(bytes)).cast();
        Memory {
            start,
            length,
            backing: Backing::Heap,
        }
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.start.as_ptr())
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

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `self` owns `length` initialised bytes at `start`, and `&self` keeps safe writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `self` owns `length` initialised bytes at `start`, and `&mut self` is the only safe path.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Memory {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_memory_reads_back_what_was_copied_in() {
        let mut memory = Memory::from_bytes(vec![0; 16].into_boxed_slice());
        memory.copy_in(3, b"abc");
        let mut out = [0; 5];
        memory.copy_out(2, &mut out);
        assert_eq!(&out, b"\0abc\0");
        assert_eq!(memory.len(), 16);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn copies_outside_are_refused() {
        Memory::from_bytes(vec![0; 4].into_boxed_slice()).copy_out(3, &mut [0; 2]);
    }

    #[test]
    fn a_private_mapping_never_changes_its_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut memory = Memory::map_private(&file, 4096, 4096).unwrap();
        memory[0] = 7;
        let mut out = [9];
        std::os::unix::fs::FileExt::read_at(&file, &mut out, 4096).unwrap();
        assert_eq!((memory[0], out), (7, [0]));
    }
}
