//! The NBD server before clients that keep the rules, and before others.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod batches;
mod common;
mod extended;
mod hostile;
mod kernel;
mod requests;
mod tls;
mod tools;
