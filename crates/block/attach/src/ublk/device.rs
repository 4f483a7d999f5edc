//! The supervisor's side of a device: releasing, failing and enlarging it. The driver keeps a device until it
//! is told to remove it, even if no process has it open.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::control::UblkControl;
use super::{UblkError, block_path};
use crate::loop_device::number_of;
use crate::node;
use crate::openers;
use crate::release_task::ReleaseTask;
use netram_supervise::ProcessIdentity;

/// Delay before a failed stop is repeated.
const STOP_PAUSE: Duration = Duration::from_secs(1);

/// A device that this process supervises.
#[derive(Debug)]
pub(crate) struct UblkDevice {
    path: PathBuf,
    number: u32,
}

impl UblkDevice {
    /// The device that a server has created.
    pub(crate) fn new(number: u32) -> Result<UblkDevice, UblkError> {
        let path = block_path(number);
        let found = node::wait_for(&path, number_of).and_then(|_| node::look_often(&path));
        match found {
            Ok(()) => Ok(UblkDevice { path, number }),
            Err(source) => Err(UblkError::Device { path, source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Begins to release the device, unless another process has it open. A process that opens it just when it
    /// goes gets errors.
    pub(crate) fn begin_release(&self) -> io::Result<ReleaseTask> {
        let (path, number) = (self.path.clone(), self.number);
        let have = move || exclusive(&path).and_then(|mine| unused(&path, mine));
        let end = move |mine| {
            // No other process can take the device exclusively in the meantime, and only the device's end
            // ends its server.
            while let Err(error) = UblkControl::open().and_then(|mut control| control.stop(number)) {
                tracing::warn!(%error, number, "cannot stop the ublk device; retrying");
                std::thread::sleep(STOP_PAUSE);
            }
            drop(mine);
            delete(number);
        };
        ReleaseTask::begin(have, end)
    }

    /// Fails every request, now and from now on.
    pub(crate) fn fail(&self) -> Result<(), UblkError> {
        end(self.number, None)
    }
}

/// A mark with which a supervisor recognises its device, because device numbers are reused.
pub(crate) fn mark(maker: &ProcessIdentity) -> u64 {
    maker.start << 32 ^ u64::from(maker.id)
}

/// Fails every request of the device that `maker` had created, if it still exists, now and from now on.
pub(crate) fn fail(device: &Path, maker: &ProcessIdentity) -> Result<(), UblkError> {
    let number = number_in(device)?;
    let info = UblkControl::open()?.info(number);
    match info.is_ok_and(|info| info.mark == mark(maker)) {
        true => end(number, None),
        false => Ok(()),
    }
}

/// Makes the device as large as its volume while it is in use.
pub(crate) fn resize(device: &Path, bytes: u64) -> Result<(), UblkError> {
    UblkControl::open()?.resize(number_in(device)?, bytes)
}

/// Ends a device of this server process whose supervisor is gone; `false` if another process has it open.
///
/// A server must not wait for its own device: if killed at that time, it could not end. Here it does wait,
/// because no other process is left, but only if there is data to write. A later detach of the volume stops
/// the device, which ends that wait.
pub(super) fn end_unused(number: u32) -> Result<bool, UblkError> {
    let path = block_path(number);
    match exclusive(&path).and_then(|mine| unused(&path, mine)) {
        Ok(mine) => end(number, Some(sync(mine))).map(|()| true),
        // The device was never started, or is stopped.
        Err(error) if error.kind() == io::ErrorKind::NotFound => end(number, None).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        Err(source) => Err(UblkError::Device { path, source }),
    }
}

/// Stops a device and removes it. `mine`, the device, keeps other processes from taking it exclusively in the
/// meantime.
fn end(number: u32, mine: Option<File>) -> Result<(), UblkError> {
    let mut control = UblkControl::open()?;
    control.stop(number)?;
    drop(mine);
    delete(number);
    Ok(())
}

/// Removes a device that was stopped.
fn delete(number: u32) {
    if let Err(error) = UblkControl::open().and_then(|mut control| control.delete(number)) {
        tracing::warn!(%error, number, "ublk device stopped, but it could not be removed and its number is still allocated");
    }
}

/// The device, unless another process has it open. `mine` keeps other processes from taking it exclusively,
/// but not from opening it.
fn unused(path: &Path, mine: File) -> io::Result<File> {
    match openers::others_have(path) {
        true => Err(io::ErrorKind::ResourceBusy.into()),
        false => Ok(mine),
    }
}

fn sync(device: File) -> File {
    if let Err(error) = device.sync_all() {
        tracing::warn!(%error, "data that a program wrote to the device without syncing is lost");
    }
    device
}

fn exclusive(device: &Path) -> io::Result<File> {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(exclusive).open(device)
}

fn number_in(device: &Path) -> Result<u32, UblkError> {
    let name = device.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("ublkb")?.parse().ok());
    number.ok_or_else(|| UblkError::Other(device.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ublk_devices_have_a_number() {
        assert_eq!(number_in(Path::new("/dev/ublkb0")).unwrap(), 0);
        assert_eq!(number_in(Path::new("/dev/ublkb12")).unwrap(), 12);
        for other in ["/dev/ublkb0p1", "/dev/ublkc0", "/dev/loop0", "/dev/ublkb", "/"] {
            let refused = number_in(Path::new(other));
            assert!(matches!(refused, Err(UblkError::Other(_))), "{other}");
        }
    }
}
