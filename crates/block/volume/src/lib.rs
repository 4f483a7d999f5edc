//! A *volume*: a block device's contents with all that belongs to them, opened by one path.
//!
//! A directory has the journal with the newest writes, the image, its checksums, the superblock and the
//! settings that name the lenders. What serves a volume (an NBD server, a device, the command line) opens it
//! here.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use netram_volume::{Device, JOURNAL_BYTES_DEFAULT, Volume};
//!
//! Volume::create("bank.volume".as_ref(), 1 << 30, JOURNAL_BYTES_DEFAULT)?;
//! let (volume, _) = Volume::open("bank.volume".as_ref())?; // bank.volume/netram.toml, and the environment over it
//! let pending = volume.write(0, &[7; 4096])?;
//! volume.wait(pending)?;
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`volume`] | opening with recovery, the thread `netram-stage`, closing |
//! | [`paths`] | the files: making, looking |
//! | `remove` | removing them, and what a crash left of them |
//! | [`settings`] | lenders, rule, what FLUSH waits for |
//! | [`control`] | operating it from another process |
//! | [`scrub()`] | reading all of it, to compare it with its checksums |
//! | [`replica`] | the copy that a data lender keeps: feeding it, keeping it, restoring from it |
//! | [`resync()`] | having the copy made equal, and waiting for it |
//! | `proof` | what is asked before a volume opens |
//! | `takeover` | a data lender's copy made a volume where it is |
//! | `copier` | brings the blocks of a restored volume home |
//! | [`file`] | a real file with holes |
#![forbid(unsafe_code)]

mod check;
pub mod control;
mod copier;
pub mod error;
pub mod file;
pub mod paths;
mod remove;
pub mod replica;
mod resync;
mod scrub;
pub mod settings;
mod takeover;
pub mod volume;

pub use check::VolumeCheck;
pub use control::{VolumeControl, ask};
pub use error::{
    VolumeCloseError, VolumeCreateError, VolumeDeleteError, VolumeInspectError, VolumeOpenError,
};
pub use netram_block::{BlockDevice, FlushPolicy};
pub use paths::{JOURNAL_BYTES_DEFAULT, VolumeInspection, VolumePaths, unfinished_in};
pub use resync::{ResyncOutcome, VolumeResyncError, resync};
pub use scrub::{ScrubFindings, TaskProgress, scrub};
pub use settings::{ModelledDisk, VolumeSettings};
pub use volume::{Volume, VolumeRecovery, VolumeStatus};

// What a front end hands from thread to thread.
const _: () = {
    const fn travels<T: Send + Sync>() {}
    travels::<Volume>();
};
