//! The stamp: how far a journal's records are in the files of a directory.
//!
//! The files are written while the journal grows, so a copy of the journal, or an older one that was put back
//! in its place, would put old bytes over newer ones. Before a journal is opened for a directory, what the
//! directory was last told is compared with what the journal has: the newest always has it.
//!
//! ```text
//!  0  "NETRAMST"
//!  8  the journal's id u128 | its reign u32 | zeros u32 | lsn u64: the journal's disk has had everything before it
//! 40  CRC-32C of all before it, u32
//! ```
//!
//! It is durable before anything is changed under a reign, and written over some 20 times a second while the
//! journal grows. That need not be durable: what the machine forgets in a loss of power, the files may lack
//! as well. Where the disk refuses it, the directory goes on without: no journal is refused for that, and an
//! older one is told by the stamp before, if at all.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use netram_journal::{Journal, JournalInspector};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::wire::{ByteReader, crc32c};
use netram_store::durable;

const MAGIC: &[u8; 8] = b"NETRAMST";
const CRC_AT: usize = 40;
const BYTES: usize = CRC_AT + 4;

/// What a directory was told of its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalStamp {
    journal: JournalId,
    epoch: Epoch,
    lsn: Lsn,
}

/// A journal that lacks what the files have.
#[derive(Debug, thiserror::Error)]
#[error(
    "its files have what a newer state of the journal {} wrote: reign {} up to LSN {}. What is there now has reign {epoch} up to LSN {end}: a copy, or \
     an older one that was put back, and it would put old bytes over newer ones. Put the newer journal back. If it is lost, the files as they are \
     lie in {}; whoever removes {} has the older journal's records put over them",
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

/// A directory's stamp, kept up to date.
#[derive(Debug)]
pub(crate) struct StampFile {
    path: PathBuf,
    /// Its contents before this reign.
    before: Option<Vec<u8>>,
    /// The file, and what it says; `None`: the disk refuses it.
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

    /// `None`: these are no stamp. One that was being written when the power failed says nothing.
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

    /// Refuses a journal that is older than the files. Nothing is changed, and no lender is asked. What
    /// cannot be read is for the opening to tell, and another journal than the last for the catalog.
    pub(crate) fn check(file: &Path, files: &Path, journal: &Path) -> Result<(), Box<StaleJournal>> {
        let bytes = std::fs::read(file).ok();
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
            // What is damaged the members may have.
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
            file: file.to_path_buf(),
        }))
    }
}

impl StampFile {
    /// Says, durably, which reign of the journal changes the files from now on.
    pub(crate) fn begin(path: &Path, journal: &Journal) -> StampFile {
        let file = StampFile {
            path: path.to_path_buf(),
            before: std::fs::read(path).ok(),
            written: Mutex::new(None),
        };
        let written = file.create(JournalStamp::of(journal));
        if let Err(error) = &written {
            let stamp = path.display();
            tracing::warn!(%error, %stamp, "the directory is not told how far its journal is: an older copy of that would not be refused; it is tried again");
        }
        *file.written.lock().unwrap_or_else(PoisonError::into_inner) = written.ok();
        file
    }

    fn create(&self, stamp: JournalStamp) -> io::Result<(File, JournalStamp)> {
        durable::replace(&self.path, &stamp.encode())?;
        Ok((File::options().write(true).open(&self.path)?, stamp))
    }

    /// Nothing was changed under this reign after all.
    pub(crate) fn restore(self) {
        let restored = match &self.before {
            Some(bytes) => durable::replace(&self.path, bytes),
            None => std::fs::remove_file(&self.path),
        };
        if let Err(error) = restored {
            tracing::debug!(%error, "the directory's stamp stays");
        }
    }

    /// Says how far the journal has come on its disk.
    pub(crate) fn update(&self, journal: &Journal) {
        let stamp = JournalStamp::of(journal);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match &mut *written {
            Some((_, last)) if *last == stamp => Ok(()),
            Some((file, last)) => file.write_all_at(&stamp.encode(), 0).map(|()| *last = stamp),
            None => self.create(stamp).map(|made| *written = Some(made)),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the directory's stamp could not be written; it is tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_comes_back_and_one_that_is_cut_off_or_changed_says_nothing() {
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
