//! The session of a volume's file: its beginning, and taking it over from a killed server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use netram_fuse::{AgreedSession, FuseDevice, FuseOptions, FuseSession, capability};

use super::file::FuseFile;

/// Number of requests handled concurrently: one may wait for lenders while others read.
const THREADS: usize = 4;

pub(super) const OPTIONS: FuseOptions = FuseOptions {
    wanted: capability::ASYNC_READ | capability::BIG_WRITES | capability::HAS_RESEND,
    // Without it the loop device would wait for each request before it sends the next.
    needed: (
        capability::ASYNC_DIO,
        "this kernel's FUSE has no asynchronous direct I/O",
    ),
    // Of the loop device's.
    background_max: 128,
};

/// A file that is being served.
#[derive(Debug)]
pub(crate) struct FileSession {
    session: FuseSession,
    /// Whether another server could take this session over.
    pub(crate) resend: bool,
}

impl FileSession {
    /// Begins the session of a new mount.
    pub(crate) fn begin(control: OwnedFd, file: FuseFile) -> io::Result<FileSession> {
        let agreed = AgreedSession::begin(FuseDevice::from(control), &OPTIONS)?;
        Ok(FileSession {
            resend: agreed.agreement().can_be_taken_over(),
            session: agreed.serve(Arc::new(file), THREADS)?,
        })
    }

    /// Continues where a killed server stopped: its unanswered requests are sent again. Some may have been
    /// executed already; executing a request twice is safe, because its completion was never reported.
    pub(crate) fn take_over(control: OwnedFd, file: FuseFile) -> io::Result<FileSession> {
        let session = FuseSession::take_over(Arc::new(FuseDevice::from(control)), Arc::new(file), THREADS)?;
        Ok(FileSession {
            session,
            resend: true,
        })
    }

    /// The kernel's end of the session, for a server that may have to take it over.
    pub(crate) fn control(&self) -> impl AsFd + '_ {
        &**self.session.device()
    }

    /// Waits until no process has the file open any more.
    pub(crate) fn join(self) {
        self.session.join();
    }
}
