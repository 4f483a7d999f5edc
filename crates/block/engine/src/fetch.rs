//! Another copy of the volume, to take blocks from: a data lender's, for one who has it.

use netram_proto::id::Lsn;

/// Gives blocks of another copy.
pub trait BlockFetch {
    /// Fills `into` with whole blocks from `first` on, as the copy has them once it has everything below
    /// `at_least`; newer is as good. At most [`FETCH_BLOCKS`](crate::limit::FETCH_BLOCKS) at once.
    ///
    /// Waits as long as an answer is likely. Called with the applier's lock held, by whoever reads too: it
    /// must not wait for anything that needs this volume's stages to be applied.
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError>;

    /// Whether there is another copy at all, present or not.
    fn exists(&self) -> bool {
        true
    }
}

/// Why a block did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Nobody is there, or did not answer in time. Later it may work.
    #[error("the data lender cannot be reached")]
    Unreachable,
    /// The copy is whole and does not have the block either: it is damaged there. Only that: a part written
    /// over such a block leaves it unreadable, where `Unreachable` would have waited.
    #[error("the data lender does not have it either")]
    Damaged,
}

/// There is no other copy.
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
