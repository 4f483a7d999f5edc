//! The kernel's end of a session.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::sys;
use crate::wire::reply::{reply_header, resend_notice};

const PATH: &str = "/dev/fuse";

/// The kernel's end of a session: requests are read from it, and replies written to it.
#[derive(Debug)]
pub struct FuseDevice(File);

impl From<OwnedFd> for FuseDevice {
    fn from(descriptor: OwnedFd) -> FuseDevice {
        FuseDevice(File::from(descriptor))
    }
}

impl From<FuseDevice> for OwnedFd {
    fn from(device: FuseDevice) -> OwnedFd {
        device.0.into()
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl FuseDevice {
    /// Opens the device, for a new mount.
    ///
    /// # Errors
    ///
    /// The device does not exist, or this user may not open it.
    pub fn open() -> io::Result<FuseDevice> {
        let opened = File::options().read(true).write(true).open(PATH);
        let device = opened.map_err(|error| {
            let sentence = format!("{PATH}: {error}; it needs root and the kernel's FUSE (`modprobe fuse`)");
            io::Error::new(error.kind(), sentence)
        })?;
        Ok(FuseDevice(device))
    }

    /// Another end of the same session. Its requests are answered through it alone, and fail when it is
    /// closed: whoever wants them to be sent again must keep a copy of its descriptor.
    ///
    /// # Errors
    ///
    /// The device cannot be opened, or this end belongs to no session.
    pub fn clone_session(&self) -> io::Result<FuseDevice> {
        let other = FuseDevice::open()?;
        sys::clone_session(&other, self)?;
        Ok(other)
    }

    /// Length of the next request. `None`: the file system is gone.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let error = match (&self.0).read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                // The second means that the file system ended just when this thread was to get the file's
                // release, which needs no reply.
                Some(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // This read was interrupted, or the sender of the request was.
                Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => (),
                _ => return Err(error),
            }
        }
    }

    /// Replies to the request `unique`.
    ///
    /// # Errors
    ///
    /// The kernel refuses the reply. No error: the request, or the whole file system, is gone.
    pub fn reply(&self, unique: u64, result: Result<&[u8], Errno>) -> io::Result<()> {
        let (errno, body): (i32, &[u8]) = match result {
            Ok(body) => (0, body),
            Err(errno) => (errno.raw_os_error(), &[]),
        };
        let header = reply_header(unique, errno, body.len());
        match (&self.0).write_vectored(&[IoSlice::new(&header), IoSlice::new(body)]) {
            // A reply is accepted as a whole or not at all.
            Ok(taken) if taken == header.len() + body.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NODEV) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Makes the kernel send all unanswered requests again.
    ///
    /// # Errors
    ///
    /// The kernel cannot (Linux before 6.9).
    pub fn resend(&self) -> io::Result<()> {
        (&self.0).write_all(&resend_notice())
    }

    /// Registers an open file, which the kernel may then read and write by itself.
    ///
    /// # Errors
    ///
    /// The session has no passthrough, this process lacks the right, or the file system of `file` cannot.
    pub fn register(self: &Arc<Self>, file: impl AsFd) -> io::Result<BackingFile> {
        Ok(BackingFile {
            number: sys::open_backing(&**self, file)?,
            device: Arc::downgrade(self),
        })
    }
}

/// Registration of a file that the kernel may read and write by itself. It must live until the reply that
/// names it was sent.
#[derive(Debug)]
pub struct BackingFile {
    number: u32,
    device: Weak<FuseDevice>,
}

impl BackingFile {
    /// The kernel's number of it.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        // The session's end ended it, too.
        if let Some(device) = self.device.upgrade()
            && let Err(error) = sys::close_backing(&*device, self.number)
        {
            tracing::debug!(%error, "the kernel does not end the registration of a file");
        }
    }
}
