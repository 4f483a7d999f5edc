//! A journal kept for a writer on another machine. It receives the raw, sealed bytes of that writer's log and
//! stores them at the same LSNs. `proto` decides what it may accept and when it is valid.
//!
//! The files are those of any journal, so a takeover only has to open them. While it follows, nothing is
//! appended and no epoch is claimed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netram_proto::failure::{CallError, SystemCall};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::{LogFile, LogFileError, LogScan, LogSuperblock, SlotPair, View};
use netram_proto::limit::RECORD_BYTES_MAX;
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, StorageFile, WaitError,
};
use netram_proto::wire::{ChainPoint as Chain, CrcSeed, record_bytes};

use crate::error::{JournalCreateError, JournalOpenError};
use crate::file::DiskFile;
use crate::maintenance::ViewFile;
use crate::open::{open_log, open_sealer, open_view};
use crate::paths::{JournalInit, JournalLayout, JournalLock, JournalPaths};
use crate::records;
use crate::seal::RecordSealer;

/// A journal that follows a writer on another machine. It holds the journal's lock until it is dropped.
pub struct JournalFollower {
    paths: JournalPaths,
    log: LogFile<DiskFile>,
    state: Mutex<State>,
    head: AtomicU64,
    stable: AtomicU64,
    view_file: Mutex<ViewFile>,
    sealer: RecordSealer,
    /// LSN below which the log had been durable, if it is no longer valid up to there.
    damaged_below: Option<Lsn>,
    _lock: JournalLock,
}

struct State {
    slots: SlotPair,
    superblock: LogSuperblock,
    /// Where the durable records end.
    end: Chain,
    /// A sync failed, or a restart was interrupted. The contents of the disk are then unknown until the
    /// journal is opened again (rule 9).
    failed: Option<IoError>,
}

impl JournalFollower {
    /// Creates the directory `root` from `parts`, with an empty log that begins at their start. It is durable
    /// on return.
    ///
    /// # Errors
    /// `Exists`, `Size` if the log's size is out of bounds, or `Io`.
    pub fn create(root: &Path, parts: &JournalInit) -> Result<(), JournalCreateError> {
        JournalPaths::of(root, JournalLayout::Directory).create_of(parts)
    }

    /// Opens the journal at `root` to continue following. Bytes that a crash left behind the valid records
    /// are erased. The writer sends them again, and a valid remnant would later look like a sign of damage
    /// before it.
    ///
    /// The opening is refused while the disk cannot be read, since this may be the only copy. A damaged log
    /// opens; see [`JournalFollower::damaged_below`].
    ///
    /// # Errors
    /// Another process has the journal open, or a file is missing, unreadable or of another journal.
    pub fn open(root: &Path) -> Result<JournalFollower, JournalOpenError> {
        let place = JournalPaths::at(root);
        let lock = place.lock()?;
        let (log, slots, superblock) = open_log(&place, true, Duration::ZERO)?;
        let view_file = open_view(&place, true)?;
        let view = view_file.newest();
        if view.journal != superblock.journal {
            return Err(JournalOpenError::Mixed {
                path: root.to_path_buf(),
                log: superblock.journal,
                view: view.journal,
            });
        }
        let epoch = view.epoch;
        let sealer = open_sealer(&place)?;
        // As in any recovery, only what the disk returns counts.
        let _ = log.file().sync();
        log.file().drop_cache();
        let limit = superblock.head.lsn.plus(log.capacity());
        let scan = log.scan(superblock.head, limit, &mut |_| true);
        let stored = |source| JournalOpenError::Store {
            path: place.log(),
            epoch,
            source,
        };
        let lost = judge(&scan, &superblock).map_err(|error| JournalOpenError::Log {
            path: place.log(),
            source: LogFileError::Io(error),
        })?;
        let beyond = log
            .proof_beyond(scan.end.lsn, limit)
            .map_err(|error| JournalOpenError::Log {
                path: place.log(),
                source: LogFileError::Io(error),
            })?;
        if lost.is_none() && beyond > scan.end.lsn {
            log.erase(scan.end.lsn, limit).map_err(stored)?;
        }
        // A failed sync may have marked pages clean that the disk does not have, and the records' own proofs
        // hold for the client's disk. Records not known to be on this disk are therefore written again.
        log.rewrite(superblock.stable.max(superblock.head.lsn), scan.end.lsn)
            .map_err(stored)?;
        log.sync().map_err(stored)?;
        Ok(JournalFollower {
            head: AtomicU64::new(superblock.head.lsn.0),
            stable: AtomicU64::new(scan.end.lsn.0),
            state: Mutex::new(State {
                slots,
                superblock,
                end: scan.end,
                failed: None,
            }),
            view_file: Mutex::new(view_file),
            paths: place,
            log,
            sealer,
            damaged_below: lost,
            _lock: lock,
        })
    }

