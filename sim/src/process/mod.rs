//! A client's process: the driver's part, as the simulator plays it. The machines inside are the ones that
//! ship.
//!
//! | file | idea |
//! |---|---|
//! | `table.rs` | the processes, and what each does |
//! | `serving.rs` | state of a journal that serves |
//! | `failure.rs` | reasons for which a journal does not open |
//! | `life.rs` | start and death |
//! | `opening.rs` | questions to the members while a journal is opened |
//! | `serve.rs` | a journal that serves: ring, disk writer, view writer, frames |
//! | `append.rs` | records appended |
//! | `close.rs` | the orderly end |
//! | `events.rs` | handing events to the machine that waits for them |

pub(crate) mod append;
pub(crate) mod close;
pub(crate) mod events;
mod failure;
pub(crate) mod life;
pub(crate) mod opening;
pub(crate) mod serve;
mod serving;
mod table;

pub use failure::OpenFailure;
pub(crate) use serving::{OpenedFiles, ServingState, describe_view};
pub(crate) use table::{OpeningState, ProcessPhase, Processes, SimProcess, payload_max};
