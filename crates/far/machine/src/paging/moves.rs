//! Moves of pages, the output of a policy.

use super::Page;

/// A move of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMove {
    /// Read from the disk into local memory.
    Read(Page),
    /// Made of zeros in local memory.
    Zero(Page),
    /// Fetched from remote memory into local memory.
    Fetch(Page),
    /// Read from the disk into remote memory.
    ReadAway(Page),
    /// Made of zeros in remote memory.
    ZeroAway(Page),
    /// Sent from local memory to remote memory.
    Send(Page),
    /// Written from local memory to the disk.
    Write(Page),
    /// Dropped from local memory: the same content is elsewhere, or it is zeros.
    Drop(Page),
    /// Forgotten by remote memory, whose copy of a local page is not needed.
    Forget(Page),
}

impl PageMove {
    /// Whether a page leaves local memory by the move.
    pub fn leaves(self) -> bool {
        matches!(self, PageMove::Send(_) | PageMove::Write(_) | PageMove::Drop(_))
    }
}

/// Result of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceOutcome<'a> {
    /// Served in local memory.
    Local,
    /// Served by one word over the network.
    Word,
    /// Served in local memory, after these moves.
    Moved(&'a [PageMove]),
    /// Served by one word over the network, with these moves. They come first if they only place the page.
    WordAndMoved(&'a [PageMove]),
}