    /// The journal's directory.
    pub fn root(&self) -> PathBuf {
        self.paths.root().to_path_buf()
    }

    /// The journal's id.
    pub fn id(&self) -> JournalId {
        self.state().superblock.journal
    }

    /// The journal's part of its records' CRCs.
    pub fn seed(&self) -> CrcSeed {
        self.log.seed()
    }

    /// The log's oldest record and its chain value.
    pub fn head(&self) -> Chain {
        self.state().superblock.head
    }

    /// Where the durable records end.
    pub fn end(&self) -> Chain {
        self.state().end
    }

    /// LSN below which the log had been durable, if damage was found at the opening and the log now ends
    /// lower. Such a log can only be restarted ([`JournalFollower::restart`]). Until then the bytes behind
    /// the damage are not touched, so that they can be salvaged.
    pub fn damaged_below(&self) -> Option<Lsn> {
        self.damaged_below
    }

    /// The newest view that the writer has sent.
    pub fn view(&self) -> View {
        self.views().newest().clone()
    }

    /// Durably stores `view`.
    ///
    /// # Errors
    /// The view file cannot be written.
    pub fn store_view(&self, view: View) -> Result<(), IoError> {
        Ok(self.views().store(view)?)
    }

    /// Fills `into` with the log's raw bytes from `from` on, up to the end of the durable records. Returns
    /// their number.
    ///
    /// # Errors
    /// `from` is outside the log, or the file cannot be read.
    pub fn read_raw(&self, from: Lsn, into: &mut [u8]) -> Result<usize, LogError> {
        // The lock keeps the head from moving.
        let state = self.state();
        if from < state.superblock.head.lsn || from > state.end.lsn {
            return Err(LogError::OutOfRange(from));
        }
        let there = state.end.lsn.since(from).min(into.len() as u64) as usize;
        self.log.read(from, &mut into[..there]).map_err(LogError::Io)?;
        Ok(there)
    }

    /// Writes bytes of the log behind the durable ones; the caller has checked their position. They count
    /// after [`JournalFollower::flush`], which must not be called before a refused write was repeated.
    ///
    /// # Errors
    /// The write was refused, or an earlier sync failed.
    pub fn write(&self, at: Lsn, bytes: &[u8]) -> Result<(), IoError> {
        let state = self.state();
        state.check()?;
        let (head, end) = (state.superblock.head.lsn, at.plus(bytes.len() as u64));
        assert!(state.end.lsn <= at, "durable bytes are not written again");
        assert!(end.since(head) <= self.log.capacity(), "the bytes fit in the log");
        self.log.write(at, bytes)
    }

    /// Makes the records up to `end` durable.
    ///
    /// # Errors
    /// The sync failed, now or earlier.
    pub fn flush(&self, end: Chain) -> Result<(), IoError> {
        let mut state = self.state();
        state.check()?;
        assert!(state.end.lsn <= end.lsn, "a log does not go back");
        let synced = self.log.sync().map_err(|error| error.of(SystemCall::Sync));
        state.failed = final_of(synced);
        synced?;
        state.end = end;
        self.stable.store(end.lsn.0, Ordering::Release);
        Ok(())
    }

