//! An owner's spill file, whose disk fails, tears writes, and loses pages.

use netram_far_machine::deposit::{NoSlotsError, SlotFile, SlotRequest, StoredPage};

/// The disk's next fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpillFault {
    /// A write fails, with half of it done.
    WriteError,
    /// A write is done by half and reported as done.
    TornWrite,
    /// A page cannot be read.
    ReadError,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimSpillFile {
    pages: Vec<Vec<u8>>,
    pub(super) room: u32,
    pub(super) next_fault: Option<SpillFault>,
    /// Whether the disk has ever lost bytes that it reported as written.
    pub(super) faulty: bool,
}

impl SimSpillFile {
    /// An empty file on a disk with room for so many slots.
    pub(super) fn new(room: u32) -> SimSpillFile {
        SimSpillFile {
            room,
            ..SimSpillFile::default()
        }
    }
}

impl SlotFile for SimSpillFile {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        let possible = self.room.max(self.pages.len() as u32);
        if slots > possible {
            return Err(NoSlotsError { possible });
        }
        self.pages.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool {
        let fault = self.next_fault.filter(|next| *next != SpillFault::ReadError);
        if fault.is_some() {
            self.next_fault = None;
        }
        for (index, page) in pages.iter().enumerate() {
            let kept = &mut self.pages[page.slot as usize];
            match fault {
                Some(_) if index % 2 == 0 => {
                    kept.resize(page.bytes.len(), 0);
                    let half = page.bytes.len() / 2;
                    kept[..half].copy_from_slice(&page.bytes[..half]);
                }
                Some(_) => (),
                None => *kept = page.bytes.to_vec(),
            }
        }
        self.faulty |= fault == Some(SpillFault::TornWrite);
        fault != Some(SpillFault::WriteError)
    }

    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8])) {
        for page in pages {
            if self.next_fault == Some(SpillFault::ReadError) {
                (self.next_fault, self.faulty) = (None, true);
                each(&[]);
                continue;
            }
            let kept = &self.pages[page.slot as usize];
            each(kept.get(..page.bytes.into()).unwrap_or(kept));
        }
    }
}
