//! A device that this process holds, by whatever way; and growing one that any process holds.

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

/// How often the kernel is asked for a file's size, at the most.
const LOOKS_MAX: u32 = 5_000;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A device of this process's.
#[derive(Debug)]
pub(crate) enum AttachedDevice {
    /// On a served file.
    Loop {
        device: LoopDevice,
        /// Open so that whoever enlarged the volume can make the kernel look at its size again.
        file: File,
        /// The kernel's end of the served file: with it another server can go on. As long as it is open,
        /// requests that no server answers wait, so whatever may wait for them must not have it.
        control: Option<OwnedFd>,
    },
    /// On a socket.
    Nbd(NbdDevice),
    /// Its own.
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

    /// The served file as others reach it; empty when there is none.
    pub(crate) fn file(&self) -> PathBuf {
        match self {
            AttachedDevice::Loop { file, .. } => {
                format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
            }
            AttachedDevice::Nbd(_) | AttachedDevice::Ublk(_) => PathBuf::new(),
        }
    }

    /// Begins to let the device go, unless somebody has it for himself (a mount, swap, another driver).
    pub(crate) fn begin_release(&self) -> io::Result<ReleaseTask> {
        match self {
            AttachedDevice::Loop { device, .. } => device.begin_release(),
            AttachedDevice::Nbd(device) => device.begin_release(),
            AttachedDevice::Ublk(device) => device.begin_release(),
        }
    }

    /// Lets the device go that `closing` has.
    pub(crate) fn close(self, closing: ReleaseTask) -> ReleasedDevice {
        let mut nbd = None;
        match self {
            AttachedDevice::Loop {
                device,
                file,
                control,
            } => {
                // First: what waits for a server that dies now is to get errors.
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

/// A device that goes.
#[derive(Debug)]
pub(crate) struct ReleasedDevice {
    release: ReleaseTask,
    /// Its number, if it is one of the kernel's nbd.
    nbd: Option<u32>,
}

impl ReleasedDevice {
    /// Whether it is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.release.is_over()
    }

    /// Its server is dead: what still waits for it gets errors. By FUSE that is so already, and a ublk device
    /// that is being stopped does it by itself.
    pub(crate) fn fail(&mut self) {
        if let Some(index) = self.nbd.take().filter(|_| !self.is_over())
            && let Err(error) = nbd_device::fail_index(index)
        {
            tracing::warn!(%error, "the device still waits for another server, and then fails");
        }
    }
}

/// Lets the requests of a device fail whose server is dead and gets no successor. By FUSE they do that by
/// themselves; the kernel's nbd would wait for one, and ublk for ever.
pub fn fail(record: &AttachRecord) -> Result<(), FailError> {
    if record.way == AttachMethod::Nbd.name() {
        nbd_device::fail(&record.device, record.supervisor.id)?;
    } else if record.way == AttachMethod::Ublk.name() {
        ublk::fail(&record.device, &record.supervisor)?;
    }
    Ok(())
}

/// Why requests that nobody answers still wait.
#[derive(Debug, thiserror::Error)]
pub enum FailError {
    /// The kernel's nbd refused.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// The kernel's ublk refused.
    #[error("{0}")]
    Ublk(#[from] UblkError),
}

/// Why a device has another size than its volume.
#[derive(Debug, thiserror::Error)]
pub enum DeviceResizeError {
    /// The driver refused.
    #[error("giving {device} its new size: {source}; detach and attach the volume, and it has it")]
    Refused {
        /// The device.
        device: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel's nbd refused.
    #[error("{0}; detach and attach the volume, and it has its new size")]
    Nbd(#[from] NbdError),
    /// The kernel's ublk refused.
    #[error("{0}; detach and attach the volume, and it has its new size")]
    Ublk(#[from] UblkError),
    /// The kernel did not look again.
    #[error(
        "the volume has {bytes} bytes now, and this kernel still gives {device} {seen}; detach and attach the volume, and it \
         has them all"
    )]
    Unseen {
        /// The device.
        device: PathBuf,
        /// What it has.
        seen: u64,
        /// What the volume has.
        bytes: u64,
    },
}

/// Has the kernel learn that the served file has `bytes` by now. When it asks the server it tells the asker
/// the answer, but keeps the old size for itself if a write ended meanwhile; then a device of the new size
/// would get I/O errors beyond the old one. The end that a seek finds is the size that the kernel keeps.
fn learn_size(mut served: File, bytes: u64) -> io::Result<()> {
    for _ in 0..LOOKS_MAX {
        if served.seek(SeekFrom::End(0))? >= bytes {
            return Ok(());
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    let why = "the kernel does not take note of the file's new size; try again when less is written";
    Err(io::Error::other(why))
}

/// Makes an attached device as large as its volume, which has grown to `bytes`. Whoever uses it may go on
/// meanwhile.
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
        // If the supervisor is gone nobody has the file; then the driver may keep the old size, which is said
        // below.
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
