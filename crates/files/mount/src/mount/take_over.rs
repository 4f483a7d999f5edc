//! Continuing a mount whose server was killed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use netram_fuse::{FuseDevice, FuseSession};

use super::opening::continue_directory;
use super::{Mount, MountOptions, MountReport, MountState};
use crate::backing_directory::BackingDirectory;
use crate::error::MountError;
use crate::fuse::FuseFilesystem;
use crate::maintenance::MaintenanceThreads;

impl Mount {
    /// Continues a mount whose server was killed. `control`: the kernel's end ([`Mount::control`]).
    /// `backing`: the directory beneath, open since before the mount ([`BackingHandles`]). `dir`: the path
    /// that the first server used ([`Mount::dir`]). Nothing is asked of the mount itself, which nobody
    /// answers yet.
    ///
    /// [`BackingHandles`]: crate::BackingHandles
    ///
    /// # Errors
    ///
    /// See [`MountError`]. The mount stays as it is, and another server may try.
    pub fn take_over(
        control: OwnedFd,
        backing: OwnedFd,
        dir: &Path,
        journal: &Path,
        options: MountOptions,
    ) -> Result<(Mount, MountReport), MountError> {
        let journal = journal.canonicalize().map_err(|source| MountError::NoDirectory {
            dir: journal.to_path_buf(),
            source,
        })?;
        let ground = BackingDirectory::of(backing.into(), dir);
        let (state, recovered) = continue_directory(ground, dir, &journal, options)?;
        let state = Arc::new(state);
        let report = MountReport {
            recovered,
            nodes: state.journaled.names().len() - 1,
        };
        let failed = |source: io::Error| MountError::TakeOver {
            dir: dir.to_path_buf(),
            reason: source.to_string(),
        };
        let maintenance = MaintenanceThreads::start(&state, options.checkpoint).map_err(failed)?;
        let session = match answer(&state, FuseDevice::from(control), options.threads) {
            Ok(session) => session,
            Err(error) => {
                maintenance.stop();
                return Err(failed(error));
            }
        };
        let mount = Mount {
            watched: Arc::new(Mutex::new(Some(Arc::clone(&state)))),
            state,
            session,
            maintenance,
        };
        Ok((mount, report))
    }
}

/// Begins to answer what the killed server left, and everything after. No file is registered for the kernel
/// to read itself: it is not known which are.
fn answer(state: &Arc<MountState>, device: FuseDevice, threads: usize) -> io::Result<FuseSession> {
    let device = Arc::new(device);
    let filesystem = FuseFilesystem::new(Arc::clone(state), Arc::clone(&device), false, true, true);
    FuseSession::take_over(device, Arc::new(filesystem), threads)
}
