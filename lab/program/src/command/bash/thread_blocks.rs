//! A thread's blocks in the persistent heap. A root names a directory block, which has their addresses.

use anyhow::{Context, Result, ensure};
use netram_heap::{Heap, Ptr};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_store::{JournaledRvm, JournaledTransaction};

use super::blocks::{BLOCK_BYTES_MAX, BlockChange, BlockOp, SLOTS};

/// Bytes of a directory's entry: address of the block, and number of bytes in use.
const ENTRY_BYTES: usize = 16;

/// One thread's blocks.
pub(super) struct ThreadBlocks<'h> {
    heap: &'h Heap,
    directory: usize,
}

impl<'h> ThreadBlocks<'h> {
    /// Creates the directories of `threads` threads in a new heap.
    pub(super) fn build(memory: &JournaledRvm, heap: &Heap, threads: usize) -> Result<()> {
        for thread in 0..threads {
            let mut transaction = memory.begin(RestoreMode::Restore);
            let directory = heap.alloc_bytes(&mut transaction, &[0; SLOTS * ENTRY_BYTES])?;
            heap.set_root(&mut transaction, thread, directory)?;
            transaction.commit(Durability::Disk)?;
        }
        Ok(())
    }

    /// The blocks of `thread`.
    pub(super) fn of(heap: &'h Heap, thread: usize) -> Result<ThreadBlocks<'h>> {
        let directory: Ptr<u8> = heap.root(thread)?;
        let room = heap
            .block_bytes(directory)
            .context("the directory of the blocks")?;
        ensure!(
            room >= (SLOTS * ENTRY_BYTES) as u64,
            "the directory of the blocks has {room} bytes"
        );
        let directory = usize::try_from(directory.offset())?;
        Ok(ThreadBlocks { heap, directory })
    }

    /// Contents of the blocks.
    pub(super) fn contents(&self) -> Result<Vec<Vec<u8>>> {
        (0..SLOTS)
            .map(|slot| self.block(slot).with_context(|| format!("block {slot}")))
            .collect()
    }

    fn block(&self, slot: usize) -> Result<Vec<u8>> {
        let (block, length) = self.entry(slot)?;
        if block.is_null() {
            ensure!(length == 0, "no block, and {length} bytes");
            return Ok(Vec::new());
        }
        let room = self.heap.block_bytes(block)?;
        ensure!(
            length as u64 <= room && length <= BLOCK_BYTES_MAX,
            "{length} bytes in a block of {room}"
        );
        let mut bytes = vec![0; length];
        self.heap
            .region()
            .read_into(block.offset() as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// Applies the transaction's change to the blocks.
    pub(super) fn apply(&self, transaction: &mut JournaledTransaction, change: &BlockChange) -> Result<()> {
        let (block, _) = self.entry(change.slot)?;
        let bytes = &change.bytes;
        let block = match change.op {
            BlockOp::Make => self.heap.alloc_bytes(transaction, bytes)?,
            BlockOp::Free => {
                self.heap.free(transaction, block)?;
                Ptr::NULL
            }
            BlockOp::Resize { kept } => {
                let block = self.heap.resize(transaction, block, bytes.len())?;
                self.write(transaction, block, kept, &bytes[kept..])?;
                block
            }
            BlockOp::Write { from, to } => {
                self.write(transaction, block, from, &bytes[from..to])?;
                block
            }
        };
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&block.offset().to_le_bytes());
        entry[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        transaction.write(self.heap.region(), self.entry_at(change.slot), &entry)?;
        Ok(())
    }

    /// Changes that are undone: a block is created, another resized or freed.
    pub(super) fn scribble(
        &self,
        transaction: &mut JournaledTransaction,
        slot: usize,
        length: usize,
    ) -> Result<()> {
        let made = self.heap.alloc_bytes(transaction, &vec![0xbb; length])?;
        let (block, _) = self.entry(slot)?;
        if block.is_null() {
            self.heap.free(transaction, made)?;
        } else if length.is_multiple_of(2) {
            self.heap.free(transaction, block)?;
        } else {
            self.heap.resize(transaction, block, length)?;
        }
        Ok(())
    }

    fn write(
        &self,
        transaction: &mut JournaledTransaction,
        block: Ptr<u8>,
        from: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let at = block.offset() as usize + from;
        Ok(transaction.write(self.heap.region(), at, bytes)?)
    }

    fn entry(&self, slot: usize) -> Result<(Ptr<u8>, usize)> {
        let entry: [u8; ENTRY_BYTES] = self.heap.region().get(self.entry_at(slot))?;
        let [block, length] = [&entry[..8], &entry[8..]].map(|half| {
            let mut word = [0; 8];
            word.copy_from_slice(half);
            u64::from_le_bytes(word)
        });
        Ok((Ptr::from_offset(block), usize::try_from(length)?))
    }

    fn entry_at(&self, slot: usize) -> usize {
        assert!(slot < SLOTS);
        self.directory + slot * ENTRY_BYTES
    }
}
