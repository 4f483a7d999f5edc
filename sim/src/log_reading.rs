//! Reading of a log's file, for the logs of a client and of a replica.

use netram_proto::id::Lsn;
use netram_proto::journal::LogFile;
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::{LogError, Record};
use netram_proto::wire::{ChainPoint, RecordHeader};

use crate::disk::SimFile;

/// The chain before the record that begins at `lsn`.
pub(crate) fn link_at(log: &LogFile<SimFile>, lsn: Lsn) -> Result<ChainPoint, LogError> {
    let mut front = [0; RECORD_HEADER_BYTES];
    log.read(lsn, &mut front).map_err(LogError::Io)?;
    match RecordHeader::parse(&front) {
        Ok(header) if header.lsn == lsn => Ok(ChainPoint {
            lsn,
            chain: header.chain,
        }),
        _ => Err(LogError::OutOfRange(lsn)),
    }
}

/// Reads the records from `start` to `end`, until `each` returns `false`. Returns the end of what was read.
pub(crate) fn read_records(
    log: &LogFile<SimFile>,
    start: ChainPoint,
    end: Lsn,
    each: &mut dyn FnMut(Record<'_>) -> bool,
) -> Result<Lsn, LogError> {
    let mut stopped = false;
    let scan = log.scan(start, end, &mut |record| {
        let header = record.header;
        stopped = !each(Record {
            lsn: header.lsn,
            next: header.next(),
            epoch: header.epoch,
            kind: header.kind,
            payload: record.payload(),
        });
        !stopped
    });
    match scan.unreadable {
        Some(error) => Err(LogError::Io(error)),
        None if scan.end.lsn < end && !stopped => Err(LogError::Corrupt(scan.end.lsn)),
        None => Ok(scan.end.lsn),
    }
}
