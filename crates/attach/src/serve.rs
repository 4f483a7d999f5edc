//! The server: the process that has the volume open and answers the kernel.
//!
//! It never opens its own file, nor anything that leads to it (see the crate's page), and it ends when nobody holds that
//! file any more. Its conversation with the supervisor: it writes `file PATH` or
//! `refused REASON` to standard output, and lets go of the mount itself when its standard input ends.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use fuser::{Config, Session, SessionACL};
use netram_disk::{Device, DeviceError};
use rustix::process::Signal;

use crate::file::{NAME, VolumeFile};
use crate::mount::DetachedMount;
use crate::sys;

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
    let started = open()
        .map_err(|error| ServeError::Refused(error.to_string()))
        .and_then(|device| Ok((Served::start(Arc::clone(&device))?, device)));
    let (served, device) = match started {
        Ok(started) => started,
        Err(error) => {
            // Nobody is left to be told if this fails.
            let _ = say(format_args!("{REFUSAL}{}", one_line(&error.to_string())));
            return Err(error);
        }
    };
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
