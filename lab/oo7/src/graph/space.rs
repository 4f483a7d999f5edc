//! Memory of the graph: bytes with blocks, changed in transactions.

use crate::error::Oo7Error;

/// Memory with blocks that begins transactions. Offsets count from the beginning of the memory; zero stands
/// for none.
pub trait BlockSpace {
    /// An open transaction.
    type Open<'s>: BlockTransaction
    where
        Self: 's;

    /// Begins a transaction.
    fn begin(&self) -> Result<Self::Open<'_>, Oo7Error>;
}

/// Owner of a block. If modules have their own heaps, it is allocated in its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// All modules: the indexes.
    Common,
    /// The module with this id.
    Module(u32),
    /// The owner of the block at this offset.
    Block(u64),
}

/// An open transaction on memory with blocks. Dropping it undoes its changes.
pub trait BlockTransaction {
    /// The memory, for reading in place.
    fn bytes(&mut self) -> &[u8];
    /// Declares the bytes at an offset as changing, and changes them.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Oo7Error>;
    /// Allocates a block at a multiple of eight; its bytes are undefined.
    fn allocate(&mut self, near: BlockOwner, bytes: usize) -> Result<u64, Oo7Error>;
    /// Frees a block.
    fn free(&mut self, at: u64) -> Result<(), Oo7Error>;
    /// The block at which a program begins; zero until it is set.
    fn root(&mut self) -> Result<u64, Oo7Error>;
    /// Sets that block.
    fn set_root(&mut self, at: u64) -> Result<(), Oo7Error>;
    /// Makes the changes durable, as far as the space is configured to.
    fn commit(self) -> Result<(), Oo7Error>;
}
