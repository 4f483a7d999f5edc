//! Operating a volume that is open in another process.
//!
//! Whoever serves a volume listens on a Unix socket in the volume's directory, for its own user and root
//! only:
//!
//! ```text
//! asked:     {"ask":"scrub"}                                one line, then nothing more
//! answered:  {"progress":{"done":1048576,"total":67108864}} as often as there is something to say
//!            {"scrubbed":{"read_bytes":…}}                  the last line; or {"refused":"why"}
//! ```
//!
//! The socket belongs to whoever has the volume's lock: one that is there when the volume has just been
//! opened is a killed process's, and is replaced.
//!
//! | module | does |
//! |---|---|
//! | [`wire`] | the lines, and reading them from somebody who may say anything |
//! | [`server`] | listening; what is done for whoever asks |
//! | [`client`] | asking |
//! | [`report`] | the status as it travels |
//! | [`metrics`] | the same for Prometheus |

pub mod client;
pub mod metrics;
pub mod report;
pub mod server;
pub mod wire;

pub use client::{ControlError, ask};
pub use report::{VolumeFrontend, VolumeReport};
pub use server::VolumeControl;
pub use wire::{VolumeReply, VolumeRequest};

use std::time::Duration;

/// Conversations at one time, each with a thread; whoever comes then is told so.
const SESSIONS_MAX: usize = 8;
/// Bytes of what is asked.
const REQUEST_BYTES_MAX: usize = 4096;
/// Bytes of a line that answers: a status with the most lenders is a tenth of it.
const REPLY_BYTES_MAX: usize = 256 * 1024;
/// Whoever connects has so long to say what he wants, and to take an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A line of progress comes at most so often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Whoever asks waits so long for the next line: a step of a scrub waits for a disk, growing for a sync.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(REQUEST_BYTES_MAX < REPLY_BYTES_MAX);
