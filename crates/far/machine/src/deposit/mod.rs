//! Remote pages: pages of one machine's arena in other machines' memory.
//!
//! An *owner* keeps what its arena has no room for in *deposits*: numbered slots of a page each, in the
//! memory of lenders. A page gets a new *version* each time it leaves. A slot holds the bytes stored last,
//! with their version. A request names slot and version, so the answer is exactly what left, or nothing.
//!
//! | file | decides |
//! |---|---|
//! | `server.rs` | a lender's side of one deposit: its session, its slots and their versions, its end |
//! | `directory/mod.rs` | an owner's side: in which lenders' slots each page is, what is asked of whom |
//! | `directory/lender.rs` | one lender, as its owner sees it: link, slots, frames in flight |
//! | `directory/slots.rs` | a deposit's slots: which are free, which the lender wants back |
//! | `directory/reclaim.rs` | pages that move out of slots which a lender wants back |
//! | `directory/route.rs` | which lender is asked for a page, and which other one if it is late |
//! | `directory/rtt.rs` | when a lender is late |
//! | `directory/repair.rs` | pages with too few copies |
//! | `directory/gather.rs` | blocks of pages that stay remote |
//! | `directory/request.rs` | results of requests for blocks |
//! | `directory/status.rs` | figures for monitoring and tests |
//! | `spill.rs` | the spill file's side: a deposit on the owner's own disk |
//! | `client.rs` | an owner without its sockets: directory, pending and arrived bytes, waiters |
//! | `unverified.rs` | MACs of blocks that are verified when their page arrives |
//! | `pressure.rs` | how much a lender lends when its machine is short of memory, and what it asks back |
//! | `pages.rs`, `blocks.rs` | pages, and blocks of pages, in the bodies of frames |
//!
//! *Not here*: the content of a page. The owner seals it under its version before it leaves and opens it when
//! it is back ([`PageSeal`]). A lender that returns other bytes is found by that, and reported to
//! [`PageDirectory::damaged`].

mod blocks;
mod client;
mod directory;
mod pages;
mod pressure;
mod server;
mod spill;
mod unverified;

pub use crate::paging::Page;
pub use blocks::{BlockRequest, BlockRunsError, write_run};
pub use client::{DepositFrame, FrameEffects, LenderViolation, PageLookup, PageSeal, RemotePageClient};
pub use directory::{
    ArrivedPage, DepositCommand, DepositLenderStatus, DirectoryEvent, DirectoryLookup, DirectorySettings,
    GatherOutcome, GatherResult, GatherTicket, GatheredBlocks, MisconductError, PageDirectory,
    PageDirectoryStatus, PagePurpose, SlotPage,
};
pub use pages::{FramePages, PageFrameError, SlotRequest, StoredPage, page_header};
pub use pressure::{MemoryPressure, MemoryReading, PressureSettings, deposits_limit, level, slots_to_keep};
pub use server::{DepositReply, DepositServer, NoSlotsError, SlotMemory};
pub use spill::{SlotFile, SpillServer};
pub use unverified::{BlockMac, SealedBlock};

/// A set of an owner's lenders, by index. The spill file has the highest index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LenderSet(pub u32);

impl LenderSet {
    /// Adds a lender.
    pub fn insert(&mut self, lender: usize) {
        self.0 |= 1 << lender;
    }

    /// Removes a lender.
    pub fn remove(&mut self, lender: usize) {
        self.0 &= !(1 << lender);
    }

    /// Whether a lender is in the set.
    pub fn contains(self, lender: usize) -> bool {
        self.0 >> lender & 1 == 1
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lenders in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |lender| self.contains(*lender))
    }
}
