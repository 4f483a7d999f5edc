//! A data lender: a machine with its own disk, on which it keeps a second copy of the client's volume. It
//! runs the machines that ship: `netram_block_machine::Replica`, and a `netram_block::Disk` that follows.
//!
//! | file | idea |
//! |---|---|
//! | `machine.rs` | the machine: its files and its process's lifetime |
//! | `log.rs` | the log written as raw bytes |
//! | `serve.rs` | handling of one frame |
//! | `service.rs` | the data lender as the rest of the world reaches it |
//! | `link.rs` | the client's part: the connection, and the source's driver |
//! | `events.rs` | events of that connection |
//! | `intruder.rs` | a client that poses as the replica's |
//! | `ask.rs` | questions over sessions of their own: blocks for a volume, and those of a restore |

pub(crate) mod ask;
pub(crate) mod events;
pub(crate) mod intruder;
mod link;
mod log;
mod machine;
mod serve;
mod service;

pub(crate) use ask::SimFetch;
pub(crate) use link::DataLink;
pub(crate) use machine::{SimDataLender, SimVolumeFiles, VOLUME, add_volume, volume_files};
pub(crate) use service::{DataAnswer, DataService};
