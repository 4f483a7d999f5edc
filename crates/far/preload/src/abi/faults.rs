//! The child's side of `fork_copy.rs`: at its first fault in far memory, a child of `fork` gets its copy.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::Ordering;

use netram_far_machine::limit::PAGE_BYTES;

use super::fork_copy::{
    ASIDE, CHILDS_END, COPIED, COPYING, DescriptorMessage, END, FOLLOWS, INODE, NONE, OFFERED, PARENT,
    PARENTS_END, STATE, UNREADABLE, USED_BYTES, close, deaths, inode, send,
};
use super::{CHILD, HEAP, remap};
use crate::heap::PreloadHeap;
use crate::start::EXIT_MESSAGE_TIMEOUT;

const SENTENCE: &[u8] =
    b"netram run: a child of the program needs the program's far memory but cannot get a copy, so it ends. This machine \
has too little memory for one, or the program closed a descriptor that is not its own. Start processes anew instead of forking (Python's multiprocessing: \
set_start_method(\"spawn\")), or run the program without netram run.\n";

/// Signal handlers with and without `siginfo`.
type InfoHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
type PlainHandler = extern "C" fn(c_int);

/// The program's own action for `SIGSEGV`.
struct PreviousAction(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by the forking thread, under the heap's lock, before there is a child that reads it.
unsafe impl Sync for PreviousAction {}

impl PreviousAction {
    fn place(&self) -> *mut libc::sigaction {
        self.0.get().cast()
    }
}

static PREVIOUS: PreviousAction = PreviousAction(UnsafeCell::new(MaybeUninit::zeroed()));

/// Installs the handler for faults of a child, before the fork.
pub(super) fn take() {
    // SAFETY: `getpid` has no preconditions.
    PARENT.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let handler: InfoHandler = on_fault;
    // SAFETY: zeros are a valid value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: called by the forking thread under the heap's lock. In the parent the handler only forwards.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, PREVIOUS.place()) };
}

/// Restores the program's own action, unless it has installed another since.
pub(super) fn restore() {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the action, into a local.
    unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), now.as_mut_ptr()) };
    let handler: InfoHandler = on_fault;
    // SAFETY: it is zeros, or the kernel has filled it.
    if unsafe { now.assume_init() }.sa_sigaction == handler as usize {
        // SAFETY: the previous action is restored.
        unsafe { libc::sigaction(libc::SIGSEGV, PREVIOUS.place(), ptr::null_mut()) };
    }
}

/// In the child: reserves the rest of the arena's addresses, so that nothing else is mapped there.
pub(super) fn inherit(heap: &PreloadHeap) {
    close(PARENTS_END.swap(-1, Ordering::Relaxed));
    let all = heap.addresses();
    let start = match STATE.load(Ordering::Acquire) {
        // A fork handler of another library has caused the fault already.
        COPIED => all.start + USED_BYTES.load(Ordering::Relaxed),
        _ => all.start,
    };
    remap::each_part(heap, start..all.end, |part, lent| {
        if !lent {
            // If that fails, references still end the child.
            remap::reserve(&part, libc::MAP_FIXED_NOREPLACE);
        }
    });
}

/// In a child that is about to fork: fetches the copy, so that its own child inherits it.
pub(super) fn settle() {
    if STATE.load(Ordering::Acquire) == OFFERED {
        fetch();
    }
}

/// Whether this process got its copy by a fault before its own fork handler ran.
pub(super) fn has_asked() -> bool {
    // SAFETY: `getppid` has no preconditions.
    let parent = unsafe { libc::getppid() };
    STATE.load(Ordering::Acquire) == COPIED && parent == PARENT.load(Ordering::Relaxed)
}

/// Whether the copy can still be fetched.
pub(super) fn is_offered() -> bool {
    STATE.load(Ordering::Acquire) == OFFERED
}

extern "C" fn on_fault(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passed it for this call.
    let about = unsafe { &*info };
    // SAFETY: for a fault the kernel sets the address.
    let address = unsafe { about.si_addr() }.addr();
    // SAFETY: `getpid` has no preconditions.
    let is_child = unsafe { libc::getpid() } != PARENT.load(Ordering::Relaxed);
    if !is_child || !HEAP.get().is_some_and(|heap| heap.contains(address)) {
        return pass_on(number, info, context);
    }
    if fetch() {
        return;
    }
    netram_log::try_write_bytes(io::stderr(), SENTENCE, EXIT_MESSAGE_TIMEOUT);
    if let Some(deaths) = deaths() {
        deaths.fetch_add(1, Ordering::Relaxed);
    }
    // The reference is repeated on return, and then ends the child as usual.
    // SAFETY: installs the default action.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

/// Forwards a fault that does not concern far memory.
fn pass_on(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: written before this handler was installed.
    let before = unsafe { PREVIOUS.place().read() };
    let at = ptr::with_exposed_provenance_mut::<c_void>;
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => restore(),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program installed it as such a handler.
            let handler = unsafe { mem::transmute::<*mut c_void, InfoHandler>(at(handler)) };
            handler(number, info, context);
        }
        handler => {
            // SAFETY: as above.
            let handler = unsafe { mem::transmute::<*mut c_void, PlainHandler>(at(handler)) };
            handler(number);
        }
    }
}

