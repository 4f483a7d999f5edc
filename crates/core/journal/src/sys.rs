//! The ring: memory mapped twice in a row, so that every record is one contiguous slice even where the ring
//! wraps.
//!
//! Exactly two handles reach its bytes. The [`RingAppender`], under the journal's lock, writes new records
//! and reads old ones to send them. The [`RingDrain`], held by the thread that writes to the disk, reads what
//! the disk lacks without that lock. They never touch the same bytes: the appender writes only from the tail
//! on, and never into bytes that the drain has not released.
//!
//! This module also has a word that the kernel wipes in children of this process, for [`crate::fork`].
//!
//! This is the crate's only unsafe module.

use std::io;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use netram_proto::id::Lsn;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The memory, and the two positions that keep the handles apart.
#[derive(Debug)]
struct RingBuffer {
    /// `2 * capacity` bytes; the second half maps the same memory as the first.
    base: NonNull<u8>,
    capacity: usize,
    /// End of the written bytes. Moved by the appender only.
    tail: AtomicU64,
    /// Bytes below it may be overwritten. Moved by the drain only.
    drained: AtomicU64,
}

// SAFETY: the memory is reached only through `RingAppender` and `RingDrain`, of which there is one each.
// Their methods never write bytes that the other may read.
unsafe impl Send for RingBuffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for RingBuffer {}

/// Writes records at the tail, and reads them to send them.
#[derive(Debug)]
pub(crate) struct RingAppender(Arc<RingBuffer>);

/// Reads the bytes that were not released yet.
#[derive(Debug)]
pub(crate) struct RingDrain(Arc<RingBuffer>);

/// A word that is zero in a child of `fork`, whatever it was in the parent; `None` if this kernel cannot wipe
/// pages on fork.
#[inline]
pub(crate) fn word_wiped_by_fork() -> Option<&'static AtomicU64> {
    static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *WORD.get_or_init(|| {
        let (bytes, access) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address of the kernel's choosing aliases nothing.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: this is the page mapped above, which no other code knows yet; the advice only changes what
        // a child of fork finds in it.
        unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: the page is never unmapped, is aligned for a word, and zeros are a valid word. This is its
        // only reference.
        Some(unsafe { &*page.cast::<AtomicU64>() })
    })
}

/// Creates a ring of `capacity` bytes, a multiple of the page size, that is empty at `start`.
pub(crate) fn ring(capacity: u64, start: Lsn) -> io::Result<(RingAppender, RingDrain)> {
    let capacity = usize::try_from(capacity).map_err(io::Error::other)?;
    assert!(capacity > 0 && capacity.is_multiple_of(rustix::param::page_size()));
    let memory = memfd_create("netram-ring", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, capacity as u64)?;
    // SAFETY: a fresh mapping at an address of the kernel's choosing aliases nothing.
    let reserved = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            2 * capacity,
            ProtFlags::empty(),
            MapFlags::PRIVATE,
        )
    }?;
    let base = NonNull::new(reserved.cast::<u8>()).expect("the kernel maps nothing at zero");
    // From here on dropping `shared` unmaps the whole reservation, including what was mapped into it.
    let shared = RingBuffer {
        base,
        capacity,
        tail: AtomicU64::new(start.0),
        drained: AtomicU64::new(start.0),
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    for half in 0..2 {
        // SAFETY: both halves lie inside the reservation.
        let address = unsafe { base.as_ptr().add(half * capacity) };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the fixed address lies inside the reservation, which is ours and not referenced yet.
        unsafe { mmap(address.cast(), capacity, access, flags, &memory, 0) }?;
    }
    let shared = Arc::new(shared);
    Ok((RingAppender(Arc::clone(&shared)), RingDrain(shared)))
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, `2 * capacity` bytes from `base`, and both handles are gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), 2 * self.capacity) };
        debug_assert!(unmapped.is_ok());
    }
}

impl RingBuffer {
    /// The address of the byte at `lsn`.
    fn at(&self, lsn: Lsn) -> *mut u8 {
        let offset = (lsn.0 % self.capacity as u64) as usize;
        // SAFETY: `offset` is below `capacity`, half of the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl RingAppender {
    /// Capacity of the ring in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.0.capacity as u64
    }

