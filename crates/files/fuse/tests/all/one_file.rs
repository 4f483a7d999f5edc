//! A file system of one file, as small as it can be: what is written is counted and read as sevens.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use netram_fuse::{
    DetachedMount, FuseAttributes, FuseOperation, FuseOptions, FuseRequest, FuseService, FuseTime, FuseTtl,
    MountAttrFlags, OpenReply, ReplyBody, capability, open_flag,
};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

pub(crate) const OPTIONS: FuseOptions = FuseOptions {
    wanted: capability::HAS_RESEND | capability::BIG_WRITES,
    needed: (0, ""),
    background_max: 16,
};
pub(crate) const FILE_BYTES: u64 = 1 << 20;

const ROOT: u64 = 1;
const FILE: u64 = 2;
const TTL: FuseTtl = FuseTtl {
    name_s: 3600,
    attributes_s: 3600,
};

#[derive(Debug, Default)]
pub(crate) struct OneFile {
    pub(crate) written: AtomicU64,
}

fn attributes(node: u64) -> Option<FuseAttributes> {
    let (mode, bytes) = match node {
        ROOT => (0o040_755, 0),
        FILE => (0o100_644, FILE_BYTES),
        _ => return None,
    };
    Some(FuseAttributes {
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
        block_bytes: 4096,
    })
}

impl FuseService for OneFile {
    type Timed<'a> = ();

    fn begin(&self, _request: &FuseRequest<'_>) {}

    fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
        let found = |node| attributes(node).ok_or(Errno::NOENT);
        match &request.operation {
            FuseOperation::Lookup(b"file") => {
                body.entry(&found(FILE)?, TTL);
            }
            FuseOperation::Lookup(_) => return Err(Errno::NOENT),
            FuseOperation::Attributes => body.attributes(&found(request.node)?, TTL),
            FuseOperation::Open { .. } => body.opened(OpenReply {
                flags: open_flag::DIRECT_IO | open_flag::NOFLUSH,
                ..OpenReply::default()
            }),
            FuseOperation::Read { bytes, .. } => {
                body.room(*bytes as usize).fill(7);
                body.take(*bytes as usize);
            }
            FuseOperation::Write(write) => {
                self.written.fetch_add(write.data.len() as u64, Ordering::Relaxed);
                body.written(write.data.len() as u32);
            }
            FuseOperation::Sync | FuseOperation::Release { .. } | FuseOperation::Destroy => (),
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }
}

/// A mount; `None` where there can be none, which is said.
pub(crate) fn mount() -> Option<DetachedMount> {
    match DetachedMount::new("netram-test", 0o040_755, &[], MountAttrFlags::empty()) {
        Ok(mount) => Some(mount),
        Err(error) => {
            eprintln!("\nSKIPPED: a mount needs root and FUSE: {error}");
            None
        }
    }
}

pub(crate) fn open(root: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(openat(root, "file", flags, Mode::empty())?))
}
