//! Opening and checking a journal's files.

use std::time::Duration;

use netram_proto::id::JournalId;
use netram_proto::journal::{LogFile, LogSuperblock, SlotError, SlotPair, View};
use netram_proto::limit::SLOT_BYTES;

use crate::error::{JournalOpenError, ViewFileError};
use crate::file::DiskFile;
use crate::maintenance::ViewFile;
use crate::owner::{JournalOwner, NotItsKey};
use crate::paths::JournalPaths;
use crate::seal::{DataKey, RecordSealer};

pub(crate) fn open_log(
    place: &JournalPaths,
    write: bool,
    sync_delay: Duration,
) -> Result<(LogFile<DiskFile>, SlotPair, LogSuperblock), JournalOpenError> {
    let file = place.open(place.log(), write)?;
    let file = DiskFile::with_sync_delay(file, sync_delay);
    LogFile::open(file).map_err(|source| JournalOpenError::Log {
        path: place.log(),
        source,
    })
}

pub(crate) fn open_view(place: &JournalPaths, write: bool) -> Result<ViewFile, JournalOpenError> {
    let file = DiskFile::new(place.open(place.view(), write)?);
    let wrong = |source| JournalOpenError::View {
        path: place.view(),
        source,
    };
    let (slots, payload) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES).map_err(|error| {
        wrong(match error {
            SlotError::Io(error) => ViewFileError::Io(error),
            SlotError::Foreign => ViewFileError::Foreign,
            SlotError::Damaged => ViewFileError::Damaged,
        })
    })?;
    let view = View::decode(&payload).map_err(|error| wrong(ViewFileError::Contents(error)))?;
    Ok(ViewFile::new(file, slots, view))
}

/// Reads the data key of `journal`: what seals its records and what proves who owns it.
pub(crate) fn open_key(
    place: &JournalPaths,
    journal: JournalId,
) -> Result<(RecordSealer, JournalOwner), JournalOpenError> {
    let path = place.key();
    let key = match DataKey::of(place) {
        Ok(key) => key,
        Err(source) => return Err(JournalOpenError::File { path, source }),
    };
    match JournalOwner::of(journal, &key) {
        Ok(owner) => Ok((key.sealer(), owner)),
        Err(NotItsKey) => Err(JournalOpenError::OtherKey { path }),
    }
}

pub(crate) fn open_sealer(place: &JournalPaths) -> Result<RecordSealer, JournalOpenError> {
    let path = place.key();
    DataKey::of(place)
        .map(|key| key.sealer())
        .map_err(|source| JournalOpenError::File { path, source })
}
