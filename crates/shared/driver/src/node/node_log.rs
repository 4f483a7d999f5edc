//! The node's journal as recoverable memory sees it. It keeps every appended record until the machine knows
//! it.
//!
//! An append is made under the region's lock, which applying other nodes' records needs, too. So it never
//! waits for the server. If the window is full of records that the server lacks, the append fails with
//! [`AppendError::Full`]. Recoverable memory then waits without any lock, until the maintenance threads have
//! trimmed the log ([`NodeLog::wants_room`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::Thread;

use netram_journal::{Journal, JournalConfig};
use netram_proto::id::Lsn;
use netram_proto::journal::ServerAck;
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_proto::wire::{ChainPoint, record_bytes};
use netram_shared_machine::limit::MERGE_BYTES_MAX;

use super::payload::{NodePayload, PayloadPool};

/// A record that the journal has and the machine does not know.
pub(super) struct AppendedRecord {
    pub(super) end: ChainPoint,
    pub(super) payload: NodePayload,
}

/// A node's journal.
pub(super) struct NodeLog {
    journal: Journal,
    /// In the journal's order; locked while a record is appended.
    appended: Mutex<VecDeque<AppendedRecord>>,
    payload_pool: PayloadPool,
    /// LSN below which the server has everything durable.
    durable: AtomicU64,
    window_bytes: u64,
    /// Longest record that both the journal and the server take, in bytes.
    payload_max: usize,
    sealed: bool,
    full: AtomicBool,
    /// The thread that trims.
    trimmer: OnceLock<Thread>,
}

impl NodeLog {
    /// Wraps a journal. `server_max`: longest record that the server has room for, in bytes.
    pub(super) fn new(journal: Journal, config: &JournalConfig, server_max: u64) -> NodeLog {
        let state = journal.state();
        let server_max = usize::try_from(server_max).unwrap_or(usize::MAX);
        NodeLog {
            appended: Mutex::default(),
            payload_pool: PayloadPool::default(),
            durable: AtomicU64::new(state.tail.0),
            // Like the journal's own rounding, and never more. Nor more than the server takes of waiting
            // records.
            window_bytes: config
                .window_bytes
                .min(state.capacity)
                .min(MERGE_BYTES_MAX as u64),
            payload_max: state.payload_max.min(server_max),
            sealed: config.seal,
            full: AtomicBool::new(false),
            trimmer: OnceLock::new(),
            journal,
        }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn into_journal(self) -> Journal {
        self.journal
    }

    /// Oldest record that the machine does not know.
    pub(super) fn next_appended(&self) -> Option<AppendedRecord> {
        self.appended().pop_front()
    }

    /// Notes that the server has everything up to this place durable, where a record of this journal ends.
    pub(super) fn on_durable(&self, kept: ServerAck) {
        self.journal.set_server_ack(kept);
        self.durable.fetch_max(kept.end.lsn.0, Ordering::AcqRel);
        if self.wants_room() {
            self.wake_trimmer();
        }
    }

    /// Sets the thread that trims.
    pub(super) fn set_trimmer(&self, thread: Thread) {
        // A second call is ignored: a node has one such thread.
        let _ = self.trimmer.set(thread);
    }

    fn wake_trimmer(&self) {
        if let Some(thread) = self.trimmer.get() {
            thread.unpark();
        }
    }

    /// Place up to which the log may be trimmed: it is on the local disk, and the journal knows that the
    /// server has it.
    pub(super) fn trimmable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire)).min(self.journal.state().stable)
    }

    /// Whether an append has found no room, and none since has succeeded.
    pub(super) fn wants_room(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    fn on_full(&self) {
        self.full.store(true, Ordering::SeqCst);
        self.wake_trimmer();
    }

    fn appended(&self) -> MutexGuard<'_, VecDeque<AppendedRecord>> {
        self.appended.lock().expect("nothing panics under this lock")
    }

    /// Checks that a record can be appended without waiting for the server. The append may wait for the disk,
    /// which depends on no other machine.
    fn room(&self, length: usize) -> Result<(), AppendError> {
        let state = self.journal.state();
        let used = state.tail.since(self.trimmable());
        let full = used + record_bytes(length, self.sealed) as u64 > self.window_bytes;
        match full {
            true => {
                self.on_full();
                Err(AppendError::Full {
                    used,
                    capacity: self.window_bytes,
                })
            }
            false => {
                self.full.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl RecordLog for NodeLog {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        // Recoverable memory knows the limit: see `state`.
        let max = self.payload_max;
        if length > max {
            return Err(AppendError::TooLarge { bytes: length, max });
        }
        // Done before locking, so that concurrent commits fill their payloads in parallel.
        let payload = self.payload_pool.make(length, fill);
        let mut appended = self.appended();
        self.room(length)?;
        let copy = &mut |into: &mut [u8]| into.copy_from_slice(payload.as_ref());
        let linked = self.journal.append_linked(kind, length, copy);
        if matches!(linked, Err(AppendError::Full { .. })) {
            self.on_full();
        }
        let (ticket, end) = linked?;
        appended.push_back(AppendedRecord { end, payload });
        Ok(ticket)
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        self.journal.wait(ticket, durability)
    }

    fn state(&self) -> LogState {
        LogState {
            payload_max: self.payload_max,
            ..self.journal.state()
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        self.journal.read(from, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        self.journal.trim(head)
    }
}
