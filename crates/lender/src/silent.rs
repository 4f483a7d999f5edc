//! The disk's side of windows whose clients are silent: a thread that writes, reads and removes their files,
//! so that no thread that serves clients waits for a disk.
//!
//! [`SilentWindow`](netram_proto::spill::SilentWindow) decides what happens when. A shard gives a window to
//! this thread together with the right to its chunks: it binds no client to the journal until the outcome is
//! back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use netram_proto::id::JournalId;

use crate::shard::ShardMessage;
use crate::spill::{SpillError, WindowCopy};
use crate::state::DaemonState;

/// A job for the disk.
pub(crate) enum WindowJob {
    /// Writes the window to its file.
    Write(WindowCopy),
    /// Reads the window from its file into these chunks.
    Read(WindowCopy),
    /// Removes the file of a window that was released.
    Remove(JournalId),
    /// Gives the file of a window that is damaged another name.
    SetAside(JournalId),
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowOutcome {
    Written(bool),
    Read(WindowRead),
}

/// The result of reading a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowRead {
    Whole,
    /// The system refused a call; the next client tries again.
    Refused,
    /// The file is damaged, and was given another name.
    Damaged,
}

/// Jobs for the disk, and windows whose memory others may have.
#[derive(Default)]
pub(crate) struct SilentWindows {
    jobs: Mutex<JobQueue>,
    added: Condvar,
    droppable: Mutex<DroppableWindows>,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<WindowJob>,
    stopping: bool,
}

/// Windows that are in files too, with the number of their chunks; the one that is silent for longest first.
#[derive(Default)]
struct DroppableWindows {
    by_contact: BTreeMap<(u64, JournalId), usize>,
    /// Windows whose memory is wanted, until their shards release it, with the number of their chunks.
    wanted: Vec<(JournalId, usize)>,
}

impl SilentWindows {
    /// Adds a job for the disk.
    pub(crate) fn add(&self, job: WindowJob) {
        self.queue().jobs.push_back(job);
        self.added.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.queue().stopping = true;
        self.added.notify_one();
    }

