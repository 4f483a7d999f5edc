//! A FUSE file system of one file, whose bytes are a [`BlockDevice`]'s.
//!
//! Requests go straight to the device: neither this process nor the kernel caches anything (direct I/O). So
//! an answered write was completed by the device, and a flush reaches the device as a flush.

use std::sync::Arc;
use std::time::SystemTime;

use netram_block::{BLOCK_BYTES, BlockDevice, DeviceError, SECTOR_BYTES};
use netram_fuse::{
    FuseAttributes, FuseOperation, FuseRequest, FuseService, FuseSpace, FuseTime, FuseTtl, OpenReply,
    REQUEST_BYTES_MAX, ReplyBody, error_number, open_flag,
};
use rustix::io::Errno;

use crate::failure_log::FailureLog;

/// Beginning of the file's name. The server that creates the file chooses the rest, and any name with this
/// beginning is found, because another server may continue with it.
const NAME_BEGINS: &str = "netram-";
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
const DIRECTORY_MODE: u32 = 0o040_700;
const FILE_MODE: u32 = 0o100_600;

/// The name never changes. The attributes do, because the file may grow.
const TTL: FuseTtl = FuseTtl {
    name_s: 3600,
    attributes_s: 0,
};
const OPENED: OpenReply = OpenReply {
    handle: 0,
    flags: open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES | open_flag::NOFLUSH,
    backing: 0,
};
/// Maximum bytes of a name.
const NAME_BYTES_MAX: u32 = 255;
/// Units of a file's size on the disk.
const UNIT_BYTES: u64 = 512;

const _: () = assert!(REQUEST_BYTES_MAX <= netram_block::limit::REQUEST_BYTES_MAX);

const PUNCH_HOLE: u32 = 0x02;
const KEEP_SIZE: u32 = 0x01;
const ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The file system.
pub(crate) struct FuseFile {
    device: Arc<dyn BlockDevice>,
    made_s: u64,
    failures: FailureLog,
}

/// Kind of range that a `fallocate` request clears.
#[derive(Debug, PartialEq, Eq)]
enum ClearMode {
    /// The space may be freed.
    Discard,
    /// The space must stay allocated.
    Zero,
}

impl ClearMode {
    fn of(mode: u32) -> Option<ClearMode> {
        match mode & !KEEP_SIZE {
            PUNCH_HOLE => Some(ClearMode::Discard),
            ZERO_RANGE => Some(ClearMode::Zero),
            _ => None,
        }
    }
}

impl FuseFile {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> FuseFile {
        FuseFile {
            device,
            made_s: (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH))
                .map_or(0, |since| since.as_secs()),
            failures: FailureLog::default(),
        }
    }

    /// A name for a new file that is unique on this machine. The kernel shows only this name as the file
    /// under a loop device, and some programs identify devices by it. With equal names, `mkfs.btrfs` refused
    /// a second volume while the first was mounted.
    pub(crate) fn new_name(&self) -> String {
        format!("{NAME_BEGINS}{}-{}", std::process::id(), self.made_s)
    }

    /// Whether this is a name of [`FuseFile::new_name`]. A supervisor trusts no server to offer one.
    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with(NAME_BEGINS) && !name.contains('/')
    }

    fn attributes(&self, node: u64) -> Option<FuseAttributes> {
        let (mode, bytes) = match node {
            DIRECTORY => (DIRECTORY_MODE, 0),
            FILE => (FILE_MODE, self.device.geometry().bytes),
            _ => return None,
        };
        let made = FuseTime {
            s: self.made_s.cast_signed(),
            ns: 0,
        };
        Some(FuseAttributes {
            node,
            bytes,
            units: bytes / UNIT_BYTES,
            accessed: made,
            modified: made,
            changed: made,
            mode,
            links: 1,
            user: 0,
            group: 0,
            block_bytes: BLOCK_BYTES as u32,
        })
    }

    fn write_all(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let pending = self.device.write(offset, bytes)?;
        self.device.wait(pending)
    }

    fn clear(&self, clearing: &ClearMode, offset: u64, length: u64) -> Result<(), DeviceError> {
        let pending = match clearing {
            ClearMode::Discard => self.device.discard(offset, length)?,
            ClearMode::Zero => self.device.zero(offset, length)?,
        };
        self.device.wait(pending)
    }

    /// Offset of the first hole or data at or behind `from`; the end counts as a hole.
    fn seek(&self, from: u64, hole: bool) -> Result<Option<u64>, DeviceError> {
        let end = self.device.geometry().bytes;
        if from >= end {
            return Ok(None);
        }
        // Extents are whole sectors, seeks are in bytes.
        let start = from - from % SECTOR_BYTES;
        let (mut at, mut found) = (start, None);
        self.device.extents(start, end - start, &mut |length, is_hole| {
            if is_hole == hole {
                found = Some(at.max(from));
            }
            at += length;
            found.is_none()
        })?;
        Ok(found.or(hole.then_some(end)))
    }

    fn failed(&self, what: &str, offset: u64, length: u64, error: &DeviceError) -> Errno {
        error_number(self.failures.note(what, offset, length, error))
    }
}

