//! The functions that would have been called if this library were not there: the C library's, or an allocator's that the program has
//! beside it, whose other functions know only its own memory.
//!
//! They are looked up by the first allocation of the process. Should the look-up itself allocate, it gets a few bytes that nobody ever takes back.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a look-up may allocate: the C library's look-up allocates nothing, unless it has an error to tell.
const FIRST_BYTES: usize = 16 * 1024;
const ALIGN: usize = 16;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Aligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type PosixAligned = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type Usable = unsafe extern "C" fn(*mut c_void) -> usize;

/// Those functions.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) malloc: Malloc,
    pub(super) calloc: Calloc,
    pub(super) realloc: Realloc,
    pub(super) free: Free,
    pub(super) memalign: Aligned,
    pub(super) aligned_alloc: Aligned,
    pub(super) posix_memalign: PosixAligned,
    pub(super) usable: Usable,
}

static NEXT: OnceLock<Next> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);

/// They, or those that hand out the few bytes while they are looked up.
pub(super) fn next() -> Next {
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
    ($name:literal, $kind:ty) => {
        // SAFETY: the C library, or whoever takes its name, has this function by this type: it is C's or POSIX's.
        unsafe { mem::transmute::<*mut c_void, $kind>(symbol($name)) }
    };
}

fn find() -> Next {
    Next {
        malloc: look_up!(c"malloc", Malloc),
        calloc: look_up!(c"calloc", Calloc),
        realloc: look_up!(c"realloc", Realloc),
        free: look_up!(c"free", Free),
        memalign: look_up!(c"memalign", Aligned),
        aligned_alloc: look_up!(c"aligned_alloc", Aligned),
        posix_memalign: look_up!(c"posix_memalign", PosixAligned),
        usable: look_up!(c"malloc_usable_size", Usable),
    }
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends in a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        super::die(&"the program has a C library without malloc");
    }
    found
}

/// A few bytes, before anything else is known.
struct First {
    bytes: UnsafeCell<[u8; FIRST_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: parts are handed out once each, by a counter; what is in them is their holders' affair.
unsafe impl Sync for First {}

static BYTES: First = First {
    bytes: UnsafeCell::new([0; FIRST_BYTES]),
    used: AtomicUsize::new(0),
};

/// Those functions, over the few bytes.
const FIRST: Next = Next {
    malloc: first_malloc,
    calloc: first_calloc,
    realloc: first_realloc,
    free: first_free,
    memalign: first_aligned,
    aligned_alloc: first_aligned,
    posix_memalign: first_posix_memalign,
    usable: first_usable,
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

unsafe extern "C" fn first_posix_memalign(_: *mut *mut c_void, _: usize, _: usize) -> c_int {
    libc::ENOMEM
}

pub(super) unsafe extern "C" fn first_usable(old: *mut c_void) -> usize {
    // SAFETY: the caller had it from here, so that its size stands in front of it.
    unsafe { old.wrapping_byte_sub(ALIGN).cast::<usize>().read() }
}
