//! Memory beyond this machine's: which page is where, and what moves when one is referenced.
//!
//! The policies of Markatos, *Using Remote Memory to avoid Disk Thrashing* (MASCOTS'96), section 2, as
//! values: references go in, moves come out. The study counts the moves; a pager carries them out. No cost is
//! known here: what a move takes is the caller's.
//!
//! | policy | a page that is not in local memory | a page for which there is no room |
//! |---|---|---|
//! | [`PolicyKind::Disk`] | is read from the disk | goes to the disk |
//! | [`PolicyKind::RamDisk`] | is fetched whole | goes to remote memory, and when that is full to the disk |
//! | [`PolicyKind::RemoteMain`] | is referenced word by word where it is, and stays there | was put in remote memory at its first reference |
//! | [`PolicyKind::Counters`] | is referenced word by word until its counter is spent, and then fetched whole | goes to remote memory, with a full counter |
//!
//! SOFTWARE_COUNTERS is COUNTERS with a word that costs more.
//!
//! | file | decides |
//! |---|---|
//! | `policy.rs` | the policies |
//! | `moves.rs` | nothing: the words in which they answer |
//! | `frames.rs` | the page to give up: LRU, clock, random, first in first out |
//! | `tally.rs` | how often what happened |

mod frames;
mod moves;
mod policy;
mod tally;

pub use frames::Replacement;
pub(crate) use frames::{ReferenceTimes, ReplacementQueue};
pub use moves::{PageMove, ReferenceOutcome};
pub use policy::PagingPolicy;
pub use tally::PolicyTally;

/// A page, by its number: pages are numbered from 0 without large gaps, for there is a record for each up to
/// the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u32);

/// What a reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The four policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Remote memory is not used.
    Disk,
    /// Remote memory takes whole pages, as a disk would.
    RamDisk,
    /// Remote memory is referenced by words, and pages do not move.
    RemoteMain,
    /// Remote memory is referenced by words, and a page moves after so many.
    Counters {
        /// Words that bring a page home: its counter's initial value. At least 1.
        initial: u32,
    },
}

/// Where a page comes from at its first reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstTouch {
    /// The disk: a program's input is there, as in the paper.
    #[default]
    Disk,
    /// Nowhere: it is zeros, as memory that a program asks for.
    Zeros,
}

/// What a policy is to do, and with how much memory.
#[derive(Clone, Copy, Debug)]
pub struct PolicyConfig {
    /// Which policy.
    pub kind: PolicyKind,
    /// Which page leaves.
    pub replacement: Replacement,
    /// Pages that local memory holds; at least 1.
    pub local_pages: u32,
    /// Pages that remote memory holds.
    pub remote_pages: u32,
    /// What is there before the first reference.
    pub first_touch: FirstTouch,
    /// Whether remote memory keeps a page that was fetched, so that it need not be sent again unless it is
    /// changed. Such copies give way to pages. The paper's pages are always sent.
    pub keep_copies: bool,
    /// For random replacement.
    pub seed: u64,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageLocation {
    /// Nothing has referenced it yet, or it is zeros.
    #[default]
    Nowhere,
    /// In local memory.
    Local,
    /// In remote memory.
    Remote,
    /// On the disk.
    Disk,
}
