//! The server: the process that has the volume open and answers the kernel.
//!
//! The server never opens its own file, nor anything that leads to it (see the crate's documentation). It
//! ends when no process has that file open any more. It sends `file NAME` or `refused REASON` to the
//! supervisor on its standard output. Other messages use its standard input, a socket
//! ([`netram_supervise::handover`]). For the kernel's NBD client it writes `socket NUMBER BYTES FLAGS`, with
//! its own descriptor number of the kernel's end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use netram_block::{BlockDevice, DeviceError};
use netram_nbd::{kernel_flags, serve_kernel};
use netram_supervise::handover::{HandoverMessage, receive_message, send_message};
use netram_supervise::{Heartbeat, leave_output, prepare, say_line, say_refused};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::fuse::file::FuseFile;
use crate::fuse::session::FileSession;
use crate::ublk::UblkError;

/// Start of the line that offers the kernel's end of a socket.
pub(crate) const SOCKET_OFFER: &str = "socket ";
/// Start of the line that offers the file.
pub(crate) const OFFER: &str = "file ";

/// Reason why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum AttachServeError {
    /// The volume could not be opened; the supervisor was told.
    #[error("{0}")]
    Refused(String),
    /// The kernel's FUSE failed.
    #[error("cannot serve the volume's file: {0}")]
    Fuse(#[from] io::Error),
    /// The kernel's NBD client cannot be served.
    #[error("cannot serve the kernel's nbd: {0}")]
    Nbd(io::Error),
    /// The kernel's ublk driver cannot be served.
    #[error("{0}")]
    Ublk(#[from] UblkError),
    /// The last flush failed.
    #[error("the last flush after the device was released failed: {0}")]
    Flush(DeviceError),
}

/// Serves the device that `open` returns until no process has it open any more. It may continue a device
/// whose server died.
///
/// Call it in a process of its own, started by [`attach`](crate::attach()).
///
/// # Errors
///
/// [`AttachServeError`] if the volume cannot be opened, the kernel fails, or the last flush fails.
pub fn serve<E: fmt::Display>(
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
) -> Result<(), AttachServeError> {
    let pulse = prepare()?;
    let word = match receive_message(io::stdin())? {
        Some(word @ (HandoverMessage::New(_) | HandoverMessage::Take(_))) => word,
        // The supervisor is gone already.
        _ => return Ok(()),
    };
    let (session, device) = start(&pulse, open, |device| {
        let file = FuseFile::new(device);
        match word {
            HandoverMessage::New(control) => begin(control, file),
            HandoverMessage::Take(control) => take_over(control, file),
            _ => unreachable!("another message was refused"),
        }
    })?;
    session.join();
    drop(pulse);
    device.flush().map_err(AttachServeError::Flush)
}

/// Serves the file in the supervisor's mount, and waits until the supervisor has bound the device to it.
fn begin(control: OwnedFd, file: FuseFile) -> Result<FileSession, AttachServeError> {
    let name = file.new_name();
    let session = FileSession::begin(control, file)?;
    say_line(format_args!("{OFFER}{name}"))?;
    leave_output()?;
    // By then the supervisor has the file open or is dead: the session ends with the last open file.
    let heard = receive_message(io::stdin());
    if matches!(heard, Ok(Some(HandoverMessage::Give)))
        && let Err(error) = give(&session)
    {
        tracing::warn!(%error, "no other server can continue if this one is killed");
    }
    Ok(session)
}

/// Continues the file of a server that died.
fn take_over(control: OwnedFd, file: FuseFile) -> Result<FileSession, AttachServeError> {
    let session = FileSession::take_over(control, file)?;
    leave_output()?;
    // A missing supervisor is no error here.
    let _ = send_message(io::stdin(), &HandoverMessage::Serving);
    Ok(session)
}

/// Sends the supervisor what another server would need.
fn give(session: &FileSession) -> io::Result<()> {
    let word = match session.resend {
        true => HandoverMessage::Yes(session.control().as_fd().try_clone_to_owned()?),
        false => HandoverMessage::No,
    };
    send_message(io::stdin(), &word)
}

/// Serves the device that `open` returns to the kernel's NBD client, until the kernel closes it.
///
/// As [`serve()`], call it in a process of its own.
///
/// # Errors
///
/// [`AttachServeError`] if the volume cannot be opened, the kernel fails, or the last flush fails.
pub fn serve_nbd<E: fmt::Display>(
    read_only: bool,
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
) -> Result<(), AttachServeError> {
    let pulse = prepare().map_err(AttachServeError::Nbd)?;
    let (talk, device) = start(&pulse, open, |device| NbdService::start(device, read_only))?;
    let NbdService { serving, kernel } = talk;
    let (number, bytes) = (kernel.as_raw_fd(), device.geometry().bytes);
    say_line(format_args!(
        "{SOCKET_OFFER}{number} {bytes} {}",
        kernel_flags(read_only)
    ))?;
    leave_output()?;
    // A killed supervisor sends nothing.
    if !matches!(receive_message(io::stdin()), Ok(Some(HandoverMessage::Bound))) {
        // The kernel may have its end already, and would wait for answers for its whole timeout.
        shutdown(&kernel, Shutdown::Both).map_err(io::Error::from)?;
    }
    drop(kernel);
    let ended = serving.join();
    drop(pulse);
    device.flush().map_err(AttachServeError::Flush)?;
    ended.map_err(|_| AttachServeError::Nbd(io::Error::other("the thread that answers the kernel panicked")))
}

/// Opens the device and begins to serve it; a failure is reported to the supervisor.
pub(crate) fn start<E: fmt::Display, S>(
    pulse: &Heartbeat,
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
    begin: impl FnOnce(Arc<dyn BlockDevice>) -> Result<S, AttachServeError>,
) -> Result<(S, Arc<dyn BlockDevice>), AttachServeError> {
    let started = open()
        .map_err(|error| AttachServeError::Refused(error.to_string()))
        .and_then(|device| {
            let probed = Arc::clone(&device);
            pulse.watch(move || probed.probe());
            Ok((begin(Arc::clone(&device))?, device))
        });
    if let Err(error) = &started {
        say_refused(error);
    }
    started
}

/// A connection with the kernel's NBD client.
struct NbdService {
    serving: JoinHandle<()>,
    /// The kernel's end, until the kernel has it.
    kernel: OwnedFd,
}

impl NbdService {
    /// Answers requests from the start: the kernel looks for partitions before its device is complete.
    fn start(device: Arc<dyn BlockDevice>, read_only: bool) -> Result<NbdService, AttachServeError> {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let (server, kernel) = pair.map_err(|errno| AttachServeError::Nbd(errno.into()))?;
        let serving = std::thread::Builder::new()
            .name("netram-nbd".into())
            .spawn(move || {
                serve_kernel(&device, server, read_only);
            })
            .map_err(AttachServeError::Nbd)?;
        Ok(NbdService { serving, kernel })
    }
}
