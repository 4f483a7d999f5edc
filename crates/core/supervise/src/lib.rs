//! Internal to netram: programs use the crate `netram`.
//!
//! A supervisor process, and the server processes that it starts one after the other.
//!
//! ```text
//!  program ── kernel ── server process: data ── lenders, disk
//!               |            |
//!        supervisor process ─+  starts it, keeps the kernel's end, notices its death or hang
//! ```
//!
//! The supervisor does little, so it hardly fails. It keeps a descriptor of the kernel's object that programs
//! use. While it has that, their requests wait when the server dies, and another server gets the descriptor
//! and continues. This crate knows no such object: products say what a server offers
//! ([`ServerProcess::offer`]) and what continuing means.
//!
//! | module | does |
//! |---|---|
//! | [`handover`] | messages between the two, some with a descriptor |
//! | `server` | the supervisor's view of a server process |
//! | `server_handle` | a server that is a child, or that connected |
//! | `server_listener` | the socket to which servers of another user connect |
//! | `server_part` | what every server does before and after it serves |
//! | `heartbeat`, `watchdog` | a hanging server is noticed |
//! | `thread_states` | what the threads of a hanging server do, for the log |
//! | `restart_budget` | limits restarts |
//! | `process` | a process's identity, by id and start time |
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod children;
pub mod handover;
mod heartbeat;
mod process;
mod restart_budget;
mod server;
mod server_handle;
mod server_listener;
mod server_part;
mod sys;
mod thread_states;
mod watchdog;

pub use heartbeat::Heartbeat;
pub use process::ProcessIdentity;
pub use restart_budget::RestartBudget;
pub use server::{ServerError, ServerProcess};
pub use server_listener::{ServerListener, become_server};
pub use server_part::{become_io_flusher, leave_output, prepare, say_closed, say_line, say_refused};
pub use sys::without_descriptors;
