//! Numbers that name things. Each is a type, so that none is taken for another.

use core::fmt;

/// A byte position in a journal's endless log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position `bytes` further on. The log is endless: 2^64 bytes are never reached.
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

/// The number of a writer's reign. A higher one fences the lower. Zero: nobody has reigned yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The reign after this one.
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
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
    /// Names one journal for ever; random, chosen when the journal is created.
    JournalId, u128, 32
);
hex_id!(
    /// Names one process's reign over a journal; random, so that two openings that both claim the same
    /// epoch (a copied journal directory) are told apart.
    WriterId, u64, 16
);
hex_id!(
    /// Names one life of a lender's *memory* (not of its process): random, new whenever the memory starts
    /// empty. Acknowledgements of an earlier incarnation never count.
    Incarnation, u64, 16
);
hex_id!(
    /// Names the deposits of one process's arena, the same at each of its lenders; random, drawn when the
    /// arena is made, and by a child anew.
    DepositId, u128, 32
);

impl DepositId {
    /// Who its owner is in the headers of frames.
    pub fn owner(self) -> u64 {
        self.0 as u64
    }
}
