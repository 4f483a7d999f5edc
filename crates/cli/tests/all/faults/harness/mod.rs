//! Building blocks of the fault tests: a directory for files, lender and client processes, and faults.

pub(crate) mod client;
pub(crate) mod disk;
pub(crate) mod fixture;
pub(crate) mod lender;
pub(crate) mod network;
pub(crate) mod process;
pub(crate) mod random;

pub(crate) use client::{ClientProcess, FaultsClient};
pub(crate) use fixture::{FaultsFixture, skipped};
pub(crate) use lender::FaultsLender;

/// A disk so slow that for the length of a test only lenders hold what is acknowledged.
pub(crate) const DISK_NEVER_MS: u64 = 600_000;
