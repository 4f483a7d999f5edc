//! Internal to netram: programs use the crate `netram`.
//!
//! A network block device server: NBD's fixed newstyle protocol for any
//! [`BlockDevice`](netram_block::BlockDevice).
//!
//! ```text
//! client            connection thread                        device
//!   option   ->     handshake: bytes in, replies out
//!   requests ->     command: checked once, started           write, zero, discard, read
//!                   batch: one wait, one set of replies        wait, flush
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | formats of options, requests and replies |
//! | [`handshake`] | answers to options, and the result of the negotiation |
//! | [`command`] | which requests may be executed |
//! | `transmit` | order of starting, completing and answering requests |
//! | `stream`, `tls` | bytes over a socket, encrypted or not |
//! | `client_names` | which certificate opens which exports |
//! | [`NbdServer`] | accepting, limiting and ending connections |
//! | [`limit`] | all bounds |
//!
//! The first three are values without sockets, threads or clock. This crate knows no more of a volume than
//! its block device interface.
#![forbid(unsafe_code)]

mod buffer;
mod client_names;
pub mod command;
mod config;
mod connection;
#[doc(hidden)]
pub mod fuzzed;
pub mod handshake;
mod kernel;
pub mod limit;
mod memory;
mod server;
mod stats;
mod stream;
mod tls;
mod transmit;
pub mod wire;

pub use client_names::ClientNamesError;
pub use config::{NbdExport, NbdServerConfig, NbdStartError, TlsMode};
pub use kernel::{kernel_flags, serve_kernel};
pub use memory::MemoryDevice;
pub use server::NbdServer;
pub use stats::NbdStats;
pub use tls::{TlsError, TlsFiles, TlsKeys};
