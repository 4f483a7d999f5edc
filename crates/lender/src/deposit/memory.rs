//! A deposit's slots: one page each, in chunks of the store.

use std::sync::Arc;

use netram_clients::{ClientAccount, ResourceCharge};
use netram_far_machine::deposit::{NoSlotsError, SlotMemory};
use netram_far_machine::limit::PAGE_BYTES;
use netram_proto::wire::ClientResource;

use crate::limit::CHUNK_BYTES_MIN;
use crate::memory::Chunk;
use crate::state::DaemonState;

const _: () = assert!(
    CHUNK_BYTES_MIN.is_multiple_of(PAGE_BYTES as u64),
    "no slot straddles two chunks"
);

/// The slots of one deposit. Dropping it returns its chunks to the store.
pub(crate) struct DepositMemory {
    shared: Arc<DaemonState>,
    chunks: Vec<Chunk>,
    /// The cost of the chunks for the client that opened the deposit.
    charge: ResourceCharge,
}

impl DepositMemory {
    pub(crate) fn new(shared: Arc<DaemonState>, client: Arc<ClientAccount>) -> DepositMemory {
        DepositMemory {
            shared,
            chunks: Vec::new(),
            charge: ResourceCharge::nothing(client, ClientResource::Pages),
        }
    }

    /// Bytes of the store that the deposit occupies: whole chunks.
    pub(crate) fn lent_bytes(&self) -> u64 {
        (self.chunks.len() as u64) << self.shared.store.chunk_shift()
    }

    /// Number of chunks that the deposit occupies.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The first `bytes` bytes of a slot.
    pub(crate) fn piece(&self, slot: u32, bytes: usize) -> &[u8] {
        let (chunk, within) = self.locate(slot);
        self.chunks[chunk].region.bytes(within, bytes)
    }

    fn locate(&self, slot: u32) -> (usize, usize) {
        let offset = u64::from(slot) * PAGE_BYTES as u64;
        let shift = self.shared.store.chunk_shift();
        ((offset >> shift) as usize, (offset & ((1 << shift) - 1)) as usize)
    }
}

impl SlotMemory for DepositMemory {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        let bytes = u64::from(slots) * PAGE_BYTES as u64;
        let count = bytes.div_ceil(1 << self.shared.store.chunk_shift()) as usize;
        let no_more_than = |bytes: u64| NoSlotsError {
            possible: (bytes / PAGE_BYTES as u64).min(u32::MAX.into()) as u32,
        };
        let (shift, had) = (self.shared.store.chunk_shift(), self.lent_bytes());
        if count > self.chunks.len() && self.shared.gives_no_more() {
            return Err(no_more_than(had));
        }
        if self.charge.resize((count as u64) << shift).is_err() {
            let chunks = self.charge.largest() >> shift;
            return Err(no_more_than(chunks << shift));
        }
        let limit = self.shared.deposits.limit();
        let resized = self.shared.store.resize_deposit(&mut self.chunks, count, limit);
        if resized.is_err() {
            let given = self.charge.resize(had);
            assert!(given.is_ok(), "less is always granted");
        }
        resized.map_err(no_more_than)
    }

    fn write(&mut self, slot: u32, bytes: &[u8]) {
        assert!(bytes.len() <= PAGE_BYTES);
        let (chunk, within) = self.locate(slot);
        self.chunks[chunk].region.write(within, bytes);
    }

    fn read(&self, slot: u32, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= PAGE_BYTES);
        let (chunk, within) = self.locate(slot);
        into.copy_from_slice(self.chunks[chunk].region.bytes(within + at, into.len()));
    }

    fn prefetch(&self, slot: u32, at: usize) {
        let (chunk, within) = self.locate(slot);
        self.chunks[chunk].region.soon(within + at);
    }
}

impl Drop for DepositMemory {
    fn drop(&mut self) {
        let given = self.shared.store.resize_deposit(&mut self.chunks, 0, 0);
        assert!(given.is_ok(), "shrinking is never refused");
    }
}
