//! A program's memory of which a part is remote: how a fault is served, which page is evicted, what is
//! prefetched.
//!
//! An [`ArenaMachine`] is a value. Its methods come in two kinds:
//!
//! - events: [`fault`](ArenaMachine::fault), [`want`](ArenaMachine::want), [`came`](ArenaMachine::came),
//!   [`staged`](ArenaMachine::staged), [`deactivated`](ArenaMachine::deactivated),
//!   [`sent`](ArenaMachine::sent), [`packed`](ArenaMachine::packed), [`passed`](ArenaMachine::passed),
//!   [`dropped`](ArenaMachine::dropped), [`lost`](ArenaMachine::lost), [`discard`](ArenaMachine::discard),
//!   [`stashing`](ArenaMachine::stashing);
//! - what to do: the results of these, and [`work`](ArenaMachine::work),
//!   [`next_ahead`](ArenaMachine::next_ahead), [`next_starved`](ArenaMachine::next_starved).
//!
//! It requests moves and is told when each is done. A page in motion belongs to its mover alone until then.
//!
//! ```text
//!   blank ----zeros---> arriving --------> resident --> deactivating --> inactive --> evicting --> remote
//!                          ^                  ^                             |           |  |  ^      |
//!                          |                  +-------- activating <--------+-----------+  |  |      |
//!                          +---- unpacked ------------------------------ packed <----------+  |      |
//!                          |                                               +----> passing ----+      |
//!                          +------------------------- fetched ---------------------------------------+
//! ```
//!
//! An *inactive* page is still in local memory, in a *staging frame* that the program does not see. Its next
//! reference is a fault without network cost. That fault is the only sign of use that costs nothing
//! otherwise, and gives pages about to be evicted a second chance.
//!
//! | file | decides |
//! |---|---|
//! | `pages.rs` | where each page is, and what becomes of it next |
//! | `eviction.rs` | which pages are deactivated, and which are evicted |
//! | `staging.rs` | which staging frame a page gets |
//! | `compressed_pool.rs` | which pages stay in local memory compressed, and whether to try |
//! | `compression_model.rs` | whether packing pays |
//! | `insertion_order.rs` | which packed or patched page is the oldest |
//! | `watermarks.rs` | when eviction begins and ends |
//! | `prefetch.rs` | which pages are fetched before a thread waits for them |
//! | `trend.rs` | which pages a thread will reference next |
//! | `words.rs` | whether words of a remote page are fetched, or the page |
//! | `patches.rs` | what was written to a remote page, and when that page is fetched for it |
//! | `cost_model.rs` | how many words cost as much as a page |
//!
//! Invariants: a page counts as remote only when its sender has said so; a page has one mover at a time;
//! discarded content never comes back. *Not here*: where pages are at lenders and whether they are lost
//! (`deposit`), and which system call makes a move.

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

/// Settings of an arena.
#[derive(Clone, Copy, Debug)]
pub struct ArenaSettings {
    /// The cap: frames of local memory in use for any purpose. At least
    /// [`ARENA_FRAMES_MIN`](crate::limit::ARENA_FRAMES_MIN).
    pub frames: u32,
    /// Part of the cap for inactive pages, at most half. 0: a page is evicted as soon as it is chosen.
    pub inactive: u32,
    /// Part of the cap for packed pages, used while packing saves more than it costs. 0: none. With
    /// `inactive` at most three quarters of the cap.
    pub pack: u32,
    /// Packs pages whatever that saves.
    pub packs_always: bool,
    /// Part of the cap for patches: words written to remote pages. 0: a page is fetched to be written. With
    /// `inactive` and `pack` at most three quarters of the cap.
    pub patched: u32,
    /// Prefetches pages along the streams of a thread's faults ([`ArenaMachine::note`]).
    pub looks_ahead: bool,
    /// Replacement policy. It sees only faults: when a page arrived or was activated.
    pub replacement: Replacement,
    /// Seed of random replacement.
    pub seed: u64,
}

/// Number of a frame for an inactive page, which the program does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StagingFrame(pub u32);

/// Action that serves a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// None: the page is resident.
    Resident,
    /// Map zeros unless the page is mapped already. Then [`ArenaMachine::arrive`].
    Check,
    /// None: the page is arriving, and its mover wakes all waiters.
    Wait,
    /// None yet: no frame is free. [`ArenaMachine::next_starved`] will return the page.
    Starved,
    /// Map zeros. Then [`ArenaMachine::arrive`].
    Zero,
    /// Map the page of this staging frame. Then [`ArenaMachine::arrive`].
    Activate(StagingFrame),
    /// Fetch the page from a lender. Then [`ArenaMachine::arrive`] or [`ArenaMachine::lost`].
    Fetch,
    /// Decompress the page from the pack. Then [`ArenaMachine::arrive`].
    Unpack,
    /// Raise a bus error: the page is lost.
    Lost,
}

/// Content to map for an arrived page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalAction {
    /// Map the bytes that arrived. Then [`ArenaMachine::came`].
    Bytes,
    /// Map zeros, because the program has discarded the page meanwhile. First drop the arrived bytes and have
    /// the page client forget the page. Then [`ArenaMachine::came`].
    Zeros,
    /// Map nothing; put the page into this staging frame. Then [`ArenaMachine::staged`].
    Stage(StagingFrame),
}

/// Action after a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveFollowUp {
    /// None.
    Done,
    /// Wake the threads that wait for the page: it never left.
    Wake,
    /// A thread waits: map zeros through [`ArenaMachine::arrive`].
    Zero,
    /// A thread waits: map the page from this staging frame through [`ArenaMachine::arrive`].
    Activate(StagingFrame),
    /// Empty the staging frame. Then [`ArenaMachine::dropped`].
    Drop(StagingFrame),
    /// As `Drop`; but first have the page client forget the page.
    Forget(StagingFrame),
    /// Have the page client forget the page, before any other call here.
    Abandon,
}

/// Actions for a discarded page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardActions {
    /// Have the page client forget it, before any other call here.
    pub forget: bool,
    /// Drop its packed bytes.
    pub packed: bool,
    /// Empty this staging frame. Then [`ArenaMachine::dropped`].
    pub drop: Option<StagingFrame>,
}

/// Eviction work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionWork {
    /// Move these pages to staging frames. Then [`ArenaMachine::deactivated`] for each.
    Deactivate(alloc::vec::Vec<(Page, StagingFrame)>),
    /// Hand these pages to the page client or compress them. Then [`ArenaMachine::sent`] or
    /// [`ArenaMachine::packed`] for each.
    Send(alloc::vec::Vec<(Page, StagingFrame)>),
    /// Hand these packed pages to the page client. Then [`ArenaMachine::passed`] for each.
    Pass(alloc::vec::Vec<Page>),
}
