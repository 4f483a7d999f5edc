//! The stamp: a journal's progress as applied to a directory's files.
//!
//! Files are written while the journal grows. A copy of the journal, or an older one that was put back, would
//! put old bytes over newer ones. Before a journal is opened for a directory, it is compared with the
//! directory's stamp. The newest journal always contains what the stamp says.
//!
//! ```text
//!  0  "NETRAMST"
//!  8  the journal's id u128 | its epoch u32 | zeros u32 | lsn u64: the journal's disk had everything before it
//! 40  CRC-32C of all before it, u32
//! ```
//!
//! The stamp is durable before anything changes in a new epoch, and is rewritten about 20 times a second
//! while the journal grows. Those updates need not be durable: what the machine forgets in a power failure,
//! the files may lack as well. If the disk refuses the stamp, the mount continues without it. An older
//! journal is then detected by the previous stamp or not at all.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use netram_journal::{Journal, JournalInspector};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::wire::{ByteReader, crc32c};

use crate::backing_directory::STAMP;
use crate::private_directory::PrivateDirectory;

const MAGIC: &[u8; 8] = b"NETRAMST";
const CRC_AT: usize = 40;
const BYTES: usize = CRC_AT + 4;

/// Progress of a journal: id, epoch and LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalStamp {
    journal: JournalId,
    epoch: Epoch,
    lsn: Lsn,
}

/// The journal lacks changes that the files already have.
#[derive(Debug, thiserror::Error)]
#[error(
    "the journal {} is older than the directory's files: they have changes up to epoch {}, LSN {}, but the journal ends at epoch {epoch}, LSN {end}. It \
     is a copy, or an older one was put back, and replaying it would overwrite newer bytes. Put the newer journal back. If it is lost, the current \
     files are in {}; after removing {} the older journal is replayed over them",
    .journal.display(), .stamp.epoch, .stamp.lsn, .files.display(), .file.display()
)]
pub struct StaleJournal {
    journal: PathBuf,
    stamp: JournalStamp,
    epoch: Epoch,
    end: Lsn,
    files: PathBuf,
    file: PathBuf,
}

/// A directory's stamp file, kept up to date.
#[derive(Debug)]
pub(crate) struct StampFile {
    private: PrivateDirectory,
    /// Content before this epoch, or `None` if there was no stamp.
    before: Option<Vec<u8>>,
    /// The open file and its content. `None`: the disk refused it.
    written: Mutex<Option<(File, JournalStamp)>>,
}

impl JournalStamp {
    fn of(journal: &Journal) -> JournalStamp {
        JournalStamp {
            journal: journal.id(),
            epoch: journal.newest_view().epoch,
            lsn: journal.stable_link().lsn,
        }
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.journal.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[32..CRC_AT].copy_from_slice(&self.lsn.0.to_le_bytes());
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a stamp. `None` for anything else, such as a stamp half written at a power failure.
    fn decode(bytes: &[u8]) -> Option<JournalStamp> {
        let (checked, crc) = bytes.split_at_checked(CRC_AT)?;
        let sound =
            bytes.len() == BYTES && checked.starts_with(MAGIC) && crc32c(checked).to_le_bytes() == crc;
        let mut from = ByteReader::new(&checked[MAGIC.len()..]);
        let journal = JournalId(from.u128().ok()?);
        let (epoch, _) = (Epoch(from.u32().ok()?), from.u32().ok()?);
        let lsn = Lsn(from.u64().ok()?);
        sound.then_some(JournalStamp { journal, epoch, lsn })
    }

    /// Refuses a journal older than the files. Changes nothing and asks no lender. An unreadable journal is
    /// left to the open to report, and another journal's id to the catalog.
    pub(crate) fn check(
        private: &PrivateDirectory,
        files: &Path,
        journal: &Path,
    ) -> Result<(), Box<StaleJournal>> {
        let bytes = private.read(STAMP).ok().flatten();
        let Some(stamp) = bytes.and_then(|bytes| JournalStamp::decode(&bytes)) else {
            return Ok(());
        };
        let Ok(found) = JournalInspector::open(journal) else {
            return Ok(());
        };
        let (view, superblock) = (found.view(), found.superblock());
        if superblock.journal != stamp.journal || view.epoch > stamp.epoch {
            return Ok(());
        }
        let end = if view.epoch < stamp.epoch {
            superblock.stable
        } else {
            let verified = found.verify(&mut |_| true);
            // Records damaged on the disk may be intact at the members.
            if verified.damage().is_some() || verified.scan.end.lsn >= stamp.lsn {
                return Ok(());
            }
            verified.scan.end.lsn
        };
        Err(Box::new(StaleJournal {
            journal: journal.to_path_buf(),
            stamp,
            epoch: view.epoch,
            end,
            files: files.to_path_buf(),
            file: private.path_of(STAMP),
        }))
    }
}

impl StampFile {
    /// Records durably that this epoch of the journal changes the files from now on.
    pub(crate) fn begin(private: PrivateDirectory, journal: &Journal) -> StampFile {
        let file = StampFile {
            before: private.read(STAMP).ok().flatten(),
            private,
            written: Mutex::new(None),
        };
        let written = file.create(JournalStamp::of(journal));
        if let Err(error) = &written {
            let stamp = file.private.path_of(STAMP);
            tracing::warn!(%error, stamp = %stamp.display(), "the stamp could not be written, so an older copy of the journal would not be refused; retrying");
        }
        *file.written.lock().unwrap_or_else(PoisonError::into_inner) = written.ok();
        file
    }

    fn create(&self, stamp: JournalStamp) -> io::Result<(File, JournalStamp)> {
        Ok((self.private.replace(STAMP, &stamp.encode())?, stamp))
    }

    /// Restores the previous stamp: nothing was changed in this epoch.
    pub(crate) fn restore(self) {
        let restored = match &self.before {
            Some(bytes) => self.private.replace(STAMP, bytes).map(drop),
            None => self.private.remove(STAMP),
        };
        if let Err(error) = restored {
            tracing::debug!(%error, "the previous stamp could not be restored");
        }
    }

    /// Updates the stamp with the journal's progress on its disk.
    pub(crate) fn update(&self, journal: &Journal) {
        let stamp = JournalStamp::of(journal);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match &mut *written {
            Some((_, last)) if *last == stamp => Ok(()),
            Some((file, last)) => file.write_all_at(&stamp.encode(), 0).map(|()| *last = stamp),
            None => self.create(stamp).map(|made| *written = Some(made)),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the stamp could not be written; retrying");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_decodes_to_itself_and_a_damaged_one_is_ignored() {
        let stamp = JournalStamp {
            journal: JournalId(7 << 100),
            epoch: Epoch(9),
            lsn: Lsn(1 << 40),
        };
        let bytes = stamp.encode();
        assert_eq!(JournalStamp::decode(&bytes), Some(stamp));
        for at in 0..BYTES {
            assert_eq!(JournalStamp::decode(&bytes[..at]), None, "{at}");
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(JournalStamp::decode(&changed), None, "{at}");
        }
    }
}
