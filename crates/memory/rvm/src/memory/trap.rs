//! Detecting stores by page protection: pages are read-only until the first store, which raises SIGSEGV.
//!
//! The process has one handler. A fault outside protected regions goes to the previous handler or to the
//! system's default. A program that installs a handler later must pass on faults it does not know. The
//! handler allocates nothing and takes no lock.
//!
//! Cost: 4 to 8 us per page, for a signal and a change of protection. Not detected: stores that the system
//! makes for the program, such as `read(2)` into a protected page, which fails with EFAULT.

use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};

use netram_proto::port::IoError;
use rustix::mm::MprotectFlags;

use super::{DirtyPages, PAGE, RegionMemory};
use crate::limit::TRAPS_MAX;
use crate::sync::lock;

/// State of a page's twin: absent, being copied, present.
const NONE: u8 = 0;
const COPYING: u8 = 1;
const THERE: u8 = 2;

/// Why pages could not be protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrapError {
    /// All slots are in use.
    TooMany,
    System(IoError),
}

/// Detection of stores to one region, until it is dropped. Drop it before the memory.
#[derive(Debug)]
pub(crate) struct PageTrap {
    tracker: Box<Tracker>,
    slot: &'static Slot,
}

/// The state of a region that the signal handler uses.
#[derive(Debug)]
struct Tracker {
    start: NonNull<u8>,
    pages: usize,
    twin: NonNull<u8>,
    twins: Box<[AtomicU8]>,
    dirty: DirtyPages,
    /// The handler copies a page to its twin before it lets the first store through.
    copies: AtomicBool,
}

// SAFETY: the addresses belong to memory that outlives the tracker; each use states why it is sound.
unsafe impl Send for Tracker {}
// SAFETY: as above; all else in it is atomic.
unsafe impl Sync for Tracker {}

/// Slot in which the handler looks up a tracker. `version` is odd while the other fields change.
#[derive(Debug)]
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    tracker: AtomicPtr<Tracker>,
}

