//! The supervisor: starts the server, binds the loop device, lets it go.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::attach_method::AttachMethod;
use crate::attached_device::{AttachedDevice, ReleasedDevice};
use crate::handover::HandoverMessage;
use crate::loop_device::{LoopBindError, LoopDevice};
use crate::nbd_device::{NbdConfig, NbdDevice, NbdError};
use crate::process::ProcessIdentity;
use crate::registry::{AttachRecord, NameClaim, RegistryError};
use crate::release_task::ReleaseTask;
use crate::server::{DeviceOffer, ServerProcess};
use crate::sys::LoopConfig;
use crate::ublk::{self, UblkDevice, UblkError, UblkStart};
use crate::users::{DeviceUser, users};

/// What is to be attached.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The volume, as an absolute path: for messages and records.
    pub volume: PathBuf,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// How the kernel reaches it. The server must serve that way.
    pub method: AttachMethod,
    /// Whether another server may take the place of one that died. Not for a device that forgets, with its
    /// process, what it had completed: its users would never know.
    pub restart: bool,
    /// A server that has said nothing for so long is killed; `None`: none is. It says that it is well once a
    /// second, while it waits for its disk or for lenders too.
    pub hung_after: Option<Duration>,
}

/// How the server of a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHealth {
    /// It answers, or waits for what it needs to.
    Healthy,
    /// It answered a moment ago, or is being started in place of one that died.
    Waiting,
    /// It has ended. Without another the device gives errors only.
    Exited(ExitStatus),
}

/// A volume that has a device. Dropping it lets the device go as soon as nobody else has it, and leaves a
/// stale record.
#[derive(Debug)]
pub struct VolumeAttachment {
    device: AttachedDevice,
    /// The device is being let go, and is not had yet.
    release: Option<ReleaseTask>,
    server: ServerProcess,
    /// The server is another's successor, and does not serve yet.
    succeeding: bool,
    may_restart: bool,
    hung_after: Option<Duration>,
    claim: NameClaim,
    record: AttachRecord,
}

/// What came of letting a device go.
#[derive(Debug)]
pub enum ReleaseOutcome {
    /// It goes. The server ends once it has.
    Detaching(Box<DetachingDevice>),
    /// What was written to it is on its way to the server, which may be replaced meanwhile. To be asked
    /// again.
    Flushing(Box<VolumeAttachment>),
    /// Somebody has it for himself. As before.
    InUse(Box<VolumeAttachment>, Vec<DeviceUser>),
}

