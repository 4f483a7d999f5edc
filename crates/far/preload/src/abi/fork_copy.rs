//! A child of `fork` gets a copy of the program's far memory, in memory of its own, at its first reference.
//!
//! Until then the forking thread waits, as it would for `vfork`: most children soon call `exec` and need no
//! copy. The first fault may occur anywhere, even in an allocator's own fork handler. The fault handler is
//! therefore installed before the fork.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use netram_far_machine::limit::PAGE_BYTES;

use super::{die, faults};
use crate::heap::{PreloadHeap, PreloadHeapState};

/// Maximum time in ms that the forking thread waits for a child's first reference.
const PATIENCE_MS: c_int = 500;
/// Number of children that could not get a copy, after which the program itself ends. It would otherwise
/// start new ones forever.
const DEATHS_MAX: u32 = 3;
/// Number of pages sent at a time.
const SENT_PAGES: usize = 64;
/// Page number that marks the end.
pub(super) const END: u32 = u32::MAX;
/// Page count that marks an unreadable page.
pub(super) const UNREADABLE: u32 = u32::MAX;
/// Lowest number of our descriptor in the child, if the limit allows: programs rely on low ones being free.
const HIGH_FD: c_int = 1000;
/// Bytes below which a copy is made without checking the available memory.
const SMALL_BYTES: u64 = 64 << 20;

pub(super) const NONE: u32 = 0;
pub(super) const OFFERED: u32 = 1;
pub(super) const COPYING: u32 = 2;
pub(super) const COPIED: u32 = 3;
pub(super) static STATE: AtomicU32 = AtomicU32::new(NONE);

/// Data that the child needs after the fork.
pub(super) static PARENT: AtomicI32 = AtomicI32::new(0);
pub(super) static PARENTS_END: AtomicI32 = AtomicI32::new(-1);
pub(super) static CHILDS_END: AtomicI32 = AtomicI32::new(-1);
/// Inode of the child's end, to recognise it: the program may close it and reuse the number.
pub(super) static INODE: AtomicU64 = AtomicU64::new(0);
/// Bytes from the arena's first one that may have content.
pub(super) static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Address of a counter shared with all children: how many had to end.
static DEATHS: AtomicUsize = AtomicUsize::new(0);

/// Maps the shared counter, once at the start.
pub(super) fn prepare() {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::syscall(libc::SYS_mmap, 0, PAGE_BYTES, access, flags, -1, 0) };
    if page != -1 {
        DEATHS.store(page as usize, Ordering::Relaxed);
    }
}

pub(super) fn deaths() -> Option<&'static AtomicU32> {
    let page = ptr::with_exposed_provenance::<AtomicU32>(DEATHS.load(Ordering::Relaxed));
    // SAFETY: null, or a page of zeros that stays mapped, here and in all children.
    unsafe { page.as_ref() }
}

/// Prepares a copy for the child, in the forking thread and under the heap's lock. Ends the program if
/// several of its children had to end.
pub(super) fn offer(heap: &PreloadHeap, parts: &PreloadHeapState) {
    let used_pages = parts.used_pages();
    if deaths().is_some_and(|deaths| deaths.load(Ordering::Relaxed) >= DEATHS_MAX) {
        die(
            &"several children of the program could not get a copy of its far memory and ended, so the program ends, too",
        );
    }
    STATE.store(NONE, Ordering::Relaxed);
    if used_pages == 0 {
        return;
    }
    if parts.is_lending() || !fits(heap, used_pages) {
        return faults::take();
    }
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: it fills a local.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } == 0 {
        // SAFETY: a descriptor that was just made.
        let high = unsafe { libc::fcntl(ends[1], libc::F_DUPFD_CLOEXEC, HIGH_FD) };
        if high != -1 {
            close(ends[1]);
            ends[1] = high;
        }
        PARENTS_END.store(ends[0], Ordering::Relaxed);
        CHILDS_END.store(ends[1], Ordering::Relaxed);
        INODE.store(inode(ends[1]), Ordering::Relaxed);
        USED_BYTES.store(used_pages as usize * PAGE_BYTES, Ordering::Relaxed);
        STATE.store(OFFERED, Ordering::Relaxed);
    }
    faults::take();
}

