//! The crate's unsafe module: a file mapped into memory and split into slices with one owner each.
//!
//! A [`StoreSlice`] is the only path to its bytes. Slices come from mapping a file once and from splitting,
//! never from copying, so the borrow checker keeps readers and writers of the same bytes apart. The store
//! keeps *other processes* out: its file has mode 0600 and an exclusive lock. A process that writes into it
//! from outside runs as the same user and deliberately breaks its own lender.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock, mlock_with, mmap, munmap};

/// The mapping itself; unmapped with the last of its slices.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is only an address range to be unmapped once; it hands out no access.
unsafe impl Send for Mapping {}
// SAFETY: no method gives access to memory through `&Mapping`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: every slice holds an `Arc` of this mapping, so none is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a range that was mapped can be unmapped");
    }
}

/// An owned range of a mapped file.
pub(crate) struct StoreSlice {
    base: NonNull<u8>,
    length: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: a slice is the only path to its bytes (see the module), so it may move between threads like a
// `Vec`.
unsafe impl Send for StoreSlice {}
// SAFETY: `&StoreSlice` only reads, and writing takes `&mut StoreSlice`.
unsafe impl Sync for StoreSlice {}

impl StoreSlice {
    /// Maps the first `length` bytes of `file`, all of which exist. `whole` populates every page.
    pub(crate) fn map(file: &File, length: usize, whole: bool) -> io::Result<StoreSlice> {
        assert!(file.metadata()?.len() >= length as u64);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let touched = if whole {
            MapFlags::POPULATE
        } else {
            MapFlags::empty()
        };
        let flags = MapFlags::SHARED | touched;
        // SAFETY: the kernel chooses a fresh range; nothing else refers to it.
        let base = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(StoreSlice {
            base,
            length,
            mapping: Arc::new(Mapping { base, length }),
        })
    }

    /// Requests huge pages. The kernel may not grant them.
    pub(crate) fn advise_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is mapped and the advice changes no byte.
        unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxHugepage) }?;
        Ok(())
    }

    /// Locks the bytes in memory: all at once if `whole`, otherwise each page when it is first touched.
    pub(crate) fn lock(&self, whole: bool) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        if whole {
            // SAFETY: the range is mapped; locking changes no byte.
            unsafe { mlock(base, self.length) }?;
        } else {
            // SAFETY: the range is mapped; locking changes no byte.
            unsafe { mlock_with(base, self.length, MlockFlags::ONFAULT) }?;
        }
        Ok(())
    }

    /// Populates every page, so that no first write faults. The slice also works without.
    pub(crate) fn touch(&mut self) {
        // SAFETY: the range is mapped, and `&mut self` is the only path to it; the advice changes no byte. A
        // kernel before 5.14 refuses it.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxPopulateWrite) };
    }

    /// Splits the slice at `at`.
    pub(crate) fn split(self, at: usize) -> (StoreSlice, StoreSlice) {
        assert!(at <= self.length);
        // SAFETY: the assertion keeps the address inside the mapping, or one past it for an empty region.
        let middle = unsafe { self.base.add(at) };
        let front = StoreSlice {
            base: self.base,
            length: at,
            mapping: Arc::clone(&self.mapping),
        };
        let back = StoreSlice {
            base: middle,
            length: self.length - at,
            mapping: self.mapping,
        };
        (front, back)
    }

    /// Bytes of the slice.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The `length` bytes from `at`.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        assert!(at <= self.length);
        assert!(length <= self.length - at);
        // SAFETY: the assertions keep the address inside the region.
        let start = unsafe { self.base.add(at) };
        // SAFETY: the bytes are mapped, initialised by the kernel, and written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Prefetch hint: the byte at `at` will be read soon.
    pub(crate) fn soon(&self, at: usize) {
        assert!(at < self.length);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the assertion keeps the address inside the region.
            let place = unsafe { self.base.add(at) };
            // SAFETY: a prefetch changes no byte and reads none that the program sees.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast()) };
        }
    }

    /// Stores `bytes` at `at`, after every earlier store and before every later one, so that a process killed
    /// in between leaves the stores of a prefix of the program.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.length);
        assert!(bytes.len() <= self.length - at);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the assertions keep the address inside the region.
        let target = unsafe { self.base.add(at) };
        // SAFETY: `bytes.len()` bytes remain at `target`, and `&mut self` is the only path to them.
        unsafe {
            target
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        compiler_fence(Ordering::SeqCst);
    }
}

/// The machine's uptime in seconds, including suspension; at least 1.
pub(crate) fn seconds_of_run() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_regions_are_disjoint_and_cover_the_whole() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let whole = StoreSlice::map(&file, 8192, true).unwrap();
        let (mut front, mut back) = whole.split(5000);
        front.write(4990, &[1; 10]);
        back.write(0, &[2; 10]);
        assert_eq!(front.bytes(4990, 10), [1; 10]);
        assert_eq!(back.bytes(0, 10), [2; 10]);
        assert_eq!((front.length(), back.length()), (5000, 3192));
        drop(front);
        assert_eq!(
            back.bytes(0, 1),
            [2],
            "the mapping lives as long as any of its slices"
        );
    }
}
