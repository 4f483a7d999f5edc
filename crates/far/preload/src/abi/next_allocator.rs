//! The functions that would have been called if this library were not there: the C library's, or an
//! allocator's that the program has beside it, whose other functions know only its own memory.
//!
//! They are looked up by the first allocation of the process. Should the look-up itself allocate, it gets a
//! few bytes that nobody ever takes back.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::own_allocator;

/// What a look-up may allocate: the C library's look-up allocates nothing, unless it has an error to tell.
const FIRST_BYTES: usize = 16 * 1024;
const ALIGN: usize = 16;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Aligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type PosixAligned = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type ReallocArray = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type Usable = unsafe extern "C" fn(*mut c_void) -> usize;

/// Those functions.
#[derive(Clone, Copy)]
pub(super) struct NextAllocator {
    pub(super) malloc: Malloc,
    pub(super) calloc: Calloc,
    pub(super) realloc: Realloc,
    pub(super) free: Free,
    pub(super) memalign: Aligned,
    pub(super) aligned_alloc: Aligned,
    pub(super) posix_memalign: PosixAligned,
    pub(super) usable: Usable,
    pub(super) reallocarray: ReallocArray,
    pub(super) valloc: Malloc,
    pub(super) pvalloc: Malloc,
}

unsafe extern "C" {
    /// Its `dladdr`, with the symbol's entry as well.
    fn dladdr1(
        address: *const c_void,
        about: *mut libc::Dl_info,
        more: *mut *mut c_void,
        which: c_int,
    ) -> c_int;
}

/// For `dladdr1`: the entry of the symbol.
const ENTRY: c_int = 1;

static NEXT: OnceLock<NextAllocator> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);
/// The program allocates from somebody else than the C library.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Whether all of the program's allocations are those of an allocator that is not the C library's.
pub(super) fn is_foreign() -> bool {
    FOREIGN.load(Ordering::Relaxed)
}

/// Looks whose they are, before the first one lies in the arena. The file that has the allocator, if that is
/// not the C library's.
pub(super) fn settle() -> Option<String> {
    let allocator = next().malloc as *const c_void;
    if own_allocator::is_librarys(allocator) {
        return None;
    }
    FOREIGN.store(true, Ordering::Relaxed);
    super::pool::open();
    let file = own_allocator::file_of(allocator).map(|(file, _)| file.to_string_lossy().into_owned());
    Some(file.unwrap_or_default())
}

/// Says so if an allocator takes its memory where nobody sees it: past the C library, or from what it has
/// reserved.
pub(super) fn probe(file: &str) {
    let Some(heap) = super::HEAP.get() else { return };
    let before = heap.allocated_bytes();
    let next = next();
    // SAFETY: any number may be asked for.
    let block = unsafe { (next.malloc)(PROBE_BYTES.max(2 * heap.threshold)) };
    let after = heap.allocated_bytes();
    // SAFETY: it was just had, and nobody has seen it.
    unsafe { (next.free)(block) };
    if after <= before {
        super::remark(&format_args!(
            "the allocator of {file} does not take its memory by the C library's mmap: what the program allocates is not in far memory, or not all of it"
        ));
    }
}

/// More than an allocator has left of what it mapped before.
const PROBE_BYTES: usize = 8 << 20;

/// They, or those that hand out the few bytes while they are looked up.
pub(super) fn next() -> NextAllocator {
    if let Some(next) = NEXT.get() {
        return *next;
    }
    // The first allocation is made before a second thread is.
    if LOOKING.swap(true, Ordering::Relaxed) {
        return FIRST;
    }
    let found = find();
    // Nobody else has looked.
    let _ = NEXT.set(found);
    found
}

/// One of them, by its name.
macro_rules! look_up {
    ($name:literal, $ours:ident, $kind:ty) => {
        // SAFETY: the C library, or whoever takes its name, has this function by this type: it is C's or
        // POSIX's.
        unsafe { mem::transmute::<*mut c_void, $kind>(symbol($name, super::alloc::$ours as *const c_void)) }
    };
}

fn find() -> NextAllocator {
    NextAllocator {
        malloc: look_up!(c"malloc", malloc, Malloc),
        calloc: look_up!(c"calloc", calloc, Calloc),
        realloc: look_up!(c"realloc", realloc, Realloc),
        free: look_up!(c"free", free, Free),
        memalign: look_up!(c"memalign", memalign, Aligned),
        aligned_alloc: look_up!(c"aligned_alloc", aligned_alloc, Aligned),
        posix_memalign: look_up!(c"posix_memalign", posix_memalign, PosixAligned),
        usable: look_up!(c"malloc_usable_size", malloc_usable_size, Usable),
        reallocarray: look_up!(c"reallocarray", reallocarray, ReallocArray),
        valloc: look_up!(c"valloc", valloc, Malloc),
        pvalloc: look_up!(c"pvalloc", pvalloc, Malloc),
    }
}

