//! Writing the lent memory to a disk before the machine loses power, and taking it up again.
//!
//! `netram_proto::spill` decides what may be done when, and why a copy of a spill does no harm. Here are the
//! file, the directory and the streams.

mod blocks;
mod directory;
mod error;
mod format;
mod layout;
mod load;
mod window_files;
mod write;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netram_proto::member::MemberState;

pub(crate) use self::directory::SpillDirectory;
pub use self::error::SpillError;
pub(crate) use self::format::SpillHead;
pub(crate) use self::layout::found_states;
pub(crate) use self::load::{finish_load, load_spill, reopen_store};
pub(crate) use self::window_files::{FoundWindow, WindowCopy};
pub(crate) use self::write::spill_store;

/// A spill that is complete and synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillReport {
    /// The file.
    pub path: PathBuf,
    /// Number of windows in it.
    pub windows: usize,
    /// Bytes of these windows.
    pub bytes: u64,
    /// Time from the first read to the last sync.
    pub took: Duration,
}

/// Seconds since 1970, as the machine's clock has them.
fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Bytes of a member's window that a spill must have.
fn joined_bytes(member: &MemberState) -> u64 {
    match member.joined {
        true => member.held.since(member.trim),
        false => 0,
    }
}
