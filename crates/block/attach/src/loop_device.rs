//! A loop device on a file: binding, inspecting and releasing it.
//!
//! The device is bound so that it ends when its last user closes it, and [`LoopDevice`] is one of its users.
//! While it lives, the device stays. Once it is dropped, the device stays only as long as another process has
//! it open.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::release_task::ReleaseTask;
use crate::sys::{self, LoopConfig};

const CONTROL: &str = "/dev/loop-control";

/// Maximum number of attempts when other processes take the free device first; more mean another problem.
const TRIES_MAX: u32 = 16;

/// A loop device that this process has open.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    /// Only kept open, which keeps the device.
    _open: File,
}

/// Failure to bind a loop device.
#[derive(Debug, thiserror::Error)]
pub enum LoopBindError {
    /// The kernel has no loop driver, or this process may not use it.
    #[error("{path}: {source}; loop devices need root and the kernel's loop driver (`modprobe loop`)")]
    Missing {
        /// The device that could not be opened.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The driver refused.
    #[error("the loop driver refused a device of {block_bytes}-byte blocks on {path}: {source}")]
    Refused {
        /// The device.
        path: PathBuf,
        /// Bytes of its logical block.
        block_bytes: u32,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Each free device was taken by another process first.
    #[error("other processes took every free loop device first; try again")]
    Taken,
}

impl LoopDevice {
    /// Binds a free loop device to `file`.
    pub(crate) fn bind(file: &File, config: &LoopConfig<'_>) -> Result<LoopDevice, LoopBindError> {
        let control = open(Path::new(CONTROL))?;
        for _ in 0..TRIES_MAX {
            let number = sys::free_number(&control).map_err(|errno| LoopBindError::Missing {
                path: CONTROL.into(),
                source: errno.into(),
            })?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let held = open(&path)?;
            match sys::configure(&held, file, config) {
                Ok(()) => return Ok(LoopDevice { path, _open: held }),
                Err(Errno::BUSY) => {}
                Err(errno) => {
                    return Err(LoopBindError::Refused {
                        path,
                        block_bytes: config.block_bytes,
                        source: errno.into(),
                    });
                }
            }
        }
        Err(LoopBindError::Taken)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether requests bypass the file's page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.says("loop/dio").is_some_and(|dio| dio == "1")
    }

    /// Begins to release the device, unless another user has it exclusively (a mount, swap, another driver).
    ///
    /// A process that merely has it open, such as a program that scans new disks, keeps the device until it
    /// closes it. Until then the device may still be mounted; there is no way to count its openers. It then
    /// works until it is unmounted.
    pub(crate) fn begin_release(&self) -> io::Result<ReleaseTask> {
        let path = self.path.clone();
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let have = move || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(exclusive)
                .open(path)
        };
        // This handle is closed last, so that in between no other process can take the device exclusively.
        ReleaseTask::begin(have, drop)
    }

    fn says(&self, what: &str) -> Option<String> {
        let name = self.path.file_name()?;
        let file = Path::new("/sys/block").join(name).join(what);
        Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
    }
}

fn open(path: &Path) -> Result<File, LoopBindError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| LoopBindError::Missing {
        path: path.to_path_buf(),
        source,
    })
}

/// Major and minor number of a block device.
pub(crate) fn number_of(path: &Path) -> io::Result<(u32, u32)> {
    let metadata = path.metadata()?;
    match metadata.file_type().is_block_device() {
        true => Ok((
            rustix::fs::major(metadata.rdev()),
            rustix::fs::minor(metadata.rdev()),
        )),
        false => Err(io::Error::other(format!(
            "{} is not a block device",
            path.display()
        ))),
    }
}
