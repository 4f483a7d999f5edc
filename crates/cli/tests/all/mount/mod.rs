//! `netram mount` with real lenders, real programs and real SIGKILLs: what was synced there is there
//! afterwards. Databases on a mount: `tests/databases`.
//!
//! Where this process may not mount, these tests say so and leave.

mod attached;
mod files;
mod hostile;
mod input;
mod io_uring;
mod kills;
mod limits;
mod metrics;
mod older;
mod posix;
mod power;
mod refusals;
mod successors;
mod terminal;

use crate::common::mounted::{MountFixture, cannot_mount, wait_until};
