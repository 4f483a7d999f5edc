//! The window of a journal whose client is silent: written to a file of its own while the lender serves
//! others, so that it survives a loss of power, and its memory can go to them.
//!
//! 1. The window becomes read-only, and that is saved, before its first byte is copied. So no copy of the
//!    file is ever older than what the window acknowledged ([the rule of spills](super)).
//! 2. The memory goes only once the file is synced under its final name.
//! 3. While the file is written or read, the client is asked to come again. Nothing else waits for the disk.
//! 4. A window is known by its join, which no other window of the journal ever has. A file that stays
//!    although its window was released is therefore recognized, here ([`judge_file`]) and by recovery (rule
//!    16).

use crate::id::Epoch;
use crate::member::MemberState;
use crate::planted::{FaultSwitch, PlantedFault};

/// Where a window is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowPlace {
    /// In memory, without a file of its own.
    #[default]
    Memory,
    /// In memory, and being written to its file.
    Writing,
    /// In memory and in its file.
    Both,
    /// In its file only.
    Disk,
    /// In its file, and being read into memory.
    Reading,
}

/// The answer to a client that asks for its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindAnswer {
    /// The journal is served.
    Serve,
    /// The client is asked to come again: its window is at the disk.
    ComeAgain,
    /// The same, and the window must be read from its file.
    Read,
}

/// The place of one journal's window, and how it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SilentWindow {
    place: WindowPlace,
}

impl SilentWindow {
    /// A window that a start finds in this place.
    pub fn found(place: WindowPlace) -> SilentWindow {
        SilentWindow { place }
    }

    /// Where the window is.
    pub fn place(&self) -> WindowPlace {
        self.place
    }

    /// Whether its file is complete, so that the machine may lose power.
    pub fn is_on_disk(&self) -> bool {
        matches!(
            self.place,
            WindowPlace::Both | WindowPlace::Disk | WindowPlace::Reading
        )
    }

    /// The client has been silent for as long as the settings say. `true`: make the window read-only
    /// ([`Member::freeze`](crate::member::Member::freeze)), save that, and then write its file.
    pub fn on_silence(&mut self) -> bool {
        let begins = self.place == WindowPlace::Memory;
        if begins {
            self.place = WindowPlace::Writing;
        }
        begins
    }

    /// The file is complete and synced, or could not be written. The window stays read-only.
    pub fn on_written(&mut self, is_whole: bool) {
        if self.place == WindowPlace::Writing {
            self.place = match is_whole {
                true => WindowPlace::Both,
                false => WindowPlace::Memory,
            };
        }
    }

    /// Others need the memory, and no client is connected. `true`: release it.
    pub fn on_room_wanted(&mut self, planted: FaultSwitch) -> bool {
        let early = self.place == WindowPlace::Writing && planted.is(PlantedFault::SilentDroppedEarly);
        let goes = self.place == WindowPlace::Both || early;
        if goes {
            self.place = WindowPlace::Disk;
        }
        goes
    }

    /// A client asks for the journal.
    pub fn on_bind(&mut self) -> BindAnswer {
        match self.place {
            WindowPlace::Memory | WindowPlace::Both => BindAnswer::Serve,
            WindowPlace::Writing | WindowPlace::Reading => BindAnswer::ComeAgain,
            WindowPlace::Disk => {
                self.place = WindowPlace::Reading;
                BindAnswer::Read
            }
        }
    }

    /// The file was read into memory, or could not be.
    pub fn on_read(&mut self, is_whole: bool) {
        if self.place == WindowPlace::Reading {
            self.place = match is_whole {
                true => WindowPlace::Both,
                false => WindowPlace::Disk,
            };
        }
    }

    /// The client has released or replaced the window. `true`: remove its file.
    pub fn on_release(&mut self) -> bool {
        let had_file = self.is_on_disk();
        self.place = WindowPlace::Memory;
        had_file
    }
}

