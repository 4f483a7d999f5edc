//! A network block device server: NBD's fixed newstyle protocol over any
//! [`Device`](netram_block::BlockDevice).
//!
//! ```text
//! client            connection thread                        device
//!   option   ->     handshake: bytes in, replies out
//!   requests ->     command: judged once, started            write, zero, discard, read
//!                   batch: waited for once, answered together wait, flush
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`wire`] | how options, requests and replies look |
//! | [`handshake`] | which options are answered how, and what was agreed on |
//! | [`command`] | which requests may be carried out |
//! | `transmit` | in which order requests are started, waited for and answered |
//! | `stream`, `tls` | bytes over a socket, in clear or encrypted |
//! | [`NbdServer`] | who may connect, how many, and when it ends |
//! | [`limit`] | every bound |
//!
//! The first three are values without sockets, threads or clock. Nothing here knows what a volume is.
#![forbid(unsafe_code)]

mod buffer;
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

pub use config::{NbdExport, NbdServerConfig, NbdStartError, TlsMode};
pub use kernel::{kernel_flags, serve_kernel};
pub use memory::MemoryDevice;
pub use server::NbdServer;
pub use stats::NbdStats;
pub use tls::{TlsError, TlsFiles, TlsKeys};
