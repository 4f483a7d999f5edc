//! A program's memory of which a part is elsewhere: what a fault gets, which frame leaves, what comes ahead.
//!
//! An [`ArenaMachine`] is a value. What happened: [`fault`](ArenaMachine::fault),
//! [`want`](ArenaMachine::want), [`came`](ArenaMachine::came), [`held`](ArenaMachine::staged),
//! [`hid`](ArenaMachine::hid), [`sent`](ArenaMachine::sent), [`packed`](ArenaMachine::packed),
//! [`passed`](ArenaMachine::passed), [`dropped`](ArenaMachine::dropped), [`lost`](ArenaMachine::lost),
//! [`discard`](ArenaMachine::discard), [`stashing`](ArenaMachine::stashing). What to do: what these return,
//! [`work`](ArenaMachine::work), [`next_ahead`](ArenaMachine::next_ahead),
//! [`next_starved`](ArenaMachine::next_starved). It asks for moves, and is told when each is done; a page
//! that moves is its mover's alone until then.
//!
//! ```text
//!   nowhere --zeros--> coming ----------------> here --> hiding --> hidden --> leaving --> away
//!   (zeros)              ^                       ^                    |         | |      ^    |
//!                        |                       +------ showing <----+---------+ |      |    |
//!                        +---- unpacked ----------------------------- packed <----+      |    |
//!                        |                                               +---> passing --+    |
//!                        +------------------------- fetched ----------------------------------+
//! ```
//!
//! A page that is *hidden* is still here, in a *berth*: memory that the program does not see. Its next
//! reference is a fault that costs no link, and so the only sign of use that is to be had for nothing: this
//! is the second chance of pages that are to leave.
//!
//! | file | decides |
//! |---|---|
//! | `pages.rs` | where each page is, and what becomes of it next |
//! | `leaving.rs` | what eviction does: which pages are hidden, which leave |
//! | `pack.rs` | which pages stay here compressed, and whether to try |
//! | `saving.rs` | whether packing is worth it |
//! | `ages.rs` | which of what is packed or patched is the oldest |
//! | `marks.rs` | when it begins and ends |
//! | `ahead.rs` | what comes before anybody waits for it |
//! | `trend.rs` | which pages a thread will want |
//! | `words.rs` | whether words of a page that is away are fetched, or the page |
//! | `patches.rs` | what was written to a page that is away, and when that page comes for it |
//! | `worth.rs` | how many words are worth a page |
//!
//! What it never does: count a page as away before whoever sends it has said so, give one page to two movers,
//! or bring back what the program has thrown away. *Not here*: where pages are at lenders, and whether they
//! are lost (`deposit`); which system call does a move.

mod compressed_pool;
mod compression_model;
mod cost_model;
mod eviction;
mod insertion_order;
mod pages;
mod patches;
mod prefetch;
mod staging;
mod trend;
mod watermarks;
mod words;

pub use crate::paging::{Page, Replacement};
pub use compressed_pool::CompressionBackoff;
pub use cost_model::CostModel;
pub use pages::{ArenaMachine, ArenaTally};
pub use patches::PagePatch;
pub use words::WordSource;

/// What an arena is to be.
#[derive(Clone, Copy, Debug)]
pub struct ArenaSettings {
    /// The cap: pages in local memory, for whatever reason. At least
    /// [`ARENA_FRAMES_MIN`](crate::limit::ARENA_FRAMES_MIN).
    pub frames: u32,
    /// Of these, pages that are hidden for a while before they leave; at most half. 0: a page leaves as soon
    /// as it is chosen.
    pub inactive: u32,
    /// Of the cap, what pages may take that stay here compressed, while that spares more than it costs; with
    /// those that are hidden at most three quarters. 0: none do.
    pub pack: u32,
    /// Pages are packed whatever that spares.
    pub packs_always: bool,
    /// Of the cap, what may be taken by words that were written to pages that are away; with what is hidden
    /// and packed at most three quarters. 0: the page comes to be written.
    pub patched: u32,
    /// Pages come before anybody waits for them, where a thread's faults tell which ([`ArenaMachine::note`]).
    pub looks_ahead: bool,
    /// Which page is chosen. Of references it knows what faults tell: when a page came, or was shown again.
    pub replacement: Replacement,
    /// For random replacement.
    pub seed: u64,
}

/// A place for a page that the program does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StagingFrame(pub u32);

/// What a fault gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Nothing: the page is in sight.
    Resident,
    /// Zeros, unless it is in sight after all. Then [`ArenaMachine::arrive`].
    Check,
    /// Nothing: it is on its way, and who brings it wakes all.
    Wait,
    /// Nothing yet: no frame is free. [`ArenaMachine::next_starved`] will name the page.
    Starved,
    /// Zeros. Then [`ArenaMachine::arrive`].
    Zero,
    /// The page of this berth. Then [`ArenaMachine::arrive`].
    Activate(StagingFrame),
    /// The page from the depot. Then [`ArenaMachine::arrive`], or [`ArenaMachine::lost`].
    Fetch,
    /// The page out of the pack. Then [`ArenaMachine::arrive`].
    Unpack,
    /// A bus error: the page is lost.
    Lost,
}

/// What is to be put into the program's sight, when it is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalAction {
    /// What was brought. Then [`ArenaMachine::came`].
    Bytes,
    /// Zeros: the program has thrown the page away meanwhile. What was brought is dropped, and the depot is
    /// to forget the page, before anything else is asked here. Then [`ArenaMachine::came`].
    Zeros,
    /// Nothing: it goes into this berth. Then [`ArenaMachine::staged`].
    Stage(StagingFrame),
}

/// What is to be done after a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveFollowUp {
    /// Nothing.
    Done,
    /// Whoever waits for the page is to be woken: it never left.
    Wake,
    /// Somebody waits: it comes as zeros, by [`ArenaMachine::arrive`].
    Zero,
    /// Somebody waits: it comes from its berth, by [`ArenaMachine::arrive`].
    Activate(StagingFrame),
    /// The berth is to be emptied. Then [`ArenaMachine::dropped`].
    Drop(StagingFrame),
    /// The same, and the depot is to forget the page, before anything else is asked here.
    Forget(StagingFrame),
    /// The depot is to forget the page, before anything else is asked here.
    Abandon,
}

/// What is to become of a page that the program has thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardActions {
    /// The depot is to forget it, before anything else is asked here.
    pub forget: bool,
    /// It is in the pack, and is to be dropped there.
    pub packed: bool,
    /// This berth is to be emptied. Then [`ArenaMachine::dropped`].
    pub drop: Option<StagingFrame>,
}

/// What eviction is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionWork {
    /// Take these out of sight, into berths. Then [`ArenaMachine::hid`] for each.
    Deactivate(alloc::vec::Vec<(Page, StagingFrame)>),
    /// Give these to the depot, or keep them compressed. Then [`ArenaMachine::sent`] or
    /// [`ArenaMachine::packed`] for each.
    Send(alloc::vec::Vec<(Page, StagingFrame)>),
    /// Give these to the depot as they are in the pack. Then [`ArenaMachine::passed`] for each.
    Pass(alloc::vec::Vec<Page>),
}
