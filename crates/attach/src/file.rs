//! A FUSE file system of one file, whose bytes are a [`Device`]'s.
//!
//! Requests go straight to the device: nothing is cached here, nor by the kernel (direct I/O), so a write that is
//! answered is a write that the device has completed, and a flush that arrives is the device's flush.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, WriteFlags,
};
use netram_disk::{BLOCK_BYTES, Device, DeviceError, SECTOR_BYTES};

/// The file's name.
pub(crate) const NAME: &str = "volume";
const FILE: INodeNo = INodeNo(2);

/// The kernel sends no more in one request unless told otherwise, and the device takes more.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests of the loop device that the kernel hands out before earlier ones are answered.
const BACKGROUND_MAX: u16 = 128;

/// A failing device fails each request of a busy file system.
const ERROR_LINE_EVERY: Duration = Duration::from_secs(1);

const PUNCH_HOLE: i32 = 0x02;
const KEEP_SIZE: i32 = 0x01;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// What is read goes through here: no allocation a request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system.
pub(crate) struct VolumeFile {
    device: Arc<dyn Device>,
    made: SystemTime,
    failures: Mutex<Failures>,
}

/// Requests that failed: one that is tried again and again must not fill the log, which lies in memory.
#[derive(Debug, Default)]
struct Failures {
    /// Since the last line about one.
    unsaid: u64,
    next_line: Option<Instant>,
}

/// What a `fallocate` asks of the device.
#[derive(Debug, PartialEq, Eq)]
enum Clearing {
    /// The space may be given back.
    Discard,
    /// The space is to stay.
    Zero,
}

impl Clearing {
    fn of(mode: i32) -> Option<Clearing> {
        match mode & !KEEP_SIZE {
            PUNCH_HOLE => Some(Clearing::Discard),
            ZERO_RANGE => Some(Clearing::Zero),
            _ => None,
        }
    }
}

impl VolumeFile {
    pub(crate) fn new(device: Arc<dyn Device>) -> VolumeFile {
        VolumeFile {
            device,
            made: SystemTime::now(),
            failures: Mutex::default(),
        }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            FILE => (FileType::RegularFile, 0o600, self.device.geometry().bytes),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / SECTOR_BYTES,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_BYTES as u32,
            flags: 0,
        })
    }

    fn write_all(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let pending = self.device.write(offset, bytes)?;
        self.device.wait(pending)
    }

    fn clear(&self, clearing: &Clearing, offset: u64, length: u64) -> Result<(), DeviceError> {
        let pending = match clearing {
            Clearing::Discard => self.device.discard(offset, length)?,
            Clearing::Zero => self.device.zero(offset, length)?,
        };
        self.device.wait(pending)
    }

    /// Where the first hole or data at or behind `from` begins; the end counts as a hole.
    fn seek(&self, from: u64, hole: bool) -> Result<Option<u64>, DeviceError> {
        let end = self.device.geometry().bytes;
        if from >= end {
            return Ok(None);
        }
        // Extents are asked for by whole sectors, seeks come by the byte.
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

    /// Says what went wrong, unless it did so a moment ago, and gives the number that the kernel understands.
    fn failed(&self, what: &str, offset: u64, length: u64, error: &DeviceError) -> Errno {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let due = failures.count(Instant::now());
        drop(failures);
        if let Some(requests) = due {
            tracing::error!(requests, offset, length, %error, "requests failed, the last one a {what}");
        }
        Errno::from_i32(error.errno())
    }
}

impl Failures {
    /// One more failure, at `now`: how many a line that is due now stands for.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.next_line.is_some_and(|next| now < next) {
            return None;
        }
        self.next_line = Some(now + ERROR_LINE_EVERY);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let most = self.device.geometry().request_bytes_max.min(REQUEST_BYTES_MAX);
        // Both refuse only what is zero or beyond their bound; then theirs is as good.
        let _ = config.set_max_write(most);
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Without it the loop device would wait for each request before it sends the next.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| io::Error::other("this kernel's FUSE has no asynchronous direct I/O"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attributes) if parent == INodeNo::ROOT && name == NAME => {
                // The size may grow; the name is looked up once.
                reply.entry(&Duration::ZERO, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            // The size may have grown.
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self.device.geometry().bytes;
        let length = u64::from(size).min(end.saturating_sub(offset));
        if length == 0 {
            return reply.data(&[]);
        }
        READ_BUFFER.with_borrow_mut(|buffer| {
            // `length` is at most `size`, 32 bits.
            let length_here = length as usize;
            if buffer.len() < length_here {
                buffer.resize(length_here, 0);
            }
            let into = &mut buffer[..length_here];
            match self.device.read(offset, into) {
                Ok(()) => reply.data(into),
                Err(error) => reply.error(self.failed("read", offset, length, &error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_all(offset, data) {
            // The kernel sent at most `REQUEST_BYTES_MAX`.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(self.failed("write", offset, data.len() as u64, &error)),
        }
    }

    /// The loop device's flush, and what becomes of a write with FUA: that write, then this.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.device.flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed("flush", 0, 0, &error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(clearing) = Clearing::of(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        match self.clear(&clearing, offset, length) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed("discard", offset, length, &error)),
        }
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let hole = match whence {
            SEEK_HOLE => true,
            SEEK_DATA => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(Errno::EINVAL);
        };
        match self.seek(from, hole) {
            Ok(Some(at)) => reply.offset(at.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(self.failed("seek", from, 0, &error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // The loop driver takes the block size for the granularity of discards.
        let blocks = self.device.geometry().bytes / BLOCK_BYTES;
        reply.statfs(blocks, 0, 0, 1, 0, BLOCK_BYTES as u32, 255, BLOCK_BYTES as u32);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        // The kernel asks for capabilities before the first write, and never again after this answer.
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_failures_is_one_line_and_the_next_line_counts_them() {
        let mut failures = Failures::default();
        let start = Instant::now();
        assert_eq!(failures.count(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(failures.count(start + ERROR_LINE_EVERY / 2), None);
        }
        assert_eq!(failures.count(start + ERROR_LINE_EVERY), Some(1001));
        assert_eq!(failures.count(start + ERROR_LINE_EVERY * 3), Some(1));
    }

    #[test]
    fn only_punching_and_zeroing_are_understood() {
        assert_eq!(Clearing::of(PUNCH_HOLE | KEEP_SIZE), Some(Clearing::Discard));
        assert_eq!(Clearing::of(ZERO_RANGE | KEEP_SIZE), Some(Clearing::Zero));
        // Allocating, collapsing, inserting: the device has its space already, and its length is its own.
        for mode in [0, KEEP_SIZE, 0x08, 0x20, 0x40] {
            assert_eq!(Clearing::of(mode), None, "{mode:#x}");
        }
    }
}
