//! Measures recovery: a log of small records at random offsets, applied to a real file.
//! `cargo run --release -p netram-rvm --example recovery -- [log MiB] [segment MiB] [record bytes]`.

use std::cell::Cell;
use std::io::Write;
use std::time::Instant;

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_rvm::record::{KIND_COMPACT, encode, payload_bytes};
use netram_rvm::{RangeView, RealStorage, RestoreMode, Rvm, RvmOptions, SegmentAllocation};

const FIRST: u64 = 64;

/// A log whose records all have the same size, kept in memory.
struct Uniform {
    bytes: Vec<u8>,
    record: u64,
    head: Cell<u64>,
}

impl RecordLog for Uniform {
    fn append(
        &self,
        _: RecordKind,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        Err(AppendError::Closed)
    }

    fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        Ok(CommitVotes::default())
    }

    fn state(&self) -> LogState {
        let end = Lsn(FIRST + self.bytes.len() as u64);
        let head = Lsn(self.head.get());
        LogState {
            head,
            stable: end,
            acked: end,
            tail: end,
            capacity: 1 << 40,
            payload_max: 1 << 20,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let mut lsn = from;
        while let Some(payload) = self
            .bytes
            .get((lsn.0 - FIRST) as usize..)
            .filter(|rest| !rest.is_empty())
        {
            let payload = &payload[..self.record as usize];
            let next = lsn.plus(self.record);
            let more = each(Record {
                lsn,
                next,
                epoch: Epoch(1),
                kind: KIND_COMPACT,
                payload,
            });
            lsn = next;
            if !more {
                break;
            }
        }
        Ok(lsn)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        self.head.set(head.0);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|size| size.parse::<u64>());
    let mut size = |default: u64| sizes.next().unwrap_or(Ok(default));
    let (log_mib, segment_mib, value) = (size(256)?, size(100)?, size(128)?);
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let segment_bytes = segment_mib << 20;

    // The segment enters the table by an opening with an empty log.
    let empty = Uniform {
        bytes: Vec::new(),
        record: 1,
        head: Cell::new(FIRST),
    };
    let rvm = Rvm::open(
        &empty,
        RealStorage::create(&path("table"))?,
        RvmOptions::new(JournalId(1)),
    )?;
    rvm.create_segment(&path("segment"), segment_bytes, SegmentAllocation::Preallocated)?;
    drop(rvm.map(&path("segment"), 0, 0)?);
    drop(rvm.begin(RestoreMode::NoRestore));
    drop(rvm);

    let values = vec![0; value as usize];
    // All records have the same length: none lies in the first 256 KiB, which a shorter header can reach.
    let (mut bytes, first) = (Vec::new(), 1 << 18);
    let record = payload_bytes(0, std::iter::once((0, first, value as u32)));
    let mut seed = 1u64;
    while (bytes.len() as u64) < log_mib << 20 {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let range = RangeView {
            segment: 0,
            offset: first + (seed >> 20) % (segment_bytes - first - value),
            bytes: &values,
        };
        bytes.extend_from_slice(&encode(&[], &[range]));
    }
    let log = Uniform {
        bytes,
        record,
        head: Cell::new(FIRST),
    };
    let began = Instant::now();
    let rvm = Rvm::open(
        &log,
        RealStorage::open(&path("table"))?,
        RvmOptions::new(JournalId(1)),
    )?;
    let took = began.elapsed();
    let report = rvm.recovery();
    let statistics = rvm.statistics();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{log_mib} MiB of log, {} transactions of {value} bytes: {took:?}, {:.0} MiB/s, {} rounds, {} bytes written",
        report.transactions,
        log_mib as f64 / took.as_secs_f64(),
        statistics.rounds,
        statistics.bytes_applied,
    )?;
    Ok(())
}
