//! The memory of one journal: its slot, and the chunks of its window.

use std::sync::Arc;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::member::{MemberState, ReserveError, Window};
use netram_proto::wire::RefusalReason;

use crate::slot::{Slot, SlotState};
use crate::store::WindowStore;
use crate::sys::StoreSlice;

/// A piece of the lent memory, either owned by a journal or deposit, or free.
pub(crate) struct Chunk {
    pub(crate) index: u32,
    pub(crate) region: StoreSlice,
}

/// A journal's share of the [`WindowStore`]: a [`Window`] whose member's state survives the process.
///
/// Bytes are stored first, and [`JournalMemory::save`] makes them count. Only then may they be acknowledged.
pub struct JournalMemory {
    store: Arc<WindowStore>,
    slot: Slot,
    chunks: Vec<Chunk>,
    bytes: u64,
    saved: SlotState,
    list_crc: u32,
}

impl JournalMemory {
    pub(crate) fn new(store: Arc<WindowStore>, slot: Slot, journal: JournalId) -> JournalMemory {
        let saved = SlotState {
            journal,
            ..SlotState::default()
        };
        JournalMemory {
            store,
            slot,
            chunks: Vec::new(),
            bytes: 0,
            saved,
            list_crc: 0,
        }
    }

    /// The memory that an earlier process left.
    pub(crate) fn restored(
        store: Arc<WindowStore>,
        slot: Slot,
        chunks: Vec<Chunk>,
        saved: SlotState,
    ) -> JournalMemory {
        let bytes = if saved.member.joined {
            saved.window_bytes
        } else {
            0
        };
        JournalMemory {
            store,
            slot,
            chunks,
            bytes,
            list_crc: saved.list_crc,
            saved,
        }
    }

    /// The journal's id.
    pub fn journal(&self) -> JournalId {
        self.saved.journal
    }

    /// The state that the next process would find.
    pub fn saved(&self) -> &MemberState {
        &self.saved.member
    }

    /// Saves `state` for the next process, if it differs from the saved one. Does not allocate. A member that
    /// was never fenced leaves no trace.
    pub fn save(&mut self, state: &MemberState) {
        if *state == self.saved.member {
            return;
        }
        assert_eq!(state.joined, !self.chunks.is_empty(), "a window has chunks");
        self.saved.member = *state;
        self.saved.window_bytes = self.bytes;
        self.saved.chunks = self.chunks.len() as u32;
        self.saved.list_crc = self.list_crc;
        self.slot.save(&self.saved);
    }

    /// Notes that a client of the journal connects or disconnects. A member that was never fenced leaves no
    /// trace.
    pub(crate) fn note_contact(&mut self, contact: u64) {
        self.saved.last_contact = contact;
        if self.saved.member != MemberState::default() {
            self.slot.save(&self.saved);
        }
    }

    /// When a client of the journal last connected or disconnected, in seconds of the machine's uptime; zero
    /// if unknown.
    pub(crate) fn last_contact(&self) -> u64 {
        self.saved.last_contact
    }

    /// Whether storing bytes up to `end` would overwrite bytes that the *saved* state counts as held. A new
    /// state must be saved first then, or a kill in between costs the window.
    pub fn overwrites_saved(&self, end: Lsn) -> bool {
        end.0 > self.saved.member.trim.0.saturating_add(self.bytes)
    }

    /// Returns the slot to the store. Only for a journal that may be forgotten.
    pub(crate) fn let_go(mut self) {
        self.release();
        assert!(self.saved.member.may_be_forgotten(), "a fence is remembered");
        self.store.give_slot(self.slot, self.saved);
    }

    /// The index of the chunk that contains `at`, the offset in it, and the number of contiguous bytes from
    /// there.
    fn locate(&self, at: Lsn) -> (usize, usize, usize) {
        let offset = at.0 % self.bytes;
        let shift = self.store.chunk_shift();
        let within = offset & ((1 << shift) - 1);
        let room = ((1 << shift) - within).min(self.bytes - offset);
        ((offset >> shift) as usize, within as usize, room as usize)
    }
}

impl Window for JournalMemory {
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.release();
        let quota = self.store.quota();
        if bytes > quota {
            return Err(ReserveError {
                refusal: RefusalReason::OverQuota,
                asked: bytes,
                limit: quota,
            });
        }
        let count = bytes.div_ceil(1 << self.store.chunk_shift());
        match self.store.take_chunks(count as usize) {
            Ok(chunks) => {
                self.list_crc = self.slot.write_list(chunks.iter().map(|chunk| chunk.index));
                self.chunks = chunks;
                self.bytes = bytes;
                Ok(())
            }
            Err(free) => Err(ReserveError {
                refusal: RefusalReason::NoRoom,
                asked: bytes,
                limit: free,
            }),
        }
    }

    fn release(&mut self) {
        // The slot releases the chunks before the store gets them, so that two slots never claim one chunk.
        if self.saved.member.joined {
            self.saved.member.joined = false;
            self.saved.chunks = 0;
            self.saved.window_bytes = 0;
            self.slot.save(&self.saved);
        }
        self.store.give_chunks(&mut self.chunks);
        self.bytes = 0;
    }

    fn capacity(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, at: Lsn, mut bytes: &[u8]) {
        let mut at = at;
        while !bytes.is_empty() {
            let (chunk, within, room) = self.locate(at);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunks[chunk].region.write(within, now);
            at = at.plus(now.len() as u64);
            bytes = later;
        }
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let (chunk, within, room) = self.locate(at);
        self.chunks[chunk].region.bytes(within, room.min(max))
    }
}
