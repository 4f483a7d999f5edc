//! The only module with `unsafe`: functions that compilers and the emulator call by name, and functions that
//! are called there.
//!
//! Each thread buffers its references, and hands them over when the buffer is full, or when the thread or the
//! process ends. A hook costs a load and a store in the thread's own memory.

mod atomics;
mod hooks;
mod plugin;
mod wraps;

use std::cell::{Cell, UnsafeCell};

use crate::trace::{self, BYTES_MAX, PackedReference};

/// Number of references in a thread's buffer: 32 KiB, which stays in the first-level cache.
const BUFFER_REFERENCES: usize = 4096;

struct ThreadBuffer {
    /// Number of buffered references. It is set to the maximum during the hand-over, because a signal handler
    /// may run meanwhile.
    count: Cell<usize>,
    references: UnsafeCell<[PackedReference; BUFFER_REFERENCES]>,
    /// Whether the buffer is being handed over.
    flushing: Cell<bool>,
    /// Whether the hand-over at the thread's end is registered. This type does not implement `Drop` itself,
    /// because access to a thread local with a destructor is slower.
    watched: Cell<bool>,
}

thread_local! {
    static GATHERED_HERE: ThreadBuffer = const {
        ThreadBuffer {
            count: Cell::new(0),
            references: UnsafeCell::new([PackedReference::NONE; BUFFER_REFERENCES]),
            flushing: Cell::new(false),
            watched: Cell::new(false),
        }
    };
    static AT_END: FlushOnExit = const { FlushOnExit };
}

/// Hands over the remaining references when its thread ends.
struct FlushOnExit;

impl Drop for FlushOnExit {
    fn drop(&mut self) {
        flush();
    }
}

/// Records a reference of this thread.
#[inline]
fn reference(address: u64, bytes: u32, write: bool) {
    let wants_more = GATHERED_HERE.with(|gathered| {
        let count = gathered.count.get();
        if count == BUFFER_REFERENCES {
            return false;
        }
        // SAFETY: only this thread has the pointer, and no reference to the array exists: the hand-over has
        // set `count` to the maximum.
        let slot = unsafe { &mut (&mut (*gathered.references.get()))[count] };
        *slot = PackedReference::new(address, bytes, write);
        gathered.count.set(count + 1);
        count == 0 || count + 1 == BUFFER_REFERENCES
    });
    if wants_more {
        register_or_flush();
    }
}

/// Handles the first and the last reference of a buffer: registers the thread's end, or hands the buffer
/// over.
#[cold]
fn register_or_flush() {
    let full = GATHERED_HERE.with(|gathered| {
        if !gathered.watched.replace(true) {
            // A thread that is already ending needs no registration.
            let _ = AT_END.try_with(|_| {});
        }
        gathered.count.get() == BUFFER_REFERENCES
    });
    if full {
        flush();
    }
}

/// Records references to consecutive bytes, one for each word.
fn references(address: u64, bytes: u64, write: bool) {
    const WORD: u64 = 8;
    for offset in (0..bytes).step_by(WORD as usize) {
        let length = (bytes - offset).min(WORD) as u32;
        reference(address + offset, length.min(BYTES_MAX), write);
    }
}

#[cold]
fn flush() {
    GATHERED_HERE.with(|gathered| {
        if gathered.flushing.replace(true) {
            return;
        }
        let count = gathered.count.replace(BUFFER_REFERENCES);
        // SAFETY: as above; `count` is at the maximum, so nothing is recorded meanwhile.
        let references = unsafe { &(&(*gathered.references.get()))[..count] };
        trace::take(references);
        gathered.count.set(0);
        gathered.flushing.set(false);
    });
}

/// Hands over this thread's references and writes the outcome.
extern "C" fn end() {
    flush();
    trace::end();
}

extern "C" fn forked() {
    trace::forked();
}

extern "C" fn be_child() {
    trace::mark_child();
}

/// Initializes the library before any reference. Repeated calls do no harm.
fn begin() {
    use std::sync::Once;
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if trace::begin() {
            // SAFETY: the function takes and returns nothing, and stays loaded, because libraries linked to a
            // program do.
            let refused = unsafe { libc::atexit(end) };
            assert_eq!(
                refused, 0,
                "the C library has room for 32 such functions at least"
            );
            // SAFETY: as above. Each function stores to one atomic, which is allowed in the child of a
            // program with threads.
            let refused = unsafe { libc::pthread_atfork(None, Some(forked), Some(be_child)) };
            assert_eq!(refused, 0, "the C library has memory for one such function");
        }
    });
}