static SLOTS: [Slot; TRAPS_MAX] = [const {
    Slot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        tracker: AtomicPtr::new(std::ptr::null_mut()),
    }
}; TRAPS_MAX];
/// Held while slots are assigned and released. The handler does not take it.
static GIVING: Mutex<()> = Mutex::new(());
/// The previous action of the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Slot {
    fn set(&self, start: usize, end: usize, tracker: *mut Tracker) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
        self.tracker.store(tracker, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The tracker, if the slot's region contains `address`. A slot that is being changed belongs to no
    /// region that can fault: regions are entered before they are protected, and removed after protection
    /// ends.
    fn tracker(&self, address: usize) -> Option<NonNull<Tracker>> {
        loop {
            let version = self.version.load(Ordering::SeqCst);
            if version % 2 == 1 {
                return None;
            }
            let start = self.start.load(Ordering::SeqCst);
            let end = self.end.load(Ordering::SeqCst);
            let tracker = self.tracker.load(Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.version.load(Ordering::SeqCst) == version {
                let inside = start <= address && address < end;
                return NonNull::new(tracker).filter(|_| inside);
            }
        }
    }
}

impl PageTrap {
    /// Protects all of `memory`, which is a mapping. Copies of pages go to `twin`, which has the same length.
    pub(crate) fn new(memory: &RegionMemory, twin: &RegionMemory) -> Result<PageTrap, TrapError> {
        let pages = memory.len().div_ceil(PAGE);
        assert!(pages * PAGE <= twin.len());
        install().map_err(TrapError::System)?;
        let tracker = Box::new(Tracker {
            start: memory.start,
            pages,
            twin: twin.start,
            twins: (0..pages).map(|_| AtomicU8::new(NONE)).collect(),
            dirty: DirtyPages::new(pages),
            copies: AtomicBool::new(true),
        });
        let start = memory.start.as_ptr().addr();
        let slot = {
            let _giving = lock(&GIVING);
            let free = SLOTS.iter().find(|slot| slot.end.load(Ordering::SeqCst) == 0);
            let slot = free.ok_or(TrapError::TooMany)?;
            slot.set(
                start,
                start + pages * PAGE,
                std::ptr::from_ref(&*tracker).cast_mut(),
            );
            slot
        };
        let trap = PageTrap { tracker, slot };
        trap.protect(0, pages, MprotectFlags::READ)
            .map_err(TrapError::System)?;
        Ok(trap)
    }

    /// Takes the pages that were stored to, in order; the next store to each is found again.
    pub(crate) fn take(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        let before = pages.len();
        self.tracker.dirty.take(|page| pages.push(page));
        // Checked after the taking: a page in the set may be open, but a page outside it must not be.
        let mut from = before;
        while from < pages.len() {
            let mut to = from + 1;
            while to < pages.len() && pages[to] == pages[to - 1] + 1 {
                to += 1;
            }
            if self.protect(pages[from], to - from, MprotectFlags::READ).is_err() {
                // The process has too many mapped areas. Protecting the region as one area needs fewer. A
                // page that another thread has just opened is opened again by its next store.
                return self.protect(0, self.tracker.pages, MprotectFlags::READ);
            }
            from = to;
        }
        Ok(())
    }

    /// Lists the pages that were stored to, and keeps them.
    pub(crate) fn look(&self, pages: &mut Vec<usize>) {
        self.tracker.dirty.look(|page| pages.push(page));
    }

    /// Whether a page was stored to since it was last taken.
    pub(crate) fn is_open(&self, page: usize) -> bool {
        self.tracker.dirty.has(page)
    }

    /// Opens a page as its first store would, so that the next store raises no signal. The page gets a twin,
    /// unless it is already open without one. No other thread may be taking pages.
    pub(crate) fn open(&self, page: usize) {
        if self.is_open(page) {
            return;
        }
        self.tracker.copy(page);
        // This cannot fail: in the worst case the region becomes one area again.
        let opened = self.tracker.open(page);
        assert!(opened, "the protection of a whole region can always be removed");
    }

    pub(crate) fn has_twin(&self, page: usize) -> bool {
        self.tracker.twins[page].load(Ordering::Acquire) == THERE
    }

    /// Drops the twin of a page that was taken, so that the next store copies it again. A twin that another
    /// thread is copying stays.
    pub(crate) fn drop_twin(&self, page: usize) {
        let twin = &self.tracker.twins[page];
        let _ = twin.compare_exchange(THERE, NONE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Sets whether the first store to a page copies it.
    pub(crate) fn set_copies(&self, copies: bool) {
        self.tracker.copies.store(copies, Ordering::SeqCst);
    }

    fn protect(&self, page: usize, pages: usize, flags: MprotectFlags) -> Result<(), IoError> {
        self.tracker.protect(page, pages, flags)
    }
}

impl Drop for PageTrap {
    fn drop(&mut self) {
        // Unprotected first: until then a faulting thread finds its tracker. This cannot fail, because the
        // region becomes one area again.
        let unprotected = self.protect(0, self.tracker.pages, MprotectFlags::READ | MprotectFlags::WRITE);
        debug_assert!(unprotected.is_ok());
        let _giving = lock(&GIVING);
        self.slot.set(0, 0, std::ptr::null_mut());
    }
}

impl Tracker {
    fn protect(&self, page: usize, pages: usize, flags: MprotectFlags) -> Result<(), IoError> {
        assert!(page + pages <= self.pages);
        // SAFETY: the assertion keeps the page inside the mapping.
        let start = unsafe { self.start.add(page * PAGE) };
        // SAFETY: whole pages of a mapping that outlives the tracker. Removing the permission to store
        // invalidates no reference: a store through one faults, and the handler lets it through.
        unsafe { rustix::mm::mprotect(start.as_ptr().cast(), pages * PAGE, flags) }.map_err(|error| IoError {
            errno: error.raw_os_error(),
        })
    }

    /// Lets the store to `address` through. Returns `false` if that failed. Runs in the signal handler.
    fn open_at(&self, address: usize) -> bool {
        let page = (address - self.start.as_ptr().addr()) / PAGE;
        if self.copies.load(Ordering::SeqCst) {
            self.copy(page);
        }
        self.open(page)
    }

    /// Lets stores to a page through.
    fn open(&self, page: usize) -> bool {
        self.dirty.set(page);
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        if self.protect(page, 1, both).is_err() {
            // The process has too many mapped areas. Unprotecting the region as one area needs fewer.
            let copies = self.copies.load(Ordering::SeqCst);
            for page in 0..self.pages {
                if copies {
                    self.copy(page);
                }
                self.dirty.set(page);
            }
            if self.protect(0, self.pages, both).is_err() {
                return false;
            }
        }
        // A commit may have taken the page in between and protected it before it was opened.
        while !self.dirty.has(page) {
            self.dirty.set(page);
        }
        true
    }

    /// Copies a page to its twin, unless it has one. The page is protected, or its changes are already found.
    fn copy(&self, page: usize) {
        let twin = &self.twins[page];
        loop {
            match twin.compare_exchange(NONE, COPYING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(THERE) => return,
                // Another thread is copying, for about a microsecond. It cannot be this thread, whose signals
                // are blocked.
                Err(_) => spin_loop(),
            }
        }
        assert!(page < self.pages);
        // SAFETY: the assertion keeps the offset inside the region.
        let source = unsafe { self.start.add(page * PAGE) };
        // SAFETY: and inside the twin, which is as long (`PageTrap::new`).
        let target = unsafe { self.twin.add(page * PAGE) };
        // SAFETY: a whole page of each; COPYING makes this thread the only writer there, and no thread reads
        // a twin before it is THERE.
        unsafe { source.as_ptr().copy_to_nonoverlapping(target.as_ptr(), PAGE) };
        twin.store(THERE, Ordering::Release);
    }
}

/// Installs the signal handler, once per process.
fn install() -> Result<(), IoError> {
    static INSTALLING: Mutex<bool> = Mutex::new(false);
    let mut installed = lock(&INSTALLING);
    if *installed {
        return Ok(());
    }
    let failed = || IoError {
        errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(22),
    };
    // SAFETY: all zeros is a valid `sigaction`: default action, empty mask.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the present action into a value of ours.
    if unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut before) } != 0 {
        return Err(failed());
    }
    // Recorded before the handler can run.
    let _ = BEFORE.set(before);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: fills a mask of ours.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    // SAFETY: the handler is a function of the right form that does only what a handler may.
    if unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    *installed = true;
    Ok(())
}

/// The signal handler: records a store to a protected page as found, and passes every other fault to the
/// previous action.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system hands a handler of this form a valid `siginfo_t`.
    let fault = unsafe { &*info };
    // SAFETY: for this signal it carries an address.
    let address = unsafe { fault.si_addr() }.addr();
    if fault.si_code == SEGV_ACCERR
        && is_store(context)
        && let Some(tracker) = SLOTS.iter().find_map(|slot| slot.tracker(address))
    {
        // SAFETY: a tracker is in its slot only while its `PageTrap` lives, which the code that stores to a
        // region ensures.
        if unsafe { tracker.as_ref() }.open_at(address) {
            return;
        }
    }
    chain(signal, info, context);
}

/// `si_code` of a fault on a present page whose access is not permitted.
const SEGV_ACCERR: i32 = 2;

#[cfg(target_arch = "x86_64")]
fn is_store(context: *mut libc::c_void) -> bool {
    const ERROR_IS_STORE: i64 = 2;
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the system hands a handler of this form a valid context.
    let error = unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] };
    error & ERROR_IS_STORE != 0
}

/// On other architectures every fault on a readable page is treated as a store.
#[cfg(not(target_arch = "x86_64"))]
fn is_store(_: *mut libc::c_void) -> bool {
    true
}

/// Passes the signal to the previous action.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let (handler, flags) = before.map_or((libc::SIG_DFL, 0), |before| {
        (before.sa_sigaction, before.sa_flags)
    });
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The access is retried on return and ends the process as it would have without the handler. A fault
        // cannot be ignored. SAFETY: sets the default action, which uses nothing of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the flag says that the address is of a handler of this form.
        let handler = unsafe { std::mem::transmute::<usize, Full>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without the flag the address is of a handler of this form.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests;
