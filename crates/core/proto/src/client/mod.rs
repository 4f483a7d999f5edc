//! Clients of a server that have names: what each may have of it, and what it has.
//!
//! The keys that prove a name are another matter (`netram-clients`).

mod account;
mod book;
mod limits;

pub use account::{ClientAccount, ClientUsage, OverLimit, ResourceCharge};
pub use book::ClientBook;
pub use limits::{ClientLimits, ServerTotals};