/// Whoever is called in place of us: the program's own, which all call that look for the name, or else the
/// next one behind us.
fn symbol(name: &CStr, ours: *const c_void) -> *mut c_void {
    // SAFETY: a name that ends in a zero.
    let all = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !all.is_null() && !ptr::eq(all, ours) && is_defined(all) {
        return all;
    }
    // SAFETY: as above.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        super::die(&"the program has a C library without malloc");
    }
    found
}

/// Whether a function is where its address says. A program that is not to be moved has a step on the way to
/// functions of others whose address it takes.
fn is_defined(function: *const c_void) -> bool {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    let mut entry = ptr::null_mut::<c_void>();
    // SAFETY: it fills two locals, if it finds anything.
    let found = unsafe { dladdr1(function, about.as_mut_ptr(), &raw mut entry, ENTRY) } != 0;
    // SAFETY: the loader's entry of that symbol, in a file that stays loaded.
    found && !entry.is_null() && unsafe { (*entry.cast::<libc::Elf64_Sym>()).st_shndx } != 0
}

/// A few bytes, before anything else is known.
struct FirstBytes {
    bytes: UnsafeCell<[u8; FIRST_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: parts are handed out once each, by a counter; what is in them is their holders' affair.
unsafe impl Sync for FirstBytes {}

static BYTES: FirstBytes = FirstBytes {
    bytes: UnsafeCell::new([0; FIRST_BYTES]),
    used: AtomicUsize::new(0),
};

/// Those functions, over the few bytes.
const FIRST: NextAllocator = NextAllocator {
    malloc: first_malloc,
    calloc: first_calloc,
    realloc: first_realloc,
    free: first_free,
    memalign: first_aligned,
    aligned_alloc: first_aligned,
    posix_memalign: first_posix_memalign,
    usable: first_usable,
    reallocarray: first_reallocarray,
    valloc: first_valloc,
    pvalloc: first_valloc,
};

/// Whether it is one of them.
pub(super) fn is_first(old: *const c_void) -> bool {
    let start = BYTES.bytes.get().addr();
    (start..start + FIRST_BYTES).contains(&old.addr())
}

unsafe extern "C" fn first_malloc(bytes: usize) -> *mut c_void {
    // One more step in front, so that what is allocated tells its size.
    let taken = bytes.next_multiple_of(ALIGN).saturating_add(ALIGN);
    let start = BYTES.bytes.get().cast::<u8>();
    let misplaced = start.addr().next_multiple_of(ALIGN) - start.addr();
    let at = BYTES.used.fetch_add(taken, Ordering::Relaxed) + misplaced;
    if at.saturating_add(taken) > FIRST_BYTES {
        return ptr::null_mut();
    }
    let size = start.wrapping_add(at).cast::<usize>();
    // SAFETY: within the bytes, aligned, and handed out to nobody else.
    unsafe { size.write(bytes) };
    size.wrapping_byte_add(ALIGN).cast()
}

unsafe extern "C" fn first_calloc(count: usize, bytes: usize) -> *mut c_void {
    // What is handed out once is zeros.
    match count.checked_mul(bytes) {
        // SAFETY: it takes any number.
        Some(bytes) => unsafe { first_malloc(bytes) },
        None => ptr::null_mut(),
    }
}

unsafe extern "C" fn first_realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: it takes any number.
    let new = unsafe { first_malloc(bytes) };
    if !old.is_null() && !new.is_null() {
        // SAFETY: the caller had it from here.
        let had = unsafe { first_usable(old) };
        // SAFETY: both have so many bytes.
        unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), had.min(bytes)) };
    }
    new
}

unsafe extern "C" fn first_free(_: *mut c_void) {}

unsafe extern "C" fn first_aligned(align: usize, bytes: usize) -> *mut c_void {
    match align <= ALIGN {
        // SAFETY: it takes any number.
        true => unsafe { first_malloc(bytes) },
        false => ptr::null_mut(),
    }
}

unsafe extern "C" fn first_reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's.
        Some(bytes) => unsafe { first_realloc(old, bytes) },
        None => ptr::null_mut(),
    }
}

unsafe extern "C" fn first_valloc(_: usize) -> *mut c_void {
    ptr::null_mut()
}

unsafe extern "C" fn first_posix_memalign(_: *mut *mut c_void, _: usize, _: usize) -> c_int {
    libc::ENOMEM
}

pub(super) unsafe extern "C" fn first_usable(old: *mut c_void) -> usize {
    // SAFETY: the caller had it from here, so that its size stands in front of it.
    unsafe { old.wrapping_byte_sub(ALIGN).cast::<usize>().read() }
}
