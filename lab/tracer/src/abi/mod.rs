//! The one module with `unsafe`: what others call by name, and what is called of them.
//!
//! References are gathered a thread, and handed over when there are so many, or when the thread or the
//! process ends. A hook costs a look at the thread's own memory and a store.

mod atomics;
mod hooks;
mod plugin;
mod wraps;

use std::cell::{Cell, UnsafeCell};

use crate::trace::{self, BYTES_MAX, PackedReference};

/// References that a thread gathers: 32 KiB, which stays in the processor's nearest cache.
const BUFFER_REFERENCES: usize = 4096;

struct ThreadBuffer {
    /// How many there are. All, and none more is taken, while they are handed over: a signal's handler may
    /// come in between.
    count: Cell<usize>,
    references: UnsafeCell<[PackedReference; BUFFER_REFERENCES]>,
    /// They are handed over just now.
    flushing: Cell<bool>,
    /// The thread's end has been seen to. Not `Drop` of this itself: a type that needs dropping is looked up
    /// more slowly.
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

/// Hands over what is left when its thread ends.
struct FlushOnExit;

impl Drop for FlushOnExit {
    fn drop(&mut self) {
        flush();
    }
}

/// A reference of this thread's.
#[inline]
fn reference(address: u64, bytes: u32, write: bool) {
    let wants_more = GATHERED_HERE.with(|gathered| {
        let count = gathered.count.get();
        if count == BUFFER_REFERENCES {
            return false;
        }
        // SAFETY: only this thread has the pointer, and nobody has a reference to the array: who hands it
        // over has set `count` to the end.
        let slot = unsafe { &mut (&mut (*gathered.references.get()))[count] };
        *slot = PackedReference::new(address, bytes, write);
        gathered.count.set(count + 1);
        count == 0 || count + 1 == BUFFER_REFERENCES
    });
    if wants_more {
        register_or_flush();
    }
}

/// The first reference of many, or the last: the thread's end is seen to, or they are handed over.
#[cold]
fn register_or_flush() {
    let full = GATHERED_HERE.with(|gathered| {
        if !gathered.watched.replace(true) {
            // In a thread that is ending already there is nothing more to see to.
            let _ = AT_END.try_with(|_| {});
        }
        gathered.count.get() == BUFFER_REFERENCES
    });
    if full {
        flush();
    }
}

/// References to so many bytes in a row, a word each.
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
        // SAFETY: as above; the count says that there is no room, so nobody gathers meanwhile.
        let references = unsafe { &(&(*gathered.references.get()))[..count] };
        trace::take(references);
        gathered.count.set(0);
        gathered.flushing.set(false);
    });
}

/// What this thread has, and the outcome.
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

/// To be called before any reference. More than once does no harm.
fn begin() {
    use std::sync::Once;
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if trace::begin() {
            // SAFETY: a function that takes nothing and returns nothing, and stays loaded: libraries that a
            // program is linked to do.
            let refused = unsafe { libc::atexit(end) };
            assert_eq!(
                refused, 0,
                "the C library has room for 32 such functions at least"
            );
            // SAFETY: as above. Each stores to one atomic: that is allowed in the child of a program with
            // threads.
            let refused = unsafe { libc::pthread_atfork(None, Some(forked), Some(be_child)) };
            assert_eq!(refused, 0, "the C library has memory for one such function");
        }
    });
}
