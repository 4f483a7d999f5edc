//! A journal's files, opened and checked.

use std::time::Duration;

use netram_proto::journal::{LogFile, SlotError, Slots, Superblock, View};
use netram_proto::limit::SLOT_BYTES;

use crate::error::{OpenError, ViewFileError};
use crate::file::DiskFile;
use crate::keeper::ViewFile;
use crate::place::Place;
use crate::seal::{DataKey, Sealer};

pub(crate) fn open_log(
    place: &Place,
    write: bool,
    sync_delay: Duration,
) -> Result<(LogFile<DiskFile>, Slots, Superblock), OpenError> {
    let file = place.open(place.log(), write)?;
    let file = DiskFile::with_sync_delay(file, sync_delay);
    LogFile::open(file).map_err(|source| OpenError::Log {
        path: place.log(),
        source,
    })
}

pub(crate) fn open_view(place: &Place, write: bool) -> Result<ViewFile, OpenError> {
    let file = DiskFile::new(place.open(place.view(), write)?);
    let wrong = |source| OpenError::View {
        path: place.view(),
        source,
    };
    let (slots, payload) = Slots::open(&file, View::MAGIC, SLOT_BYTES).map_err(|error| {
        wrong(match error {
            SlotError::Io(error) => ViewFileError::Io(error),
            SlotError::Foreign => ViewFileError::Foreign,
            SlotError::Damaged => ViewFileError::Damaged,
        })
    })?;
    let view = View::decode(&payload).map_err(|error| wrong(ViewFileError::Contents(error)))?;
    Ok(ViewFile::new(file, slots, view))
}

pub(crate) fn open_sealer(place: &Place) -> Result<Sealer, OpenError> {
    let path = place.key();
    DataKey::load(&path)
        .map(|key| key.sealer())
        .map_err(|source| OpenError::File { path, source })
}
