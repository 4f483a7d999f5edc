//! Allocator of this library itself: always the C library's, because a thread that serves faults must never
//! wait for one.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CStr, c_char, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;

unsafe extern "C" {
    // No allocator replaces this symbol, while several replace `__libc_malloc` and others.
    fn gnu_get_libc_version() -> *const c_char;
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// Functions of the C library's allocator.
#[derive(Clone, Copy)]
struct Library {
    malloc: Malloc,
    calloc: Calloc,
    realloc: Realloc,
    memalign: Calloc,
    free: Free,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Looked up at this library's first allocation, when the process has one thread.
fn library() -> Library {
    if let Some(library) = LIBRARY.get() {
        return *library;
    }
    let Some((file, _)) = file_of(gnu_get_libc_version as *const c_void) else {
        super::die(&"the program's C library cannot be found");
    };
    // SAFETY: the name of a file that is loaded, and stays so.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let find = |name: &CStr| {
        // SAFETY: a name that ends in a zero. Without a handle all libraries are searched, which is the best
        // fallback.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if found.is_null() {
            super::die(&"the program has a C library without malloc");
        }
        found
    };
    let found = Library {
        // SAFETY: the C library has this function with this type.
        malloc: unsafe { mem::transmute::<*mut c_void, Malloc>(find(c"malloc")) },
        // SAFETY: as above.
        calloc: unsafe { mem::transmute::<*mut c_void, Calloc>(find(c"calloc")) },
        // SAFETY: as above.
        realloc: unsafe { mem::transmute::<*mut c_void, Realloc>(find(c"realloc")) },
        // SAFETY: as above.
        memalign: unsafe { mem::transmute::<*mut c_void, Calloc>(find(c"memalign")) },
        // SAFETY: as above.
        free: unsafe { mem::transmute::<*mut c_void, Free>(find(c"free")) },
    };
    // Another thread would have found the same.
    let _ = LIBRARY.set(found);
    found
}

/// Whether a function belongs to the C library.
pub(super) fn is_librarys(function: *const c_void) -> bool {
    let base = |function| file_of(function).map(|(_, base)| base);
    base(function) == base(gnu_get_libc_version as *const c_void)
}

/// File that contains a function, and its load address.
pub(super) fn file_of(function: *const c_void) -> Option<(&'static CStr, usize)> {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it fills a local if it succeeds.
    if unsafe { libc::dladdr(function, about.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it is filled.
    let about = unsafe { about.assume_init() };
    // SAFETY: the loader's name of a file that stays loaded.
    let file = unsafe { CStr::from_ptr(about.dli_fname) };
    Some((file, about.dli_fbase.addr()))
}

/// Default alignment of the C library's `malloc`.
pub(super) const ALIGN: usize = 16;

struct OwnAllocator;

#[global_allocator]
static OWN: OwnAllocator = OwnAllocator;

// SAFETY: each method forwards to the C library, which keeps this contract; none of them unwinds.
unsafe impl GlobalAlloc for OwnAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (bytes, align) = (layout.size(), layout.align());
        if align <= ALIGN {
            // SAFETY: any size may be requested.
            return unsafe { (library().malloc)(bytes) }.cast();
        }
        // SAFETY: a layout's alignment is a power of two.
        unsafe { (library().memalign)(align, bytes) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: any size may be requested.
            return unsafe { (library().calloc)(layout.size(), 1) }.cast();
        }
        // SAFETY: the caller's layout.
        let new = unsafe { self.alloc(layout) };
        if !new.is_null() {
            // SAFETY: it has that many bytes, and the caller is its only owner.
            unsafe { ptr::write_bytes(new, 0, layout.size()) };
        }
        new
    }

    unsafe fn dealloc(&self, old: *mut u8, _: Layout) {
        // SAFETY: the block came from here.
        unsafe { (library().free)(old.cast()) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: the block came from here.
            return unsafe { (library().realloc)(old.cast(), bytes) }.cast();
        }
        // SAFETY: the caller guarantees that this size does not overflow with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: as above.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            let both = layout.size().min(bytes);
            // SAFETY: both allocations have that many bytes and do not overlap.
            unsafe { ptr::copy_nonoverlapping(old, new, both) };
            // SAFETY: the block came from here.
            unsafe { self.dealloc(old, layout) };
        }
        new
    }
}
