//! The supervisor: starts the server, attaches the device, releases it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use netram_fuse::DetachedMount;
use netram_supervise::handover::HandoverMessage;
use netram_supervise::{ProcessIdentity, ServerError, ServerListener, ServerProcess, become_io_flusher};

use crate::attach_method::AttachMethod;
use crate::attached_device::{AttachedDevice, ReleasedDevice};
use crate::device_offer::DeviceOffer;
use crate::fuse::mount::{mount_detached, open_file};
use crate::loop_device::{LoopBindError, LoopDevice};
use crate::nbd_device::{NbdConfig, NbdDevice, NbdError};
use crate::registry::{AttachRecord, NameClaim, RegistryError};
use crate::release_task::ReleaseTask;
use crate::sys::LoopConfig;
use crate::ublk::{self, UblkDevice, UblkError, UblkStart};
use crate::users::{DeviceUser, users};

/// Request to attach a volume.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The volume, as an absolute path; for messages and records.
    pub volume: PathBuf,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Whether to refuse writes.
    pub read_only: bool,
    /// Attach method. The server must serve with the same method.
    pub method: AttachMethod,
    /// Whether another server may replace one that died. Not for a device that keeps completed writes only in
    /// its process: its users would not notice their loss.
    pub restart: bool,
    /// Silence after which a server is killed; `None`: never. It sends a heartbeat once a second, even while
    /// it waits for its disk or for lenders.
    pub hung_after: Option<Duration>,
}

/// Source of servers, the first and those that replace one.
#[derive(Debug)]
pub enum ServerSource<'a> {
    /// The supervisor starts a process that calls [`serve`](crate::serve()).
    Start(Command),
    /// Another program starts it, with the rights of the volume's user only. Just for [`AttachMethod::Fuse`]:
    /// the other methods need root in the server.
    Accept(&'a ServerListener),
}

/// Health of a device's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHealth {
    /// The server answers, or waits for its disk or lenders.
    Healthy,
    /// The server answered a moment ago, or is starting in place of one that died.
    Waiting,
    /// The server has ended. Without another, all requests to the device fail.
    Exited(ExitStatus),
}

/// A volume with a device. Dropping it releases the device once no other process has it open, and leaves a
/// stale record.
#[derive(Debug)]
pub struct VolumeAttachment {
    device: AttachedDevice,
    /// The device's release, while it is not acquired yet.
    release: Option<ReleaseTask>,
    server: ServerProcess,
    /// Whether the server is another's successor and does not serve yet.
    succeeding: bool,
    may_restart: bool,
    hung_after: Option<Duration>,
    claim: NameClaim,
    record: AttachRecord,
}

/// Outcome of releasing a device.
#[derive(Debug)]
pub enum ReleaseOutcome {
    /// The device is being closed, and its server ends after that.
    Detaching(Box<DetachingDevice>),
    /// Written data is being flushed to the server, which may be replaced during that. Ask again later.
    Flushing(Box<VolumeAttachment>),
    /// Another user has the device exclusively. It stays attached.
    InUse(Box<VolumeAttachment>, Vec<DeviceUser>),
}

/// A device that ends once no process has it open, and its server, which still writes the remaining data.
/// Name and volume stay taken until the server has ended: by then the device is gone too, whoever used it
/// last.
#[derive(Debug)]
pub struct DetachingDevice {
    server: ServerProcess,
    ended: Option<ExitStatus>,
    device: ReleasedDevice,
    /// The volume is free once the server has ended. The record stays until the device is gone.
    claim: NameClaim,
    withdrawn: bool,
}

