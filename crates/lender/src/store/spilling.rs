//! A store and the spill on the machine's disk: which of them a start goes on with, and how one becomes the
//! other.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use netram_proto::id::JournalId;
use netram_proto::planted::FaultSwitch;
use netram_proto::spill::{FoundSpill, FoundStore, StartPlan, StartRefusal, plan_start};

use super::{StoreConfig, StoreOrigin, WindowStore, read_superblock};
use crate::error::{OccupiedWindows, WindowStoreError};
use crate::file::{Reservation, failed, fill, reserve};
use crate::slot::{STATE_BYTES, SlotState, newest};
use crate::spill::{SpillDirectory, SpillError, SpillHead, SpillReport};
use crate::spill::{finish_load, found_states, load_spill, reopen_store, spill_store};
use crate::superblock::{SUPERBLOCK_BYTES, StoreGeometry, StoreSuperblock};

impl WindowStore {
    /// Number of windows that were written to a disk and are still here.
    pub fn spilled_windows(&self) -> usize {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Notes that a window which a spill has too is released.
    pub(crate) fn release_spilled(&self) {
        self.spilled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps the spill for as long as this process runs: its copy of a window is the only good one.
    pub(crate) fn keep_spill(&self) {
        self.spilled.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is a spill on the disk.
    pub(crate) fn has_spill(&self) -> bool {
        { self.spill.as_ref() }.is_some_and(|directory| !matches!(directory.find(), Ok(None)))
    }

    /// Removes the spill, of which no window is needed any more.
    ///
    /// # Errors
    /// The system's: the file may still be there, and does no harm.
    pub(crate) fn drop_spill(&self) -> Result<(), SpillError> {
        match &self.spill {
            Some(directory) => {
                let path = directory.spill_path();
                directory.remove().map_err(SpillError::failed(&path, "remove"))
            }
            None => Ok(()),
        }
    }

    /// Number of windows, which a journal that was not closed cannot be opened without.
    ///
    /// # Errors
    /// The system's, or a damaged slot.
    pub(crate) fn windows(&self) -> io::Result<usize> {
        let journals = found_states(&self.file, self.geometry)?;
        Ok(journals.iter().filter(|state| state.member.joined).count())
    }

    /// Writes all windows and fences to the directory for spills. Only after every thread that uses the store
    /// has ended. `None`: there is no such directory.
    ///
    /// # Errors
    /// A step failed. The memory is still in the store, for the next process of this boot.
    pub(crate) fn spill(&self) -> Result<Option<SpillReport>, SpillError> {
        let Some(directory) = &self.spill else {
            return Ok(None);
        };
        let read = read_superblock(&self.file).map_err(SpillError::failed(&self.path, "read"))?;
        let Some(block) = read else {
            return Err(SpillError::Damaged {
                path: self.path.clone(),
            });
        };
        spill_store(&self.file, block, directory).map(Some)
    }

    /// Gives the room for a spill back to the disk: nothing is to be kept.
    pub(crate) fn give_spill_room_back(&self) {
        if let Some(directory) = &self.spill {
            directory.give_room_back();
        }
    }
}

/// Opens the directory for spills, with room for all that is lent.
pub(super) fn open_spill(
    config: &StoreConfig,
    geometry: StoreGeometry,
) -> Result<Option<SpillDirectory>, WindowStoreError> {
    let Some((path, lender)) = &config.spill else {
        return Ok(None);
    };
    let room = SpillHead::room(geometry.chunks * geometry.chunk_bytes, geometry.slots);
    Ok(Some(SpillDirectory::open(path, lender, room)?))
}

/// Takes up what is on the disk, or a store that was closed for a spill. `None`: the store is used as it was
/// found.
pub(super) fn take_up_spill(
    file: &File,
    (block, origin): (Option<StoreSuperblock>, StoreOrigin),
    (geometry, boot): (StoreGeometry, u128),
    directory: &Option<SpillDirectory>,
    config: &StoreConfig,
) -> Result<Option<StoreOrigin>, WindowStoreError> {
    let path = &config.path;
    let found = match directory {
        Some(directory) => directory.find()?,
        None => None,
    };
    let spill = found.as_ref().map_or(FoundSpill::Nothing, |(_, head)| {
        FoundSpill::Whole(head.incarnation)
    });
    let store = found_store(file, block, origin, config).map_err(failed(path, "read"))?;
    match (plan_start(store, spill, FaultSwitch::NONE), block) {
        (StartPlan::GoOn, _) => Ok(None),
        // Its windows are on the disk, too, and may go into another shape from there.
        (StartPlan::Reopen, Some(_)) if origin == StoreOrigin::OtherShape && found.is_some() => {
            load(file, (geometry, boot), directory, config)
        }
        (StartPlan::Reopen, Some(_)) if origin == StoreOrigin::OtherShape => Ok(None),
        (StartPlan::Reopen, Some(block)) => {
            reopen_store(file, block).map_err(failed(path, "open again"))?;
            Ok(Some(StoreOrigin::Reopened))
        }
        (StartPlan::Load, _) => load(file, (geometry, boot), directory, config),
        (StartPlan::Refuse(refusal), _) => {
            let spill = directory.as_ref().map(SpillDirectory::spill_path);
            Err(refused(refusal, spill.unwrap_or_default(), config).into())
        }
        (StartPlan::Reopen, None) => Ok(None),
    }
}

fn load(
    file: &File,
    (geometry, boot): (StoreGeometry, u128),
    directory: &Option<SpillDirectory>,
    config: &StoreConfig,
) -> Result<Option<StoreOrigin>, WindowStoreError> {
    let Some(directory) = directory else {
        return Ok(None);
    };
    let Some((spill, head)) = directory.find()? else {
        return Ok(None);
    };
    let path = &config.path;
    // The windows go into memory that nobody has zeroed; the rest is reserved behind them.
    let wish = Reservation {
        length: geometry.file_bytes(),
        needed: geometry.file_bytes(),
        now: geometry.chunks_at(),
        huge: false,
    };
    reserve(file, wish, path)?;
    load_spill((&spill, &head, directory), (file, geometry))?;
    fill(file, 0, geometry.file_bytes()).map_err(failed(path, "reserve memory for"))?;
    finish_load(file, (geometry, boot), head.incarnation).map_err(failed(path, "complete"))?;
    Ok(Some(StoreOrigin::Loaded))
}

/// What the rules about spills see in a store. Windows that the settings discard do not count.
fn found_store(
    file: &File,
    block: Option<StoreSuperblock>,
    origin: StoreOrigin,
    config: &StoreConfig,
) -> io::Result<FoundStore> {
    let lives = matches!(origin, StoreOrigin::Restored | StoreOrigin::OtherShape);
    let Some(block) = block.filter(|_| lives) else {
        return Ok(FoundStore::Nothing);
    };
    if block.closed {
        return Ok(FoundStore::Closed(block.incarnation));
    }
    if config.discard_windows {
        return Ok(FoundStore::Nothing);
    }
    Ok(FoundStore::Open {
        incarnation: block.incarnation,
        took_up: block.took_up,
        occupied: slot_states(file, block.geometry)?
            .iter()
            .any(|state| !state.member.may_be_forgotten()),
    })
}

/// Refuses if some window has bytes that a client may still need (rule 23).
pub(super) fn keep_windows(file: &File, origin: StoreOrigin, path: &Path) -> Result<(), WindowStoreError> {
    let Some(block) = read_superblock(file).map_err(failed(path, "read"))? else {
        return Ok(());
    };
    let slots = slot_states(file, block.geometry).map_err(failed(path, "read"))?;
    let held = slots
        .into_iter()
        .filter(|state| state.member.joined && state.member.trim < state.member.held)
        .map(|state| (state.journal, state.member.held.since(state.member.trim)));
    let windows: Vec<(JournalId, u64)> = held.collect();
    if windows.is_empty() {
        return Ok(());
    }
    Err(WindowStoreError::Windows {
        path: path.to_owned(),
        damaged: origin == StoreOrigin::Damaged,
        windows: OccupiedWindows(windows),
        memory: block.geometry.chunks * block.geometry.chunk_bytes,
        journals_max: block.geometry.slots,
    })
}

/// The newest states in the slots of a store, which may be damaged otherwise.
fn slot_states(file: &File, geometry: StoreGeometry) -> io::Result<Vec<SlotState>> {
    let mut found = Vec::new();
    for index in 0..u64::from(geometry.slots) {
        let mut front = [0; STATE_BYTES];
        file.read_exact_at(&mut front, SUPERBLOCK_BYTES + index * geometry.slot_bytes)?;
        found.extend(newest(&front));
    }
    Ok(found)
}

fn refused(refusal: StartRefusal, path: PathBuf, config: &StoreConfig) -> SpillError {
    let store = config.path.clone();
    match refusal {
        StartRefusal::Damaged => SpillError::Damaged { path },
        StartRefusal::Beside => SpillError::Beside { path, store },
        StartRefusal::LivedOn => SpillError::LivedOn { path, store },
    }
}
