//! Control server: listens in the volume's directory and serves requests.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::BlockDevice;
use netram_process::lines::{is_ours, read_line};
use netram_telemetry::{MetricSamples, MetricSource, MetricsFormat, MetricsRegistration, MetricsRegistry};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::metrics;
use super::report::{VolumeFrontend, VolumeReport};
use super::wire::{VolumeReply, VolumeRequest};
use super::{PROGRESS_INTERVAL, REQUEST_BYTES_MAX, REQUEST_TIMEOUT, SESSIONS_MAX};
use crate::paths::VolumePaths;
use crate::resync::resync;
use crate::scrub::{TaskProgress, scrub};
use crate::volume::Volume;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Delay after a failed `accept`, for example when file descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the status of the volume's front end.
type FrontendSource = Box<dyn Fn() -> Option<VolumeFrontend> + Send + Sync>;

/// Lets other processes operate a volume until it is dropped.
#[derive(Debug)]
pub struct VolumeControl {
    metrics: Option<MetricsRegistration<ControlInner>>,
    shared: Arc<ControlInner>,
    listening: Option<JoinHandle<()>>,
}

struct ControlInner {
    volume: Arc<Volume>,
    frontend: FrontendSource,
    listener: UnixListener,
    stopping: AtomicBool,
    /// Whether a scrub is running. Only one may: two would only slow each other down.
    scrubbing: AtomicBool,
    sessions: Mutex<Vec<ControlSession>>,
}