/// Has the parent send everything. `false`: the copy cannot be had. Runs in a signal handler.
fn fetch() -> bool {
    loop {
        match STATE.compare_exchange(OFFERED, COPYING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(COPYING) => std::thread::yield_now(),
            Err(state) => return state == COPIED,
        }
    }
    CHILD.store(true, Ordering::Relaxed);
    close(PARENTS_END.swap(-1, Ordering::Relaxed));
    let end = CHILDS_END.swap(-1, Ordering::Relaxed);
    let copied = inode(end) == INODE.load(Ordering::Relaxed) && receive(end).is_some();
    if inode(end) == INODE.load(Ordering::Relaxed) {
        close(end);
    }
    if copied {
        restore();
    }
    STATE.store(if copied { COPIED } else { NONE }, Ordering::Release);
    copied
}

/// Receives the copy beside its place first, so that no thread sees half of it.
fn receive(end: c_int) -> Option<()> {
    let bytes = USED_BYTES.load(Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let beside = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, access, flags, -1, 0) };
    if beside == -1 {
        return None;
    }
    // A parent that has put the copy aside does not listen any more.
    let _ = send(end, &[1]);
    let file = answer(end)?;
    let received = receive_pages(file.unwrap_or(end), file.is_some(), beside as usize);
    close(file.unwrap_or(-1));
    received?;
    let start = HEAP.get()?.addresses().start;
    move_there(beside as usize, bytes, start)
}

fn receive_pages(from: c_int, aside: bool, beside: usize) -> Option<()> {
    let mut taken = 0;
    loop {
        let mut head = [0_u8; 8];
        read(from, head.as_mut_ptr().addr(), head.len())?;
        let page = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let count = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let at = beside + page as usize * PAGE_BYTES;
        taken += head.len();
        match count {
            _ if page == END => return Some(()),
            // A page that the parent cannot read is unreadable in the child, too.
            // SAFETY: a page of the new mapping.
            UNREADABLE => match unsafe { libc::syscall(libc::SYS_mprotect, at, PAGE_BYTES, libc::PROT_NONE) }
            {
                0 => (),
                _ => return None,
            },
            count => {
                read(from, at, count as usize * PAGE_BYTES)?;
                taken += count as usize * PAGE_BYTES;
            }
        }
        if aside {
            // Otherwise the copy would be in memory twice. If that fails, it is, until the end.
            let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: frees what was read of a file that only this process has.
            unsafe { libc::fallocate(from, flags, 0, taken as libc::off_t) };
        }
    }
}

/// The file in which the copy was put aside; `Some(None)`: the copy follows. `None`: there is none.
fn answer(end: c_int) -> Option<Option<c_int>> {
    let (mut word, mut control) = (u8::MAX, DescriptorMessage::new(-1));
    let mut part = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 1,
    };
    let mut message = control.message(&mut part);
    loop {
        // SAFETY: all that the message refers to are locals.
        let got = unsafe { libc::recvmsg(end, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got == 1 {
            break;
        }
        if got == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    match word {
        FOLLOWS => Some(None),
        ASIDE => Some(Some(control.descriptor)).filter(|file| *file != Some(-1)),
        _ => None,
    }
}

/// Moves the copy to its place in parts, since a mapping with several protections does not move as one.
fn move_there(from: usize, bytes: usize, to: usize) -> Option<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: from a mapping of ours to addresses of the arena, at which the child has nothing yet.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, from, bytes, bytes, flags, to) };
    if moved != -1 {
        return Some(());
    }
    for at in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: as above.
        let moved = unsafe {
            libc::syscall(
                libc::SYS_mremap,
                from + at,
                PAGE_BYTES,
                PAGE_BYTES,
                flags,
                to + at,
            )
        };
        if moved == -1 {
            return None;
        }
    }
    Some(())
}

fn read(end: c_int, mut at: usize, mut bytes: usize) -> Option<()> {
    while bytes > 0 {
        // SAFETY: the bytes are the caller's.
        let got = unsafe { libc::read(end, ptr::with_exposed_provenance_mut(at), bytes) };
        let got = usize::try_from(got).ok().filter(|got| *got > 0)?;
        (at, bytes) = (at + got, bytes - got);
    }
    Some(())
}
