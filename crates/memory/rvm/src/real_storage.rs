//! Segments and the segment table as real files.

use std::fs::File as StdFile;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use netram_process::files::{self, FileAccess, PRIVATE};
use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Time;
use rustix::fs::{FallocateFlags, FlockOperation, XattrFlags};
use rustix::io::Errno;

use crate::file::{ReadOnlyFile, errno, io_error, refused, sync_parent};
use crate::limit::TABLE_BYTES;
use crate::memory::{Placement, RegionMemory};
use crate::real_stamp;
use crate::stamp::{SegmentStamp, StampId};
use crate::storage::{SegmentAllocation, SegmentIdentity, SegmentStorage};
use crate::table::SegmentTable;

/// Attempts to allocate blocks when signals interrupt them. Writing zeros allocates blocks too.
const ALLOCATIONS_TRIED: usize = 8;

/// Segments and the table as real files.
#[derive(Debug)]
pub struct RealStorage {
    table: RealFile,
    /// Full paths of the table and of its directory; empty if they are not UTF-8.
    path: String,
    directory: String,
    origin: Instant,
}

/// A real file: `pread`, `pwrite`, `fdatasync`.
#[derive(Debug)]
pub struct RealFile(StdFile);

/// The extended attribute that holds a segment's identity.
const IDENTITY_ATTRIBUTE: &str = "user.netram.segment";

impl RealStorage {
    /// Creates the segment table beside a new log. Fails with EEXIST if it exists.
    ///
    /// # Errors
    ///
    /// EEXIST if the table exists; ETXTBSY if another process has it; other errors of the system.
    pub fn create(table: &str) -> Result<RealStorage, IoError> {
        create_file(table, TABLE_BYTES, SegmentAllocation::Preallocated)?;
        RealStorage::open(table)
    }

    /// Opens the segment table beside a log.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no table; ETXTBSY if another process has it; other errors of the system.
    pub fn open(table: &str) -> Result<RealStorage, IoError> {
        let file = open_locked(table)?;
        let path = std::fs::canonicalize(table).map_err(io_error)?;
        let path = path.to_str().unwrap_or_default().to_owned();
        let directory = directory_of(Path::new(&path));
        Ok(RealStorage {
            table: file,
            path,
            directory,
            origin: Instant::now(),
        })
    }
}

impl SegmentStorage for RealStorage {
    type File = RealFile;

    fn name(&self, path: &str) -> Result<String, IoError> {
        let name = std::fs::canonicalize(path).map_err(io_error)?;
        // EILSEQ: the table holds UTF-8, so that its paths can be printed.
        name.into_os_string()
            .into_string()
            .map_err(|_| IoError { errno: 84 })
    }

    fn create_segment(&self, path: &str, length: u64, allocation: SegmentAllocation) -> Result<(), IoError> {
        create_file(path, length, allocation)
    }

    fn open_segment(&self, path: &str) -> Result<RealFile, IoError> {
        open_locked(path)
    }

    fn map(
        &self,
        file: &RealFile,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        RegionMemory::map_private(&file.0, offset, length, placement)
    }

    fn identity(&self, file: &RealFile) -> Result<SegmentIdentity, IoError> {
        identity_of(&file.0)
    }

    fn assign_identity(&self, file: &RealFile) -> Result<SegmentIdentity, IoError> {
        let identity = random()?;
        match rustix::fs::fsetxattr(&file.0, IDENTITY_ATTRIBUTE, &identity, XattrFlags::empty()) {
            Ok(()) => {}
            // Missing room or support for attributes costs only the check, never the segment.
            Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::PERM) => {
                return Ok(SegmentIdentity::default());
            }
            Err(error) => return Err(errno(error)),
        }
        // The table will contain this identity, so it must be durable before the table is.
        file.0.sync_all().map_err(io_error)?;
        Ok(identity)
    }

    fn stamp(&self, file: &RealFile, path: &str) -> Result<Option<SegmentStamp>, IoError> {
        real_stamp::read(&file.0, path)
    }

    fn leave_stamp(&self, file: &RealFile, path: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
        real_stamp::leave(&file.0, path, stamp)
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        random()
    }

    fn number(&self, file: &RealFile) -> Result<u64, IoError> {
        real_stamp::number(&file.0)
    }

    fn directory(&self) -> &str {
        &self.directory
    }

    fn table_path(&self) -> &str {
        &self.path
    }

    fn is_table_of(&self, path: &str, journal: JournalId) -> bool {
        is_other_table(&self.table.0, path, journal)
    }

    fn is_same(&self, file: &RealFile, path: &str) -> Result<bool, IoError> {
        let (held, found) = (file.0.metadata(), std::fs::metadata(path));
        let (held, found) = (held.map_err(io_error)?, found.map_err(io_error)?);
        // The inode number of an open file is not reused.
        Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
    }

    fn table(&self) -> &RealFile {
        &self.table
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl StorageFile for RealFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0.metadata().map_err(io_error)?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.0.read_exact_at(into, offset).map_err(io_error)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.0.write_all_at(bytes, offset).map_err(io_error)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.0.sync_data().map_err(io_error)
    }
}

/// Whether `path` is a segment table of `journal` and not the file `table`.
pub(crate) fn is_other_table(table: &StdFile, path: &str, journal: JournalId) -> bool {
    let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (Ok(here), Ok(there)) = (table.metadata(), std::fs::metadata(path)) else {
        return false;
    };
    // A path that lost its beginning cannot be opened.
    if !path.starts_with('/') || number(here) == number(there) {
        return false;
    }
    let read = ReadOnlyFile::open(Path::new(path)).map(|file| SegmentTable::read(&file, journal, ""));
    matches!(read, Ok(Ok(table)) if table.sequence > 0)
}