/// In the parent, under the heap's lock: sends the copy if the child asks for it. Returns when the child has
/// it, has ended, has called `exec`, or the time is up.
pub(super) fn serve(heap: &PreloadHeap) {
    faults::restore();
    close(CHILDS_END.swap(-1, Ordering::Relaxed));
    let end = PARENTS_END.swap(-1, Ordering::Relaxed);
    if end != -1 {
        let mut waiting = libc::pollfd {
            fd: end,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut word = 0_u8;
        // SAFETY: one descriptor, in a local.
        let heard = unsafe { libc::poll(&raw mut waiting, 1, PATIENCE_MS) } > 0;
        // SAFETY: into a local of one byte.
        if heard && unsafe { libc::read(end, (&raw mut word).cast(), 1) } == 1 {
            // A child that has ended meanwhile needs no copy.
            let _ = send_all(heap, end);
        }
        close(end);
    }
    STATE.store(NONE, Ordering::Relaxed);
}

/// Sends all pages ever written, in runs; page by page where some cannot be read.
fn send_all(heap: &PreloadHeap, end: c_int) -> Option<()> {
    let pages = USED_BYTES.load(Ordering::Relaxed) / PAGE_BYTES;
    let mut bytes = vec![0_u8; SENT_PAGES * PAGE_BYTES];
    let mut next = 0;
    while next < pages {
        let run = (next..pages.min(next + SENT_PAGES))
            .take_while(|page| !heap.is_blank(*page))
            .count();
        if run == 0 {
            next += 1;
            continue;
        }
        let at = heap.addresses().start + next * PAGE_BYTES;
        let part = &mut bytes[..run * PAGE_BYTES];
        let (count, sent) = match read_own(at, part) {
            true => (run, &*part),
            false if read_own(at, &mut part[..PAGE_BYTES]) => (1, &part[..PAGE_BYTES]),
            false => (0, &[][..]),
        };
        let told = match count {
            0 => UNREADABLE,
            count => count as u32,
        };
        send(end, &head(next as u32, told))?;
        send(end, sent)?;
        next += count.max(1);
    }
    send(end, &head(END, 0))
}

fn head(page: u32, count: u32) -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&page.to_ne_bytes());
    head[4..].copy_from_slice(&count.to_ne_bytes());
    head
}

/// Copies memory of this process that may be protected, or whose page may be lost. `false`: some of it cannot
/// be read.
fn read_own(address: usize, into: &mut [u8]) -> bool {
    let (mut local, mut remote) = (
        libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        },
        libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(address),
            iov_len: into.len(),
        },
    );
    let own = std::process::id().cast_signed();
    // SAFETY: writes to the caller's bytes; an unreadable source is reported as an error.
    let read = unsafe { libc::process_vm_readv(own, &raw mut local, 1, &raw mut remote, 1, 0) };
    read == into.len() as isize
}

pub(super) fn send(end: c_int, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are the caller's.
        let sent = unsafe { libc::send(end, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        bytes = &bytes[usize::try_from(sent).ok().filter(|sent| *sent > 0)?..];
    }
    Some(())
}

/// Whether a copy fits: it may take half of the available memory.
fn fits(heap: &PreloadHeap, used_pages: u32) -> bool {
    let most = u64::from(used_pages) * PAGE_BYTES as u64;
    if most <= SMALL_BYTES {
        return true;
    }
    let about = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let Some(available) = available.map(|kib| kib << 10) else {
        return true;
    };
    let written = || {
        (0..used_pages as usize)
            .filter(|page| !heap.is_blank(*page))
            .count()
            * PAGE_BYTES
    };
    most <= available / 2 || written() as u64 <= available / 2
}

pub(super) fn inode(fd: c_int) -> u64 {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it fills a local.
    match unsafe { libc::fstat(fd, about.as_mut_ptr()) } {
        // SAFETY: it is filled.
        0 => unsafe { about.assume_init() }.st_ino,
        _ => 0,
    }
}

pub(super) fn close(fd: c_int) {
    if fd != -1 {
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(fd) };
    }
}
