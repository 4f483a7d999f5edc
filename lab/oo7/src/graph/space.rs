//! What the graph stands in: bytes with blocks, changed in transactions.

use crate::error::Oo7Error;

/// Memory with blocks, of which transactions are begun. Offsets count from where the memory begins; zero is
/// none.
pub trait BlockSpace {
    /// An open transaction.
    type Open<'s>: BlockTransaction
    where
        Self: 's;

    /// Begins a transaction.
    fn begin(&self) -> Result<Self::Open<'_>, Oo7Error>;
}

/// What a block belongs to: where modules have heaps of their own, it is taken from that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// To all modules: the indexes.
    Common,
    /// To the module with this id.
    Module(u32),
    /// To whatever the block there belongs to.
    Block(u64),
}

/// An open transaction on memory with blocks. Dropping it takes its changes back.
pub trait BlockTransaction {
    /// The memory, for reading in place.
    fn bytes(&mut self) -> &[u8];
    /// Declares the bytes at an offset as changing, and changes them.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Oo7Error>;
    /// Takes a block, whose bytes are whatever they were. It begins at a multiple of eight.
    fn allocate(&mut self, near: BlockOwner, bytes: usize) -> Result<u64, Oo7Error>;
    /// Gives a block back.
    fn free(&mut self, at: u64) -> Result<(), Oo7Error>;
    /// The block that a program begins at; zero until it is set.
    fn root(&mut self) -> Result<u64, Oo7Error>;
    /// Sets that block.
    fn set_root(&mut self, at: u64) -> Result<(), Oo7Error>;
    /// Makes the changes durable, as far as the space was told to.
    fn commit(self) -> Result<(), Oo7Error>;
}
