//! What a policy answers: pages that move.

use super::Page;

/// A page moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMove {
    /// From the disk into local memory.
    Read(Page),
    /// Zeros, into local memory.
    Zero(Page),
    /// From remote memory into local memory.
    Fetch(Page),
    /// From the disk into remote memory.
    ReadAway(Page),
    /// Zeros, into remote memory.
    ZeroAway(Page),
    /// From local memory to remote memory.
    Send(Page),
    /// From local memory to the disk.
    Write(Page),
    /// Out of local memory: what it is stands elsewhere, or it is zeros.
    Drop(Page),
    /// Remote memory need not keep its copy of a page that is in local memory.
    Forget(Page),
}

impl PageMove {
    /// Whether a page leaves local memory by it.
    pub fn leaves(self) -> bool {
        matches!(self, PageMove::Send(_) | PageMove::Write(_) | PageMove::Drop(_))
    }
}

/// How a reference was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceOutcome<'a> {
    /// In local memory.
    Local,
    /// By one word over the network.
    Word,
    /// In local memory, after these moves.
    Moved(&'a [PageMove]),
    /// By one word over the network; and these moves are to be done, before it if the page is only placed by
    /// them.
    WordAndMoved(&'a [PageMove]),
}
