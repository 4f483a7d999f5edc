//! The node's journal, as its recoverable memory sees it: every record that goes in is kept until the machine
//! has been told.
//!
//! An append is made under the region's lock, which whoever applies others' records needs. So it never waits
//! for the server: a window full of what the server lacks is [`AppendError::Full`], and recoverable memory
//! waits for that without any lock, until the house trims the log ([`NodeLog::wants_room`]).

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

/// A record that the journal has, and the machine does not know of.
pub(super) struct AppendedRecord {
    pub(super) end: ChainPoint,
    pub(super) payload: NodePayload,
}

/// The journal.
pub(super) struct NodeLog {
    journal: Journal,
    /// In the journal's order: held while a record is appended.
    appended: Mutex<VecDeque<AppendedRecord>>,
    payload_pool: PayloadPool,
    /// Where what the server keeps ends.
    durable: AtomicU64,
    window_bytes: u64,
    /// Bytes of the longest record that the journal takes, and the server.
    payload_max: usize,
    sealed: bool,
    full: AtomicBool,
    /// The thread that trims.
    trimmer: OnceLock<Thread>,
}

impl NodeLog {
    /// `server_max`: bytes of the longest record that the server has room for.
    pub(super) fn new(journal: Journal, config: &JournalConfig, server_max: u64) -> NodeLog {
        let state = journal.state();
        let server_max = usize::try_from(server_max).unwrap_or(usize::MAX);
        NodeLog {
            appended: Mutex::default(),
            payload_pool: PayloadPool::default(),
            durable: AtomicU64::new(state.tail.0),
            // As the journal itself rounds it, and never more; nor more than the server takes of records that
            // wait.
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

    /// The oldest record that the machine has not been told.
    pub(super) fn next_appended(&self) -> Option<AppendedRecord> {
        self.appended().pop_front()
    }

    /// The server keeps so much; the node's journal has a record that ends there.
    pub(super) fn on_durable(&self, kept: ServerAck) {
        self.journal.set_server_ack(kept);
        self.durable.fetch_max(kept.end.lsn.0, Ordering::AcqRel);
        if self.wants_room() {
            self.wake_trimmer();
        }
    }

    /// This thread trims from now on.
    pub(super) fn set_trimmer(&self, thread: Thread) {
        // It is set once: a node has one such thread.
        let _ = self.trimmer.set(thread);
    }

    fn wake_trimmer(&self) {
        if let Some(thread) = self.trimmer.get() {
            thread.unpark();
        }
    }

    /// The log may be trimmed up to here: it is on the disk, and the journal itself knows that the server
    /// keeps it.
    pub(super) fn trimmable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire)).min(self.journal.state().stable)
    }

    /// An append has found no room, and none has since.
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

    /// Whether a record can be appended without waiting for the server. The disk may have to be waited for,
    /// which needs nobody.
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
        // Recoverable memory has asked for what is the longest: see `state`.
        let max = self.payload_max;
        if length > max {
            return Err(AppendError::TooLarge { bytes: length, max });
        }
        // Before the lock: threads that commit at once fill theirs at once.
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
