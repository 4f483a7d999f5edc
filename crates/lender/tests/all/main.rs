//! A lender with real sockets: journals, deposits, strangers, its store.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod common;
mod datagrams;
mod deposit;
mod hostile;
mod kill;
mod pressure;
mod serve;
mod store;
