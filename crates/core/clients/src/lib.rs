//! Internal to netram: programs use the crate `netram`.
//!
//! Named clients: who may use a lender or the server of a shared region, with which keys, and how much of it.
//!
//! A [`ClientsFile`] has names, keys, rights and limits. A [`ClientRegistry`] serves from it: its
//! [`KeyRing`](netram_transport::KeyRing) tells a listener which keys to accept, and an account of each
//! client ([`ClientAccount`]) counts what the client has, as `netram_proto::client` decides. The file can be
//! read again at any time.
//!
//! Without a file everybody who has the cluster key is one client without a name, who may have everything.
//!
//! | module | decides |
//! |---|---|
//! | [`file`](mod@file) | the syntax of the file, and its changes |
//! | `change` | changes of the file on the disk |
//! | [`registry`] | which account a link belongs to; what changes when the file does |
#![forbid(unsafe_code)]

mod change;
pub mod file;
pub mod registry;

pub use change::change_file;
pub use file::{ClientEntry, ClientsFile, ClientsFileError};
pub use netram_proto::client::{
    ClientAccount, ClientLimits, ClientUsage, OverLimit, ResourceCharge, ServerTotals,
};
pub use netram_proto::wire::ClientResource;
pub use registry::{ClientRegistry, RegistryChange};
