//! Measurements of netram, each taken beside its floor in the same run.
//!
//! A commit's latency means nothing by itself. It is compared with a bare exchange of the same bytes over the
//! same kind of socket on the same cores, and with `fdatasync` on the same disk. Their rounds alternate, and
//! results are medians over rounds, so that a disturbance hits both or neither.
//!
//! | module | measures |
//! |---|---|
//! | [`commit`] | one commit: latency and throughput by size, members, durability, threads |
//! | [`tpca`] | TPC-A on recoverable memory, disk or remote |
//! | [`share`] | one lender with one to eight clients |
//! | [`paper`] | the experiments of TR-190, all figures |
//! | [`volume`] | a volume over NBD, beside an empty server and a plain file |
//! | [`lnd`] | the experiments of LND: block devices, file systems, a database |
//! | [`mascots96`] | the study of paging policies: figures 1 to 4, and today's machines |
//! | [`osdi94`] | the experiments of log-based coherency: pages and updates |
//! | [`heap`] | the persistent heap beside malloc, and under a long load |
//! | [`oo7`] | OO7, the benchmark of object databases, on a persistent heap |
//! | [`sql_stores`] | OO7 in SQLite and Berkeley DB, with files on a disk and on remote memory |
//! | [`zeo`] | ZODB with ZEO: OO7's traversals between two clients of a server |
//! | [`shared`] | nodes of a shared region: an update's delivery, kept locks, followers, deaths |
//! | [`far`] | far memory beside swap, compressed memory and a mapped file |
//! | [`databases`] | common databases with their log on a mount, on a volume, or unchanged |
//! | [`peers`] | a commit and a block write beside other programs that store or replicate |
//! | [`failures`] | a volume under a file system, through every failure of LND's Table 1 |
//! | [`figures`] | the scoreboard: every figure with a bound |
//! | [`echo`], [`disk`] | the floors |
//! | [`delay`], [`slow_disk`] | a longer wire, a slower disk |
//! | [`testbed`], [`child`], [`roles`], [`cleanup`] | lenders and other processes, and removal of everything that they
//! leave |
//! | [`curves`] | points of a figure, and the order in which they are measured |
//! | `plot` | figures as pictures: SVG and PNG |
//! | [`progress`] | progress messages of an experiment |
//! | [`histogram`], [`machine`] | percentiles, cores, load, processor time |
//!
//! Only child processes print: they announce on standard output where they listen. Results are values that
//! the command line prints.
#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "experiments"),
    allow(
        dead_code,
        reason = "the demo needs less of what it shares with the experiments"
    )
)]

#[cfg(feature = "experiments")]
mod bench_mount;
#[cfg(feature = "experiments")]
pub mod bound;
pub mod child;
pub mod cleanup;
#[cfg(feature = "experiments")]
mod client_disk;
pub mod commit;
#[cfg(feature = "experiments")]
pub mod curves;
#[cfg(feature = "experiments")]
pub mod databases;
pub mod delay;
#[cfg(feature = "experiments")]
pub mod device;
pub mod disk;
pub mod echo;
#[cfg(feature = "experiments")]
pub mod empty_file;
pub mod error;
#[cfg(feature = "experiments")]
pub mod failures;
#[cfg(feature = "experiments")]
pub mod far;
#[cfg(feature = "experiments")]
pub mod figures;
#[cfg(feature = "experiments")]
pub mod heap;
pub mod histogram;
#[cfg(feature = "experiments")]
pub mod lnd;
pub mod machine;
#[cfg(feature = "experiments")]
pub mod mascots96;
pub mod namespaces;
#[cfg(feature = "experiments")]
pub mod oo7;
#[cfg(feature = "experiments")]
pub mod osdi94;
#[cfg(feature = "experiments")]
pub mod paper;
#[cfg(feature = "experiments")]
pub mod peers;
#[cfg(feature = "experiments")]
mod plot;
#[cfg(feature = "experiments")]
pub mod progress;
pub mod roles;
#[cfg(feature = "experiments")]
pub mod share;
#[cfg(feature = "experiments")]
pub mod shared;
#[cfg(feature = "experiments")]
pub mod slow_disk;
mod socket;
#[cfg(feature = "experiments")]
pub mod sql_stores;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;
pub mod testbed;
mod tool;
pub mod tpca;
#[cfg(feature = "experiments")]
pub mod volume;
pub mod worker;
#[cfg(feature = "experiments")]
pub mod zeo;

pub use error::BenchError;
pub use sys::{AllocationCounts, CountingAllocator, count_allocations};

use error::ErrorContext;

/// Prints a line on standard output for the process that started this child.
pub(crate) fn say(line: &str) -> Result<(), BenchError> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("tell the starter")
}
