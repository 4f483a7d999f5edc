//! Internal to netram: programs use the crate `netram`.
//!
//! A *volume*: the contents of a block device with everything that belongs to them, opened by one path.
//!
//! The volume's directory has the journal with the newest writes, the image, its checksums, the superblock,
//! and the settings that name the lenders. Every front end (an NBD server, a kernel device, the command line)
//! opens the volume here.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use netram_volume::{BlockDevice, JOURNAL_BYTES_DEFAULT, Volume};
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
//! | module | purpose |
//! |---|---|
//! | [`volume`] | opening with recovery, the thread `netram-stage`, closing |
//! | [`paths`] | files: creating and inspecting them |
//! | `remove` | deleting them, and the remains of an interrupted deletion |
//! | `rekey` | giving a volume another recovery key |
//! | `recovery_key` | the key without which no copy can be restored |
//! | [`settings`] | lenders, commit rule, flush policy |
//! | [`control`] | operating an open volume from another process |
//! | [`scrub()`] | comparing every block with its checksum |
//! | [`replica`] | the copy that a data lender keeps: sending it, keeping it, restoring from it |
//! | [`resync()`] | starting a resync of the copy, and waiting for it |
//! | `check` | checks before a volume opens |
//! | [`metrics`] | times of requests, for Prometheus |
//! | `takeover` | turning a data lender's copy into a volume in place |
//! | `copier` | fetching the blocks of a restored volume |
//! | `device` | the volume as a block device |
//! | [`mod@file`] | regular files with holes |
#![forbid(unsafe_code)]

mod check;
pub mod control;
mod copier;
mod device;
pub mod error;
pub mod file;
pub mod metrics;
pub mod paths;
mod recovery_key;
mod rekey;
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
    VolumeRekeyError,
};
pub use netram_block::{BlockDevice, FlushPolicy};
pub use paths::{JOURNAL_BYTES_DEFAULT, VolumeInspection, VolumePaths, unfinished_in};
pub use recovery_key::{RecoveryKey, RecoveryKeyError, UnwrapError};
pub use resync::{ResyncOutcome, VolumeResyncError, resync};
pub use scrub::{ScrubFindings, TaskProgress, scrub};
pub use settings::{ModelledDisk, VolumeSettings};
pub use volume::{Volume, VolumeRecovery, VolumeStatus};

// Front ends pass a volume from thread to thread.
const _: () = {
    const fn travels<T: Send + Sync>() {}
    travels::<Volume>();
};
