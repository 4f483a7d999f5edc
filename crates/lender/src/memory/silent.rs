//! The window of a journal whose client is silent: its way to a file, out of memory, and back.

use netram_proto::member::MemberState;
use netram_proto::planted::FaultSwitch;
use netram_proto::spill::BindAnswer;
use netram_proto::wire::{ClientResource, crc32c};

use super::JournalMemory;
use crate::silent::{WindowJob, WindowRead};
use crate::spill::WindowCopy;

impl JournalMemory {
    /// Whether the window's file is complete, so that the machine may lose power.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.silent.is_on_disk()
    }

    /// Begins to write the window, whose client is silent, to its file. `freeze` makes the member's window
    /// read-only and returns its state. Returns whether there was anything to begin.
    pub(crate) fn begin_writing(&mut self, freeze: impl FnOnce() -> MemberState) -> bool {
        if !self.silent.on_silence() {
            return false;
        }
        if !self.saved.member.spilled {
            self.store.keep_spill();
        }
        // Saved before the first byte is copied: no later process lets it grow.
        self.save(&freeze());
        self.store.silent().add(WindowJob::Write(self.copy()));
        true
    }

    /// The window was written to its file, or could not be.
    pub(crate) fn end_writing(&mut self, is_whole: bool) {
        self.silent.on_written(is_whole);
        if self.silent.is_on_disk() {
            // Its own file has what a spill may have, too.
            self.store.release_spilled();
            self.offer();
        }
    }

    /// Lets others have the window's memory, if it is in a file and no client is connected.
    pub(crate) fn offer(&self) {
        if self.silent.is_on_disk() && !self.chunks.is_empty() {
            { self.store.silent() }.offer(self.journal(), self.last_contact(), self.chunks.len());
        }
    }

    /// Releases the memory of a window that is in a file. Returns whether it has gone.
    pub(crate) fn drop_window(&mut self) -> bool {
        if !self.silent.on_room_wanted(FaultSwitch::NONE) {
            return false;
        }
        // As in `release`: the slot first, so that two slots never claim one chunk.
        self.saved.chunks = 0;
        self.saved.list_crc = crc32c(&[]);
        self.slot.save(&self.saved);
        self.store.give_chunks(&mut self.chunks);
        self.bytes = 0;
        self.pay_nothing();
        true
    }

    /// A client asks for the journal. Begins to read the window if it is in its file only.
    pub(crate) fn answer_bind(&mut self) -> BindAnswer {
        self.store.silent().keep(self.journal(), self.last_contact());
        let answer = self.silent.on_bind();
        if answer == BindAnswer::Read && !self.begin_reading() {
            self.silent.on_read(false);
            return BindAnswer::ComeAgain;
        }
        answer
    }

    fn begin_reading(&mut self) -> bool {
        let count = self.saved.window_bytes.div_ceil(1 << self.store.chunk_shift());
        match self.store.take_chunks_back(count as usize) {
            Ok(chunks) => {
                self.arriving = chunks;
                let mut copy = self.copy();
                copy.chunks = self.arriving.iter().map(|chunk| chunk.index).collect();
                self.store.silent().add(WindowJob::Read(copy));
                true
            }
            Err(free) => {
                tracing::warn!(
                    journal = %self.journal(), window_bytes = self.saved.window_bytes, free,
                    "no room to read a window from the disk: its client is asked to come again"
                );
                false
            }
        }
    }

    /// The window was read from its file into memory, or could not be.
    pub(crate) fn end_reading(&mut self, read: WindowRead) {
        self.silent.on_read(read == WindowRead::Whole);
        if read != WindowRead::Whole {
            self.store.give_chunks(&mut self.arriving);
            return;
        }
        self.chunks = std::mem::take(&mut self.arriving);
        self.bytes = self.saved.window_bytes;
        self.list_crc = self.slot.write_list(self.chunks.iter().map(|chunk| chunk.index));
        self.saved.chunks = self.chunks.len() as u32;
        self.saved.list_crc = self.list_crc;
        self.slot.save(&self.saved);
        let lent = self.lent_bytes();
        if let Some(payment) = &mut self.payment {
            payment.window = { payment.slot.account() }.take_kept(ClientResource::Memory, lent);
        }
        self.offer();
    }

    /// The window's bytes can be trusted no more: only its fence, `sealed`, is left.
    pub(crate) fn lose_window(&mut self, sealed: &MemberState) {
        self.store.silent().keep(self.journal(), self.last_contact());
        self.silent = Default::default();
        self.store.keep_spill();
        // As in `release`: the slot first, so that two slots never claim one chunk.
        let mut chunks = std::mem::take(&mut self.chunks);
        self.bytes = 0;
        self.save(sealed);
        self.store.give_chunks(&mut chunks);
        self.pay_nothing();
    }

    /// Has the file of the window, which is damaged, get another name.
    pub(crate) fn set_file_aside(&self) {
        self.store.silent().add(WindowJob::SetAside(self.journal()));
    }

    /// The client has released or replaced a window that was written to a disk.
    pub(super) fn leave_disk(&mut self) {
        match self.silent.on_release() {
            true => self.store.silent().add(WindowJob::Remove(self.journal())),
            false => self.store.release_spilled(),
        }
    }

    /// The window's state, and the chunks that it is in.
    fn copy(&self) -> WindowCopy {
        WindowCopy {
            state: self.saved,
            names: self.names(),
            chunks: self.chunks.iter().map(|chunk| chunk.index).collect(),
        }
    }
}
