//! The NBD server, with proper clients and with hostile ones.
//!
//! One test program, because linking each costs time; a module is one scenario or several of a kind.

mod batches;
mod common;
mod extended;
mod hostile;
mod kernel;
mod requests;
mod tls;
mod tls_clients;
mod tools;
