//! A store: a log's directory and all files that belong to it.
//!
//! One program, because linking each separately is slow; each module tests one topic.

mod copies;
mod lifecycle;
mod making;
mod spool;
mod two_processes;
