//! Guarantees of a database writer that the simulator violates only once in fifty thousand runs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use netram_proto::failure::SystemCall;
use netram_proto::port::{CommitVotes, LogError, LogState, Record, RecordKind};

use super::*;
use crate::shared_index::INDEX_WORDS;

type Records = Vec<(RecordKind, Vec<u8>)>;

/// A journal that may be full and a disk that may refuse.
#[derive(Clone, Default)]
struct Fake {
    full: Rc<Cell<bool>>,
    refuses: Rc<Cell<bool>>,
    records: Rc<RefCell<Records>>,
}

impl RecordLog for Fake {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        if self.full.get() {
            return Err(AppendError::Full { used: 1, capacity: 1 });
        }
        let mut payload = vec![0; length];
        fill(&mut payload);
        self.records.borrow_mut().push((kind, payload));
        Ok(CommitTicket {
            lsn: Lsn(0),
            end: Lsn(1),
        })
    }

    fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        Ok(CommitVotes::default())
    }

    fn state(&self) -> LogState {
        LogState {
            head: Lsn(0),
            stable: Lsn(0),
            acked: Lsn(0),
            tail: Lsn(0),
            capacity: 1 << 20,
            payload_max: 1 << 16,
        }
    }

    fn read(&self, from: Lsn, _: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        Ok(from)
    }

    fn trim(&self, _: Lsn) -> Result<(), LogError> {
        Ok(())
    }
}

impl BackingFiles for Fake {
    type CheckpointGuard = ();
    type DeadSlot = ();

    fn lock_checkpoint(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn claim_dead_slot(&self, _: usize) -> Option<()> {
        None
    }

    fn sync(&self) -> Result<(), CallError> {
        match self.refuses.get() {
            true => Err(IoError::EMFILE.of(SystemCall::Open)),
            false => Ok(()),
        }
    }

    fn drop_cache(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(0)
    }

    fn set_start(&self, _: u64) -> Result<(), CallError> {
        Ok(())
    }

    fn exists(&self, _: FileRole) -> Result<bool, IoError> {
        Ok(true)
    }

    fn write(&self, _: FileRole, _: u64, _: &[u8]) -> Result<(), IoError> {
        Ok(())
    }

    fn resize(&self, _: FileRole, _: u64) -> Result<(), IoError> {
        Ok(())
    }

    fn remove(&self, _: FileRole) -> Result<(), IoError> {
        Ok(())
    }
}

/// A file with a few bytes.
struct Few;

impl FileContents for Few {
    fn size(&mut self) -> Result<u64, IoError> {
        Ok(3)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let there = 3_u64.saturating_sub(offset).min(into.len() as u64) as usize;
        into[..there].fill(7);
        Ok(there)
    }
}

/// The journal was full and the checkpoint was refused, so the removal reported that it was not durable. The
/// next sync had nothing to record and succeeded, and after a crash the old file was back (runs 5947187 and
/// 6344907 of the simulator).
#[test]
fn a_sync_after_a_refused_removal_records_the_whole_file() {
    let words: Arc<[AtomicU64]> = (0..INDEX_WORDS).map(|_| AtomicU64::new(0)).collect();
    let ledger = SharedIndex::new(Box::new(words));
    ledger.reset(1, 0);
    let fake = Fake::default();
    let party = DatabaseWriter::join(fake.clone(), ledger, 0, Durability::Remote, FaultSwitch::NONE).unwrap();
    party.attach_journal(fake.clone());
    fake.full.set(true);
    fake.refuses.set(true);
    let removed = party.remove(FileRole::Wal, || Ok::<(), DatabaseWriterError>(()));
    assert_eq!(removed, Err(DatabaseWriterError::Refused(IoError::EMFILE)));
    fake.full.set(false);
    assert_eq!(party.sync(FileRole::Wal, &mut Few), Ok(SyncMedium::Journal));
    let records = fake.records.borrow();
    let deeds: Vec<FileOp<'_>> = { records.iter() }
        .map(|(kind, payload)| DatabaseChange::decode(*kind, payload).unwrap().unwrap().op)
        .collect();
    let whole = FileOp::Write {
        offset: 0,
        bytes: &[7; 3],
    };
    assert_eq!(deeds, [FileOp::Resize { size: 3 }, whole]);
}
