//! librvm: the C interface of recoverable virtual memory, as programs of the original know it.
//!
//! The headers in `include/rvm` are the manual. What C sees is in `abi`, thin: it checks pointers, copies
//! records, lets nothing unwind into C. Everything else is safe Rust over `netram-store`:
//!
//! | module | does |
//! |---|---|
//! | `abi` | the exported functions; the crate's only unsafe code |
//! | `library` | the one library of a process: from initialise to terminate |
//! | `log` | naming, making and opening the log |
//! | `mapping` | regions: mapping and unmapping |
//! | `regions` | which region an address is in |
//! | `registered_pages` | memory of the program's own that regions may replace |
//! | `transactions` | open transactions, by the handle that a `rvm_tid_t` carries |
//! | `slots` | what C holds handles of |
//! | `segment` | the segment loader |
//! | `nodes` | shared regions: nodes, their transactions and readers |
//! | `far` | far memory, and what was given of it |
//! | `rds` | the persistent heap of `rds.h` |
//! | `statistics` | counts, and their record |
//! | `record`, `code`, `failure` | layouts; return codes; errors and their sentences |
//!
//! A process has one library, as in the original: `library::LIBRARY`. It is what `rds.h` builds on.
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

/// Locks, whoever panicked before: what is behind these locks is changed in single steps.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
