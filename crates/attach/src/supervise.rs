//! The supervisor: starts the server, binds the loop device, lets it go.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::handover::{Word, hear, say};
use crate::held::Held;
use crate::loop_device::{BindError, LoopDevice};
use crate::nbd_device::{NbdConfig, NbdDevice, NbdError};
use crate::process::Process;
use crate::registry::{Claim, Record, RegistryError};
use crate::serve::{HELD, OFFER, REFUSAL, SOCKET_OFFER};
use crate::sys::LoopConfig;
use crate::users::{User, users};
use crate::way::Way;

/// What is to be attached.
#[derive(Clone, Debug)]
pub struct Request {
    /// The volume, as an absolute path: for messages and records.
    pub volume: PathBuf,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// How the kernel reaches it. The server must serve that way.
    pub way: Way,
    /// Whether another server may take the place of one that died. Not for a device that forgets, with its process, what it
    /// had completed: its users would never know.
    pub restart: bool,
}

/// What a server offers.
enum Offer {
    /// A file, to put a loop device on.
    File(PathBuf),
    /// A socket, under the server's number of it, and what the kernel is to be told.
    Socket { number: i32, bytes: u64, flags: u16 },
}

impl Offer {
    fn parse(line: &str) -> Option<Offer> {
        if let Some(path) = line.strip_prefix(OFFER) {
            return Some(Offer::File(path.into()));
        }
        let mut words = line.strip_prefix(SOCKET_OFFER)?.split(' ');
        Some(Offer::Socket {
            number: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
            flags: words.next()?.parse().ok()?,
        })
    }
}

/// A volume that has a device. Dropping it lets the device go as soon as nobody else has it, and leaves a stale record.
#[derive(Debug)]
pub struct Attached {
    device: Held,
    server: Child,
    may_restart: bool,
    claim: Claim,
    record: Record,
}

/// What came of letting a device go.
#[derive(Debug)]
pub enum Release {
    /// It goes. The server ends once it has.
    Going(Box<Going>),
    /// Somebody has it for himself. As before.
    InUse(Box<Attached>, Vec<User>),
}

/// A device that goes once nobody has it open, and its server, which still writes what is left. The name and the volume
/// are taken until the server has ended: by then the device is gone, whoever has used it meanwhile.
#[derive(Debug)]
pub struct Going {
    server: Child,
    /// The volume is free once the server has ended.
    _claim: Claim,
}

/// Why nothing was attached. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server could not be started.
    #[error("starting the server process: {0}")]
    Start(io::Error),
    /// The server said why it would not.
    #[error("{0}")]
    Refused(String),
    /// The server ended without a word.
    #[error("the server process ended before it served anything ({0}); what it logged says more")]
    Ended(ExitStatus),
    /// The file that the server offers cannot be opened.
    #[error("opening {path}, the served volume: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No loop device.
    #[error("{0}")]
    Bind(#[from] BindError),
    /// No device of the kernel's nbd.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// The server's socket cannot be had.
    #[error("taking the server's socket: {0}")]
    Socket(io::Error),
    /// What the server offers is for another way.
    #[error("the server process offers something else than it was asked for: is it of another version?")]
    OtherWay,
    /// The record could not be written.
    #[error("recording what is attached: {0}")]
    Record(#[from] RegistryError),
}

/// Starts `server`, a process that calls [`serve`](crate::serve()), and gives its volume a device.
pub fn attach(mut claim: Claim, request: &Request, server: Command) -> Result<Attached, AttachError> {
    // A file system may wait for this process to start another server: the kernel must not let it wait for the file system.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!(%error, "when memory is short, replacing a server that died may wait for that very server");
    }
    let (mut server, talk) = spawn(server, Stdio::piped())?;
    match make(&mut claim, request, &mut server, &talk) {
        Ok((device, record)) => Ok(Attached {
            device,
            server,
            may_restart: request.restart,
            claim,
            record,
        }),
        Err(error) => Err(give_up(server, talk, error)),
    }
}

/// A server's process, and the socket that is its standard input.
fn spawn(mut server: Command, output: Stdio) -> Result<(Child, UnixStream), AttachError> {
    let (ours, theirs) = UnixStream::pair().map_err(AttachError::Start)?;
    let started = server.stdin(OwnedFd::from(theirs)).stdout(output).spawn();
    Ok((started.map_err(AttachError::Start)?, ours))
}