    /// Waits for the next job. `None`: the lender stops. Files are removed even then.
    fn next(&self) -> Option<WindowJob> {
        let mut queue = self.queue();
        loop {
            let stopping = queue.stopping;
            let is_due = |job: &WindowJob| !stopping || matches!(job, WindowJob::Remove(_));
            if let Some(at) = queue.jobs.iter().position(is_due) {
                return queue.jobs.remove(at);
            }
            if stopping {
                return None;
            }
            queue = self.added.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that others may have the chunks of this window, whose client was last heard at `contact`.
    pub(crate) fn offer(&self, journal: JournalId, contact: u64, chunks: usize) {
        self.droppable().by_contact.insert((contact, journal), chunks);
    }

    /// Takes back what [`offer`](Self::offer) noted.
    pub(crate) fn keep(&self, journal: JournalId, contact: u64) {
        let mut droppable = self.droppable();
        droppable.by_contact.remove(&(contact, journal));
        droppable.wanted.retain(|(wanted, _)| *wanted != journal);
    }

    /// Asks for `count` chunks of windows that are in files, the longest silent first. Returns the number of
    /// chunks that are on their way.
    #[cold]
    pub(crate) fn want(&self, count: usize) -> usize {
        let mut droppable = self.droppable();
        // A client that asks again before the shards have done it wants no more.
        let coming: usize = droppable.wanted.iter().map(|(_, chunks)| chunks).sum();
        let mut missing = count.saturating_sub(coming);
        while missing > 0
            && let Some(((_, journal), chunks)) = droppable.by_contact.pop_first()
        {
            droppable.wanted.push((journal, chunks));
            missing = missing.saturating_sub(chunks);
        }
        droppable.wanted.iter().map(|(_, chunks)| chunks).sum()
    }

    /// The windows whose memory is wanted, of the shard that `is_own` names.
    pub(crate) fn take_wanted(&self, is_own: impl Fn(JournalId) -> bool) -> Vec<JournalId> {
        let mut droppable = self.droppable();
        let mut own = Vec::new();
        droppable.wanted.retain(|(journal, _)| {
            let taken = is_own(*journal);
            own.extend(taken.then_some(*journal));
            !taken
        });
        own
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn droppable(&self) -> MutexGuard<'_, DroppableWindows> {
        self.droppable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does jobs for the disk until the lender stops.
pub(crate) fn run(shared: &Arc<DaemonState>, shards: &[Sender<ShardMessage>]) {
    while let Some(job) = shared.store.silent().next() {
        let (journal, outcome) = match job {
            WindowJob::Remove(journal) => {
                if let Err(error) = shared.store.remove_window(journal) {
                    tracing::warn!(%journal, %error, "the file of a window that was released stays, and does no harm");
                }
                continue;
            }
            WindowJob::SetAside(journal) => {
                set_aside(shared, journal);
                continue;
            }
            WindowJob::Write(copy) => (copy.state.journal, write(shared, copy)),
            WindowJob::Read(copy) => (copy.state.journal, WindowOutcome::Read(read(shared, &copy))),
        };
        let shard = shared.shard_of(journal);
        // A shard that has ended needs no outcome.
        if shards[shard].send(ShardMessage::Window(journal, outcome)).is_ok()
            && let Err(error) = shared.wakers[shard].wake()
        {
            tracing::error!(%error, "cannot wake a thread of the lender; it will act a little later");
        }
    }
}

fn write(shared: &DaemonState, copy: WindowCopy) -> WindowOutcome {
    let (journal, bytes) = (copy.state.journal, copy.held_bytes());
    let began = Instant::now();
    let written = shared.store.write_window(copy);
    match &written {
        Ok(()) => {
            shared.timings.spill.record(began.elapsed());
            shared.timings.spilled_bytes.add(bytes);
            tracing::info!(
                %journal, bytes,
                "the window of a silent client is on the disk, and others may have its memory"
            );
        }
        Err(error) => {
            shared.timings.spills_failed.add(1);
            tracing::warn!(
                %journal, %error,
                "the window of a silent client could not be written to the disk, and stays in memory"
            );
        }
    }
    WindowOutcome::Written(written.is_ok())
}

fn read(shared: &DaemonState, copy: &WindowCopy) -> WindowRead {
    let journal = copy.state.journal;
    let began = Instant::now();
    match shared.store.read_window(copy) {
        Ok(()) => {
            shared.timings.reload.record(began.elapsed());
            tracing::info!(%journal, bytes = copy.held_bytes(), "a window is in memory again: its client has returned");
            WindowRead::Whole
        }
        Err(error @ SpillError::WindowDamaged { .. }) => {
            tracing::error!(%journal, %error, "the window was dropped, its fence is kept");
            match set_aside(shared, journal) {
                true => WindowRead::Damaged,
                false => WindowRead::Refused,
            }
        }
        Err(error) => {
            tracing::error!(%journal, %error, "a window could not be read from the disk: its client is asked to come again");
            WindowRead::Refused
        }
    }
}

/// Returns whether the file has another name.
fn set_aside(shared: &DaemonState, journal: JournalId) -> bool {
    let renamed = shared.store.set_window_aside(journal);
    if let Err(error) = &renamed {
        tracing::error!(%journal, %error, "the damaged file of a window could not be given another name");
    }
    renamed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_asked_of_the_longest_silent_first() {
        let windows = SilentWindows::default();
        for (journal, contact) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
            windows.offer(JournalId(journal), contact, 2);
        }
        windows.keep(JournalId(2), 10);
        windows.want(3);
        windows.want(4);
        assert_eq!(windows.take_wanted(|journal| journal.0 == 1), [JournalId(1)]);
        assert_eq!(windows.take_wanted(|_| true), [JournalId(3)]);
        windows.want(100);
        windows.keep(JournalId(4), 40);
        assert!(
            windows.take_wanted(|_| true).is_empty(),
            "its client has returned"
        );
    }

    #[test]
    fn a_stopping_lender_still_removes_files_and_does_nothing_else() {
        let windows = SilentWindows::default();
        let copy = WindowCopy {
            state: Default::default(),
            names: Default::default(),
            chunks: Vec::new(),
        };
        windows.add(WindowJob::Write(copy));
        windows.add(WindowJob::Remove(JournalId(1)));
        windows.stop();
        assert!(matches!(windows.next(), Some(WindowJob::Remove(JournalId(1)))));
        assert!(windows.next().is_none());
    }
}
