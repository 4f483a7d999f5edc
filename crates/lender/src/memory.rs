//! The memory of one journal: its slot, and the chunks of its window.

mod silent;

use std::sync::Arc;

use netram_clients::{ClientAccount, OverLimit, ResourceCharge};
use netram_proto::id::{Incarnation, JournalId, Lsn};
use netram_proto::member::{MemberState, ReserveError, Window};
use netram_proto::spill::{SilentWindow, WindowPlace};
use netram_proto::wire::{ClientResource, RefusalReason};

use crate::slot::{JournalNames, Slot, SlotState};
use crate::store::WindowStore;
use crate::sys::StoreSlice;

/// A piece of the lent memory, either owned by a journal or deposit, or free.
pub(crate) struct Chunk {
    pub(crate) index: u32,
    pub(crate) region: StoreSlice,
}

/// The cost of a journal for the client that pays.
struct Payment {
    /// The journal's slot.
    slot: ResourceCharge,
    /// The chunks of its window.
    window: ResourceCharge,
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
    /// `None` until a session is bound, and for the memory of a journal that is over.
    payment: Option<Payment>,
    /// Whether the window is in a file too, or only there.
    silent: SilentWindow,
    /// Chunks that the window is being read into.
    arriving: Vec<Chunk>,
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
            payment: None,
            silent: SilentWindow::default(),
            arriving: Vec::new(),
        }
    }

    /// The memory that an earlier process left.
    pub(crate) fn restored(
        store: Arc<WindowStore>,
        slot: Slot,
        chunks: Vec<Chunk>,
        (saved, place): (SlotState, WindowPlace),
    ) -> JournalMemory {
        let bytes = match chunks.is_empty() {
            true => 0,
            false => saved.window_bytes,
        };
        JournalMemory {
            store,
            slot,
            chunks,
            bytes,
            list_crc: saved.list_crc,
            saved,
            payment: None,
            silent: SilentWindow::found(place),
            arriving: Vec::new(),
        }
    }

    /// The name of the client that pays for the journal; empty if none does.
    pub(crate) fn payer(&self) -> String {
        match &self.payment {
            Some(payment) => payment.slot.account().name().to_owned(),
            None => self.slot.names(self.saved.journal).payer,
        }
    }

    /// Counts what an earlier process kept for the journal, whatever the client's limits are.
    pub(crate) fn count_for(&mut self, account: &Arc<ClientAccount>) {
        self.payment = Some(Payment {
            slot: account.take_kept(ClientResource::Journals, 1),
            window: account.take_kept(ClientResource::Memory, self.lent_bytes()),
        });
    }

    /// Makes `account` pay for the journal from now on.
    ///
    /// # Errors
    /// It may not have a further journal, or not the memory of its window; the one before still pays.
    pub(crate) fn pay_by(&mut self, account: &Arc<ClientAccount>) -> Result<(), OverLimit> {
        let pays = |payment: &Payment| Arc::ptr_eq(payment.slot.account(), account);
        if self.payment.as_ref().is_some_and(pays) {
            return Ok(());
        }
        self.payment = Some(Payment {
            slot: account.take(ClientResource::Journals, 1)?,
            window: account.take(ClientResource::Memory, self.lent_bytes())?,
        });
        if self.slot.names(self.saved.journal).payer != account.name() {
            self.slot.write_payer(self.saved.journal, account.name());
        }
        Ok(())
    }

    /// The names of the journal.
    pub(crate) fn names(&self) -> JournalNames {
        self.slot.names(self.saved.journal)
    }

    /// Notes what the client calls the journal.
    #[cold]
    pub(crate) fn set_name(&mut self, name: &str) {
        if self.slot.names(self.saved.journal).name != name {
            self.slot.write_name(self.saved.journal, name);
        }
    }

    /// Bytes of the chunks of the window.
    fn lent_bytes(&self) -> u64 {
        (self.chunks.len() as u64) << self.store.chunk_shift()
    }

    /// The incarnation of the memory.
    pub(crate) fn store_incarnation(&self) -> Incarnation {
        self.store.incarnation()
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
        self.saved.incarnation = match (state.spilled, self.saved.incarnation) {
            (false, _) => Incarnation(0),
            (true, Incarnation(0)) => self.store.incarnation(),
            (true, earlier) => earlier,
        };
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

    /// Gives the client that pays for the window its bytes back.
    fn pay_nothing(&mut self) {
        if let Some(payment) = &mut self.payment {
            let given = payment.window.resize(0);
            assert!(given.is_ok(), "less is always granted");
        }
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
        if let Some(payment) = &mut self.payment {
            let paid = payment.window.resize(count << self.store.chunk_shift());
            paid.map_err(|over| ReserveError {
                refusal: RefusalReason::OverClientLimit,
                asked: over.resource as u64,
                limit: over.limit,
            })?;
        }
        match self.store.take_chunks(count as usize) {
            Ok(chunks) => {
                self.list_crc = self.slot.write_list(chunks.iter().map(|chunk| chunk.index));
                self.chunks = chunks;
                self.bytes = bytes;
                Ok(())
            }
            Err(free) => {
                self.pay_nothing();
                Err(ReserveError {
                    refusal: RefusalReason::NoRoom,
                    asked: bytes,
                    limit: free,
                })
            }
        }
    }

    fn release(&mut self) {
        // The slot releases the chunks before the store gets them, so that two slots never claim one chunk.
        if self.saved.member.joined {
            self.saved.member.joined = false;
            if self.saved.member.spilled {
                self.leave_disk();
            }
            self.saved.chunks = 0;
            self.saved.window_bytes = 0;
            self.slot.save(&self.saved);
        }
        self.store.give_chunks(&mut self.chunks);
        self.bytes = 0;
        self.pay_nothing();
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
