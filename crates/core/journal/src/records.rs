//! Reading a log file by LSN, shared by open journals and followers.

use netram_proto::id::Lsn;
use netram_proto::journal::LogFile;
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::{LogError, Record};
use netram_proto::wire::{ChainPoint as Chain, RecordHeader};

use crate::file::DiskFile;
use crate::seal::RecordSealer;

/// The chain value at `at`, verified against the log's contents.
pub(crate) fn link_at(
    log: &LogFile<DiskFile>,
    head: Chain,
    stable: Chain,
    at: Lsn,
) -> Result<Chain, LogError> {
    if at == head.lsn {
        return Ok(head);
    }
    if at == stable.lsn {
        return Ok(stable);
    }
    if at < head.lsn || at > stable.lsn {
        return Err(LogError::OutOfRange(at));
    }
    let mut front = [0; RECORD_HEADER_BYTES];
    log.read(at, &mut front).map_err(LogError::Io)?;
    match RecordHeader::parse(&front) {
        Ok(header) if header.lsn == at => Ok(Chain {
            lsn: at,
            chain: header.chain,
        }),
        _ => Err(LogError::OutOfRange(at)),
    }
}

/// Passes the records from `start` to `stable` to `each`, decrypted, until it returns `false`. Returns where
/// it stopped.
pub(crate) fn read(
    log: &LogFile<DiskFile>,
    sealer: &RecordSealer,
    start: Chain,
    stable: Lsn,
    each: &mut dyn FnMut(Record<'_>) -> bool,
) -> Result<Lsn, LogError> {
    let (mut wanted, mut genuine) = (true, true);
    let mut plain = Vec::new();
    let scan = log.scan(start, stable, &mut |record| {
        let header = &record.header;
        let Some(payload) = sealer.open(header, record.bytes, &mut plain) else {
            genuine = false;
            return false;
        };
        let (lsn, next, epoch, kind) = (header.lsn, header.next(), header.epoch, header.kind);
        wanted = each(Record {
            lsn,
            next,
            epoch,
            kind,
            payload,
        });
        wanted
    });
    match scan.unreadable {
        Some(error) => Err(LogError::Io(error)),
        None if !genuine || wanted && scan.end.lsn < stable => Err(LogError::Corrupt(scan.end.lsn)),
        None => Ok(scan.end.lsn),
    }
}
