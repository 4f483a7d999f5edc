//! A store and the files of single windows, whose clients are silent.

use std::io;

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::member::MemberState;
use netram_proto::spill::{FileVerdict, WindowPlace, judge_file};

use super::{OccupiedSlot, Pools, StoreConfig, WindowStore};
use crate::error::WindowStoreError;
use crate::silent::SilentWindows;
use crate::spill::{FoundWindow, SpillDirectory, SpillError, WindowCopy};

impl WindowStore {
    /// Jobs for the disk, and windows whose memory others may have.
    pub(crate) fn silent(&self) -> &SilentWindows {
        &self.silent
    }

    /// Writes a window to its file. Nobody may change its chunks meanwhile.
    ///
    /// # Errors
    /// The system's: the file is not there, or as it was.
    pub(crate) fn write_window(&self, copy: WindowCopy) -> Result<(), SpillError> {
        self.directory_of(copy.state.journal)?.write_window(
            (&self.file, self.geometry),
            self.incarnation,
            copy,
        )
    }

    /// Reads a window from its file into chunks that nobody else uses.
    ///
    /// # Errors
    /// Those of [`SpillDirectory::read_window`].
    pub(crate) fn read_window(&self, copy: &WindowCopy) -> Result<(), SpillError> {
        self.directory_of(copy.state.journal)?
            .read_window((&self.file, self.geometry), copy)
    }

    pub(crate) fn remove_window(&self, journal: JournalId) -> io::Result<()> {
        self.spill
            .as_ref()
            .map_or(Ok(()), |directory| directory.remove_window(journal))
    }

    pub(crate) fn set_window_aside(&self, journal: JournalId) -> io::Result<()> {
        self.spill
            .as_ref()
            .map_or(Ok(()), |directory| directory.set_window_aside(journal))
    }

    fn directory_of(&self, journal: JournalId) -> Result<&SpillDirectory, SpillError> {
        self.spill.as_ref().ok_or_else(|| SpillError::WindowMissing {
            journal,
            path: "DIR".into(),
        })
    }
}

/// Takes up the windows that are in files: what memory remembers of them says which still count.
///
/// # Errors
/// A file that cannot be taken up, or that is missing.
pub(super) fn take_up_windows(
    directory: Option<&SpillDirectory>,
    pools: &mut Pools,
    occupied: &mut Vec<OccupiedSlot>,
    config: &StoreConfig,
) -> Result<(), WindowStoreError> {
    for found in directory.map_or(Ok(Vec::new()), SpillDirectory::windows)? {
        let state = found.state();
        let own = occupied
            .iter_mut()
            .find(|slot| slot.state.journal == state.journal);
        match (
            judge_file(own.as_ref().map(|slot| &slot.state.member), &state.member),
            own,
        ) {
            (FileVerdict::Same, Some(own)) => own.has_file = true,
            (FileVerdict::TakeUp, Some(own)) => take_up_newer(&found, own, pools),
            (FileVerdict::TakeUp | FileVerdict::Same, None) => {
                occupied.push(take_up_unknown(&found, pools, directory)?);
            }
            (FileVerdict::Stale, _) => {
                if let Some(Err(error)) = directory.map(|directory| directory.remove_window(state.journal)) {
                    tracing::warn!(journal = %state.journal, %error, "the file of a window that was released stays, and does no harm");
                }
            }
            (FileVerdict::LivedOn, _) => {
                let name =
                    directory.map(|directory| directory.path().join(directory.window_name(state.journal)));
                return Err(WindowStoreError::Spill(SpillError::LivedOn {
                    path: name.unwrap_or_default(),
                    store: config.path.clone(),
                }));
            }
        }
    }
    let is_missing = |slot: &OccupiedSlot| slot.place() == WindowPlace::Disk && !slot.has_file;
    let Some(missing) = occupied.iter_mut().find(|slot| is_missing(slot)) else {
        return Ok(());
    };
    let journal = missing.state.journal;
    if !config.discard_windows {
        let path = directory.map(|directory| directory.path().join(directory.window_name(journal)));
        let path = path.unwrap_or_else(|| "the directory of --spill".into());
        return Err(SpillError::WindowMissing { journal, path }.into());
    }
    for slot in occupied.iter_mut().filter(|slot| is_missing(slot)) {
        tracing::warn!(journal = %slot.state.journal, "its window was in a file that is gone, and is discarded");
        let member = MemberState {
            joined: false,
            spilled: false,
            ..slot.state.member
        };
        slot.state.member = member;
        slot.state.incarnation = Incarnation(0);
        slot.slot.save(&slot.state);
    }
    Ok(())
}

/// Makes a slot remember the window in the file instead of an older one.
fn take_up_newer(found: &FoundWindow, own: &mut OccupiedSlot, pools: &mut Pools) {
    let (mut state, known) = (found.state(), own.state.member);
    if known.epoch > state.member.epoch {
        // The newest fence counts, whichever of the two has it.
        state.member.epoch = known.epoch;
        state.member.writer = known.writer;
        state.member.signature = known.signature;
    }
    own.slot.save(&state);
    pools.chunks.append(&mut own.chunks);
    (own.state, own.has_file) = (state, true);
}

/// Makes an empty slot remember a window that is in a file only.
fn take_up_unknown(
    found: &FoundWindow,
    pools: &mut Pools,
    directory: Option<&SpillDirectory>,
) -> Result<OccupiedSlot, SpillError> {
    let state = found.state();
    let Some((mut slot, _)) = pools.slots.take(state.journal) else {
        let path = directory.map(|directory| directory.path().to_owned());
        return Err(SpillError::TooManyWindows {
            path: path.unwrap_or_default(),
        });
    };
    slot.write_names(state.journal, &found.entry.names);
    slot.save(&state);
    Ok(OccupiedSlot {
        slot,
        state,
        chunks: Vec::new(),
        has_file: true,
    })
}