impl FuseService for FuseFile {
    type Timed<'a> = ();

    fn begin(&self, _request: &FuseRequest<'_>) {}

    fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
        match &request.operation {
            FuseOperation::Read { offset, bytes, .. } => self.read(*offset, *bytes, body),
            FuseOperation::Write(write) => {
                self.write(write.offset, write.data)?;
                // The kernel sends at most `REQUEST_BYTES_MAX`.
                body.written(write.data.len() as u32);
                Ok(())
            }
            FuseOperation::Sync => self.sync(),
            FuseOperation::Lookup(name) => {
                body.entry(&self.look_up(request.node, name)?, TTL);
                Ok(())
            }
            FuseOperation::Attributes => {
                body.attributes(&self.attributes(request.node).ok_or(Errno::NOENT)?, TTL);
                Ok(())
            }
            FuseOperation::Open { .. } if request.node == FILE => {
                body.opened(OPENED);
                Ok(())
            }
            FuseOperation::Open { .. } => Err(Errno::ISDIR),
            FuseOperation::Allocate {
                offset, length, mode, ..
            } => self.allocate(*offset, *length, *mode),
            FuseOperation::Seek { offset, whence, .. } => {
                body.offset(self.seek_from(*offset, *whence)?);
                Ok(())
            }
            FuseOperation::Space => {
                body.space(&self.space());
                Ok(())
            }
            // A handle was closed, or the file system is gone.
            FuseOperation::Release { .. } | FuseOperation::Destroy | FuseOperation::Forget => Ok(()),
            // The kernel sends some of these only once, such as a query for capabilities before the first
            // write.
            _ => Err(Errno::NOSYS),
        }
    }
}

/// One function for each request.
impl FuseFile {
    fn look_up(&self, directory: u64, name: &[u8]) -> Result<FuseAttributes, Errno> {
        match self.attributes(FILE) {
            Some(attributes) if directory == DIRECTORY && name.starts_with(NAME_BEGINS.as_bytes()) => {
                Ok(attributes)
            }
            _ => Err(Errno::NOENT),
        }
    }

    fn read(&self, offset: u64, bytes: u32, body: &mut ReplyBody) -> Result<(), Errno> {
        let end = self.device.geometry().bytes;
        let bytes = bytes.min(REQUEST_BYTES_MAX);
        // At most `bytes`, which has 32 bits.
        let length = u64::from(bytes).min(end.saturating_sub(offset)) as usize;
        if length == 0 {
            return Ok(());
        }
        let failed = |error| self.failed("read", offset, length as u64, &error);
        self.device.read(offset, body.room(length)).map_err(failed)?;
        body.take(length);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let failed = |error| self.failed("write", offset, data.len() as u64, &error);
        self.write_all(offset, data).map_err(failed)
    }

    /// The loop device's flush. A write with FUA arrives as that write followed by this.
    fn sync(&self) -> Result<(), Errno> {
        let flushed = self.device.flush();
        flushed.map_err(|error| self.failed("flush", 0, 0, &error))
    }

    fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        let clearing = ClearMode::of(mode).ok_or(Errno::OPNOTSUPP)?;
        let failed = |error| self.failed("discard", offset, length, &error);
        self.clear(&clearing, offset, length).map_err(failed)
    }

    fn seek_from(&self, from: u64, whence: u32) -> Result<u64, Errno> {
        let hole = match whence {
            SEEK_HOLE => true,
            SEEK_DATA => false,
            _ => return Err(Errno::INVAL),
        };
        let found = self.seek(from, hole);
        let found = found.map_err(|error| self.failed("seek", from, 0, &error))?;
        found.ok_or(Errno::NXIO)
    }

    fn space(&self) -> FuseSpace {
        FuseSpace {
            blocks: self.device.geometry().bytes / BLOCK_BYTES,
            files: 1,
            // The loop driver uses the block size as the granularity of discards.
            block_bytes: BLOCK_BYTES as u32,
            name_bytes_max: NAME_BYTES_MAX,
            fragment_bytes: BLOCK_BYTES as u32,
            ..FuseSpace::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hole_punching_and_zeroing_are_accepted() {
        assert_eq!(ClearMode::of(PUNCH_HOLE | KEEP_SIZE), Some(ClearMode::Discard));
        assert_eq!(ClearMode::of(ZERO_RANGE | KEEP_SIZE), Some(ClearMode::Zero));
        // Allocating, collapsing, inserting: the device has its space and its length already.
        for mode in [0, KEEP_SIZE, 0x08, 0x20, 0x40] {
            assert_eq!(ClearMode::of(mode), None, "{mode:#x}");
        }
    }
}
