//! Paging policies: which page is where, and what moves when one is referenced.
//!
//! These are the policies of Markatos, *Using Remote Memory to avoid Disk Thrashing* (MASCOTS'96), section 2,
//! as values: references go in, moves come out. The study counts the moves; a pager carries them out. Costs
//! are not modelled here.
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
//! | `moves.rs` | the types in which they answer |
//! | `frames/mod.rs`, `frames/duel.rs` | the page to give up: LRU, clock, random, FIFO, dueling |
//! | `tally.rs` | counters of events |

mod frames;
mod moves;
mod policy;
mod tally;

pub use frames::Replacement;
pub(crate) use frames::{ReferenceTimes, ReplacementQueue};
pub use moves::{PageMove, ReferenceOutcome};
pub use policy::PagingPolicy;
pub use tally::PolicyTally;

/// Number of a page. Pages are numbered from 0 without large gaps, because there is a record for each up to
/// the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u32);

/// Kind of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// A read.
    Read,
    /// A write.
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
    /// Remote memory is referenced by words, and a page moves after a number of them.
    Counters {
        /// Initial value of a page's counter: the number of words after which it is fetched. At least 1.
        initial: u32,
    },
}

/// Source of a page at its first reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstTouch {
    /// The disk, which holds a program's input, as in the paper.
    #[default]
    Disk,
    /// Zeros, as for memory that a program allocates.
    Zeros,
}

/// Settings of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyConfig {
    /// Policy.
    pub kind: PolicyKind,
    /// Replacement policy of local memory.
    pub replacement: Replacement,
    /// Pages that local memory holds; at least 1.
    pub local_pages: u32,
    /// Pages that remote memory holds.
    pub remote_pages: u32,
    /// Source of a page at its first reference.
    pub first_touch: FirstTouch,
    /// Whether remote memory keeps a copy of a fetched page, which then need not be sent again unless it
    /// changes. Copies give way to pages. The paper's pages are always sent.
    pub keep_copies: bool,
    /// Seed of random replacement.
    pub seed: u64,
}

/// Location of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageLocation {
    /// Not referenced yet, or zeros.
    #[default]
    Nowhere,
    /// In local memory.
    Local,
    /// In remote memory.
    Remote,
    /// On the disk.
    Disk,
}