/// A device that goes once nobody has it open, and its server, which still writes what is left. The name and
/// the volume are taken until the server has ended: by then the device is gone, whoever has used it
/// meanwhile.
#[derive(Debug)]
pub struct DetachingDevice {
    server: ServerProcess,
    ended: Option<ExitStatus>,
    device: ReleasedDevice,
    /// The volume is free once the server has ended. Until the device is gone its record stands.
    claim: NameClaim,
    withdrawn: bool,
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
    Bind(#[from] LoopBindError),
    /// No device of the kernel's nbd.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// No device of the kernel's ublk.
    #[error("{0}")]
    Ublk(#[from] UblkError),
    /// The server's socket cannot be had.
    #[error("taking the server's socket: {0}")]
    Socket(io::Error),
    /// What the server offers is for another way.
    #[error("the server process offers something else than it was asked for: is it of another version?")]
    OtherMethod,
    /// The record could not be written.
    #[error("recording what is attached: {0}")]
    Record(#[from] RegistryError),
}

/// Starts `server`, a process that calls [`serve`](crate::serve()), and gives its volume a device.
pub fn attach(
    mut claim: NameClaim,
    request: &AttachRequest,
    server: Command,
) -> Result<VolumeAttachment, AttachError> {
    // A file system may wait for this process to start another server: the kernel must not let it wait for
    // the file system.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!(%error, "when memory is short, replacing a server that died may wait for that very server");
    }
    let mut server = ServerProcess::start(server, request.hung_after)?;
    match make(&mut claim, request, &mut server) {
        Ok((device, record)) => Ok(VolumeAttachment {
            device,
            release: None,
            server,
            succeeding: false,
            may_restart: request.restart,
            hung_after: request.hung_after,
            claim,
            record,
        }),
        Err(error) => Err(server.give_up(error)),
    }
}

/// Gives what `server` serves a device, and announces it. After an error there is no device.
fn make(
    claim: &mut NameClaim,
    request: &AttachRequest,
    server: &mut ServerProcess,
) -> Result<(AttachedDevice, AttachRecord), AttachError> {
    let supervisor = ProcessIdentity::of(std::process::id()).map_err(AttachError::Start)?;
    let begun = match request.method {
        AttachMethod::Fuse => server.say(&HandoverMessage::New),
        AttachMethod::Nbd => Ok(()),
        AttachMethod::Ublk => server.begin(&UblkStart::New {
            block_bytes: request.block_bytes,
            read_only: request.read_only,
            again: request.restart,
            mark: ublk::mark(&supervisor),
        }),
    };
    begun.map_err(AttachError::Start)?;
    let mut device = match (server.offer()?, request.method) {
        (DeviceOffer::File(path), AttachMethod::Fuse) => {
            let file = open(&path)?;
            AttachedDevice::Loop {
                device: bind(&file, request, claim.name())?,
                file,
                control: None,
            }
        }
        (DeviceOffer::Socket { number, bytes, flags }, AttachMethod::Nbd) => {
            let block_bytes = request.block_bytes;
            let config = NbdConfig {
                bytes,
                block_bytes,
                flags,
            };
            AttachedDevice::Nbd(NbdDevice::connect(&server.socket(number)?, config)?)
        }
        (DeviceOffer::Device(number), AttachMethod::Ublk) => AttachedDevice::Ublk(UblkDevice::new(number)?),
        _ => return Err(AttachError::OtherMethod),
    };
    let record = AttachRecord {
        name: claim.name().to_owned(),
        volume: request.volume.clone(),
        device: device.path().to_path_buf(),
        link: claim.link(),
        way: request.method.name().to_owned(),
        block_bytes: request.block_bytes,
        read_only: request.read_only,
        file: device.file(),
        supervisor,
        server: server.process()?,
        restarts: 0,
    };
    claim.announce(&record)?;
    match &mut device {
        // Nothing here waits for the server's answers any more.
        AttachedDevice::Loop { control, .. } if request.restart => *control = server.take_control(),
        _ => tell_bound(server),
    }
    Ok((device, record))
}

/// The kernel holds what the server has offered; the server's own hold on it ends with this.
fn tell_bound(server: &ServerProcess) {
    // One that has died meanwhile is noticed as such.
    let _ = server.say(&HandoverMessage::Bound);
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
fn bind(file: &File, request: &AttachRequest, name: &str) -> Result<LoopDevice, AttachError> {
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

impl VolumeAttachment {
    /// What is recorded: device, link, processes.
    pub fn record(&self) -> &AttachRecord {
        &self.record
    }

    /// How the server stands at `now`. To be asked about once a second: a server that hangs is killed here,
    /// and a successor given to the device once it is ready. `Err`: the kernel takes no successor.
    pub fn look(&mut self, now: Instant) -> Result<ServerHealth, AttachError> {
        let ended = self.server.look(now).map_err(AttachError::Start)?;
        if self.succeeding && self.has_succeeded()? {
            self.succeeding = false;
        }
        Ok(match ended {
            Some(status) => ServerHealth::Exited(status),
            None if self.succeeding || !self.server.is_well() => ServerHealth::Waiting,
            None => ServerHealth::Healthy,
        })
    }

    /// Whether the successor serves; the kernel's nbd is given it.
    fn has_succeeded(&mut self) -> Result<bool, AttachError> {
        let offered = match self.server.offered() {
            // It ends, having said why; then there may be another.
            Err(AttachError::Refused(reason)) => {
                tracing::warn!(%reason, "the server that was to take over cannot");
                return Ok(false);
            }
            offered => offered?,
        };
        match (&self.device, offered) {
            (AttachedDevice::Loop { .. }, None) => Ok(self.server.serves()),
            (AttachedDevice::Nbd(_) | AttachedDevice::Ublk(_), None) => Ok(false),
            (AttachedDevice::Ublk(device), Some(DeviceOffer::Device(number)))
                if number == device.number() =>
            {
                Ok(true)
            }
            (AttachedDevice::Nbd(device), Some(DeviceOffer::Socket { number, bytes, .. })) => {
                match self.server.socket(number) {
                    Ok(socket) => device.reconnect(&socket, bytes)?,
                    Err(error) => {
                        tracing::warn!(%error, "the server that was to take over is of no use");
                        self.server.kill().map_err(AttachError::Start)?;
                        return Ok(false);
                    }
                }
                tell_bound(&self.server);
                Ok(true)
            }
            _ => Err(AttachError::OtherMethod),
        }
    }

    /// Lets the device go, unless it is mounted or used otherwise. Waits for nobody: the first answer is
    /// mostly that it is closing.
    pub fn release(mut self) -> ReleaseOutcome {
        let begun = match self.release.take() {
            Some(closing) => Ok(closing),
            None => self.device.begin_release(),
        };
        let had = begun.and_then(|closing| Ok((closing.acquired().transpose()?, closing)));
        match had {
            Ok((Some(()), closing)) => ReleaseOutcome::Detaching(Box::new(DetachingDevice {
                server: self.server,
                ended: None,
                device: self.device.close(closing),
                claim: self.claim,
                withdrawn: false,
            })),
            Ok((None, closing)) => {
                self.release = Some(closing);
                ReleaseOutcome::Flushing(Box::new(self))
            }
            Err(error) => {
                tracing::debug!(%error, "the device is in use");
                let users = users(self.device.path());
                ReleaseOutcome::InUse(Box::new(self), users)
            }
        }
    }

    /// Whether the device can have another server when its first has died.
    pub fn can_restart(&self) -> bool {
        let possible = match &self.device {
            AttachedDevice::Loop { control, .. } => control.is_some(),
            AttachedDevice::Nbd(_) | AttachedDevice::Ublk(_) => true,
        };
        self.may_restart && possible
    }

    /// Starts another server in place of one that has died. Requests wait until it serves, as
    /// [`VolumeAttachment::look`] tells; this process must not, nor for its volume's recovery: nobody else
    /// could replace it.
    pub fn restart(&mut self, server: Command) -> Result<(), AttachError> {
        let server = ServerProcess::start(server, self.hung_after)?;
        match &self.device {
            AttachedDevice::Loop {
                control: Some(control),
                ..
            } => {
                let control = control.try_clone().map_err(AttachError::Start)?;
                // One that is dead already is seen to be so in its turn.
                let _ = server.say(&HandoverMessage::Take(control));
            }
            AttachedDevice::Loop { control: None, .. } => {
                return Err(server.give_up(AttachError::OtherMethod));
            }
            AttachedDevice::Nbd(_) => (),
            AttachedDevice::Ublk(device) => {
                let _ = server.begin(&UblkStart::Take(device.number()));
            }
        }
        self.record.restarts = self.record.restarts.saturating_add(1);
        self.record.server = server.process()?;
        (self.server, self.succeeding) = (server, true);
        Ok(self.claim.announce(&self.record)?)
    }

    /// Kills the server, and lets no other take its place: whoever uses the device gets errors.
    pub fn give_up(&mut self) -> io::Result<()> {
        self.may_restart = false;
        self.server.kill()
    }

    /// Gives a device up whose server is gone. Who has it mounted keeps it, and gets errors, until he
    /// unmounts it.
    pub fn abandon(mut self) -> Vec<DeviceUser> {
        // Before it fails: a device of ublk is not there any more then.
        let users = users(self.device.path());
        match &mut self.device {
            AttachedDevice::Loop { control, .. } => *control = None,
            AttachedDevice::Nbd(device) => {
                if let Err(error) = device.fail() {
                    tracing::warn!(%error, "the device still waits for another server, and then fails");
                }
            }
            AttachedDevice::Ublk(device) => {
                if let Err(error) = device.fail() {
                    tracing::warn!(%error, "the device still waits for another server");
                }
            }
        }
        withdraw(&mut self.claim);
        users
    }
}

impl DetachingDevice {
    /// How the server ended, once it has and the device is gone: then the volume is closed. To be asked about
    /// once a second: a server that hangs is killed here.
    pub fn ended(&mut self, now: Instant) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.server.look(now)?;
            if self.ended.is_some_and(|status| !status.success()) {
                self.device.fail();
            }
        }
        let over = self.device.is_over();
        if over && !self.withdrawn {
            withdraw(&mut self.claim);
            self.withdrawn = true;
        }
        Ok(self.ended.filter(|_| over))
    }

    /// Kills the server: what still waits for it gets errors.
    pub fn give_up(&mut self) -> io::Result<()> {
        self.server.kill()
    }
}

fn withdraw(claim: &mut NameClaim) {
    if let Err(error) = claim.withdraw() {
        tracing::warn!(%error, "the record of what was attached stays and is stale");
    }
}
