//! Operating a volume that is open in another process.
//!
//! The process that has the volume open listens on a Unix socket in the volume's directory, for its own user
//! and root only:
//!
//! ```text
//! request:   {"ask":"scrub"}                                one line, then nothing more
//! reply:     {"progress":{"done":1048576,"total":67108864}} while the task runs
//!            {"scrubbed":{"read_bytes":…}}                  the last line; or {"refused":"why"}
//! ```
//!
//! The socket belongs to the process that has the volume's lock. One that exists when the volume has just
//! been opened is left from a killed process, and is replaced.
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | the lines |
//! | [`server`] | listening, and serving requests |
//! | [`client`] | sending requests |
//! | [`report`] | the status in JSON |
//! | [`metrics`] | the status as metrics |

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

/// Maximum number of simultaneous sessions, each with a thread; further connections are closed.
const SESSIONS_MAX: usize = 8;
/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum bytes of a reply line; a status with the most lenders needs a tenth of it.
const REPLY_BYTES_MAX: usize = 256 * 1024;
/// Time for a client to send its request, and to accept a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long a client waits for the next line: a scrub step waits for a disk, growing for a sync.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(REQUEST_BYTES_MAX < REPLY_BYTES_MAX);