/// The server ends by itself now: nobody holds what it offers, and its input ends.
fn give_up(mut server: Child, talk: UnixStream, error: AttachError) -> AttachError {
    drop(talk);
    match (error, server.wait()) {
        (AttachError::Ended(_), Ok(status)) => AttachError::Ended(status),
        (error, _) => error,
    }
}

/// Gives what `server` serves a device, and announces it. After an error there is no device.
fn make(
    claim: &mut Claim,
    request: &Request,
    server: &mut Child,
    talk: &UnixStream,
) -> Result<(Held, Record), AttachError> {
    if request.way == Way::Fuse {
        say(talk, &Word::New).map_err(AttachError::Start)?;
    }
    let mut device = match (offered(server)?, request.way) {
        (Offer::File(path), Way::Fuse) => {
            let file = open(&path)?;
            Held::Loop {
                device: bind(&file, request, claim.name())?,
                file,
                control: None,
            }
        }
        (Offer::Socket { number, bytes, flags }, Way::Nbd) => {
            let block_bytes = request.block_bytes;
            let config = NbdConfig {
                bytes,
                block_bytes,
                flags,
            };
            Held::Nbd(NbdDevice::connect(&socket_of(server, number)?, config)?)
        }
        _ => return Err(AttachError::OtherWay),
    };
    let record = Record {
        name: claim.name().to_owned(),
        volume: request.volume.clone(),
        device: device.path().to_path_buf(),
        link: claim.link(),
        way: request.way.name().to_owned(),
        block_bytes: request.block_bytes,
        read_only: request.read_only,
        file: device.file(),
        supervisor: Process::of(std::process::id()).map_err(AttachError::Start)?,
        server: Process::of(server.id()).map_err(AttachError::Start)?,
        restarts: 0,
    };
    claim.announce(&record)?;
    match &mut device {
        // Nothing here waits for the server's answers any more.
        Held::Loop { control, .. } => *control = request.restart.then(|| take_control(talk)).flatten(),
        Held::Nbd(_) => tell_held(talk),
    }
    Ok((device, record))
}

/// The kernel holds what the server has offered; the server's own hold on it ends with this.
fn tell_held(mut talk: &UnixStream) {
    // One that has died meanwhile is noticed as such.
    let _ = writeln!(talk, "{HELD}");
}

/// What another server would need to go on with the file, if this kernel lets it.
fn take_control(talk: &UnixStream) -> Option<OwnedFd> {
    let heard = say(talk, &Word::Give).and_then(|()| hear(talk));
    match heard {
        Ok(Some(Word::Yes(control))) => Some(control),
        Ok(Some(Word::No)) => {
            tracing::info!(
                "this kernel (before Linux 6.9) does not let another server go on, should this one die"
            );
            None
        }
        // It is dead, which is about to be seen.
        _ => None,
    }
}

/// The socket that the server has under `number`.
fn socket_of(server: &Child, number: i32) -> Result<OwnedFd, AttachError> {
    let taken = pidfd_open(Pid::from_child(server), PidfdFlags::empty())
        .and_then(|server| pidfd_getfd(server, number, PidfdGetfdFlags::empty()));
    taken.map_err(|errno| AttachError::Socket(errno.into()))
}

/// What the server offers. Other lines are for whoever reads along.
fn offered(server: &mut Child) -> Result<Offer, AttachError> {
    let output = server.stdout.as_mut().map(BufReader::new);
    for line in output.into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(AttachError::Start)?;
        if let Some(offer) = Offer::parse(&line) {
            return Ok(offer);
        }
        if let Some(reason) = line.strip_prefix(REFUSAL) {
            return Err(AttachError::Refused(reason.to_owned()));
        }
    }
    Err(AttachError::Ended(ExitStatus::default()))
}

fn open(path: &Path) -> Result<File, AttachError> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(path);
    opened.map_err(|source| AttachError::File {
        path: path.to_path_buf(),
        source,
    })
}

