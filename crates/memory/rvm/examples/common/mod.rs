//! A log and a storage that keep nothing, so that measurements cover only this crate.
#![allow(dead_code, reason = "each example uses a part")]

use std::cell::{Cell, RefCell};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, StorageFile, WaitError,
};
use netram_proto::time::Time;
use netram_rvm::limit::TABLE_BYTES;
use netram_rvm::{
    Placement, RegionMemory, Rvm, RvmOpenError, RvmOptions, SegmentAllocation, SegmentIdentity, SegmentStamp,
    SegmentStorage, StampId,
};

pub(crate) const REGION_BYTES: usize = 1 << 24;
const LOG_BYTES: u64 = 1 << 40;
const PAYLOAD_BYTES_MAX: usize = 1 << 24;

/// A log that discards records: an append costs only its encoding.
pub(crate) struct Forgetful {
    tail: Cell<u64>,
    ring: RefCell<Vec<u8>>,
}

impl RecordLog for Forgetful {
    fn append(
        &self,
        _: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        fill(&mut self.ring.borrow_mut()[..length]);
        let lsn = Lsn(self.tail.get());
        self.tail.set(lsn.0 + length as u64);
        Ok(CommitTicket {
            lsn,
            end: Lsn(self.tail.get()),
        })
    }

    fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        Ok(CommitVotes::default())
    }

    fn state(&self) -> LogState {
        let tail = Lsn(self.tail.get());
        LogState {
            head: tail,
            stable: tail,
            acked: tail,
            tail,
            capacity: LOG_BYTES,
            payload_max: PAYLOAD_BYTES_MAX,
        }
    }

    fn read(&self, from: Lsn, _: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        Ok(from)
    }

    fn trim(&self, _: Lsn) -> Result<(), LogError> {
        Ok(())
    }
}

/// A file of zeros that discards writes.
pub(crate) struct Zeros(u64);

impl StorageFile for Zeros {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0)
    }

    fn read_at(&self, _: u64, into: &mut [u8]) -> Result<(), IoError> {
        into.fill(0);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), IoError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

pub(crate) struct Nowhere(Zeros);

impl SegmentStorage for Nowhere {
    type File = Zeros;

    fn name(&self, path: &str) -> Result<String, IoError> {
        Ok(path.to_owned())
    }

    fn create_segment(&self, _: &str, _: u64, _: SegmentAllocation) -> Result<(), IoError> {
        Ok(())
    }

    fn open_segment(&self, _: &str) -> Result<Zeros, IoError> {
        Ok(Zeros(REGION_BYTES as u64))
    }

    fn map(&self, _: &Zeros, _: u64, length: usize, _: Placement) -> Result<RegionMemory, IoError> {
        Ok(RegionMemory::from_bytes(vec![0; length].into_boxed_slice()))
    }

    fn identity(&self, _: &Zeros) -> Result<SegmentIdentity, IoError> {
        Ok(SegmentIdentity::default())
    }

    fn assign_identity(&self, _: &Zeros) -> Result<SegmentIdentity, IoError> {
        Ok(SegmentIdentity::default())
    }

    fn stamp(&self, _: &Zeros, _: &str) -> Result<Option<SegmentStamp>, IoError> {
        Ok(None)
    }

    fn leave_stamp(&self, _: &Zeros, _: &str, _: &SegmentStamp) -> Result<bool, IoError> {
        Ok(false)
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        Ok(StampId::default())
    }

    fn number(&self, _: &Zeros) -> Result<u64, IoError> {
        Ok(0)
    }

    fn table(&self) -> &Zeros {
        &self.0
    }

    fn now(&self) -> Time {
        Time(0)
    }
}

/// An empty log.
pub(crate) fn log() -> Forgetful {
    Forgetful {
        tail: Cell::new(64),
        ring: RefCell::new(vec![0; PAYLOAD_BYTES_MAX]),
    }
}

/// Recoverable memory with a spool of `spool_bytes`.
pub(crate) fn open(spool_bytes: usize) -> Result<Rvm<Forgetful, Nowhere>, RvmOpenError> {
    let options = RvmOptions {
        spool_bytes,
        ..RvmOptions::new(JournalId(1))
    };
    Rvm::open(log(), Nowhere(Zeros(TABLE_BYTES)), options)
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
