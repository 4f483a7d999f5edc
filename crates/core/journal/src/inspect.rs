//! Reading a journal without opening it for writing: nothing is changed, and no lender is asked.

use std::path::Path;

use netram_proto::id::Lsn;
use netram_proto::journal::{LogFile, LogScan, LogSuperblock, View};
use netram_proto::port::Record;

use crate::error::JournalOpenError;
use crate::file::DiskFile;
use crate::open::{open_log, open_sealer, open_view};
use crate::paths::JournalPaths;
use crate::seal::RecordSealer;

/// A journal that is only read.
pub struct JournalInspector {
    log: LogFile<DiskFile>,
    superblock: LogSuperblock,
    view: View,
    sealer: RecordSealer,
    in_use: bool,
}

/// Result of [`JournalInspector::verify`].
#[derive(Clone, Copy, Debug)]
pub struct VerifyReport {
    /// The valid prefix: its end, its number of records, and what the records prove.
    pub scan: LogScan,
    /// LSN of the first record with a valid CRC that does not decrypt, so this journal's writer did not seal
    /// it.
    pub forged: Option<Lsn>,
    /// LSN below which everything is proven to have been on the disk.
    pub proof: Lsn,
}

impl VerifyReport {
    /// The range that had been durable and is no longer valid.
    pub fn damage(&self) -> Option<(Lsn, Lsn)> {
        (self.scan.end.lsn < self.proof).then_some((self.scan.end.lsn, self.proof))
    }
}

impl JournalInspector {
    /// Opens the journal at `root`, a directory or a log file, for reading.
    ///
    /// # Errors
    /// A file of the journal is missing, unreadable or not the journal's.
    pub fn open(root: &Path) -> Result<JournalInspector, JournalOpenError> {
        let place = JournalPaths::at(root);
        let in_use = place.is_locked()?;
        let (log, _, superblock) = open_log(&place, false, std::time::Duration::ZERO)?;
        let view = open_view(&place, false)?.newest().clone();
        let sealer = open_sealer(&place)?;
        Ok(JournalInspector {
            log,
            superblock,
            view,
            sealer,
            in_use,
        })
    }

    /// Whether a process has the journal open. What is read then may change at any moment.
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// The log's superblock.
    pub fn superblock(&self) -> &LogSuperblock {
        &self.superblock
    }

    /// The durable view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Capacity of the log in bytes.
    pub fn capacity(&self) -> u64 {
        self.log.capacity()
    }

    /// Whether the local log has any record. Reads at most one.
    pub fn has_records(&self) -> bool {
        let mut found = false;
        let limit = self.superblock.head.lsn.plus(self.log.capacity());
        self.log.scan(self.superblock.head, limit, &mut |_| {
            found = true;
            false
        });
        found
    }

    /// Passes the valid records of the local log to `each`, decrypted, until it returns `false`.
    pub fn verify(&self, each: &mut dyn FnMut(Record<'_>) -> bool) -> VerifyReport {
        let limit = self.superblock.head.lsn.plus(self.log.capacity());
        let (mut plain, mut forged, mut stopped) = (Vec::new(), None, false);
        let mut scan = self.log.scan(self.superblock.head, limit, &mut |record| {
            let header = &record.header;
            let Some(payload) = self.sealer.open(header, record.bytes, &mut plain) else {
                forged = Some(header.lsn);
                return false;
            };
            let (lsn, next, epoch, kind) = (header.lsn, header.next(), header.epoch, header.kind);
            stopped = !each(Record {
                lsn,
                next,
                epoch,
                kind,
                payload,
            });
            !stopped
        });
        let mut proof = scan.proof.max(self.superblock.stable).max(self.view.base);
        if stopped {
            proof = proof.min(scan.end.lsn);
        } else {
            match self.log.proof_beyond(scan.end.lsn, limit) {
                Ok(beyond) => proof = proof.max(beyond),
                Err(error) => scan.unreadable = Some(error),
            }
        }
        VerifyReport { scan, forged, proof }
    }
}