/// Full path of the directory of the file at `path`; empty if it is not UTF-8.
pub(crate) fn directory_of(path: &Path) -> String {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = std::fs::canonicalize(parent).ok();
    let directory = directory.and_then(|directory| directory.into_os_string().into_string().ok());
    // Every path lies below the root: names relative to it would not be shorter, nor move with anything.
    directory.filter(|directory| directory != "/").unwrap_or_default()
}

fn random() -> Result<[u8; 16], IoError> {
    let mut bytes = [0; 16];
    let mut random = StdFile::open("/dev/urandom").map_err(io_error)?;
    random.read_exact(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}

/// The identity of a segment's file; zeros when it has none.
pub(crate) fn identity_of(file: &StdFile) -> Result<SegmentIdentity, IoError> {
    let mut identity = SegmentIdentity::default();
    match rustix::fs::fgetxattr(file, IDENTITY_ATTRIBUTE, &mut identity) {
        Ok(length) if length == identity.len() => Ok(identity),
        Ok(_) => Ok(SegmentIdentity::default()),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(SegmentIdentity::default()),
        Err(error) => Err(errno(error)),
    }
}

/// Opens and locks for reading and writing: two processes that use one segment would overwrite each other's
/// changes.
fn open_locked(path: &str) -> Result<RealFile, IoError> {
    // A segment is the user's own file, and may have other names.
    let file = files::open(Path::new(path), FileAccess::WriteLinked).map_err(|refusal| refused(&refusal))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(RealFile(file)),
        // ETXTBSY reads as "in use", whereas EWOULDBLOCK would suggest a retry.
        Err(Errno::WOULDBLOCK) => Err(IoError { errno: 26 }),
        Err(error) => Err(errno(error)),
    }
}

/// Creates a file that only its owner can read: it has in plain text what the log has sealed.
fn create_file(path: &str, length: u64, allocation: SegmentAllocation) -> Result<(), IoError> {
    let file = files::create_new(Path::new(path), PRIVATE).map_err(io_error)?;
    let filled = fill_new(&file, length, allocation).and_then(|()| sync_parent(path));
    if filled.is_err() {
        // A half-made file would make the next attempt fail. The first error is the one to report.
        let _ = std::fs::remove_file(path);
    }
    filled
}

fn fill_new(file: &StdFile, length: u64, allocation: SegmentAllocation) -> Result<(), IoError> {
    if i64::try_from(length).is_err() {
        // EFBIG is the system's error for other lengths that are too large; it has none for these.
        return Err(IoError { errno: 27 });
    }
    file.set_len(length).map_err(io_error)?;
    if allocation == SegmentAllocation::Preallocated && length > 0 {
        match allocate_ahead(file, length) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::INTR) => write_zeros(file, length)?,
            Err(error) => return Err(errno(error)),
        }
    }
    file.sync_all().map_err(io_error)
}

/// Allocates blocks. A signal to the calling thread may interrupt this, and a file system may then free the
/// blocks again. So the number of attempts is limited: frequent signals could make it never end.
fn allocate_ahead(file: &StdFile, length: u64) -> Result<(), Errno> {
    let mut tried = Err(Errno::INTR);
    for _ in 0..ALLOCATIONS_TRIED {
        tried = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length);
        if tried != Err(Errno::INTR) {
            break;
        }
    }
    tried
}

fn write_zeros(file: &StdFile, length: u64) -> Result<(), IoError> {
    let zeros = vec![0; 1024 * 1024];
    let mut offset = 0;
    while offset < length {
        let bytes = zeros
            .len()
            .min(usize::try_from(length - offset).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..bytes], offset).map_err(io_error)?;
        offset += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(directory: &tempfile::TempDir, name: &str) -> String {
        directory.path().join(name).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_new_segment_is_all_zeros_and_is_created_only_once() {
        let directory = tempfile::tempdir().unwrap();
        let storage = RealStorage::create(&path(&directory, "table")).unwrap();
        for (name, allocation) in [
            ("a", SegmentAllocation::Preallocated),
            ("b", SegmentAllocation::Sparse),
        ] {
            let name = path(&directory, name);
            storage.create_segment(&name, 10_000, allocation).unwrap();
            assert_eq!(
                storage.create_segment(&name, 10_000, allocation),
                Err(IoError { errno: 17 })
            );
            let file = storage.open_segment(&name).unwrap();
            let mut bytes = vec![1; 10_000];
            file.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert_eq!(file.read_at(9_999, &mut [0; 2]), Err(IoError::EOF));
        }
    }

    #[test]
    fn a_segment_in_use_cannot_be_opened_again() {
        let _starting = crate::sync::lock(&crate::sync::STARTING);
        let directory = tempfile::tempdir().unwrap();
        let storage = RealStorage::create(&path(&directory, "table")).unwrap();
        let name = path(&directory, "a");
        storage
            .create_segment(&name, 4096, SegmentAllocation::Sparse)
            .unwrap();
        let held = storage.open_segment(&name).unwrap();
        assert_eq!(storage.open_segment(&name).err(), Some(IoError { errno: 26 }));
        drop(held);
        storage.open_segment(&name).unwrap();
    }

    #[test]
    fn an_identity_reads_back_where_the_file_system_keeps_it() {
        let directory = tempfile::tempdir().unwrap();
        let storage = RealStorage::create(&path(&directory, "table")).unwrap();
        let name = path(&directory, "a");
        storage
            .create_segment(&name, 4096, SegmentAllocation::Sparse)
            .unwrap();
        let file = storage.open_segment(&name).unwrap();
        assert_eq!(storage.identity(&file).unwrap(), SegmentIdentity::default());
        let assigned = storage.assign_identity(&file).unwrap();
        assert_eq!(storage.identity(&file).unwrap(), assigned);
    }
}
