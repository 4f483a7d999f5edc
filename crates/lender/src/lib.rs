//! The lender: a daemon that lends RAM to journals on other machines.
#![deny(unsafe_code)]

mod error;
pub mod limit;
mod memory;
mod slot;
mod store;
mod superblock;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;

pub use error::{StartError, StoreError};
pub use memory::JournalMemory;
pub use store::{Kept, Origin, Store, StoreConfig};