/// Binds a loop device to the served file, which it holds from then on.
fn bind(file: &File, request: &Request, name: &str) -> Result<LoopDevice, AttachError> {
    let config = LoopConfig {
        block_bytes: request.block_bytes,
        read_only: request.read_only,
        name: &format!("netram:{name}"),
    };
    let device = LoopDevice::bind(file, &config)?;
    if !device.is_direct() {
        tracing::warn!(
            device = %device.path().display(),
            "the loop driver of this kernel caches the volume a second time, in the served file's pages"
        );
    }
    Ok(device)
}

impl Attached {
    /// What is recorded: device, link, processes.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// How the server ended, if it has. Without another the device gives errors only.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.server.try_wait()
    }

    /// Lets the device go, unless it is mounted or used otherwise.
    pub fn release(self) -> Release {
        let Attached {
            device,
            server,
            may_restart,
            mut claim,
            record,
        } = self;
        match device.release() {
            Ok(()) => {
                withdraw(&mut claim);
                let _claim = claim;
                Release::Going(Box::new(Going { server, _claim }))
            }
            Err((device, error)) => {
                tracing::debug!(%error, "the device is in use");
                let users = users(device.path());
                let attached = Attached {
                    device,
                    server,
                    may_restart,
                    claim,
                    record,
                };
                Release::InUse(Box::new(attached), users)
            }
        }
    }

    /// Whether the device can have another server when its first has died.
    pub fn can_restart(&self) -> bool {
        let possible = match &self.device {
            Held::Loop { control, .. } => control.is_some(),
            Held::Nbd(_) => true,
        };
        self.may_restart && possible
    }

    /// Gives the device another server in place of one that has died. Requests have waited meanwhile.
    pub fn restart(&mut self, server: Command) -> Result<(), AttachError> {
        self.server = match &self.device {
            Held::Loop {
                control: Some(control),
                ..
            } => go_on(control, server)?,
            Held::Loop { control: None, .. } => return Err(AttachError::OtherWay),
            Held::Nbd(device) => reconnect(device, server)?,
        };
        self.record.restarts = self.record.restarts.saturating_add(1);
        self.record.server = Process::of(self.server.id()).map_err(AttachError::Start)?;
        Ok(self.claim.announce(&self.record)?)
    }

    /// Kills the server, and lets no other take its place: whoever uses the device gets errors.
    pub fn give_up(&mut self) -> io::Result<()> {
        self.may_restart = false;
        self.server.kill()
    }

    /// Gives a device up whose server is gone. Who has it mounted keeps it, and gets errors, until he unmounts it.
    pub fn abandon(mut self) -> Vec<User> {
        match &mut self.device {
            Held::Loop { control, .. } => *control = None,
            Held::Nbd(device) => {
                if let Err(error) = device.fail() {
                    tracing::warn!(%error, "the device still waits for another server, and then fails");
                }
            }
        }
        withdraw(&mut self.claim);
        users(self.device.path())
    }
}

/// A server that goes on with a file. What it has to say is in its log: this process must not wait for it, nor for its
/// volume's recovery, while nobody else could replace it.
fn go_on(control: &OwnedFd, server: Command) -> Result<Child, AttachError> {
    let control = control.try_clone().map_err(AttachError::Start)?;
    let (server, talk) = spawn(server, Stdio::null())?;
    // One that is dead already is seen to be so in its turn.
    let _ = say(&talk, &Word::Take(control));
    Ok(server)
}

/// A server that the kernel's nbd has.
fn reconnect(device: &NbdDevice, server: Command) -> Result<Child, AttachError> {
    let (mut server, talk) = spawn(server, Stdio::piped())?;
    let reconnected = match offered(&mut server) {
        Ok(Offer::Socket { number, bytes, .. }) => {
            socket_of(&server, number).and_then(|socket| Ok(device.reconnect(&socket, bytes)?))
        }
        Ok(Offer::File(_)) => Err(AttachError::OtherWay),
        Err(error) => Err(error),
    };
    match reconnected {
        Ok(()) => {
            tell_held(&talk);
            Ok(server)
        }
        Err(error) => Err(give_up(server, talk, error)),
    }
}

impl Going {
    /// How the server ended, once it has: then the volume is closed.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.server.try_wait()
    }
}

fn withdraw(claim: &mut Claim) {
    if let Err(error) = claim.withdraw() {
        tracing::warn!(%error, "the record of what was attached stays and is stale");
    }
}