/// What a start does with the file of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileVerdict {
    /// The memory remembers the window as one that is in this file.
    Same,
    /// The memory is of another time, or does not know the window: it takes the window up from the file.
    TakeUp,
    /// The window was released or replaced since: the file goes.
    Stale,
    /// The memory has the same window and does not know that it is read-only: a snapshot of the machine's
    /// memory was put back, which may be older than what the client knows.
    LivedOn,
}

/// Judges the file of a window by what the memory remembers of its journal.
pub fn judge_file(memory: Option<&MemberState>, file: &MemberState) -> FileVerdict {
    let Some(memory) = memory else {
        return FileVerdict::TakeUp;
    };
    let join = |state: &MemberState| -> (Epoch, u32) { (state.window_epoch, state.generation) };
    match memory.joined {
        // A released window's number may be gone; its epoch is not.
        false if memory.window_epoch >= file.window_epoch => FileVerdict::Stale,
        false => FileVerdict::TakeUp,
        true if join(memory) < join(file) => FileVerdict::TakeUp,
        true if join(memory) > join(file) => FileVerdict::Stale,
        true if memory.spilled => FileVerdict::Same,
        true => FileVerdict::LivedOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: FaultSwitch = FaultSwitch::NONE;

    #[test]
    fn memory_goes_only_once_the_file_is_whole() {
        let mut window = SilentWindow::default();
        assert!(!window.on_room_wanted(NONE), "it has no file");
        assert!(window.on_silence() && !window.on_silence());
        assert!(!window.on_room_wanted(NONE) && !window.is_on_disk());
        window.on_written(false);
        assert!(!window.on_room_wanted(NONE));
        assert!(window.on_silence(), "it is tried again");
        window.on_written(true);
        assert!(window.is_on_disk() && window.on_room_wanted(NONE) && !window.on_room_wanted(NONE));
        assert_eq!(window.place(), WindowPlace::Disk);
    }

    #[test]
    fn a_client_is_served_from_memory_only() {
        let mut window = SilentWindow::default();
        assert_eq!(window.on_bind(), BindAnswer::Serve);
        window.on_silence();
        assert_eq!(window.on_bind(), BindAnswer::ComeAgain);
        window.on_written(true);
        assert_eq!(window.on_bind(), BindAnswer::Serve);
        window.on_room_wanted(NONE);
        assert_eq!(window.on_bind(), BindAnswer::Read);
        assert_eq!(window.on_bind(), BindAnswer::ComeAgain);
        window.on_read(false);
        assert_eq!(window.on_bind(), BindAnswer::Read);
        window.on_read(true);
        assert_eq!(window.on_bind(), BindAnswer::Serve);
        assert!(window.on_release() && !window.on_release(), "one file, once");
        assert_eq!(window.place(), WindowPlace::Memory);
    }

    #[test]
    fn a_file_counts_by_its_join() {
        let state = |epoch, generation, joined, spilled| MemberState {
            window_epoch: Epoch(epoch),
            generation,
            joined,
            spilled,
            ..MemberState::default()
        };
        let file = state(4, 7, true, true);
        let verdicts = [
            (state(4, 7, true, true), FileVerdict::Same),
            (state(4, 7, true, false), FileVerdict::LivedOn),
            (state(4, 8, true, false), FileVerdict::Stale),
            (state(5, 1, true, true), FileVerdict::Stale),
            (state(4, 7, false, false), FileVerdict::Stale),
            (state(4, 0, false, false), FileVerdict::Stale),
            (state(4, 6, true, false), FileVerdict::TakeUp),
            (state(3, 9, true, true), FileVerdict::TakeUp),
            (state(3, 9, false, false), FileVerdict::TakeUp),
        ];
        for (memory, verdict) in verdicts {
            assert_eq!(judge_file(Some(&memory), &file), verdict, "{memory:?}");
        }
        assert_eq!(judge_file(None, &file), FileVerdict::TakeUp);
    }
}
