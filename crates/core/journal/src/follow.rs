//! A journal that is kept for a writer on another machine: its records come as that writer's log has them,
//! raw and sealed, and stand here at the same LSNs. What it may take, and when it may be believed, is
//! `proto`'s affair.
//!
//! The files are those of any journal, so that opening them as one is all that a take-over needs. Nothing is
//! appended and no epoch claimed while it follows.

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
use crate::paths::{JournalLayout, JournalLock, JournalPaths};
use crate::records;
use crate::seal::{DataKey, RecordSealer};

/// What a journal directory is made of when its records exist elsewhere.
pub struct JournalInit {
    /// Which journal.
    pub journal: JournalId,
    /// Bytes that its log can hold.
    pub log_bytes: u64,
    /// The key that seals its records.
    pub key: DataKey,
    /// Its view.
    pub view: View,
    /// Where its log begins, and what the record there chains to.
    pub start: Chain,
}

/// A journal that follows a writer elsewhere. Its lock is held until it is dropped.
pub struct JournalFollower {
    paths: JournalPaths,
    log: LogFile<DiskFile>,
    state: Mutex<State>,
    head: AtomicU64,
    stable: AtomicU64,
    view_file: Mutex<ViewFile>,
    sealer: RecordSealer,
    /// The log was durable up to here, and is not valid so far any more.
    damaged_below: Option<Lsn>,
    _lock: JournalLock,
}

struct State {
    slots: SlotPair,
    superblock: LogSuperblock,
    /// Where the durable records end.
    end: Chain,
    /// A sync failed, or an emptying was cut off: what the disk holds is known only after a new opening (rule
    /// 9).
    failed: Option<IoError>,
}

impl JournalFollower {
    /// Makes the directory `root` of `parts`, with an empty log that begins at their start. Durable on
    /// return.
    pub fn create(root: &Path, parts: &JournalInit) -> Result<(), JournalCreateError> {
        JournalPaths::of(root, JournalLayout::Directory).create_of(parts)
    }

    /// Opens the journal at `root` to go on following. What a crash left behind the valid records is erased:
    /// the writer has it and sends it again, and a remnant that checks would later be taken for a sign of
    /// damage before it.
    ///
    /// Refuses while the disk does not give what it has: this may be the only copy. See
    /// [`JournalFollower::damaged_below`] for one that is damaged.
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
        // As in any recovery: what counts is what the disk gives back.
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
        // A sync that failed may have marked clean what the disk does not have, and what its records call
        // durable was so at the client: whatever this disk is not known to have is written again.
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

    /// The directory.
    pub fn root(&self) -> PathBuf {
        self.paths.root().to_path_buf()
    }

    /// Which journal.
    pub fn id(&self) -> JournalId {
        self.state().superblock.journal
    }

    /// The journal's share in its records' CRCs.
    pub fn seed(&self) -> CrcSeed {
        self.log.seed()
    }

    /// The log's oldest record, and what it chains to.
    pub fn head(&self) -> Chain {
        self.state().superblock.head
    }

    /// Where the durable records end.
    pub fn end(&self) -> Chain {
        self.state().end
    }

    /// Damage was found when it was opened: the log had been durable up to here, and ends lower now. It is
    /// good for nothing but to be begun anew ([`JournalFollower::restart`]); until then nothing behind the
    /// damage is touched, for whoever must save what can be saved.
    pub fn damaged_below(&self) -> Option<Lsn> {
        self.damaged_below
    }

    /// The writer's view, as far as it was told here.
    pub fn view(&self) -> View {
        self.views().newest().clone()
    }

    /// Makes `view` durable.
    pub fn store_view(&self, view: View) -> Result<(), IoError> {
        Ok(self.views().store(view)?)
    }

    /// Fills `into` with the log's bytes from `from` on, sealed as they are, as far as they are durable.
    /// Returns how many there were.
    pub fn read_raw(&self, from: Lsn, into: &mut [u8]) -> Result<usize, LogError> {
        // The head does not move meanwhile.
        let state = self.state();
        if from < state.superblock.head.lsn || from > state.end.lsn {
            return Err(LogError::OutOfRange(from));
        }
        let there = state.end.lsn.since(from).min(into.len() as u64) as usize;
        self.log.read(from, &mut into[..there]).map_err(LogError::Io)?;
        Ok(there)
    }

    /// Writes bytes of the log, whose place was checked, behind what is durable. They count with
    /// [`JournalFollower::flush`], which must not come before a write that was refused has been repeated.
    pub fn write(&self, at: Lsn, bytes: &[u8]) -> Result<(), IoError> {
        let state = self.state();
        state.check()?;
        let (head, end) = (state.superblock.head.lsn, at.plus(bytes.len() as u64));
        assert!(state.end.lsn <= at, "what is durable is not written again");
        assert!(end.since(head) <= self.log.capacity(), "the log has room for it");
        self.log.write(at, bytes)
    }

    /// Makes the records up to `end` durable.
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

    /// Empties the log and begins it anew at `start`. Durable on return.
    pub fn restart(&self, start: Chain) -> Result<(), IoError> {
        let mut state = self.state();
        state.check()?;
        // Records of the log before could stand where new ones will, and check.
        let end = start.lsn.plus(self.log.capacity());
        let erased = self.log.erase(start.lsn, end).and_then(|()| self.log.sync());
        // Whatever it was: records that the superblock still names may be gone.
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

/// What a scan of the log says: `Some` where records are missing that had been durable.
fn judge(scan: &LogScan, superblock: &LogSuperblock) -> Result<Option<Lsn>, IoError> {
    match scan.unreadable {
        // Perhaps the disk gives it the next time. What is behind must not be erased.
        Some(error) => Err(error),
        None => Ok((scan.end.lsn < superblock.stable).then_some(superblock.stable)),
    }
}

/// The error that ends belief in the file: a failed sync, never a refused write (rule 17).
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
        // Only its writer appends, and he is elsewhere.
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

    /// A sector that could not be read for a moment was taken for the end of the log, and all behind it was
    /// erased.
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
