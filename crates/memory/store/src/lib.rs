//! A *store*: a log and all files that belong to it, opened as recoverable memory by one path.
//!
//! A journal has a log, a view, a key and a lock ([`netram_journal::JournalPaths`]). A store adds the segment
//! table of recoverable memory and the settings, which name the lenders that hold the newest bytes. The C
//! library, the Python package and `netram rvm` all open stores, so they use the same files and settings.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use netram_store::{JournalLayout, Store};
//!
//! let store = Store::create("bank.log".as_ref(), JournalLayout::Beside, 64 << 20)?;
//! let opened = store.open(&store.settings()?)?; // from bank.log.toml and the environment
//! let accounts = opened.memory.map("bank.data", 0, 0)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`heap`] | a segment with a heap for C programs |
//! | [`store`] | the files: creating and opening them |
//! | [`loader`] | the header page from which C programs get the addresses of a segment's regions |
//! | [`settings`] | the settings: file and environment |
#![forbid(unsafe_code)]

pub mod heap;
pub mod loader;
mod open_store;
pub mod settings;
pub mod store;

pub use netram_journal::JournalLayout;
pub use netram_journal::settings::{JournalSettings, SettingsError};
pub use netram_proto::port::Durability;
pub use netram_rvm::{Region, RestoreMode, RvmCommitError, SegmentAllocation};
pub use open_store::SegmentMapError;
pub use settings::StoreSettings;
pub use store::{JournaledRvm, JournaledTransaction, OpenStore, Store, StoreError};

// Compiles the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;
