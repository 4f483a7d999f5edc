//! Listening in the volume's directory, and doing what is asked.

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

use netram_block::Device;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::report::{Front, Report};
use super::wire::{Ask, Told, read_line};
use super::{ASK_BYTES_MAX, CONVERSATIONS_MAX, PATIENCE, PROGRESS_EVERY};
use crate::place::Place;
use crate::resync::resync;
use crate::scrub::{Progress, scrub};
use crate::volume::Volume;

/// Whoever has the volume open need not hurry for those who wait in line to ask.
const BACKLOG: i32 = 16;
/// After a failed accept, as when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// What stands before the volume, when asked for.
type AskFront = Box<dyn Fn() -> Option<Front> + Send + Sync>;

/// A volume that can be operated from other processes, until this is dropped.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

struct Shared {
    volume: Arc<Volume>,
    front: AskFront,
    listener: UnixListener,
    stopping: AtomicBool,
    /// One at a time: two would only halve each other's pace.
    scrubbing: AtomicBool,
    conversations: Mutex<Vec<Conversation>>,
}

struct Conversation {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Shared")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Listens in the directory of `volume`, which this process has just opened. `front` says what stands before it.
    ///
    /// To be dropped before the volume is closed: it holds the volume, and its socket is the next opener's to make.
    pub fn start(
        volume: Arc<Volume>,
        front: impl Fn() -> Option<Front> + Send + Sync + 'static,
    ) -> io::Result<Control> {
        let listener = listen(volume.place())?;
        let shared = Arc::new(Shared {
            volume,
            front: Box::new(front),
            listener,
            stopping: AtomicBool::new(false),
            scrubbing: AtomicBool::new(false),
            conversations: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let listening = std::thread::Builder::new()
            .name("netram-control".to_owned())
            .spawn(move || accept_all(&theirs))?;
        Ok(Control {
            shared,
            listening: Some(listening),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.stopping.store(true, Ordering::SeqCst);
        // The volume is still this process's, so the socket is too.
        if let Ok((folder, name)) = shared.volume.place().control() {
            let _ = fs::remove_file(through(&folder, name));
        }
        // Wakes whoever accepts.
        let _ = rustix::net::shutdown(&shared.listener, rustix::net::Shutdown::Both);
        let panicked = self.listening.take().is_some_and(|thread| thread.join().is_err());
        // Nobody adds to them any more.
        for conversation in std::mem::take(&mut *shared.conversations()) {
            let _ = conversation.stream.shutdown(Shutdown::Both);
            let _ = conversation.thread.join();
        }
        if panicked {
            tracing::error!("the thread that lets others operate the volume panicked");
        }
    }
}

/// The path that leads to `name` in `folder`, however long the folder's own is: a socket's address has 107 bytes.
fn through(folder: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

/// A socket for the volume's owner. It is not listened on before its permissions are right.
fn listen(place: &Place) -> io::Result<UnixListener> {
    let (folder, name) = place.control()?;
    let path = through(&folder, name);
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
    make_private(&folder, name)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Not by its path: where the directory is somebody else's, another file could have its name by now.
fn make_private(folder: &OwnedFd, name: &str) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let bound = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", bound.as_raw_fd());
    if !fs::metadata(Path::new(&path))?.file_type().is_socket() {
        return Err(io::Error::other(format!("{name} was replaced while it was made")));
    }
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

fn accept_all(shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::SeqCst) {
        match shared.listener.accept() {
            Ok((stream, _)) => let_in(shared, stream),
            Err(_) if shared.stopping.load(Ordering::SeqCst) => return,
            Err(error) => {
                tracing::error!(%error, "whoever wants to operate the volume cannot be let in; trying again");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn let_in(shared: &Arc<Shared>, stream: UnixStream) {
    let mut conversations = shared.conversations();
    conversations.retain(|conversation| !conversation.thread.is_finished());
    if !is_ours(&stream) || conversations.len() >= CONVERSATIONS_MAX {
        // Dropped: who is let in here shares the user, and reads the end as "no time".
        return;
    }
    let begun = stream.try_clone().and_then(|theirs| {
        let shared = Arc::clone(shared);
        std::thread::Builder::new()
            .name("netram-asked".to_owned())
            .spawn(move || shared.converse(theirs))
    });
    match begun {
        Ok(thread) => conversations.push(Conversation { stream, thread }),
        Err(error) => tracing::error!(%error, "no thread for whoever wants to operate the volume"),
    }
}

/// The socket's permissions say the same, where the directory is not somebody else's to change.
fn is_ours(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// The scrub that is under way; it ends with this.
struct Scrubbing<'a>(&'a AtomicBool);

impl Drop for Scrubbing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn conversations(&self) -> MutexGuard<'_, Vec<Conversation>> {
        self.conversations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One question, one answer. Whoever does not listen to it has gone, which is his affair.
    fn converse(&self, mut stream: UnixStream) {
        let told = match read_line(&mut stream, &mut Vec::new(), ASK_BYTES_MAX, PATIENCE) {
            Ok(line) => Some(match serde_json::from_slice(&line) {
                Ok(ask) => self.answer(&ask, &stream),
                Err(error) => {
                    Told::Refused(format!("this release does not understand what is asked: {error}"))
                }
            }),
            Err(error) => {
                tracing::debug!(%error, "somebody connected and asked nothing");
                None
            }
        };
        if let Some(Err(error)) = told.map(|told| tell(&stream, &told)) {
            tracing::debug!(%error, "whoever asked did not take the answer");
        }
        // The list's copy of this socket lives until the next one comes, and the end is to be seen now.
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn answer(&self, ask: &Ask, stream: &UnixStream) -> Told {
        match ask {
            Ask::Status => Told::Status(Box::new(Report::of(&self.volume, (self.front)()))),
            Ask::Grow { bytes } => self.grow(*bytes),
            Ask::Scrub => self.scrub(stream),
            Ask::Resync { whole } => self.resync(stream, *whole),
        }
    }

    fn grow(&self, bytes: u64) -> Told {
        let before = self.volume.geometry().bytes;
        match self.volume.grow(bytes) {
            Ok(()) => Told::Grown { before, after: bytes },
            Err(error) => Told::Refused(error.to_string()),
        }
    }

    fn scrub(&self, stream: &UnixStream) -> Told {
        if self.scrubbing.swap(true, Ordering::SeqCst) {
            return Told::Refused("a scrub is under way already; wait for its end".to_owned());
        }
        let _until_the_end = Scrubbing(&self.scrubbing);
        let cancel = AtomicBool::new(false);
        let found = scrub(&self.volume, &cancel, &mut self.teller(stream, &cancel));
        match found {
            Ok(Some(findings)) => Told::Scrubbed(findings),
            Ok(None) => Told::Refused("the volume is being closed".to_owned()),
            Err(error) => Told::Refused(error.to_string()),
        }
    }

    fn resync(&self, stream: &UnixStream, whole: bool) -> Told {
        let cancel = AtomicBool::new(false);
        let done = resync(&self.volume, whole, &cancel, &mut self.teller(stream, &cancel));
        match done {
            Ok(Some(resynced)) => Told::Resynced(resynced),
            Ok(None) => Told::Refused("the volume is being closed".to_owned()),
            Err(error) => Told::Refused(error.to_string()),
        }
    }

    /// Passes progress on now and then; sets `cancel` when nobody listens any more, or the volume is to be closed.
    fn teller<'a>(&'a self, stream: &'a UnixStream, cancel: &'a AtomicBool) -> impl FnMut(Progress) + 'a {
        let mut next = Instant::now();
        move |progress| {
            let now = Instant::now();
            let gone = now >= next && {
                next = now + PROGRESS_EVERY;
                tell(stream, &Told::Progress(progress)).is_err()
            };
            if gone || self.stopping.load(Ordering::SeqCst) {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn tell(mut stream: &UnixStream, told: &Told) -> io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&line)
}
