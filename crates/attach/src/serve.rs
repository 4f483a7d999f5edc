//! The server: the process that has the volume open and answers the kernel.
//!
//! It never opens its own file, nor anything that leads to it (see the crate's page), and it ends when nobody holds that
//! file any more. Its conversation with the supervisor: it writes `file PATH` or
//! `refused REASON` to standard output, and lets go of the mount itself when its standard input ends.
//! For the kernel's nbd it writes `socket NUMBER BYTES FLAGS`, its own number of the kernel's end, and the supervisor says
//! `held` when the kernel has that.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use fuser::{Config, Session, SessionACL};
use netram_disk::{Device, DeviceError};
use netram_nbd::{kernel_flags, serve_kernel};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::Signal;

use crate::file::{NAME, VolumeFile};
use crate::mount::DetachedMount;
use crate::sys;

/// The line that offers the kernel's end of a socket.
pub(crate) const SOCKET_OFFER: &str = "socket ";
/// What the supervisor says when the kernel has it.
pub(crate) const HELD: &str = "held";
/// The line that offers the file.
pub(crate) const OFFER: &str = "file ";
/// The line that says why there is none.
pub(crate) const REFUSAL: &str = "refused ";

const NOWHERE: &str = "/dev/null";

/// Requests that are answered at the same time: one waits for lenders while others read.
const THREADS: usize = 4;

/// What others end processes with at their own end: a terminal, a session, a machine. This one ends with its device, for
/// the file system's last writes come when everybody has been told to end.
const IGNORED: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

/// Killed last when memory is short: a file system waits for this process. Below it the kernel kills no one.
const OOM_SCORE: &str = "-900";

/// Why serving ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The volume could not be opened; the supervisor has been told.
    #[error("{0}")]
    Refused(String),
    /// The kernel's FUSE refused.
    #[error("serving the volume's file: {0}")]
    Fuse(#[from] io::Error),
    /// The kernel's nbd cannot be served.
    #[error("serving the kernel's nbd: {0}")]
    Nbd(io::Error),
    /// The last flush failed.
    #[error("the last flush, after the device was let go: {0}")]
    Flush(DeviceError),
}

/// A file system that is being served.
struct Served {
    session: JoinHandle<io::Result<()>>,
    /// The session ends with the last holder: this, and whoever has the file open.
    root: OwnedFd,
}

/// Serves the device that `open` gives until nobody holds it any more.
///
/// To be called by a process of its own, started by [`attach`](crate::attach()).
pub fn serve<E: fmt::Display>(open: impl FnOnce() -> Result<Arc<dyn Device>, E>) -> Result<(), ServeError> {
    prepare();
    let (served, device) = start(open, Served::start)?;
    // By this path others reach into a mount that has no place.
    let path = format!(
        "/proc/{}/fd/{}/{NAME}",
        std::process::id(),
        served.root.as_raw_fd()
    );
    say(format_args!("{OFFER}{path}"))?;
    leave_output()?;
    // The supervisor holds the file by now, or it is dead.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    let Served { session, root } = served;
    drop(root);
    let ended = session.join();
    device.flush().map_err(ServeError::Flush)?;
    ended.unwrap_or_else(|_| Err(io::Error::other("a thread that serves the file panicked")))?;
    Ok(())
}

/// Serves the device that `open` gives to the kernel's NBD client, until it lets go.
///
/// As [`serve()`], to be called by a process of its own.
pub fn serve_nbd<E: fmt::Display>(
    read_only: bool,
    open: impl FnOnce() -> Result<Arc<dyn Device>, E>,
) -> Result<(), ServeError> {
    prepare();
    let (talk, device) = start(open, |device| Talk::start(device, read_only))?;
    let Talk { serving, kernel } = talk;
    let (number, bytes) = (kernel.as_raw_fd(), device.geometry().bytes);
    say(format_args!(
        "{SOCKET_OFFER}{number} {bytes} {}",
        kernel_flags(read_only)
    ))?;
    leave_output()?;
    let mut said = String::new();
    // A supervisor that was killed says nothing.
    let _ = io::stdin().lock().read_to_string(&mut said);
    if said.trim() != HELD {
        // The kernel may have its end already, and would wait for answers for as long as it is told to.
        shutdown(&kernel, Shutdown::Both).map_err(io::Error::from)?;
    }
    drop(kernel);
    let ended = serving.join();
    device.flush().map_err(ServeError::Flush)?;
    ended.map_err(|_| ServeError::Nbd(io::Error::other("the thread that answers it panicked")))
}

/// Opens the device and begins to serve it; a failure is told to the supervisor.
fn start<E: fmt::Display, S>(
    open: impl FnOnce() -> Result<Arc<dyn Device>, E>,
    begin: impl FnOnce(Arc<dyn Device>) -> Result<S, ServeError>,
) -> Result<(S, Arc<dyn Device>), ServeError> {
    let started = open()
        .map_err(|error| ServeError::Refused(error.to_string()))
        .and_then(|device| Ok((begin(Arc::clone(&device))?, device)));
    if let Err(error) = &started {
        // Nobody is left to be told if this fails.
        let _ = say(format_args!("{REFUSAL}{}", one_line(&error.to_string())));
    }
    started
}

/// A conversation with the kernel's NBD client.
struct Talk {
    serving: JoinHandle<()>,
    /// The kernel's end, until it has it.
    kernel: OwnedFd,
}

impl Talk {
    /// The kernel looks for partitions before its device is whole, so requests are answered from the start.
    fn start(device: Arc<dyn Device>, read_only: bool) -> Result<Talk, ServeError> {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let (server, kernel) = pair.map_err(|errno| ServeError::Nbd(errno.into()))?;
        let serving = std::thread::Builder::new()
            .name("netram-nbd".into())
            .spawn(move || {
                serve_kernel(&device, server, read_only);
            })
            .map_err(ServeError::Nbd)?;
        Ok(Talk { serving, kernel })
    }
}

/// Before the volume's threads start, which inherit it.
fn prepare() {
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
}

impl Served {
    fn start(device: Arc<dyn Device>) -> Result<Served, ServeError> {
        let DetachedMount { control, root } = DetachedMount::new()?;
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let session = Session::from_fd(VolumeFile::new(device), control, SessionACL::Owner, config)?;
        let session = std::thread::Builder::new()
            .name("netram-fuse".into())
            .spawn(move || session.run())?;
        Ok(Served { session, root })
    }
}

fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Nobody reads on: what a library prints must not fill the pipe, and wait.
fn leave_output() -> io::Result<()> {
    let nowhere = File::options().write(true).open(NOWHERE)?;
    Ok(rustix::stdio::dup2_stdout(nowhere)?)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
