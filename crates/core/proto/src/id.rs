//! Identifiers. Each is a type of its own, so the compiler keeps them apart.

use core::fmt;

use crate::limit::EPOCH_SALT_BYTES;

/// A byte position in a journal's endless log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position `bytes` further on. The sum cannot overflow: no log reaches 2^64 bytes.
    pub const fn plus(self, bytes: u64) -> Lsn {
        Lsn(self.0 + bytes)
    }

    /// Bytes from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The number of a writer's term. A higher epoch fences every lower one; zero means that no writer has
/// started yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The next epoch. It never wraps around: the last one is its own successor, and `EPOCH_MAX` keeps every
    /// claim far below it.
    pub const fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!("{:0", $width, "x}"), self.0)
            }
        }
    };
}

hex_id!(
    /// Identifies one journal for its whole life. It names the journal's owner ([`crate::owner`]).
    JournalId, u128, 32
);
hex_id!(
    /// Identifies one process's opening of a journal; random. Two processes that claim the same epoch, each
    /// with a copy of the journal's directory, differ in it.
    WriterId, u64, 16
);
/// Random bytes that a writer draws for its epoch and stores in the view before the epoch counts. The key
/// that seals the epoch's records is derived from the journal's key and this salt, so a copied or rolled-back
/// directory never seals other bytes under a key and nonce that were used before (rule 21).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpochSalt(pub [u8; EPOCH_SALT_BYTES]);

impl EpochSalt {
    /// No salt: its bytes in a view whose epoch has drawn none.
    pub(crate) const NONE: EpochSalt = EpochSalt([0; EPOCH_SALT_BYTES]);
}

impl fmt::Debug for EpochSalt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "EpochSalt({:032x})", u128::from_be_bytes(self.0))
    }
}

hex_id!(
    /// Identifies one life of a lender's *memory* (not of its process); random, new whenever the memory
    /// starts empty. Acknowledgements of an earlier incarnation never count.
    Incarnation, u64, 16
);
hex_id!(
    /// Identifies the deposits of one process's arena, the same at each of its lenders. It names their owner
    /// ([`crate::owner`]), whose key is drawn when the arena is made. A forked child draws its own.
    DepositId, u128, 32
);

impl DepositId {
    /// The owner's number in the `sender` field of frame headers: the low 64 bits.
    pub fn owner(self) -> u64 {
        self.0 as u64
    }
}
