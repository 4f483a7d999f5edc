//! The supervisor: starts the server, binds the loop device, lets it go.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::OFlags;

use crate::loop_device::{BindError, LoopDevice};
use crate::process::Process;
use crate::registry::{Claim, Record, RegistryError};
use crate::serve::{OFFER, REFUSAL};
use crate::sys::LoopConfig;
use crate::users::{User, users};

/// The one way that is built in.
const WAY: &str = "fuse+loop";

/// What is to be attached.
#[derive(Clone, Debug)]
pub struct Request {
    /// The volume, as an absolute path: for messages and records.
    pub volume: PathBuf,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
}

/// A volume that has a device. Dropping it lets the device go as soon as nobody else has it, and leaves a stale record.
#[derive(Debug)]
pub struct Attached {
    device: LoopDevice,
    /// The served file. Open so that whoever enlarged the volume can make the kernel look at its size again.
    file: File,
    server: Child,
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
    /// The record could not be written.
    #[error("recording what is attached: {0}")]
    Record(#[from] RegistryError),
}

/// Starts `server`, a process that calls [`serve`](crate::serve()), and gives its volume a device.
pub fn attach(mut claim: Claim, request: &Request, mut server: Command) -> Result<Attached, AttachError> {
    let mut server = server
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(AttachError::Start)?;
    match make(&mut claim, request, &mut server) {
        Ok((device, file, record)) => Ok(Attached {
            device,
            file,
            server,
            claim,
            record,
        }),
        Err(error) => {
            // The server ends by itself now: nobody holds its file, and its input ends.
            drop(server.stdin.take());
            Err(match (error, server.wait()) {
                (AttachError::Ended(_), Ok(status)) => AttachError::Ended(status),
                (error, _) => error,
            })
        }
    }
}

/// Gives what `server` serves a device, and announces it. After an error there is no device.
fn make(
    claim: &mut Claim,
    request: &Request,
    server: &mut Child,
) -> Result<(LoopDevice, File, Record), AttachError> {
    let file = open(&offered(server)?)?;
    let device = bind(&file, request, claim.name())?;
    if !device.is_direct() {
        tracing::warn!(
            device = %device.path().display(),
            "the loop driver of this kernel caches the volume a second time, in the served file's pages"
        );
    }
    let record = Record {
        name: claim.name().to_owned(),
        volume: request.volume.clone(),
        device: device.path().to_path_buf(),
        link: claim.link(),
        way: WAY.to_owned(),
        block_bytes: request.block_bytes,
        read_only: request.read_only,
        file: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
        supervisor: Process::of(std::process::id()).map_err(AttachError::Start)?,
        server: Process::of(server.id()).map_err(AttachError::Start)?,
    };
    claim.announce(&record)?;
    // The loop device holds the file now; the server's own hold on it ends with this.
    drop(server.stdin.take());
    Ok((device, file, record))
}

/// The path of the file that the server serves. Other lines are for whoever reads along.
fn offered(server: &mut Child) -> Result<PathBuf, AttachError> {
    let output = server.stdout.as_mut().map(BufReader::new);
    for line in output.into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(AttachError::Start)?;
        if let Some(path) = line.strip_prefix(OFFER) {
            return Ok(path.into());
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
    Ok(LoopDevice::bind(file, &config)?)
}

impl Attached {
    /// What is recorded: device, link, processes.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// How the server ended, if it has. The device then gives errors only.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.server.try_wait()
    }

    /// Lets the device go, unless it is mounted or used otherwise.
    pub fn release(self) -> Release {
        let Attached {
            device,
            file,
            server,
            mut claim,
            record,
        } = self;
        match device.release() {
            Ok(()) => {
                drop(file);
                withdraw(&mut claim);
                let _claim = claim;
                Release::Going(Box::new(Going { server, _claim }))
            }
            Err((device, error)) => {
                tracing::debug!(%error, "the device is in use");
                let users = users(device.path());
                let attached = Attached {
                    device,
                    file,
                    server,
                    claim,
                    record,
                };
                Release::InUse(Box::new(attached), users)
            }
        }
    }

    /// Gives a device up whose server is gone. Who has it mounted keeps it, and gets errors, until he unmounts it.
    pub fn abandon(mut self) -> Vec<User> {
        withdraw(&mut self.claim);
        users(self.device.path())
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
