//! A store's file as a whole, while no thread serves from it: its slots, and the place of each byte of a
//! window.

use std::fs::File;
use std::io;

use netram_proto::id::Lsn;

use crate::slot::{JournalNames, Slot, SlotContents, SlotState};
use crate::superblock::{SUPERBLOCK_BYTES, StoreGeometry};
use crate::sys::StoreSlice;

/// The file of a store.
pub(crate) struct StoreLayout<'a> {
    file: &'a File,
    geometry: StoreGeometry,
}

/// A journal in a slot.
pub(crate) struct FoundJournal {
    pub(crate) slot: Slot,
    pub(crate) state: SlotState,
    pub(crate) names: JournalNames,
    pub(crate) chunks: Vec<u32>,
}

/// The states of all journals in a store that no thread serves from.
pub(crate) fn found_states(file: &File, geometry: StoreGeometry) -> io::Result<Vec<SlotState>> {
    let found = StoreLayout::new(file, geometry).journals()?;
    Ok(found.into_iter().map(|found| found.state).collect())
}

impl<'a> StoreLayout<'a> {
    pub(crate) fn new(file: &'a File, geometry: StoreGeometry) -> StoreLayout<'a> {
        StoreLayout { file, geometry }
    }

    pub(crate) fn file(&self) -> &File {
        self.file
    }

    /// The slots of the store, mapped. No other mapping of them may be in use.
    pub(crate) fn slots(&self) -> io::Result<Vec<Slot>> {
        let StoreGeometry {
            slots, slot_bytes, ..
        } = self.geometry;
        let length = usize::try_from(self.geometry.chunks_at()).map_err(io::Error::other)?;
        let (_, mut rest) = StoreSlice::map(self.file, length, false)?.split(SUPERBLOCK_BYTES as usize);
        let mut all = Vec::with_capacity(slots as usize);
        for _ in 0..slots {
            let (slot, back) = rest.split(slot_bytes as usize);
            all.push(Slot::new(slot));
            rest = back;
        }
        Ok(all)
    }

    /// The journals in the slots.
    ///
    /// # Errors
    /// `InvalidData` for a slot that no kill can have left so.
    pub(crate) fn journals(&self) -> io::Result<Vec<FoundJournal>> {
        let mut found = Vec::new();
        for mut slot in self.slots()? {
            match slot.find() {
                SlotContents::Empty => (),
                SlotContents::Journal(state, chunks) => found.push(FoundJournal {
                    names: slot.names(state.journal),
                    slot,
                    state,
                    chunks,
                }),
                SlotContents::Damaged => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a slot is damaged"));
                }
            }
        }
        Ok(found)
    }

    /// Where the byte at `at` of a window lies in the file, and how many bytes follow there.
    pub(crate) fn place(&self, chunks: &[u32], window_bytes: u64, at: Lsn) -> (u64, u64) {
        let chunk_bytes = self.geometry.chunk_bytes;
        let offset = at.0 % window_bytes;
        let within = offset % chunk_bytes;
        let chunk = u64::from(chunks[(offset / chunk_bytes) as usize]);
        let room = (chunk_bytes - within).min(window_bytes - offset);
        (self.geometry.chunks_at() + chunk * chunk_bytes + within, room)
    }
}
