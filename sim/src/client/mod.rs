//! Calls of a client's programs. They are sequential code that runs the world while they wait.
//!
//! | file | idea |
//! |---|---|
//! | `open.rs` | opening a journal: claim, scan, recover, assemble, release |
//! | `log.rs` | calls on an open journal: append, wait, trim, read |

pub(crate) mod log;
pub(crate) mod open;

pub use log::SimLog;
pub(crate) use log::{append, read, trim, wait};
pub(crate) use open::{ALL_MEMBERS_WAIT, RECOVERY_TIMEOUT};
pub(crate) use open::{ask_members, open, proven_on};