    /// Empties the log and begins it again at `start`. Durable on return.
    ///
    /// # Errors
    /// The log could not be erased; it must then be opened again.
    pub fn restart(&self, start: Chain) -> Result<(), IoError> {
        let mut state = self.state();
        state.check()?;
        // Old records could stand where new ones will, and be valid.
        let end = start.lsn.plus(self.log.capacity());
        let erased = self.log.erase(start.lsn, end).and_then(|()| self.log.sync());
        // After any failure, records that the superblock still names may be gone.
        state.failed = erased.err();
        erased?;
        let superblock = LogSuperblock {
            head: start,
            stable: start.lsn,
            ..state.superblock
        };
        self.store(&mut state, superblock)?;
        state.end = start;
        self.head.store(start.lsn.0, Ordering::Release);
        self.stable.store(start.lsn.0, Ordering::Release);
        Ok(())
    }

    fn store(&self, state: &mut State, superblock: LogSuperblock) -> Result<(), IoError> {
        let stored = self.log.store(&mut state.slots, &superblock);
        state.failed = final_of(stored);
        stored?;
        state.superblock = superblock;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn views(&self) -> MutexGuard<'_, ViewFile> {
        self.view_file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The durable end of the log, if the scan found that records below it are missing.
fn judge(scan: &LogScan, superblock: &LogSuperblock) -> Result<Option<Lsn>, IoError> {
    match scan.unreadable {
        // The disk may return it the next time. The bytes behind it must not be erased.
        Some(error) => Err(error),
        None => Ok((scan.end.lsn < superblock.stable).then_some(superblock.stable)),
    }
}

/// The error after which the file's contents are unknown: a failed sync, never a refused write (rule 17).
fn final_of(done: Result<(), CallError>) -> Option<IoError> {
    let failure = done.err().filter(|failure| failure.is_final());
    failure.map(IoError::from)
}

impl State {
    fn check(&self) -> Result<(), IoError> {
        self.failed.map_or(Ok(()), Err)
    }
}

impl RecordLog for JournalFollower {
    fn append(
        &self,
        _: RecordKind,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        // Only the writer on the other machine appends.
        Err(AppendError::Closed)
    }

    fn wait(&self, ticket: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        match ticket.end.0 <= self.stable.load(Ordering::Acquire) {
            true => Ok(CommitVotes {
                disk: true,
                ..CommitVotes::default()
            }),
            false => Err(WaitError::Closed),
        }
    }

    fn state(&self) -> LogState {
        let stable = Lsn(self.stable.load(Ordering::Acquire));
        let largest = (self.log.capacity() / 2).min(RECORD_BYTES_MAX as u64) as usize;
        LogState {
            head: Lsn(self.head.load(Ordering::Acquire)),
            stable,
            acked: stable,
            tail: stable,
            capacity: self.log.capacity(),
            payload_max: largest - record_bytes(0, true),
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let (head, end) = {
            let state = self.state();
            (state.superblock.head, state.end)
        };
        let start = records::link_at(&self.log, head, end, from)?;
        records::read(&self.log, &self.sealer, start, end.lsn, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        let mut state = self.state();
        state.check().map_err(LogError::Io)?;
        let link = records::link_at(&self.log, state.superblock.head, state.end, head)?;
        let superblock = LogSuperblock {
            head: link,
            stable: state.end.lsn,
            ..state.superblock
        };
        self.store(&mut state, superblock).map_err(LogError::Io)?;
        self.head.store(head.0, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sector that could not be read for a moment was taken for the end of the log, and everything behind
    /// it was erased.
    #[test]
    fn what_cannot_be_read_is_not_the_end() {
        let end = Chain {
            lsn: Lsn(800),
            chain: 0,
        };
        let superblock = |stable| LogSuperblock {
            journal: JournalId(1),
            capacity: 4096,
            head: Chain::default(),
            stable: Lsn(stable),
            window: 0,
        };
        let scan = |unreadable| LogScan {
            end,
            records: 3,
            proof: Lsn(0),
            unreadable,
        };
        assert_eq!(
            judge(&scan(Some(IoError::EIO)), &superblock(0)),
            Err(IoError::EIO)
        );
        assert_eq!(judge(&scan(None), &superblock(800)), Ok(None));
        assert_eq!(judge(&scan(None), &superblock(808)), Ok(Some(Lsn(808))));
    }
}
