//! The child's side of `heritage.rs`: its first fault in far memory, for which it gets its copy.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::Ordering;

use netram_far_machine::limit::PAGE_BYTES;

use super::fork_copy::{
    CHILDS_END, COPIED, COPYING, END, INODE, NONE, OFFERED, PARENT, PARENTS_END, STATE, UNREADABLE,
    USED_BYTES, close, deaths, inode, send,
};
use super::{CHILD, HEAP, remap};
use crate::heap::PreloadHeap;
use crate::start::EXIT_MESSAGE_TIMEOUT;

const SENTENCE: &[u8] =
    b"netram run: a child of the program needs the program's far memory and cannot have a copy of it: it ends here. This machine \
has too little memory for one, or the child asked too late. Start processes anew instead of forking (Python's multiprocessing: \
set_start_method(\"spawn\")), or run the program without netram run.\n";

/// A handler that is told of a fault, and one that is not.
type InfoHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
type PlainHandler = extern "C" fn(c_int);

/// What the program does about faults.
struct PreviousAction(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by the thread that forks, under the heap's lock, before it has children who read it.
unsafe impl Sync for PreviousAction {}

impl PreviousAction {
    fn place(&self) -> *mut libc::sigaction {
        self.0.get().cast()
    }
}

static PREVIOUS: PreviousAction = PreviousAction(UnsafeCell::new(MaybeUninit::zeroed()));

/// The child's faults are ours from its birth on.
pub(super) fn take() {
    // SAFETY: asks for a number.
    PARENT.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let handler: InfoHandler = on_fault;
    // SAFETY: zeros are such a value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: by the thread that forks, under the heap's lock. The handler does nothing of its own in the
    // parent.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, PREVIOUS.place()) };
}

/// What the program did before, unless it has done something else since.
pub(super) fn restore() {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, into a local.
    unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), now.as_mut_ptr()) };
    let handler: InfoHandler = on_fault;
    // SAFETY: zeros are such a value, or the kernel has written one.
    if unsafe { now.assume_init() }.sa_sigaction == handler as usize {
        // SAFETY: what was there.
        unsafe { libc::sigaction(libc::SIGSEGV, PREVIOUS.place(), ptr::null_mut()) };
    }
}

/// In the child: the rest of the arena's addresses is nobody's.
pub(super) fn inherit(heap: &PreloadHeap) {
    close(PARENTS_END.swap(-1, Ordering::Relaxed));
    let all = heap.addresses();
    let start = match STATE.load(Ordering::Acquire) {
        // A handler for forks of somebody's has asked already.
        COPIED => all.start + USED_BYTES.load(Ordering::Relaxed),
        _ => all.start,
    };
    remap::each_part(heap, start..all.end, |part, lent| {
        if !lent {
            // Should that fail, references end the child all the same.
            remap::reserve(&part, libc::MAP_FIXED_NOREPLACE);
        }
    });
}

/// In a child that is about to fork itself: its child gets what it has by then.
pub(super) fn settle() {
    if STATE.load(Ordering::Acquire) == OFFERED {
        fetch();
    }
}

/// Whether this process has got its copy by a fault before its first own step.
pub(super) fn has_asked() -> bool {
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getppid() };
    STATE.load(Ordering::Acquire) == COPIED && parent == PARENT.load(Ordering::Relaxed)
}

/// Whether there is still something to be had.
pub(super) fn is_offered() -> bool {
    STATE.load(Ordering::Acquire) == OFFERED
}

extern "C" fn on_fault(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gave it for this call.
    let about = unsafe { &*info };
    // SAFETY: of a fault it says where.
    let address = unsafe { about.si_addr() }.addr();
    // SAFETY: asks for a number.
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
    // The reference is made again when this returns, and then ends the child as ever.
    // SAFETY: the default.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

/// A fault that is the program's own affair.
fn pass_on(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: written before this handler was there.
    let before = unsafe { PREVIOUS.place().read() };
    let at = ptr::with_exposed_provenance_mut::<c_void>;
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => restore(),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program has given it as such a handler.
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

/// Has the parent send all there is. `false`: it cannot be had. Called by a handler of faults.
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

/// Beside its place first: nobody sees half of it.
fn receive(end: c_int) -> Option<()> {
    let bytes = USED_BYTES.load(Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, where the kernel finds room.
    let beside = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, access, flags, -1, 0) };
    if beside == -1 || send(end, &[1]).is_none() {
        return None;
    }
    let mut denied = 0;
    loop {
        let mut head = [0_u8; 8];
        read(end, head.as_mut_ptr().addr(), head.len())?;
        let page = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let count = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let at = beside as usize + page * PAGE_BYTES;
        match count {
            _ if page == END as usize => break,
            // What its parent cannot read it cannot, either.
            UNREADABLE => {
                // SAFETY: a page of the new mapping.
                denied |= unsafe { libc::syscall(libc::SYS_mprotect, at, PAGE_BYTES, libc::PROT_NONE) }
            }
            count => read(end, at, count as usize * PAGE_BYTES)?,
        }
    }
    let start = HEAP.get()?.addresses().start;
    move_there(beside as usize, bytes, start).filter(|()| denied == 0)
}

/// In parts, for a mapping of several kinds does not move as one.
fn move_there(from: usize, bytes: usize, to: usize) -> Option<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: from a mapping of ours to addresses of the arena, of which the child has nothing yet.
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
        // SAFETY: bytes of the caller's.
        let got = unsafe { libc::read(end, ptr::with_exposed_provenance_mut(at), bytes) };
        let got = usize::try_from(got).ok().filter(|got| *got > 0)?;
        (at, bytes) = (at + got, bytes - got);
    }
    Some(())
}
