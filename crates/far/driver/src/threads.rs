//! Threads of far memory. All start before a program has a page in an arena; none starts later.
//!
//! Starting a thread allocates, in the new thread and in its creator, through the program's allocator. The C
//! library also keeps the stacks of ended threads. If that memory is in the arena, it must be served, perhaps
//! by the very thread that waits for it.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

static FIRST: OnceLock<fn()> = OnceLock::new();

/// Sets a function that every thread of far memory calls first, if it starts later. For a library that
/// provides the process's allocator.
pub fn on_begin(first: fn()) {
    // The first one stays: a process has one such library.
    let _ = FIRST.set(first);
}

/// Starts a thread, and waits until it runs.
pub(crate) fn begin(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (begun, has_begun) = sync_channel(1);
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(first) = FIRST.get() {
            first();
        }
        // This allocates the state that the standard library keeps for each thread that waits on a channel.
        let (_silent, word) = sync_channel::<()>(0);
        let _ = word.recv_timeout(Duration::ZERO);
        // The receiver is the calling function, which is waiting.
        let _ = begun.send(());
        drop(begun);
        body();
    })?;
    // The thread has started or has panicked; then the message was printed.
    let _ = has_begun.recv();
    Ok(thread)
}
