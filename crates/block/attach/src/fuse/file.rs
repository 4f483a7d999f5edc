//! A FUSE file system of one file, whose bytes are a [`BlockDevice`]'s.
//!
//! Requests go straight to the device: neither this process nor the kernel caches anything (direct I/O). So
//! an answered write was completed by the device, and a flush reaches the device as a flush.

use std::sync::Arc;
use std::time::SystemTime;

use netram_block::{BLOCK_BYTES, BlockDevice, DeviceError, SECTOR_BYTES};
use rustix::io::Errno;

use super::wire::{self, FuseAttributes, FuseOperation, FuseRequest};
use crate::failure_log::FailureLog;

/// Beginning of the file's name. The server that creates the file chooses the rest, and any name with this
/// beginning is found, because another server may continue with it.
const NAME_BEGINS: &str = "netram-";
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
const DIRECTORY_MODE: u32 = 0o040_700;
const FILE_MODE: u32 = 0o100_600;

/// Maximum bytes of one request. The kernel sends no more by default, and the device accepts more.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Seconds for which the kernel may cache the name; it never changes.
const NAME_VALID_S: u64 = 3600;

const _: () = assert!(REQUEST_BYTES_MAX <= netram_block::limit::REQUEST_BYTES_MAX);

const PUNCH_HOLE: u32 = 0x02;
const KEEP_SIZE: u32 = 0x01;
const ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Reply to the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FuseReply<'a> {
    /// No reply; the kernel does not wait for one.
    Nothing,
    /// Error number.
    Error(i32),
    /// Reply body, possibly empty.
    Body(&'a [u8]),
}

/// Maximum bytes of a reply body, except for data read.
const BODY_BYTES_MAX: usize = 128;

/// Body of a short reply.
#[derive(Debug)]
struct ReplyBody {
    bytes: [u8; BODY_BYTES_MAX],
    length: usize,
}

impl<const N: usize> From<[u8; N]> for ReplyBody {
    fn from(body: [u8; N]) -> ReplyBody {
        let mut bytes = [0; BODY_BYTES_MAX];
        bytes[..N].copy_from_slice(&body);
        ReplyBody { bytes, length: N }
    }
}

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

    /// Replies to `request`. Data read uses `scratch`, so that requests do not allocate.
    pub(super) fn answer<'a>(&self, request: &FuseRequest<'_>, scratch: &'a mut Vec<u8>) -> FuseReply<'a> {
        let told = match request.operation {
            FuseOperation::Forget => return FuseReply::Nothing,
            FuseOperation::Read { offset, bytes } => return self.read(offset, bytes, scratch),
            FuseOperation::Lookup(name) => self.look_up(request.node, name),
            FuseOperation::Attributes => match self.attributes(request.node) {
                Some(attributes) => Ok(attributes.answer().into()),
                None => Err(Errno::NOENT.raw_os_error()),
            },
            FuseOperation::Open if request.node == FILE => Ok(wire::opened().into()),
            FuseOperation::Open => Err(Errno::ISDIR.raw_os_error()),
            FuseOperation::Write { offset, data } => self.write(offset, data),
            FuseOperation::Sync => self.sync(),
            FuseOperation::Allocate { offset, length, mode } => self.allocate(offset, length, mode),
            FuseOperation::Seek { offset, whence } => self.seek_from(offset, whence),
            FuseOperation::Space => Ok(self.space().into()),
            FuseOperation::Done => Ok([].into()),
            // The kernel sends some of these only once, such as a query for capabilities before the first
            // write.
            FuseOperation::Init(_) | FuseOperation::Other => Err(Errno::NOSYS.raw_os_error()),
        };
        match told {
            Ok(ReplyBody { bytes, length }) => {
                if scratch.len() < bytes.len() {
                    scratch.resize(bytes.len(), 0);
                }
                scratch[..length].copy_from_slice(&bytes[..length]);
                FuseReply::Body(&scratch[..length])
            }
            Err(errno) => FuseReply::Error(errno),
        }
    }

    fn attributes(&self, node: u64) -> Option<FuseAttributes> {
        let (mode, bytes) = match node {
            DIRECTORY => (DIRECTORY_MODE, 0),
            FILE => (FILE_MODE, self.device.geometry().bytes),
            _ => return None,
        };
        Some(FuseAttributes {
            node,
            bytes,
            mode,
            made_s: self.made_s,
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

    fn failed(&self, what: &str, offset: u64, length: u64, error: &DeviceError) -> i32 {
        self.failures.note(what, offset, length, error)
    }
}

/// One function for each request. `Err`: an error number.
impl FuseFile {
    fn look_up(&self, directory: u64, name: &[u8]) -> Result<ReplyBody, i32> {
        match self.attributes(FILE) {
            Some(attributes) if directory == DIRECTORY && name.starts_with(NAME_BEGINS.as_bytes()) => {
                Ok(attributes.entry(NAME_VALID_S).into())
            }
            _ => Err(Errno::NOENT.raw_os_error()),
        }
    }

    fn read<'a>(&self, offset: u64, bytes: u32, scratch: &'a mut Vec<u8>) -> FuseReply<'a> {
        let end = self.device.geometry().bytes;
        let bytes = bytes.min(REQUEST_BYTES_MAX);
        // At most `bytes`, which has 32 bits.
        let length = u64::from(bytes).min(end.saturating_sub(offset)) as usize;
        if length == 0 {
            return FuseReply::Body(&[]);
        }
        if scratch.len() < length {
            scratch.resize(length, 0);
        }
        let into = &mut scratch[..length];
        match self.device.read(offset, into) {
            Ok(()) => FuseReply::Body(into),
            Err(error) => FuseReply::Error(self.failed("read", offset, length as u64, &error)),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<ReplyBody, i32> {
        let failed = |error| self.failed("write", offset, data.len() as u64, &error);
        self.write_all(offset, data).map_err(failed)?;
        // The kernel sends at most `REQUEST_BYTES_MAX`.
        Ok(wire::written(data.len() as u32).into())
    }

    /// The loop device's flush. A write with FUA arrives as that write followed by this.
    fn sync(&self) -> Result<ReplyBody, i32> {
        let flushed = self.device.flush();
        flushed.map_err(|error| self.failed("flush", 0, 0, &error))?;
        Ok([].into())
    }

    fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<ReplyBody, i32> {
        let clearing = ClearMode::of(mode).ok_or(Errno::OPNOTSUPP.raw_os_error())?;
        let failed = |error| self.failed("discard", offset, length, &error);
        self.clear(&clearing, offset, length).map_err(failed)?;
        Ok([].into())
    }

    fn seek_from(&self, from: u64, whence: u32) -> Result<ReplyBody, i32> {
        let hole = match whence {
            SEEK_HOLE => true,
            SEEK_DATA => false,
            _ => return Err(Errno::INVAL.raw_os_error()),
        };
        let found = self.seek(from, hole);
        match found.map_err(|error| self.failed("seek", from, 0, &error))? {
            Some(at) => Ok(at.to_ne_bytes().into()),
            None => Err(Errno::NXIO.raw_os_error()),
        }
    }

    fn space(&self) -> [u8; 80] {
        // The loop driver uses the block size as the granularity of discards.
        wire::space(self.device.geometry().bytes / BLOCK_BYTES, BLOCK_BYTES as u32)
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