struct ControlSession {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for ControlInner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ControlInner")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

impl VolumeControl {
    /// Listens in the directory of `volume`, which this process has just opened. `front` returns the status
    /// of its front end.
    ///
    /// Drop it before the volume is closed: it keeps the volume open, and the next opener creates the socket
    /// again.
    ///
    /// # Errors
    ///
    /// The socket cannot be created, or the thread cannot be started.
    pub fn start(
        volume: Arc<Volume>,
        front: impl Fn() -> Option<VolumeFrontend> + Send + Sync + 'static,
    ) -> io::Result<VolumeControl> {
        let listener = listen(volume.paths())?;
        let shared = Arc::new(ControlInner {
            volume,
            frontend: Box::new(front),
            listener,
            stopping: AtomicBool::new(false),
            scrubbing: AtomicBool::new(false),
            sessions: Mutex::default(),
        });
        let metrics = MetricsRegistry::of_process().add(&shared);
        let theirs = Arc::clone(&shared);
        let listening = std::thread::Builder::new()
            .name("netram-control".to_owned())
            .spawn(move || accept_all(&theirs))?;
        Ok(VolumeControl {
            metrics: Some(metrics),
            shared,
            listening: Some(listening),
        })
    }
}

impl Drop for VolumeControl {
    fn drop(&mut self) {
        // Its owner closes the volume next, for which nobody else may refer to it.
        drop(self.metrics.take());
        let shared = &self.shared;
        shared.stopping.store(true, Ordering::SeqCst);
        // This process still has the volume, so the socket is its own too.
        if let Ok((directory, name)) = shared.volume.paths().control() {
            let _ = fs::remove_file(through(&directory, name));
        }
        // Wakes the accepting thread.
        let _ = rustix::net::shutdown(&shared.listener, rustix::net::Shutdown::Both);
        let panicked = self.listening.take().is_some_and(|thread| thread.join().is_err());
        // No session is added any more.
        for conversation in std::mem::take(&mut *shared.sessions()) {
            let _ = conversation.stream.shutdown(Shutdown::Both);
            let _ = conversation.thread.join();
        }
        if panicked {
            tracing::error!("the volume's control thread panicked");
        }
    }
}

/// A path to `name` in `directory` that stays short for any directory: a socket address has at most 107
/// bytes.
fn through(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

/// Creates a socket for the volume's owner. It does not listen before its permissions are set.
fn listen(place: &VolumePaths) -> io::Result<UnixListener> {
    let (directory, name) = place.control()?;
    let path = through(&directory, name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    make_private(&directory, name)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Does not use the socket's path: in a directory of another user, that name may now be another file.
fn make_private(directory: &OwnedFd, name: &str) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let bound = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", bound.as_raw_fd());
    if !fs::metadata(Path::new(&path))?.file_type().is_socket() {
        return Err(io::Error::other(format!(
            "{name} was replaced by another process while it was being created"
        )));
    }
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

fn accept_all(shared: &Arc<ControlInner>) {
    while !shared.stopping.load(Ordering::SeqCst) {
        match shared.listener.accept() {
            Ok((stream, _)) => let_in(shared, stream),
            Err(_) if shared.stopping.load(Ordering::SeqCst) => return,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection to the volume's control socket; retrying");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn let_in(shared: &Arc<ControlInner>, stream: UnixStream) {
    let mut conversations = shared.sessions();
    conversations.retain(|conversation| !conversation.thread.is_finished());
    if !is_ours(&stream) || conversations.len() >= SESSIONS_MAX {
        // Dropped: the client runs as the same user, and takes the closed connection for "busy".
        return;
    }
    let begun = stream.try_clone().and_then(|theirs| {
        let shared = Arc::clone(shared);
        std::thread::Builder::new()
            .name("netram-command".to_owned())
            .spawn(move || shared.serve_session(theirs))
    });
    match begun {
        Ok(thread) => conversations.push(ControlSession { stream, thread }),
        Err(error) => {
            tracing::error!(%error, "cannot start a thread for a connection to the volume's control socket")
        }
    }
}

/// Marks a scrub as running until dropped.
struct Scrubbing<'a>(&'a AtomicBool);

impl Drop for Scrubbing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl MetricSource for ControlInner {
    fn collect(&self, samples: &mut MetricSamples) {
        metrics::collect(&VolumeReport::of(&self.volume, (self.frontend)()), samples);
        let path = self.volume.paths().root().display().to_string();
        self.volume.times().collect(&path, samples);
    }
}

impl ControlInner {
    fn sessions(&self) -> MutexGuard<'_, Vec<ControlSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one request. A client that does not read the reply is ignored.
    fn serve_session(&self, mut stream: UnixStream) {
        let told = match read_line(&mut stream, &mut Vec::new(), REQUEST_BYTES_MAX, REQUEST_TIMEOUT) {
            Ok(line) => Some(match serde_json::from_slice(&line) {
                Ok(ask) => self.answer(&ask, &stream),
                Err(error) => {
                    VolumeReply::Refused(format!("this release does not understand the request: {error}"))
                }
            }),
            Err(error) => {
                tracing::debug!(%error, "a control client connected but sent no request");
                None
            }
        };
        if let Some(Err(error)) = told.map(|told| send_line(&stream, &told)) {
            tracing::debug!(%error, "a control client did not read its reply");
        }
        // The session list's handle keeps the socket open until the next client, but this client must see the
        // end now.
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn answer(&self, ask: &VolumeRequest, stream: &UnixStream) -> VolumeReply {
        match ask {
            VolumeRequest::Status => {
                VolumeReply::Status(Box::new(VolumeReport::of(&self.volume, (self.frontend)())))
            }
            VolumeRequest::Metrics => {
                VolumeReply::Metrics(MetricsRegistry::of_process().text(MetricsFormat::Prometheus))
            }
            VolumeRequest::Grow { bytes } => self.grow(*bytes),
            VolumeRequest::Scrub => self.scrub(stream),
            VolumeRequest::Resync { whole } => self.resync(stream, *whole),
            VolumeRequest::Rekeyed => VolumeReply::Rekeyed {
                data_lender: self.volume.rekeyed(),
            },
        }
    }

    fn grow(&self, bytes: u64) -> VolumeReply {
        let before = self.volume.geometry().bytes;
        match self.volume.grow(bytes) {
            Ok(()) => VolumeReply::Grown { before, after: bytes },
            Err(error) => VolumeReply::Refused(error.to_string()),
        }
    }

    fn scrub(&self, stream: &UnixStream) -> VolumeReply {
        if self.scrubbing.swap(true, Ordering::SeqCst) {
            return VolumeReply::Refused("a scrub is already running; wait until it has ended".to_owned());
        }
        let _until_the_end = Scrubbing(&self.scrubbing);
        let cancel = AtomicBool::new(false);
        let found = scrub(&self.volume, &cancel, &mut self.progress_sender(stream, &cancel));
        match found {
            Ok(Some(findings)) => VolumeReply::Scrubbed(findings),
            Ok(None) => VolumeReply::Refused("the volume is being closed".to_owned()),
            Err(error) => VolumeReply::Refused(error.to_string()),
        }
    }

    fn resync(&self, stream: &UnixStream, whole: bool) -> VolumeReply {
        let cancel = AtomicBool::new(false);
        let done = resync(
            &self.volume,
            whole,
            &cancel,
            &mut self.progress_sender(stream, &cancel),
        );
        match done {
            Ok(Some(resynced)) => VolumeReply::Resynced(resynced),
            Ok(None) => VolumeReply::Refused("the volume is being closed".to_owned()),
            Err(error) => VolumeReply::Refused(error.to_string()),
        }
    }

    /// Sends progress at intervals. Sets `cancel` when the client has gone or the volume is being closed.
    fn progress_sender<'a>(
        &'a self,
        stream: &'a UnixStream,
        cancel: &'a AtomicBool,
    ) -> impl FnMut(TaskProgress) + 'a {
        let mut next = Instant::now();
        move |progress| {
            let now = Instant::now();
            let gone = now >= next && {
                next = now + PROGRESS_INTERVAL;
                send_line(stream, &VolumeReply::Progress(progress)).is_err()
            };
            if gone || self.stopping.load(Ordering::SeqCst) {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn send_line(mut stream: &UnixStream, told: &VolumeReply) -> io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(&line)
}