    /// Bytes that can be appended before the drain releases more.
    pub(crate) fn room(&self) -> u64 {
        let used = self.0.tail.load(Ordering::Relaxed) - self.0.drained.load(Ordering::Acquire);
        self.capacity() - used
    }

    /// Appends `length` bytes that `fill` writes. Their previous contents are arbitrary.
    pub(crate) fn append(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        assert!(length as u64 <= self.room());
        let tail = self.0.tail.load(Ordering::Relaxed);
        let start = self.0.at(Lsn(tail));
        // SAFETY: `length` is at most the capacity, so the bytes lie inside the double mapping. They are
        // free: at or above the tail, which the drain does not read past, and no slice of `read` is alive
        // beside `&mut self`.
        let bytes = unsafe { slice::from_raw_parts_mut(start, length) };
        fill(bytes);
        // Release: a thread that sees the new tail sees the bytes.
        self.0.tail.store(tail + length as u64, Ordering::Release);
    }

    /// The `length` bytes from `at`; `None` if they were not written or may have been overwritten.
    pub(crate) fn read(&self, at: Lsn, length: usize) -> Option<&[u8]> {
        let tail = self.0.tail.load(Ordering::Relaxed);
        let end = at.0.checked_add(length as u64)?;
        if end > tail || tail - at.0 > self.capacity() {
            return None;
        }
        let start = self.0.at(at);
        // SAFETY: `length` is at most the capacity; the bytes are below the tail and less than a ring behind
        // it, so they are written, and only `append`, which needs `&mut self`, could overwrite them.
        Some(unsafe { slice::from_raw_parts(start, length) })
    }
}

impl RingDrain {
    /// LSN up to which bytes were released.
    pub(crate) fn position(&self) -> Lsn {
        Lsn(self.0.drained.load(Ordering::Relaxed))
    }

    /// The bytes from the drain's position to `end`, which the appender has written.
    pub(crate) fn up_to(&self, end: Lsn) -> &[u8] {
        let from = self.position();
        assert!(from <= end && end.0 <= self.0.tail.load(Ordering::Acquire));
        let start = self.0.at(from);
        let length = (end.0 - from.0) as usize;
        // SAFETY: the bytes between the drain and the tail are written, at most a ring long, and the appender
        // writes none of them before `let_go`, which needs `&mut self`, has been called.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// Releases the bytes below `end` to the appender.
    pub(crate) fn let_go(&mut self, end: Lsn) {
        assert!(self.position() <= end && end.0 <= self.0.tail.load(Ordering::Acquire));
        // Release: the appender overwrites only after our reads are done.
        self.0.drained.store(end.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_whole_across_the_wrap() {
        let page = rustix::param::page_size();
        let start = Lsn(page as u64 * 7 + 1000);
        let (mut appender, mut drain) = ring(page as u64, start).unwrap();
        for round in 0..50u8 {
            let at = drain.position();
            appender.append(700, |bytes| bytes.fill(round));
            assert_eq!(appender.read(at, 700).unwrap(), vec![round; 700]);
            assert_eq!(drain.up_to(at.plus(700)), vec![round; 700]);
            drain.let_go(at.plus(700));
        }
    }

    #[test]
    fn overwritten_and_unwritten_bytes_cannot_be_read() {
        let page = rustix::param::page_size();
        let (mut appender, mut drain) = ring(page as u64, Lsn(0)).unwrap();
        appender.append(page, |bytes| bytes.fill(1));
        assert_eq!(appender.room(), 0);
        assert!(appender.read(Lsn(0), page + 1).is_none());
        drain.let_go(Lsn(100));
        assert!(
            appender.read(Lsn(0), 8).is_some(),
            "released, but not overwritten yet"
        );
        appender.append(100, |bytes| bytes.fill(2));
        assert!(appender.read(Lsn(99), 8).is_none());
        assert_eq!(appender.read(Lsn(100), 8).unwrap(), [1; 8]);
    }
}
