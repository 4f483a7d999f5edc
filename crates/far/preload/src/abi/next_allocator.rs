//! The next allocator: the functions that would be called without this library. They are the C library's, or
//! those of another allocator of the program, whose other functions know only its own memory.
//!
//! They are looked up at the first allocation of the process. If the look-up itself allocates, it gets a few
//! bytes from a static buffer that are never freed.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::own_allocator;

/// Bytes that a look-up may allocate. The C library's allocates only to report an error.
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

/// The functions of the next allocator.
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
    /// The C library's `dladdr1`, which also returns the symbol's entry.
    fn dladdr1(
        address: *const c_void,
        about: *mut libc::Dl_info,
        more: *mut *mut c_void,
        which: c_int,
    ) -> c_int;
}

/// `RTLD_DL_SYMENT`: requests the symbol's entry from `dladdr1`.
const ENTRY: c_int = 1;

static NEXT: OnceLock<NextAllocator> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);
/// Whether the next allocator is not the C library's.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Whether the next allocator is not the C library's.
pub(super) fn is_foreign() -> bool {
    FOREIGN.load(Ordering::Relaxed)
}

/// Determines the next allocator, before anything is in the arena. Returns its file, if it is not the C
/// library.
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

/// Warns if an allocator gets its memory in a way that this library does not see: past the C library, or from
/// a reserve.
pub(super) fn probe(file: &str) {
    let Some(heap) = super::HEAP.get() else { return };
    let before = heap.allocated_bytes();
    let next = next();
    // SAFETY: any size may be requested.
    let block = unsafe { (next.malloc)(PROBE_BYTES.max(2 * heap.threshold)) };
    let after = heap.allocated_bytes();
    // SAFETY: it was just allocated, and no one else refers to it.
    unsafe { (next.free)(block) };
    if after <= before {
        super::remark(&format_args!(
            "the allocator of {file} does not call the C library's mmap: what it allocates is not in far memory, or not all of it"
        ));
    }
}

/// Bytes larger than an allocator's reserve of mapped memory.
const PROBE_BYTES: usize = 8 << 20;

/// The next allocator's functions, or those of the static buffer during the look-up.
pub(super) fn next() -> NextAllocator {
    if let Some(next) = NEXT.get() {
        return *next;
    }
    // The first allocation comes before a second thread exists.
    if LOOKING.swap(true, Ordering::Relaxed) {
        return FIRST;
    }
    let found = find();
    // No other thread has set it.
    let _ = NEXT.set(found);
    found
}

/// Looks up a function by its name.
macro_rules! look_up {
    ($name:literal, $ours:ident, $kind:ty) => {
        // SAFETY: C or POSIX defines the type of the function with this name.
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

/// The function that would be called without this library: the program's own, if it defines the name, or else
/// the next library's.
fn symbol(name: &CStr, ours: *const c_void) -> *mut c_void {
    // SAFETY: a name that ends in a zero.
    let all = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !all.is_null() && !ptr::eq(all, ours) && is_defined(all) {
        return all;
    }
    // SAFETY: as above.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        super::die(&"the program's C library has no malloc");
    }
    found
}

/// Whether the address is the function itself. A non-relocatable program has a stub for each external
/// function whose address it takes.
fn is_defined(function: *const c_void) -> bool {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    let mut entry = ptr::null_mut::<c_void>();
    // SAFETY: it fills two locals if it succeeds.
    let found = unsafe { dladdr1(function, about.as_mut_ptr(), &raw mut entry, ENTRY) } != 0;
    // SAFETY: the loader's entry of that symbol, in a file that stays loaded.
    found && !entry.is_null() && unsafe { (*entry.cast::<libc::Elf64_Sym>()).st_shndx } != 0
}

/// A static buffer for allocations during the look-up.
struct FirstBytes {
    bytes: UnsafeCell<[u8; FIRST_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: an atomic counter hands out each part once; its content belongs to its owner.
unsafe impl Sync for FirstBytes {}

static BYTES: FirstBytes = FirstBytes {
    bytes: UnsafeCell::new([0; FIRST_BYTES]),
    used: AtomicUsize::new(0),
};

/// Allocation functions over the static buffer.
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

/// Whether a block is in the static buffer.
pub(super) fn is_first(old: *const c_void) -> bool {
    let start = BYTES.bytes.get().addr();
    (start..start + FIRST_BYTES).contains(&old.addr())
}

unsafe extern "C" fn first_malloc(bytes: usize) -> *mut c_void {
    // Each block is preceded by its size.
    let taken = bytes.next_multiple_of(ALIGN).saturating_add(ALIGN);
    let start = BYTES.bytes.get().cast::<u8>();
    let misplaced = start.addr().next_multiple_of(ALIGN) - start.addr();
    let at = BYTES.used.fetch_add(taken, Ordering::Relaxed) + misplaced;
    if at.saturating_add(taken) > FIRST_BYTES {
        return ptr::null_mut();
    }
    let size = start.wrapping_add(at).cast::<usize>();
    // SAFETY: within the buffer, aligned, and handed out once.
    unsafe { size.write(bytes) };
    size.wrapping_byte_add(ALIGN).cast()
}

unsafe extern "C" fn first_calloc(count: usize, bytes: usize) -> *mut c_void {
    // The buffer is zeros until it is handed out, once.
    match count.checked_mul(bytes) {
        // SAFETY: it takes any size.
        Some(bytes) => unsafe { first_malloc(bytes) },
        None => ptr::null_mut(),
    }
}

unsafe extern "C" fn first_realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: it takes any size.
    let new = unsafe { first_malloc(bytes) };
    if !old.is_null() && !new.is_null() {
        // SAFETY: the block came from here.
        let had = unsafe { first_usable(old) };
        // SAFETY: both blocks have that many bytes.
        unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), had.min(bytes)) };
    }
    new
}

unsafe extern "C" fn first_free(_: *mut c_void) {}

unsafe extern "C" fn first_aligned(align: usize, bytes: usize) -> *mut c_void {
    match align <= ALIGN {
        // SAFETY: it takes any size.
        true => unsafe { first_malloc(bytes) },
        false => ptr::null_mut(),
    }
}

unsafe extern "C" fn first_reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's arguments.
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
    // SAFETY: the block came from here, so its size precedes it.
    unsafe { old.wrapping_byte_sub(ALIGN).cast::<usize>().read() }
}
