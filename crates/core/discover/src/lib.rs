//! Internal to netram: programs use the crate `netram`.
//!
//! How a client finds lenders that no settings name: by a cluster file, by DNS, and by what lenders announce
//! on the local network.
//!
//! ```text
//! ClusterFile -> find: SRV records, announcements -> one probe each -> LenderCandidate -> choose -> an order
//! ```
//!
//! No source is trusted. A lender counts once the handshake has proven that it holds the cluster key; a
//! source that lies costs a connection and no more.
//!
//! | module | decides |
//! |---|---|
//! | [`cluster_file`] | the syntax of the cluster file, and where it is |
//! | [`dns`] | SRV records: question, answer, order, and which server is asked |
//! | [`mdns`] | what a lender announces, and which announcements are taken |
//! | [`probe`] | one lender's report, and how far away it is |
//! | [`mod@choose`] | the order in which lenders are used |
//! | [`mod@find`] | nothing: it asks all sources, and all lenders that they name |
//! | [`limit`] | all limits |
#![forbid(unsafe_code)]

pub mod choose;
pub mod cluster_file;
pub mod dns;
pub mod find;
#[doc(hidden)]
pub mod fuzzed;
pub mod limit;
pub mod mdns;
pub mod probe;

pub use choose::{ChoiceRules, LenderCandidate, choose};
pub use cluster_file::{ClusterFile, ClusterFileError};
pub use find::{Discovery, FoundBy, FoundLender, SourceError, find};
pub use probe::{LenderFacts, LenderReport, ProbeError};