/// Failure to attach a volume. The attempt leaves nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server failed, or refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server's file cannot be opened.
    #[error("cannot open the served volume: {0}")]
    File(io::Error),
    /// The kernel refused a mount.
    #[error("cannot mount the volume's file: {0}")]
    Mount(io::Error),
    /// A loop device could not be bound.
    #[error("{0}")]
    Bind(#[from] LoopBindError),
    /// A device of the kernel's NBD client could not be connected.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// A ublk device could not be created.
    #[error("{0}")]
    Ublk(#[from] UblkError),
    /// The server's socket cannot be duplicated.
    #[error("cannot take over the server's socket: {0}")]
    Socket(io::Error),
    /// The server's offer is for another attach method.
    #[error("the server process offers a device for another attach method; it may be of another version")]
    OtherMethod,
    /// The record could not be written.
    #[error("cannot record the attachment: {0}")]
    Record(#[from] RegistryError),
}

/// Attaches the volume of a server.
///
/// # Errors
///
/// [`AttachError`] if the server fails or refuses, the kernel refuses a device, or the record cannot be
/// written.
pub fn attach(
    mut claim: NameClaim,
    request: &AttachRequest,
    server: ServerSource<'_>,
) -> Result<VolumeAttachment, AttachError> {
    // A file system may wait for this process to start another server, so memory reclaim must not make it
    // wait for the file system.
    become_io_flusher();
    let mut server = match server {
        ServerSource::Start(command) => ServerProcess::start(command, request.hung_after)?,
        ServerSource::Accept(_) if request.method != AttachMethod::Fuse => {
            return Err(AttachError::OtherMethod);
        }
        ServerSource::Accept(listener) => listener.wait(request.hung_after)?,
    };
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
        Err(error) => Err(give_up(server, error)),
    }
}

/// Attaches the device that `server` serves, and announces it. After an error there is no device.
fn make(
    claim: &mut NameClaim,
    request: &AttachRequest,
    server: &mut ServerProcess,
) -> Result<(AttachedDevice, AttachRecord), AttachError> {
    let supervisor = ProcessIdentity::of(std::process::id()).map_err(ServerError::Start)?;
    let mut mount = None;
    let begun = match request.method {
        AttachMethod::Fuse => {
            let DetachedMount { device, root } = mount_detached().map_err(AttachError::Mount)?;
            mount = Some(root);
            // Only the server has the kernel's end while this process waits for the server.
            server.say(&HandoverMessage::New(device.into()))
        }
        AttachMethod::Nbd => Ok(()),
        AttachMethod::Ublk => server.say_line(&UblkStart::New {
            block_bytes: request.block_bytes,
            read_only: request.read_only,
            again: request.restart,
            mark: ublk::mark(&supervisor),
        }),
    };
    begun.map_err(ServerError::Start)?;
    let mut device = match (server.offer(DeviceOffer::parse)?, &mount) {
        (DeviceOffer::File(name), Some(root)) => {
            let file = open_file(root, &name).map_err(AttachError::File)?;
            AttachedDevice::Loop {
                device: bind(&file, request, claim.name())?,
                file,
                control: None,
            }
        }
        (DeviceOffer::Socket { number, bytes, flags }, None) if request.method == AttachMethod::Nbd => {
            let block_bytes = request.block_bytes;
            let config = NbdConfig {
                bytes,
                block_bytes,
                flags,
            };
            AttachedDevice::Nbd(NbdDevice::connect(&socket(server, number)?, config)?)
        }
        (DeviceOffer::Device(number), None) if request.method == AttachMethod::Ublk => {
            AttachedDevice::Ublk(UblkDevice::new(number)?)
        }
        _ => return Err(AttachError::OtherMethod),
    };
    // The mount ends with its last file, which the device has open.
    drop::<Option<OwnedFd>>(mount);
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
        // No step here waits for the server's answers any more.
        AttachedDevice::Loop { control, .. } if request.restart => *control = server.take_control(),
        _ => tell_bound(server),
    }
    Ok((device, record))
}

/// Waits for the end of a server whose offer was not accepted. Returns `error`, with its exit status.
fn give_up(server: ServerProcess, error: AttachError) -> AttachError {
    match (error, server.give_up()) {
        (AttachError::Server(ServerError::Ended(_)), Some(status)) => ServerError::Ended(status).into(),
        (error, _) => error,
    }
}

/// A duplicate of the server's socket with descriptor `number`.
fn socket(server: &ServerProcess, number: i32) -> Result<OwnedFd, AttachError> {
    server.descriptor(number).map_err(AttachError::Socket)
}

/// Tells the server that the kernel has its file or socket, so that it closes its own.
fn tell_bound(server: &ServerProcess) {
    // A server that has died in between is noticed elsewhere.
    let _ = server.say(&HandoverMessage::Bound);
}

/// Binds a loop device to the served file, which keeps it open from then on.
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
            "this kernel's loop driver also caches the volume in the served file's page cache"
        );
    }
    Ok(device)
}

impl VolumeAttachment {
    /// The record: device, link, processes.
    pub fn record(&self) -> &AttachRecord {
        &self.record
    }

    /// Health of the server at `now`. Call it about once a second: it kills a hanging server, and gives a
    /// ready successor to the device. `Err`: the kernel refuses the successor.
    ///
    /// # Errors
    ///
    /// [`AttachError`] if the server cannot be watched, or the kernel refuses its successor.
    pub fn look(&mut self, now: Instant) -> Result<ServerHealth, AttachError> {
        let ended = self.server.look(now).map_err(ServerError::Start)?;
        if self.succeeding && self.has_succeeded()? {
            self.succeeding = false;
        }
        Ok(match ended {
            Some(status) => ServerHealth::Exited(status),
            None if self.succeeding || !self.server.is_well() => ServerHealth::Waiting,
            None => ServerHealth::Healthy,
        })
    }

