//! The server: the process that has the volume open and answers the kernel.
//!
//! It never opens its own file, nor anything that leads to it (see the crate's page), and it ends when nobody
//! holds that file any more. What it says to the supervisor on its standard output: `file PATH` or `refused
//! REASON`. The rest goes over its standard input, a socket ([`crate::handover`]). For the kernel's nbd it
//! writes `socket NUMBER BYTES FLAGS`, its own number of the kernel's end.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use netram_block::{BlockDevice, DeviceError};
use netram_nbd::{kernel_flags, serve_kernel};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::Signal;

use crate::fuse::file::FuseFile;
use crate::fuse::mount::DetachedMount;
use crate::fuse::session::FuseSession;
use crate::handover::{HandoverMessage, receive_message, send_message};
use crate::heartbeat::Heartbeat;
use crate::sys;
use crate::ublk::UblkError;

/// The line that offers the kernel's end of a socket.
pub(crate) const SOCKET_OFFER: &str = "socket ";
/// The line that offers the file.
pub(crate) const OFFER: &str = "file ";
/// The line that says why there is none.
pub(crate) const REFUSAL: &str = "refused ";

const NOWHERE: &str = "/dev/null";

/// What others end processes with at their own end: a terminal, a session, a machine. This one ends with its
/// device, for the file system's last writes come when everybody has been told to end.
const IGNORED: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

/// Killed last when memory is short: a file system waits for this process. Below it the kernel kills no one.
const OOM_SCORE: &str = "-900";

/// Why serving ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum AttachServeError {
    /// The volume could not be opened; the supervisor has been told.
    #[error("{0}")]
    Refused(String),
    /// The kernel's FUSE refused.
    #[error("serving the volume's file: {0}")]
    Fuse(#[from] io::Error),
    /// The kernel's nbd cannot be served.
    #[error("serving the kernel's nbd: {0}")]
    Nbd(io::Error),
    /// The kernel's ublk cannot be served.
    #[error("{0}")]
    Ublk(#[from] UblkError),
    /// The last flush failed.
    #[error("the last flush, after the device was let go: {0}")]
    Flush(DeviceError),
}

/// Serves the device that `open` gives until nobody holds it any more. It may be one that another server had,
/// which died.
///
/// To be called by a process of its own, started by [`attach`](crate::attach()).
pub fn serve<E: fmt::Display>(
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
) -> Result<(), AttachServeError> {
    let pulse = prepare()?;
    let taken = match receive_message(io::stdin())? {
        Some(HandoverMessage::New) => None,
        Some(HandoverMessage::Take(control)) => Some(control),
        // The supervisor is gone already.
        _ => return Ok(()),
    };
    let (session, device) = start(&pulse, open, |device| {
        let file = FuseFile::new(device);
        match taken {
            None => begin(file),
            Some(control) => take_over(control, file),
        }
    })?;
    session.join();
    drop(pulse);
    device.flush().map_err(AttachServeError::Flush)
}

/// Makes the file, and stays with the supervisor until that has the device on it.
fn begin(file: FuseFile) -> Result<FuseSession, AttachServeError> {
    let DetachedMount { control, root } = DetachedMount::new()?;
    let name = file.new_name();
    let session = FuseSession::begin(control, file)?;
    // By this path others reach into a mount that has no place.
    let path = format!("/proc/{}/fd/{}/{name}", std::process::id(), root.as_raw_fd());
    say_line(format_args!("{OFFER}{path}"))?;
    leave_output()?;
    // The supervisor holds the file by then, or it is dead: the conversation ends with the last holder.
    let heard = receive_message(io::stdin());
    if matches!(heard, Ok(Some(HandoverMessage::Give)))
        && let Err(error) = give(&session)
    {
        tracing::warn!(%error, "no other process could go on serving, should this one be killed");
    }
    drop::<OwnedFd>(root);
    Ok(session)
}

/// Goes on with the file of a server that died.
fn take_over(control: OwnedFd, file: FuseFile) -> Result<FuseSession, AttachServeError> {
    let session = FuseSession::take_over(control, file)?;
    leave_output()?;
    // Without a supervisor there is nobody to be told.
    let _ = send_message(io::stdin(), &HandoverMessage::Serving);
    Ok(session)
}

/// Gives the supervisor what another server would need.
fn give(session: &FuseSession) -> io::Result<()> {
    let word = match session.resend {
        true => HandoverMessage::Yes(session.control().as_fd().try_clone_to_owned()?),
        false => HandoverMessage::No,
    };
    send_message(io::stdin(), &word)
}

/// Serves the device that `open` gives to the kernel's NBD client, until it lets go.
///
/// As [`serve()`], to be called by a process of its own.
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
    // A supervisor that was killed says nothing.
    if !matches!(receive_message(io::stdin()), Ok(Some(HandoverMessage::Bound))) {
        // The kernel may have its end already, and would wait for answers for as long as it is told to.
        shutdown(&kernel, Shutdown::Both).map_err(io::Error::from)?;
    }
    drop(kernel);
    let ended = serving.join();
    drop(pulse);
    device.flush().map_err(AttachServeError::Flush)?;
    ended.map_err(|_| AttachServeError::Nbd(io::Error::other("the thread that answers it panicked")))
}

/// Opens the device and begins to serve it; a failure is told to the supervisor.
pub(crate) fn start<E: fmt::Display, S>(
    pulse: &Heartbeat,
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
    begin: impl FnOnce(Arc<dyn BlockDevice>) -> Result<S, AttachServeError>,
) -> Result<(S, Arc<dyn BlockDevice>), AttachServeError> {
    let started = open()
        .map_err(|error| AttachServeError::Refused(error.to_string()))
        .and_then(|device| {
            pulse.watch(&device);
            Ok((begin(Arc::clone(&device))?, device))
        });
    if let Err(error) = &started {
        // Nobody is left to be told if this fails.
        let _ = say_line(format_args!("{REFUSAL}{}", one_line(&error.to_string())));
    }
    started
}

/// A conversation with the kernel's NBD client.
struct NbdService {
    serving: JoinHandle<()>,
    /// The kernel's end, until it has it.
    kernel: OwnedFd,
}

impl NbdService {
    /// The kernel looks for partitions before its device is whole, so requests are answered from the start.
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

/// Before the volume's threads start, which inherit it.
pub(crate) fn prepare() -> io::Result<Heartbeat> {
    for signal in IGNORED {
        if let Err(error) = sys::ignore(signal) {
            tracing::warn!(%error, ?signal, "this signal ends the server, whoever uses the device");
        }
    }
    // A terminal's end is not meant for this process.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "this process leads a group already");
    }
    // The kernel must not wait for this very process to write something when it looks for memory for it.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!(%error, "the kernel does not count this process as part of the disk's way; when memory is short they may wait for each other");
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        tracing::warn!(%error, "when memory is short, this process may be killed as any other");
    }
    Heartbeat::start()
}

pub(crate) fn say_line(line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Nobody reads on: what a library prints must not fill the pipe, and wait.
pub(crate) fn leave_output() -> io::Result<()> {
    let nowhere = File::options().write(true).open(NOWHERE)?;
    Ok(rustix::stdio::dup2_stdout(nowhere)?)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
