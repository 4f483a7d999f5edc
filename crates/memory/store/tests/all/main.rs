//! A log's directory and all that belongs to it.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod copies;
mod home;
mod making;
mod spool;
mod two_processes;
