//! An anonymous private mapping without reserved swap.

use std::io;
use std::ptr::{self, NonNull};

use netram_far_machine::limit::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Mapped pages, until dropped. Other threads may write to them, so bytes are copied in and out and never
/// borrowed here.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length; the memory is only copied, under the rules of each method.
unsafe impl Send for MappedMemory {}
// SAFETY: as above: no method makes a reference to the memory.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `pages` pages of zeros, which take no memory yet. Children of this process do not inherit them;
    /// an access there is a segmentation fault. Core dumps exclude them unless requested
    /// ([`MappedMemory::dump`]).
    pub(crate) fn map(pages: usize) -> io::Result<MappedMemory> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // Initially without access: otherwise a process that locks all its memory would allocate all of it
        // now.
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory in use.
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
            // SAFETY: the mapping is ours, and neither advice changes its content.
            unsafe { rustix::mm::madvise(memory.at(0), bytes, advice) }?;
        }
        Ok(memory)
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes a lock on the pages: locked pages cannot be evicted.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and its content stays.
        Ok(unsafe { rustix::mm::munlock(self.at(0), self.bytes) }?)
    }

    /// Discards pages. An arena's pages fault at their next reference; a staging frame must not be read until
    /// it has a page again.
    pub(crate) fn empty(&self, page: usize, pages: usize) -> io::Result<()> {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        // SAFETY: within the mapping. The bytes become zeros, which every stored type allows (`Pod`).
        Ok(unsafe {
            rustix::mm::madvise(
                self.at(page * PAGE_BYTES),
                pages * PAGE_BYTES,
                Advice::LinuxDontNeed,
            )
        }?)
    }

    /// Whether memory is mapped at the page, as the kernel reports; the page is not touched.
    pub(crate) fn is_there(&self, page: usize) -> io::Result<bool> {
        self.check(page * PAGE_BYTES, PAGE_BYTES);
        let mut there = 0;
        // SAFETY: the page is within the mapping, and the kernel writes one byte for it to a local.
        match unsafe { libc::mincore(self.at(page * PAGE_BYTES), PAGE_BYTES, &raw mut there) } {
            0 => Ok(there & 1 == 1),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Includes or excludes pages in core dumps, as far as they are local. Unused addresses would make a dump
    /// as long as all of them.
    pub(crate) fn dump(&self, page: usize, pages: usize, wanted: bool) {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        let advice = match wanted {
            true => Advice::LinuxDoDump,
            false => Advice::LinuxDontDump,
        };
        // SAFETY: within the mapping; its content stays.
        let advised = unsafe { rustix::mm::madvise(self.at(page * PAGE_BYTES), pages * PAGE_BYTES, advice) };
        if let Err(error) = advised {
            tracing::debug!(%error, "the pages included in core dumps could not be changed");
        }
    }

    /// Copies bytes out. If another thread writes them meanwhile, the result may mix old and new bytes.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let source = self.at(offset).cast::<u8>();
        // SAFETY: `source` has that many bytes, by the check; `into` is other memory, borrowed exclusively.
        unsafe { ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in. The caller owns that part, as the mover of a staging frame does.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let target = self.at(offset).cast::<u8>();
        // SAFETY: `target` has that many bytes, by the check; `bytes` is other memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    pub(super) fn check(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes, "the part begins in the mapping");
        assert!(bytes <= self.bytes - offset, "the part ends in the mapping");
    }

    pub(super) fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        // SAFETY: callers have checked that the offset is in the mapping, or it is 0.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: every user borrowed this value or held its `Arc`, so nothing refers to the mapping now.
        if let Err(error) = unsafe { rustix::mm::munmap(self.at(0), self.bytes) } {
            tracing::error!(%error, "memory could not be unmapped");
        }
    }
}

/// Bytes that this process has locked, according to the kernel; 0 if it does not report them.
pub(crate) fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = told.and_then(|told| told.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Operations of a program on its arena.
#[cfg(test)]
impl MappedMemory {
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and its content stays.
        Ok(unsafe { rustix::mm::mlock(self.at(0), self.bytes) }?)
    }

    /// Unmaps pages. The test must not refer to them, and nothing else is mapped there before the whole is
    /// unmapped.
    pub(crate) fn unmap(&self, page: usize, pages: usize) -> io::Result<()> {
        self.check(page * PAGE_BYTES, pages * PAGE_BYTES);
        // SAFETY: within the mapping, and as stated above.
        Ok(unsafe { rustix::mm::munmap(self.at(page * PAGE_BYTES), pages * PAGE_BYTES) }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back_and_discarded_ones_are_zeros() {
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

    /// A child would otherwise see zeros where its parent's pages are remote.
    #[test]
    fn a_child_gets_a_segmentation_fault_instead_of_zeros() {
        let memory = MappedMemory::map(1).unwrap();
        memory.write(0, &[7]);
        // SAFETY: the child only reads memory and exits: it takes no lock and allocates nothing.
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
    fn locked_bytes_are_counted() {
        let memory = MappedMemory::map(16).unwrap();
        // Small enough for any usual limit.
        match memory.lock() {
            // Another test may lock memory too, but never less than this.
            Ok(()) => assert!(locked_bytes() >= memory.bytes() as u64),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}"),
        }
    }
}
