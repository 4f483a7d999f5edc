//! Another copy of the volume from which blocks can be fetched, such as a data lender's.

use netram_proto::id::Lsn;

/// A source of blocks of another copy.
pub trait BlockFetch {
    /// Fills `into` with whole blocks from `first`, as of a state of the copy that has everything below
    /// `at_least`; a newer state is as good. At most [`FETCH_BLOCKS`](crate::limit::FETCH_BLOCKS) at once.
    ///
    /// Waits for as long as an answer is likely. Readers and the applier call it with the applier's lock
    /// held, so it must not wait for anything that needs this volume's stages to be applied.
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError>;

    /// Whether another copy exists, reachable or not.
    fn exists(&self) -> bool {
        true
    }
}

/// Failure to fetch a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The other copy cannot be reached, or did not answer in time. A later attempt may succeed.
    #[error("the data lender cannot be reached")]
    Unreachable,
    /// The copy is whole, but the block is damaged there too. Use this variant for nothing else: a partial
    /// write over such a block leaves it unreadable, while with `Unreachable` it waits.
    #[error("the block is damaged at the data lender too")]
    Damaged,
}

/// The [`BlockFetch`] of a volume without another copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCopy;

impl BlockFetch for NoCopy {
    fn fetch(&self, _: u64, _: Lsn, _: &mut [u8]) -> Result<(), FetchError> {
        Err(FetchError::Unreachable)
    }

    fn exists(&self) -> bool {
        false
    }
}

impl<C: BlockFetch + ?Sized> BlockFetch for std::sync::Arc<C> {
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        (**self).fetch(first, at_least, into)
    }

    fn exists(&self) -> bool {
        (**self).exists()
    }
}
