//! A *home*: a log with all that belongs to it, opened as recoverable memory by one path.
//!
//! A journal has a log, a view, a key and a lock ([`netram_journal::Place`]); recoverable memory over it has
//! a segment table; and somebody has to say which lenders hold the newest bytes. What opens recoverable
//! memory for a person or for a program in another language (the C library, the Python package, `netram rvm`)
//! opens a home, so that all of them find the same files and the same settings.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use netram_store::{Home, Layout};
//!
//! let home = Home::create("bank.log".as_ref(), Layout::Beside, 64 << 20)?;
//! let opened = home.open(&home.settings()?)?; // bank.log.toml, and the environment over it
//! let accounts = opened.memory.map("bank.data", 0, 0)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`durable`] | files that are there whole or not at all |
//! | [`heap`] | a segment with a heap for C programs |
//! | [`store`] | the files: creating, opening |
//! | [`loader`] | the page by which C programs find a segment's regions and their addresses |
//! | [`settings`] | the settings: file, environment, what they mean |
#![forbid(unsafe_code)]

pub mod durable;
pub mod heap;
pub mod loader;
pub mod settings;
pub mod store;

pub use netram_journal::JournalLayout;
pub use netram_proto::port::Durability;
pub use netram_rvm::{Region, RestoreMode, RvmCommitError, SegmentAllocation};
pub use settings::{StoreSettings, StoreSettingsError};
pub use store::{JournaledRvm, JournaledTransaction, OpenStore, Store, StoreError};

// The README's program compiles, or a test fails.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;