    /// Whether the successor serves; connects it to the kernel's NBD client if needed.
    fn has_succeeded(&mut self) -> Result<bool, AttachError> {
        let offered = match self.server.offered(DeviceOffer::parse) {
            // The server ends after reporting the reason; then another may be started.
            Err(ServerError::Refused(reason)) => {
                tracing::warn!(%reason, "the successor refused to take over");
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
                match socket(&self.server, number) {
                    Ok(socket) => device.reconnect(&socket, bytes)?,
                    Err(error) => {
                        tracing::warn!(%error, "cannot use the successor; killing it");
                        self.server.kill().map_err(ServerError::Start)?;
                        return Ok(false);
                    }
                }
                tell_bound(&self.server);
                Ok(true)
            }
            _ => Err(AttachError::OtherMethod),
        }
    }

    /// Releases the device unless it is mounted or otherwise in use. Never blocks: the first outcome is
    /// usually `Flushing`.
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
                tracing::debug!(%error, "device in use");
                let users = users(self.device.path());
                ReleaseOutcome::InUse(Box::new(self), users)
            }
        }
    }

    /// Whether the device can get another server after its first has died.
    pub fn can_restart(&self) -> bool {
        let possible = match &self.device {
            AttachedDevice::Loop { control, .. } => control.is_some(),
            AttachedDevice::Nbd(_) | AttachedDevice::Ublk(_) => true,
        };
        self.may_restart && possible
    }

    /// Gets another server in place of one that has died; `false`: none has connected yet. Requests wait
    /// until it serves, which [`VolumeAttachment::look`] reports. This process must not wait, not even for
    /// the volume's recovery, because no other process could replace the server.
    ///
    /// # Errors
    ///
    /// [`AttachError`] if the server cannot be started, the device allows none, or the record fails.
    pub fn restart(&mut self, server: ServerSource<'_>) -> Result<bool, AttachError> {
        let server = match server {
            ServerSource::Start(command) => Some(ServerProcess::start(command, self.hung_after)?),
            ServerSource::Accept(listener) => listener.accept(self.hung_after)?,
        };
        match server {
            Some(server) => self.continue_with(server).map(|()| true),
            None => Ok(false),
        }
    }

    /// Hands the device of a dead server to this one.
    fn continue_with(&mut self, server: ServerProcess) -> Result<(), AttachError> {
        match &self.device {
            AttachedDevice::Loop {
                control: Some(control),
                ..
            } => {
                let control = control.try_clone().map_err(ServerError::Start)?;
                // A server that is dead already is noticed by the next look.
                let _ = server.say(&HandoverMessage::Take(control));
            }
            AttachedDevice::Loop { control: None, .. } => {
                return Err(give_up(server, AttachError::OtherMethod));
            }
            AttachedDevice::Nbd(_) => (),
            AttachedDevice::Ublk(device) => {
                let _ = server.say_line(&UblkStart::Take(device.number()));
            }
        }
        self.record.restarts = self.record.restarts.saturating_add(1);
        self.record.server = server.process()?;
        (self.server, self.succeeding) = (server, true);
        Ok(self.claim.announce(&self.record)?)
    }

    /// Kills the server and allows no successor: users of the device get errors.
    ///
    /// # Errors
    ///
    /// The server cannot be killed.
    pub fn give_up(&mut self) -> io::Result<()> {
        self.may_restart = false;
        self.server.kill()
    }

    /// Gives up a device whose server is gone. A mounted file system stays mounted, with errors, until it is
    /// unmounted. Returns the device's users.
    pub fn abandon(mut self) -> Vec<DeviceUser> {
        // Before the requests fail, because a ublk device does not exist any more after that.
        let users = users(self.device.path());
        match &mut self.device {
            AttachedDevice::Loop { control, .. } => *control = None,
            AttachedDevice::Nbd(device) => {
                if let Err(error) = device.fail() {
                    tracing::warn!(%error, "the device still waits for another server, and fails after its timeout");
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
    /// Exit status of the server, once it has ended and the device is gone: then the volume is closed. Call
    /// it about once a second: it kills a hanging server.
    ///
    /// # Errors
    ///
    /// The server cannot be watched or killed.
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

    /// Kills the server: requests that still wait for it fail.
    ///
    /// # Errors
    ///
    /// The server cannot be killed.
    pub fn give_up(&mut self) -> io::Result<()> {
        self.server.kill()
    }
}

fn withdraw(claim: &mut NameClaim) {
    if let Err(error) = claim.withdraw() {
        tracing::warn!(%error, "cannot remove the record of the attachment; it is stale now");
    }
}
