//! Threads of far memory. All begin before a program has a page in an arena, and none later.
//!
//! A thread that begins allocates, by whatever allocator the program has, and so does who begins it: the C
//! library keeps the stacks of threads that have ended, and what belongs to them. Where that lies in the
//! arena it has to be served, perhaps by the very thread that waits for it.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

static FIRST: OnceLock<fn()> = OnceLock::new();

/// Has every thread of far memory that begins from now on call this first: for who gives the process its
/// memory.
pub fn on_begin(first: fn()) {
    // Who was first stays: there is one such in a process.
    let _ = FIRST.set(first);
}

/// Starts a thread, and waits until it has begun.
pub(crate) fn begin(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (begun, has_begun) = sync_channel(1);
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(first) = FIRST.get() {
            first();
        }
        // By this it has what the standard library keeps for each thread that has waited for a word.
        let (_silent, word) = sync_channel::<()>(0);
        let _ = word.recv_timeout(Duration::ZERO);
        // Who waits has not gone: it is the function around this.
        let _ = begun.send(());
        drop(begun);
        body();
    })?;
    // It has, or has failed: then its panic was printed.
    let _ = has_begun.recv();
    Ok(thread)
}
