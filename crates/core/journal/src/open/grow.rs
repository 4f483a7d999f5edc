//! Enlarging the log of a journal that no process has open.
//!
//! 1. Recover, as every opening does: the view then names no members, and the local log is complete.
//! 2. Refuse unless the log is empty (`LogFile::may_grow`).
//! 3. Extend the file with zeros and sync it. The log's superblock does not state it yet.
//! 4. Store the superblock with the new capacity, last.
//!
//! A crash before step 4 leaves the old log with unused bytes behind it, which the next attempt removes. The
//! lock is held from the first step to the last.

use std::fs::File;
use std::io;
use std::path::Path;

use netram_proto::journal::{LogFile, LogFileError, LogGrowError as Refusal};
use netram_proto::limit::LOG_ALIGN;

use super::{JournalFiles, JournalRecovery};
use crate::config::JournalConfig;
use crate::error::JournalGrowError;
use crate::file::{DiskFile, io_error};
use crate::paths::zero_up_to;

/// Result of enlarging a log.
#[derive(Clone, Debug)]
pub struct GrowReport {
    /// Capacity before, in bytes.
    pub before: u64,
    /// Capacity now, in bytes.
    pub after: u64,
    /// Result of the recovery at the start.
    pub recovered: JournalRecovery,
}

pub(crate) fn grow(
    root: &Path,
    config: &JournalConfig,
    log_bytes: u64,
) -> Result<GrowReport, JournalGrowError> {
    let (files, _, recovered) = JournalFiles::recovered(root, config, &mut || Ok(()))?;
    let JournalFiles {
        paths: place,
        lock,
        log,
        mut slots,
        superblock,
        view_file,
        ..
    } = files;
    let path = place.log();
    let refused = |source| JournalGrowError::Refused {
        path: path.clone(),
        source,
    };
    let failed = |cause: io::Error| refused(Refusal::File(LogFileError::Io(io_error(&cause))));
    let capacity = log_bytes.checked_next_multiple_of(LOG_ALIGN).unwrap_or(u64::MAX);
    let (base, before) = (view_file.newest().proof(), log.capacity());
    let growth = log.may_grow(&superblock, base, capacity).map_err(refused)?;
    if capacity > before {
        let file = place.open(place.log(), true)?;
        let bytes = [before, capacity].map(LogFile::<DiskFile>::file_bytes);
        lengthen(&file, bytes[0], bytes[1]).map_err(failed)?;
    }
    log.grow(&mut slots, &growth).map_err(refused)?;
    drop(lock);
    Ok(GrowReport {
        before,
        after: capacity,
        recovered,
    })
}

/// Truncates the file to `old` bytes, which removes an earlier attempt's bytes, and extends it with zeros to
/// `new`, durably.
fn lengthen(file: &File, old: u64, new: u64) -> io::Result<()> {
    file.set_len(old)?;
    zero_up_to(file, new)?;
    file.sync_all()
}
