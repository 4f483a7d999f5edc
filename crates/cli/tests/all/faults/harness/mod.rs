//! What a story of faults is told with: a place for its files, lender and client processes, and faults.

pub(crate) mod client;
pub(crate) mod disk;
pub(crate) mod lender;
pub(crate) mod network;
pub(crate) mod place;
pub(crate) mod process;
pub(crate) mod random;

pub(crate) use client::{Client, Running};
pub(crate) use lender::Lender;
pub(crate) use place::{Place, skipped};
