//! Calls of a client's programs. They are sequential code that runs the world while they wait.
//!
//! | file | idea |
//! |---|---|
//! | `open.rs` | opening a journal: claim, scan, recover, assemble, release |
//! | `log.rs` | calls on an open journal: append, wait, trim, read |

mod log;
mod open;

pub use log::SimLog;
pub(crate) use open::{ALL_MEMBERS_WAIT, RECOVERY_TIMEOUT};
