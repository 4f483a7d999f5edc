//! Looking at a journal without opening it for writing: nothing is changed, no lender is asked.

use std::path::Path;

use netram_proto::id::Lsn;
use netram_proto::journal::{LogFile, LogScan, LogSuperblock, View};
use netram_proto::port::Record;

use crate::error::JournalOpenError;
use crate::file::DiskFile;
use crate::open::{open_log, open_sealer, open_view};
use crate::paths::JournalPaths;
use crate::seal::RecordSealer;

/// A journal, looked at from outside.
pub struct JournalInspector {
    log: LogFile<DiskFile>,
    superblock: LogSuperblock,
    view: View,
    sealer: RecordSealer,
    in_use: bool,
}

/// What [`JournalInspector::verify`] found.
#[derive(Clone, Copy, Debug)]
pub struct VerifyReport {
    /// Where the valid prefix ends, how many records it has, and what they prove.
    pub scan: LogScan,
    /// A record that checks but does not open: not this journal's writer sealed it.
    pub forged: Option<Lsn>,
    /// Everything below had been on the disk, by whatever proves the most.
    pub proof: Lsn,
}

impl VerifyReport {
    /// The stretch that had been durable and is bad now.
    pub fn damage(&self) -> Option<(Lsn, Lsn)> {
        (self.scan.end.lsn < self.proof).then_some((self.scan.end.lsn, self.proof))
    }
}

impl JournalInspector {
    /// Opens the journal at `root`, a directory or a log file, for looking.
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

    /// Whether a process has the journal open. What is seen then is a moment of a moving thing.
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// The superblock.
    pub fn superblock(&self) -> &LogSuperblock {
        &self.superblock
    }

    /// The durable view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Bytes that the log can hold.
    pub fn capacity(&self) -> u64 {
        self.log.capacity()
    }

    /// Whether the local log has any record. Cheap, whatever it holds.
    pub fn has_records(&self) -> bool {
        let mut found = false;
        let limit = self.superblock.head.lsn.plus(self.log.capacity());
        self.log.scan(self.superblock.head, limit, &mut |_| {
            found = true;
            false
        });
        found
    }

    /// Passes every valid record of the local log to `each` until it says `false`; the payload is opened.
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
