//! One journal's memory: its slot and the chunks of its window.

use std::sync::Arc;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::member::{MemberState, ReserveError, Window};
use netram_proto::wire::RefusalReason;

use crate::slot::{Slot, SlotState};
use crate::store::WindowStore;
use crate::sys::StoreSlice;

/// One piece of the lent memory, owned by a journal or free.
pub(crate) struct Chunk {
    pub(crate) index: u32,
    pub(crate) region: StoreSlice,
}

/// A journal's share of the [`WindowStore`]: a [`Window`] that remembers its member's state across processes.
///
/// Bytes are stored first, then [`JournalMemory::save`] makes them count; only then may they be acknowledged.
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

    /// As an earlier process left it.
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

    /// The journal.
    pub fn journal(&self) -> JournalId {
        self.saved.journal
    }

    /// What the next process would find.
    pub fn saved(&self) -> &MemberState {
        &self.saved.member
    }

    /// Makes `state` what the next process will find, if it differs from what it would find now. Nothing is
    /// allocated. A member that nobody has sealed leaves no trace.
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

    /// Notes that a client of the journal comes or goes. A member that nobody has sealed leaves no trace.
    pub(crate) fn note_contact(&mut self, heard: u64) {
        self.saved.last_contact = heard;
        if self.saved.member != MemberState::default() {
            self.slot.save(&self.saved);
        }
    }

    /// When a client of the journal came or went last, as an earlier process knows it; zero: not known.
    pub(crate) fn last_contact(&self) -> u64 {
        self.saved.last_contact
    }

    /// Whether storing bytes up to `end` would overwrite bytes that the *saved* state still counts as held.
    /// The state must then move first, or a kill in between costs the window.
    pub fn overwrites_saved(&self, end: Lsn) -> bool {
        end.0 > self.saved.member.trim.0.saturating_add(self.bytes)
    }

    /// Gives the slot back. Only for a journal that may be forgotten: one that nobody has sealed, or that is
    /// over.
    pub(crate) fn let_go(mut self) {
        self.release();
        assert!(self.saved.member.may_be_forgotten(), "a seal is remembered");
        self.store.give_slot(self.slot, self.saved);
    }

    /// The chunk that `at` lies in, the place in it, and the bytes from there that lie together.
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
        // The slot lets go before the chunks do: two slots must never be found to claim one chunk.
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
