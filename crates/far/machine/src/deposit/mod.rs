//! Pages of one machine's arena in other machines' memory.
//!
//! An *owner* keeps what its arena has no room for in *deposits*: numbered slots of a page each, in the
//! memory of lenders. A page has a *version* each time that it leaves, never the same twice; a slot has what
//! was put there last and the version of that. Whoever asks names slot and version, so that what comes back
//! is what left, or nothing.
//!
//! | file | decides |
//! |---|---|
//! | `server.rs` | a lender's side of one deposit: who may speak for it, its slots, what is in them, when it ends |
//! | `depot/mod.rs` | an owner's side: in which slots of which lenders each page is, what is asked of whom |
//! | `depot/lender.rs` | one lender, as its owner sees it: link, slots, what is on the way |
//! | `depot/slots.rs` | its slots: which are free, and which it wants back |
//! | `depot/back.rs` | pages that leave slots which a lender wants back |
//! | `depot/route.rs` | of whom a page is asked, and of whom else when he is late |
//! | `depot/trip.rs` | when a lender is late |
//! | `depot/mend.rs` | pages that have fewer places than they should |
//! | `spill.rs` | the spill file's side: a deposit on this machine's own disk |
//! | `shelf.rs` | a depot with the bytes aside, and with who waits for what: all of an owner but its sockets |
//! | `depot/words.rs` | blocks of pages that stay where they are |
//! | `depot/request.rs` | what came of blocks that were asked for |
//! | `unproven.rs` | which of the blocks that were given a page proves when it comes home |
//! | `pressure.rs` | how much a lender whose machine is short of memory lends, and what it asks of whom |
//! | `pages.rs`, `words.rs` | pages, and blocks of pages, in the bodies of frames |
//!
//! *Not here*: what is in a page. The owner seals it under its version before it leaves, and opens it when it
//! is back ([`Seals`]); a lender that gives other bytes is found by that, and named to [`Depot::damaged`].

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
pub use pressure::{MemoryPressure, MemoryReading, PressureSettings, level, slots_to_keep};
pub use server::{DepositReply, DepositServer, NoSlotsError, SlotMemory};
pub use spill::{SlotFile, SpillServer};
pub use unverified::{BlockMac, SealedBlock};

/// Some of an owner's lenders, by their numbers. The spill file has the number behind the last one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LenderSet(pub u32);

impl LenderSet {
    /// Adds a lender.
    pub fn insert(&mut self, lender: usize) {
        self.0 |= 1 << lender;
    }

    /// Takes a lender out.
    pub fn remove(&mut self, lender: usize) {
        self.0 &= !(1 << lender);
    }

    /// Whether a lender is among them.
    pub fn contains(self, lender: usize) -> bool {
        self.0 >> lender & 1 == 1
    }

    /// Whether nobody is among them.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those among them, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |lender| self.contains(*lender))
    }
}
