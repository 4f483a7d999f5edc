//! The truncation thread: the simulator's `truncate_step`, driven by wishes of committers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use netram_proto::port::Log;

use crate::error::TruncateError;
use crate::limit::TRUNCATION_RETRY_MS;
use crate::shared::Shared;
use crate::storage::Storage;

/// Starts the thread. It ends when told to stop, which the `Rvm` does when dropped.
pub(crate) fn start<L, S>(shared: &Arc<Shared<L, S>>) -> std::io::Result<JoinHandle<()>>
where
    L: Log + Send + Sync + 'static,
    S: Storage + Send + Sync + 'static,
    S::File: Send + Sync,
{
    let theirs = shared.clone();
    shared.signal.start();
    shared.threaded.store(true, Ordering::Release);
    let started = std::thread::Builder::new()
        .name("netram-truncate".to_owned())
        .spawn(move || run(&theirs));
    if started.is_err() {
        drop(Leave(shared));
    }
    started
}

/// Says that the thread is gone however it goes, so that no committer waits for it.
struct Leave<'a, L: Log, S: Storage>(&'a Shared<L, S>);

impl<L: Log, S: Storage> Drop for Leave<'_, L, S> {
    fn drop(&mut self) {
        self.0.threaded.store(false, Ordering::Release);
        self.0.signal.ended();
    }
}

fn run<L: Log, S: Storage>(shared: &Shared<L, S>) {
    let _leave = Leave(shared);
    let mut retry = None;
    while let Some(request) = shared.signal.next_request(retry) {
        shared.asked.store(false, Ordering::Release);
        let failure = drain(shared).err();
        retry = failure
            .as_ref()
            .map(|_| Duration::from_millis(TRUNCATION_RETRY_MS));
        shared.signal.answer(request, failure);
    }
}

/// Applies what was stable when it began, waiting for the disk if nothing was.
///
/// No further: under steady load it would never end, and its syncs would slow the log's own.
fn drain<L: Log, S: Storage>(shared: &Shared<L, S>) -> Result<(), TruncateError> {
    if shared.log.state().stable <= shared.head() {
        shared.wait_for_disk()?;
    }
    let target = shared.log.state().stable;
    while shared.head() < target && !shared.signal.stopping() {
        shared.step()?;
    }
    Ok(())
}
