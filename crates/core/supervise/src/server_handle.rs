//! The supervisor's hold on a server process: its child, or a process that connected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

use crate::process::ProcessIdentity;

/// Wait status of a process that exited with 1: all that is known of a server that did not close its volume.
const FAILED: i32 = 1 << 8;

/// A server process.
#[derive(Debug)]
pub(crate) enum ServerHandle {
    /// The supervisor started it.
    Child(Child),
    /// Another program started it, as a rule systemd, which also reads its exit status.
    Connected(ConnectedServer),
}

/// A server process that connected.
#[derive(Debug)]
pub(crate) struct ConnectedServer {
    identity: ProcessIdentity,
    handle: OwnedFd,
    /// Whether the server has said that it closed the volume.
    closed: bool,
}

impl ConnectedServer {
    /// The process with this id, which must live until this returns.
    pub(crate) fn of(id: Pid) -> io::Result<ConnectedServer> {
        Ok(ConnectedServer {
            handle: pidfd_open(id, PidfdFlags::empty())?,
            identity: ProcessIdentity::of(id.as_raw_nonzero().get().cast_unsigned())?,
            closed: false,
        })
    }

    fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn has_ended(&self) -> io::Result<bool> {
        loop {
            let mut end = [PollFd::new(&self.handle, PollFlags::IN)];
            match poll(&mut end, Some(&Timespec::default())) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn status(&self) -> ExitStatus {
        ExitStatus::from_raw(if self.closed { 0 } else { FAILED })
    }
}

impl ServerHandle {
    pub(crate) fn id(&self) -> u32 {
        match self {
            ServerHandle::Child(child) => child.id(),
            ServerHandle::Connected(server) => server.identity.id,
        }
    }

    pub(crate) fn process(&self) -> io::Result<ProcessIdentity> {
        match self {
            ServerHandle::Child(child) => ProcessIdentity::of(child.id()),
            ServerHandle::Connected(server) => Ok(server.identity),
        }
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self {
            ServerHandle::Child(child) => child.kill(),
            ServerHandle::Connected(server) => server.kill(),
        }
    }

    /// The server has said that it closed the volume.
    pub(crate) fn note_closed(&mut self) {
        if let ServerHandle::Connected(server) = self {
            server.closed = true;
        }
    }

    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        match self {
            ServerHandle::Child(child) => Ok(child.try_wait()?.is_some()),
            ServerHandle::Connected(server) => server.has_ended(),
        }
    }

    /// Exit status of the server if it has ended.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            ServerHandle::Child(child) => child.try_wait(),
            ServerHandle::Connected(server) => Ok(server.has_ended()?.then(|| server.status())),
        }
    }

    /// Waits for the end of a server that ends by itself. Whoever started one that connected waits for that.
    pub(crate) fn wait(self) -> io::Result<Option<ExitStatus>> {
        match self {
            ServerHandle::Child(mut child) => child.wait().map(Some),
            ServerHandle::Connected(_) => Ok(None),
        }
    }

    /// A duplicate of the server's descriptor `number`.
    pub(crate) fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        let ServerHandle::Child(child) = self else {
            // It is not asked for: a server that connected has no device that needs one.
            return Err(io::ErrorKind::Unsupported.into());
        };
        let server = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        Ok(pidfd_getfd(server.as_fd(), number, PidfdGetfdFlags::empty())?)
    }
}
