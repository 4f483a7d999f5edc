//! A larger log for a journal that nobody has open.
//!
//! 1. Recover, as every opening does: afterwards the view names no members, and the local log is complete.
//! 2. Refuse unless the log is empty (`LogFile::may_grow`).
//! 3. Make the file longer, with zeros, and sync. The log does not know yet.
//! 4. Store the superblock with the new capacity, last.
//!
//! A crash before 4 leaves the old log with unused bytes behind it, which the next attempt cuts off. The
//! right to write the journal is held from the first step to the last.

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

/// What growing did.
#[derive(Clone, Debug)]
pub struct GrowReport {
    /// Bytes that the log could hold before.
    pub before: u64,
    /// Bytes that it can hold now.
    pub after: u64,
    /// What recovery found at the start.
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

/// Cuts off what an earlier attempt left behind the first `old` bytes, and writes zeros up to `new`, durably.
fn lengthen(file: &File, old: u64, new: u64) -> io::Result<()> {
    file.set_len(old)?;
    zero_up_to(file, new)?;
    file.sync_all()
}
