//! A device that this process has attached by any method; and resizing a device that any process has
//! attached.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attach_method::AttachMethod;
use crate::loop_device::LoopDevice;
use crate::nbd_device::{self, NbdDevice, NbdError};
use crate::registry::AttachRecord;
use crate::release_task::ReleaseTask;
use crate::sys;
use crate::ublk::{self, UblkDevice, UblkError};

/// Maximum number of times that the kernel is asked for a file's size.
const LOOKS_MAX: u32 = 5_000;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A device attached by this process.
#[derive(Debug)]
pub(crate) enum AttachedDevice {
    /// A loop device on a served file.
    Loop {
        device: LoopDevice,
        /// The served file, open so that another process can make the kernel read its size again.
        file: File,
        /// The kernel's end of the served file, with which another server can continue. While it is open,
        /// unanswered requests wait, so a process that may wait for them must not have it.
        control: Option<OwnedFd>,
    },
    /// A device of the kernel's NBD client.
    Nbd(NbdDevice),
    /// A ublk device.
    Ublk(UblkDevice),
}

impl AttachedDevice {
    pub(crate) fn path(&self) -> &Path {
        match self {
            AttachedDevice::Loop { device, .. } => device.path(),
            AttachedDevice::Nbd(device) => device.path(),
            AttachedDevice::Ublk(device) => device.path(),
        }
    }

    /// Path of the served file for other processes; empty if there is none.
    pub(crate) fn file(&self) -> PathBuf {
        match self {
            AttachedDevice::Loop { file, .. } => {
                format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
            }
            AttachedDevice::Nbd(_) | AttachedDevice::Ublk(_) => PathBuf::new(),
        }
    }

    /// Begins to release the device, unless another user has it exclusively (a mount, swap, another driver).
    pub(crate) fn begin_release(&self) -> io::Result<ReleaseTask> {
        match self {
            AttachedDevice::Loop { device, .. } => device.begin_release(),
            AttachedDevice::Nbd(device) => device.begin_release(),
            AttachedDevice::Ublk(device) => device.begin_release(),
        }
    }

    /// Closes the device, which `closing` has acquired.
    pub(crate) fn close(self, closing: ReleaseTask) -> ReleasedDevice {
        let mut nbd = None;
        match self {
            AttachedDevice::Loop {
                device,
                file,
                control,
            } => {
                // First, so that requests waiting for a server that dies now get errors.
                drop(control);
                closing.close(Box::new((file, device)));
            }
            AttachedDevice::Nbd(device) => {
                nbd = Some(device.index());
                closing.close(Box::new(device));
            }
            AttachedDevice::Ublk(device) => closing.close(Box::new(device)),
        }
        ReleasedDevice {
            release: closing,
            nbd,
        }
    }
}

/// A device being released.
#[derive(Debug)]
pub(crate) struct ReleasedDevice {
    release: ReleaseTask,
    /// Index of the device if it is one of the kernel's NBD client.
    nbd: Option<u32>,
}

impl ReleasedDevice {
    /// Whether the device is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.release.is_over()
    }

    /// The device's server is dead: requests that still wait for it get errors. With FUSE they do already,
    /// and a ublk device that is being stopped fails them by itself.
    pub(crate) fn fail(&mut self) {
        if let Some(index) = self.nbd.take().filter(|_| !self.is_over())
            && let Err(error) = nbd_device::fail_index(index)
        {
            tracing::warn!(%error, "the device still waits for another server, and fails after its timeout");
        }
    }
}

/// Fails the requests of a device whose server is dead and gets no successor. With FUSE they fail by
/// themselves; the kernel's NBD client would wait for a successor, and ublk for ever.
///
/// # Errors
///
/// [`FailError`] if the driver refuses.
pub fn fail(record: &AttachRecord) -> Result<(), FailError> {
    if record.way == AttachMethod::Nbd.name() {
        nbd_device::fail(&record.device, record.supervisor.id)?;
    } else if record.way == AttachMethod::Ublk.name() {
        ublk::fail(&record.device, &record.supervisor)?;
    }
    Ok(())
}

/// Failure to fail the waiting requests of a device.
#[derive(Debug, thiserror::Error)]
pub enum FailError {
    /// The kernel's NBD client refused.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// The kernel's ublk driver refused.
    #[error("{0}")]
    Ublk(#[from] UblkError),
}

/// Failure to give a device its volume's new size.
#[derive(Debug, thiserror::Error)]
pub enum DeviceResizeError {
    /// The driver refused.
    #[error("cannot give {device} its new size: {source}; detach and attach the volume to get it")]
    Refused {
        /// The device.
        device: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The kernel's NBD client refused.
    #[error("{0}; detach and attach the volume to get its new size")]
    Nbd(#[from] NbdError),
    /// The kernel's ublk driver refused.
    #[error("{0}; detach and attach the volume to get its new size")]
    Ublk(#[from] UblkError),
    /// The kernel did not read the size again.
    #[error(
        "the volume now has {bytes} bytes, but this kernel still reports {seen} for {device}; detach and attach the volume to \
         get its new size"
    )]
    Unseen {
        /// The device.
        device: PathBuf,
        /// Size of the device in bytes.
        seen: u64,
        /// Size of the volume in bytes.
        bytes: u64,
    },
}

/// Makes the kernel learn that the served file now has `bytes`. When it asks the server it returns the
/// answer, but keeps the old size itself if a write ended in between. A device of the new size would then get
/// I/O errors beyond the old one. The end found by a seek is the size that the kernel keeps.
fn learn_size(mut served: File, bytes: u64) -> io::Result<()> {
    for _ in 0..LOOKS_MAX {
        if served.seek(SeekFrom::End(0))? >= bytes {
            return Ok(());
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    let why = "the kernel does not accept the file's new size; try again under less write load";
    Err(io::Error::other(why))
}

/// Makes an attached device as large as its volume, which has grown to `bytes`. The device can be used in the
/// meantime.
///
/// # Errors
///
/// [`DeviceResizeError`] if the driver refuses, or the kernel keeps the old size.
pub fn resize(record: &AttachRecord, bytes: u64) -> Result<(), DeviceResizeError> {
    let device = &record.device;
    let refused = |source| DeviceResizeError::Refused {
        device: device.clone(),
        source,
    };
    let mut file = OpenOptions::new().read(true).open(device).map_err(refused)?;
    if record.way == AttachMethod::Nbd.name() {
        nbd_device::resize(device, bytes)?;
    } else if record.way == AttachMethod::Ublk.name() {
        ublk::resize(device, bytes)?;
    } else {
        // Without a supervisor the file cannot be opened. The driver may then keep the old size, which is
        // reported below.
        if let Ok(served) = OpenOptions::new().read(true).open(&record.file) {
            learn_size(served, bytes).map_err(refused)?;
        }
        sys::set_capacity(&file).map_err(|errno| refused(errno.into()))?;
    }
    let seen = file.seek(SeekFrom::End(0)).map_err(refused)?;
    match seen >= bytes {
        true => Ok(()),
        false => Err(DeviceResizeError::Unseen {
            device: device.clone(),
            seen,
            bytes,
        }),
    }
}
