//! Processes that share the files of one database, and whose syncs a journal makes durable before the disk
//! does.
//!
//! All of it decides and nothing acts: the disk, the other processes and the journals are traits.
//! `crates/files/sqlite` is the driver, with real files, locks and lenders; the simulator is another one
//! (`docs/simulator.md`).
//!
//! | module | does |
//! |---|---|
//! | [`Party`] | one process of those that have a database open: what it writes is recorded when it is synced |
//! | [`Seats`] | the journals of a database, of which a process takes a free one |
//! | [`Ledger`] | what those processes know of each other |
//! | [`recover()`] | the journals' way into the files, after the machine has crashed |
//! | [`Change`] | the format |
//! | [`Beneath`] | what is needed of the disk |
//!
//! `docs/sqlite.md` says why nothing is lost.
#![forbid(unsafe_code)]

mod beneath;
pub mod change;
mod ledger;
pub mod limit;
mod merge;
mod party;
mod recover;
mod seats;

pub use beneath::Beneath;
pub use change::{Change, DecodeError, Deed, Role};
pub use ledger::{Ledger, SLOTS, WORDS, Words};
pub use party::{Contents, Counts, Party, PartyError, Synced};
pub use recover::{RecoverError, Recovered, recover};
pub use seats::{SeatError, Seats};
