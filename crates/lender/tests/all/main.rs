//! A lender with real sockets: journals, deposits, hostile peers, its store.
//!
//! All tests are modules of one program, since each program is linked with everything.

mod clients;
mod common;
mod datagrams;
mod deposit;
mod drain;
mod hostile;
mod kill;
mod noisy;
mod owner;
mod pressure;
mod serve;
mod silent;
mod spill;
mod spill_speed;
mod store;
