//! librvm: the C interface of recoverable virtual memory, compatible with programs of the original.
//!
//! The headers in `include/rvm` are the manual. The module `abi` has the functions that C calls: it checks
//! pointers, copies records, and lets nothing unwind into C. Everything else is safe Rust over
//! `netram-store`:
//!
//! | module | does |
//! |---|---|
//! | `abi` | the exported functions; the crate's only unsafe code |
//! | `library` | the one library of a process, from initialise to terminate |
//! | `log` | naming, creating and opening the log |
//! | `mapping` | regions: mapping and unmapping |
//! | `regions` | finding the region of an address |
//! | `registered_pages` | memory of the program that regions may replace |
//! | `transactions` | open transactions, found by the handle in a `rvm_tid_t` |
//! | `slots` | the table of objects that C has handles of |
//! | `segment` | the segment loader |
//! | `nodes` | shared regions: nodes, their transactions and readers |
//! | `far` | far memory and its allocations |
//! | `rds` | the persistent heap of `rds.h` |
//! | `statistics` | counters and their record |
//! | `record`, `code`, `failure` | layouts; return codes; errors and their messages |
//!
//! As in the original a process has one library, `library::LIBRARY`. `rds.h` builds on it.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod abi;
mod code;
mod failure;
mod far;
mod library;
mod log;
mod mapping;
mod nodes;
mod rds;
mod record;
mod regions;
mod registered_pages;
mod segment;
mod slots;
mod statistics;
mod transactions;

/// Locks and ignores poisoning: data behind these locks is changed in single steps.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
