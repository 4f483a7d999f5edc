//! A mapping of this process: anonymous, private, without swap reserved for it.

use std::io;
use std::ptr::{self, NonNull};

use netram_far_machine::limit::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Pages of memory, until this is dropped. Other threads may write what a program holds slices of; so what is
/// here is copied in and out.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length; what is behind is only ever copied, under the rules of each method.
unsafe impl Send for MappedMemory {}
// SAFETY: as above: no method makes a reference to what is behind.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// So many pages of zeros, none of which takes memory yet. A child of this process does not get them:
    /// whoever touches them there gets a segmentation fault. Nor does a core dump, unless that is asked for
    /// ([`MappedMemory::dump`]).
    pub(crate) fn map(pages: usize) -> io::Result<MappedMemory> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // Nothing may be read at first: else a process that locks all its memory would get it all now.
        // SAFETY: a new mapping, where the kernel finds room: no memory that anything refers to changes.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = MappedMemory { base, bytes };
        memory.unlock()?;
        // SAFETY: the mapping is ours, and nothing refers to it yet.
        unsafe { rustix::mm::mprotect(memory.at(0), bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        for advice in [
            Advice::LinuxDontFork,
            Advice::LinuxNoHugepage,
            Advice::LinuxDontDump,
        ] {
            // SAFETY: the mapping is ours; neither advice changes what is in it.
            unsafe { rustix::mm::madvise(memory.at(0), bytes, advice) }?;
        }
        Ok(memory)
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes back a lock on its pages: what is locked cannot leave.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours; what is in it stays.
        Ok(unsafe { rustix::mm::munlock(self.at(0), self.bytes) }?)
    }

    /// Empties pages: nothing is behind them any more. Those of an arena are missed at their next reference;
    /// a berth's must not be read before it has a page again.
    pub(crate) fn empty(&self, page: usize, pages: usize) -> io::Result<()> {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        // SAFETY: within the mapping. The bytes become zeros, which every type that is kept here allows
        // (`Pod`).
        Ok(unsafe {
            rustix::mm::madvise(
                self.at(page * PAGE_BYTES),
                pages * PAGE_BYTES,
                Advice::LinuxDontNeed,
            )
        }?)
    }

    /// Whether something is behind the page. The kernel is asked; nothing is touched.
    pub(crate) fn is_there(&self, page: usize) -> io::Result<bool> {
        self.check(page * PAGE_BYTES, PAGE_BYTES);
        let mut there = 0;
        // SAFETY: the page is within the mapping, and the kernel writes one byte for it, to a local.
        match unsafe { libc::mincore(self.at(page * PAGE_BYTES), PAGE_BYTES, &raw mut there) } {
            0 => Ok(there & 1 == 1),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether a core dump has these pages, as far as they are here. Addresses that nobody uses would make it
    /// as long as all of them.
    pub(crate) fn dump(&self, page: usize, pages: usize, wanted: bool) {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        let advice = match wanted {
            true => Advice::LinuxDoDump,
            false => Advice::LinuxDontDump,
        };
        // SAFETY: within the mapping; what is in it stays.
        let advised = unsafe { rustix::mm::madvise(self.at(page * PAGE_BYTES), pages * PAGE_BYTES, advice) };
        if let Err(error) = advised {
            tracing::debug!(%error, "a core dump would have too much, or too little");
        }
    }

    /// Copies bytes out. If another thread writes them meanwhile, it may be some of before and some of after.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let source = self.at(offset).cast::<u8>();
        // SAFETY: `source` has so many bytes, by the check; `into` is another memory, and ours alone.
        unsafe { ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in. The caller owns that part: it is a berth's mover.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let target = self.at(offset).cast::<u8>();
        // SAFETY: `target` has so many bytes, by the check; `bytes` is another memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    pub(super) fn check(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes, "the part begins inside");
        assert!(bytes <= self.bytes - offset, "the part ends inside");
    }

    pub(super) fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        // SAFETY: callers have checked that the offset is inside the mapping, or it is 0.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: whoever had a part of it borrowed this or held its `Arc`: nothing refers to it any more.
        if let Err(error) = unsafe { rustix::mm::munmap(self.at(0), self.bytes) } {
            tracing::error!(%error, "memory could not be given back");
        }
    }
}

/// How many bytes this process has locked, as the kernel tells. 0 where it does not tell.
pub(crate) fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = told.and_then(|told| told.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// What a program may do to memory of an arena.
#[cfg(test)]
impl MappedMemory {
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours; what is in it stays.
        Ok(unsafe { rustix::mm::mlock(self.at(0), self.bytes) }?)
    }

    /// Nothing in the test refers to those pages, and nothing else is mapped there before the whole is
    /// unmapped.
    pub(crate) fn unmap(&self, page: usize, pages: usize) -> io::Result<()> {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        // SAFETY: within the mapping, and as said above.
        Ok(unsafe { rustix::mm::munmap(self.at(page * PAGE_BYTES), pages * PAGE_BYTES) }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_out_and_what_is_emptied_is_zeros() {
        let memory = MappedMemory::map(3).unwrap();
        memory.write(4000, &[7; 200]);
        let mut bytes = [0; 200];
        memory.read(4000, &mut bytes);
        assert_eq!(bytes, [7; 200]);
        memory.empty(0, 1).unwrap();
        memory.read(4000, &mut bytes);
        assert!(bytes[..96] == [0; 96] && bytes[96..] == [7; 104]);
        let beyond = std::panic::catch_unwind(|| memory.write(3 * PAGE_BYTES - 1, &[1, 2]));
        assert!(beyond.is_err());
    }

    /// A child would see zeros where its parent's pages are away.
    #[test]
    fn a_child_that_looks_gets_a_segmentation_fault_and_no_zeros() {
        let memory = MappedMemory::map(1).unwrap();
        memory.write(0, &[7]);
        // SAFETY: the child only reads memory, and exits: it takes no lock and allocates nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = [0];
            memory.read(0, &mut byte);
            // SAFETY: the process ends without running anything else.
            unsafe { libc::_exit(byte[0].into()) }
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the child is ours, and `status` a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "it read {}", libc::WEXITSTATUS(status));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }

    #[test]
    fn the_kernel_tells_of_a_lock() {
        let memory = MappedMemory::map(16).unwrap();
        // So little that no usual limit is lower.
        match memory.lock() {
            // Another test of this process may lock memory, too, but never less than this.
            Ok(()) => assert!(locked_bytes() >= memory.bytes() as u64),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}"),
        }
    }
}
