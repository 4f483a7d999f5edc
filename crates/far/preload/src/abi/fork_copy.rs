//! A child of `fork` gets a copy of the program's far memory, in memory of its own, at its first reference.
//!
//! Until then the forking thread waits, as it would for `vfork`: most children soon call `exec` and need no
//! copy. For a child that has done neither in time the copy is put aside, in a file in memory that only the
//! child has: it may refer to far memory whenever it likes, while the program goes on. The first fault may
//! occur anywhere, even in an allocator's own fork handler. The fault handler is therefore installed before
//! the fork.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use netram_far_machine::limit::PAGE_BYTES;

use super::{die, faults};
use crate::heap::{PreloadHeap, PreloadHeapState};

/// Time in ms that the forking thread waits for a child's first reference. Then it puts the copy aside.
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
/// First byte of the parent's answer: the copy follows.
pub(super) const FOLLOWS: u8 = 0;
/// First byte of the parent's answer: the copy is in the file that comes with it.
pub(super) const ASIDE: u8 = 1;
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
/// it, has ended or has called `exec`, or when the copy was put aside for it.
pub(super) fn serve(heap: &PreloadHeap) {
    faults::restore();
    close(CHILDS_END.swap(-1, Ordering::Relaxed));
    let end = PARENTS_END.swap(-1, Ordering::Relaxed);
    if end != -1 {
        let mut word = 0_u8;
        // A child that has ended meanwhile needs no copy.
        let _ = match hears(end, PATIENCE_MS) {
            false => put_aside(heap, end),
            // SAFETY: into a local of one byte.
            true if unsafe { libc::read(end, (&raw mut word).cast(), 1) } == 1 => {
                send(end, &[FOLLOWS]).and_then(|()| send_all(heap, &CopyTarget::Child(end)))
            }
            true => None,
        };
        close(end);
    }
    STATE.store(NONE, Ordering::Relaxed);
}

/// Whether the child has asked, ended or called `exec` within a time.
fn hears(end: c_int, timeout_ms: c_int) -> bool {
    let mut waiting = libc::pollfd {
        fd: end,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, in a local.
    unsafe { libc::poll(&raw mut waiting, 1, timeout_ms) > 0 }
}

/// Destination of a copy.
enum CopyTarget {
    /// The child at this socket receives it now.
    Child(c_int),
    /// This file keeps it, as long as the child at this socket may ask for it.
    Aside { file: c_int, child: c_int },
}

impl CopyTarget {
    fn put(&self, bytes: &[u8]) -> Option<()> {
        match *self {
            CopyTarget::Child(end) => send(end, bytes),
            CopyTarget::Aside { file, .. } => write(file, bytes),
        }
    }

    /// Whether the child has ended or called `exec`.
    fn is_unwanted(&self) -> bool {
        match *self {
            // The next write fails.
            CopyTarget::Child(_) => false,
            CopyTarget::Aside { child, .. } => has_hung_up(child),
        }
    }
}

/// Puts the copy into a file in memory, and passes that to the child, whose socket keeps it until the child
/// takes it, ends, or calls `exec`.
fn put_aside(heap: &PreloadHeap, child: c_int) -> Option<()> {
    if !is_file_allowed() {
        return None;
    }
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"netram-fork".as_ptr(), libc::MFD_CLOEXEC) };
    if file == -1 {
        return None;
    }
    let put = send_all(heap, &CopyTarget::Aside { file, child });
    // SAFETY: sets the position in a file of ours, which the child shares.
    let rewound = unsafe { libc::lseek(file, 0, libc::SEEK_SET) } == 0;
    let passed = put.filter(|()| rewound).and_then(|()| pass(child, file));
    close(file);
    passed
}

/// Whether a file may be as large as the copy. Otherwise the kernel would send a signal.
fn is_file_allowed() -> bool {
    let used = USED_BYTES.load(Ordering::Relaxed);
    let most = used + (used / PAGE_BYTES + 1) * head(0, 0).len();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    most as u64 <= limit.rlim_cur
}

/// A control message with one descriptor, as `CMSG_DATA` and its like lay it out.
#[repr(C)]
pub(super) struct DescriptorMessage {
    head: libc::cmsghdr,
    pub(super) descriptor: c_int,
}

impl DescriptorMessage {
    pub(super) fn new(descriptor: c_int) -> DescriptorMessage {
        DescriptorMessage {
            head: libc::cmsghdr {
                cmsg_len: size_of::<libc::cmsghdr>() + size_of::<c_int>(),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            descriptor,
        }
    }

    /// A message with this descriptor and one part.
    pub(super) fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: zeros are a valid value.
        let mut message = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut *part, 1);
        message.msg_control = (&raw mut *self).cast();
        message.msg_controllen = size_of::<DescriptorMessage>();
        message
    }
}

/// Sends [`ASIDE`] with a descriptor.
fn pass(end: c_int, file: c_int) -> Option<()> {
    let (mut word, mut control) = (ASIDE, DescriptorMessage::new(file));
    let mut part = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 1,
    };
    let message = control.message(&mut part);
    // SAFETY: all that the message refers to are locals.
    let sent = unsafe { libc::sendmsg(end, &raw const message, libc::MSG_NOSIGNAL) };
    (sent == 1).then_some(())
}

fn has_hung_up(end: c_int) -> bool {
    let mut gone = libc::pollfd {
        fd: end,
        events: 0,
        revents: 0,
    };
    // SAFETY: one descriptor, in a local.
    unsafe { libc::poll(&raw mut gone, 1, 0) > 0 }
}

/// Sends all pages ever written, in runs; page by page where some cannot be read.
fn send_all(heap: &PreloadHeap, target: &CopyTarget) -> Option<()> {
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
        if target.is_unwanted() {
            return None;
        }
        target.put(&head(next as u32, told))?;
        target.put(sent)?;
        next += count.max(1);
    }
    target.put(&head(END, 0))
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

fn write(file: c_int, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are the caller's.
        let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
        bytes = &bytes[usize::try_from(written).ok().filter(|written| *written > 0)?..];
    }
    Some(())
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
