//! The floor of a mount: a FUSE server that answers at once, and keeps nothing.
//!
//! The server is a process of its own, as a mount's is. Its mount is at no path: the measurement opens the
//! file through the server's descriptor.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use netram_fuse::{
    AgreedSession, DetachedMount, FuseAttributes, FuseOperation, FuseOptions, FuseRequest, FuseService,
    FuseTime, FuseTtl, MountAttrFlags, OpenReply, ReplyBody, capability, follow_caller, open_flag,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Beginning of the line with the number of the descriptor that is the mount.
const READY: &str = "serving ";
const FILE_NAME: &str = "log";
const ROOT: u64 = 1;
const FILE: u64 = 2;
const THREADS: usize = 4;
const BLOCK_BYTES: u32 = 4096;
const TTL: FuseTtl = FuseTtl {
    name_s: 3600,
    attributes_s: 3600,
};
/// What a mount asks for that changes the way of a write or a sync.
const OPTIONS: FuseOptions = FuseOptions {
    wanted: capability::BIG_WRITES | capability::ASYNC_DIO | capability::HANDLE_KILLPRIV_V2,
    needed: (0, ""),
    background_max: 64,
};

/// Serves a file that discards what is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EmptyFileJob {
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl ChildJob for EmptyFileJob {
    const ROLE: &'static str = "EmptyFile";

    // Serves until killed.
    fn run(&self) -> Result<(), BenchError> {
        let made = DetachedMount::new("netram-empty", 0o040_755, &[], MountAttrFlags::empty());
        let DetachedMount { device, root } = made.context("mount an empty file system")?;
        let agreed = AgreedSession::begin(device, &OPTIONS).context("begin to serve it")?;
        let session = agreed.serve_apart(Arc::new(EmptyFile { bytes: self.bytes }), THREADS);
        let session = session.context("serve it")?;
        crate::say(&format!("{READY}{}", root.as_raw_fd()))?;
        session.join();
        Ok(())
    }
}

/// The file system.
struct EmptyFile {
    bytes: u64,
}

impl EmptyFile {
    fn attributes(&self, node: u64) -> Result<FuseAttributes, Errno> {
        let (mode, bytes) = match node {
            ROOT => (0o040_755, 0),
            FILE => (0o100_600, self.bytes),
            _ => return Err(Errno::NOENT),
        };
        Ok(FuseAttributes {
            node,
            bytes,
            units: bytes / 512,
            accessed: FuseTime::default(),
            modified: FuseTime::default(),
            changed: FuseTime::default(),
            mode,
            links: 1,
            user: 0,
            group: 0,
            block_bytes: BLOCK_BYTES,
        })
    }
}

impl FuseService for EmptyFile {
    type Timed<'a> = ();

    fn begin(&self, _request: &FuseRequest<'_>) {}

    fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
        match &request.operation {
            FuseOperation::Write(write) => {
                follow_caller(request.caller.thread);
                body.written(write.data.len() as u32);
            }
            FuseOperation::Sync => follow_caller(request.caller.thread),
            FuseOperation::Lookup(name) if *name == FILE_NAME.as_bytes() => {
                body.entry(&self.attributes(FILE)?, TTL);
            }
            FuseOperation::Lookup(_) => return Err(Errno::NOENT),
            FuseOperation::Attributes => body.attributes(&self.attributes(request.node)?, TTL),
            FuseOperation::Open { .. } => body.opened(OpenReply {
                flags: open_flag::KEEP_CACHE | open_flag::NOFLUSH,
                ..OpenReply::default()
            }),
            FuseOperation::Read { bytes, .. } => {
                let bytes = *bytes as usize;
                body.room(bytes).fill(0);
                body.take(bytes);
            }
            FuseOperation::Release { .. } | FuseOperation::Destroy => (),
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }
}

/// The file, served by a child process.
#[derive(Debug)]
pub(crate) struct EmptyFileServer {
    server: ChildProcess,
    descriptor: u32,
}

impl EmptyFileServer {
    pub(crate) fn begin(site: &Testbed, bytes: u64) -> Result<EmptyFileServer, BenchError> {
        let job = EmptyFileJob { bytes };
        let mut server = ChildProcess::play(site.program(), &job, "empty file", site.directory())?;
        let lines = server.ready(READY)?;
        let number = lines.last().and_then(|line| line.strip_prefix(READY));
        let descriptor = number.and_then(|number| number.trim().parse().ok());
        match descriptor {
            Some(descriptor) => Ok(EmptyFileServer { server, descriptor }),
            None => Err(server.log_error("it did not say which descriptor the mount is")),
        }
    }

    /// Opens the file for writing.
    pub(crate) fn open(&self, flags: OFlags) -> Result<File, BenchError> {
        let path = format!("/proc/{}/fd/{}/{FILE_NAME}", self.server.id(), self.descriptor);
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags.bits().cast_signed());
        options.open(path).context("open the empty file")
    }
}
