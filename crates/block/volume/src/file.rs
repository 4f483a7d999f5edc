//! Volume files: regular files with holes.

use std::fs::File as StdFile;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use netram_block::SparseFile;
use netram_journal::file::{DiskFile, io_error};
use netram_process::files::{self, FileAccess, PRIVATE};
use netram_proto::port::{IoError, StorageFile};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, pwritev, retry_on_intr};

/// Zeros written at once where holes cannot be punched.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Maximum number of pieces that one call writes; a step of the applier has as many blocks.
const PIECES: usize = 64;

/// A file of a volume.
#[derive(Debug)]
pub struct VolumeFile {
    disk: DiskFile,
    file: StdFile,
}

impl VolumeFile {
    /// Creates a new, empty file; fails if one exists.
    pub(crate) fn create(path: &Path) -> io::Result<VolumeFile> {
        let file = files::create_new(path, PRIVATE)?;
        VolumeFile::new(file, Duration::ZERO)
    }

    /// Opens a file for reading, and with `write` also for writing.
    pub(crate) fn open(path: &Path, write: bool) -> io::Result<VolumeFile> {
        let access = if write {
            FileAccess::Write
        } else {
            FileAccess::Read
        };
        let file = files::open(path, access)?;
        VolumeFile::new(file, Duration::ZERO)
    }

    /// Adds `sync_delay` to each sync, to model a slower disk in benchmarks.
    pub(crate) fn on_modelled_disk(self, sync_delay: Duration) -> io::Result<VolumeFile> {
        VolumeFile::new(self.file, sync_delay)
    }

    fn new(file: StdFile, sync_delay: Duration) -> io::Result<VolumeFile> {
        // Both handles share one open file description, so that either one's sync reports a failed write.
        let disk = DiskFile::with_sync_delay(file.try_clone()?, sync_delay);
        Ok(VolumeFile { disk, file })
    }

    /// Bytes of disk space that the file uses.
    pub(crate) fn taken_bytes(&self) -> io::Result<u64> {
        const UNIT: u64 = 512;
        Ok(self.file.metadata()?.blocks() * UNIT)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let count = (length - done).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..count as usize], offset + done)?;
            done += count;
        }
        Ok(())
    }
}

impl StorageFile for VolumeFile {
    fn size(&self) -> Result<u64, IoError> {
        self.disk.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.disk.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.disk.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.disk.sync()
    }
}

impl SparseFile for VolumeFile {
    fn punch(&self, offset: u64, length: u64) -> Result<(), IoError> {
        if length == 0 {
            return Ok(());
        }
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&self.file, holes, offset, length)) {
            Ok(()) => Ok(()),
            // Some file systems have no holes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.write_zeros(offset, length).map_err(|error| io_error(&error))
            }
            Err(errno) => Err(io_error(&errno.into())),
        }
    }

    fn extend(&self, bytes: u64) -> Result<(), IoError> {
        if self.size()? >= bytes {
            return Ok(());
        }
        self.file.set_len(bytes).map_err(|error| io_error(&error))
    }

    fn write_pieces_at(&self, mut offset: u64, mut pieces: &[&[u8]]) -> Result<(), IoError> {
        // Bytes of the first piece that are already written.
        let mut within = 0;
        while let Some(first) = pieces.first() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            slices[0] = IoSlice::new(&first[within..]);
            for (slice, piece) in slices.iter_mut().zip(pieces).skip(1) {
                *slice = IoSlice::new(piece);
            }
            let count = pieces.len().min(PIECES);
            let mut written = match pwritev(&self.file, &slices[..count], offset) {
                Ok(0) if within < first.len() => return Err(IoError::EIO),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(io_error(&errno.into())),
            };
            offset += written as u64;
            while let Some(first) = pieces.first()
                && first.len() - within <= written
            {
                written -= first.len() - within;
                within = 0;
                pieces = &pieces[1..];
            }
            within += written;
        }
        Ok(())
    }

    fn next_data(&self, offset: u64, end: u64) -> Result<u64, IoError> {
        // This moves the file position, which no other code uses: all other calls name their offsets.
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => Ok(data.clamp(offset, end)),
            // The rest of the file is a hole.
            Err(Errno::NXIO) => Ok(end),
            // Some file systems do not report their holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(offset),
            Err(errno) => Err(io_error(&errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_punched_range_reads_as_zeros_and_frees_its_space() {
        let directory = tempfile::tempdir().unwrap();
        let file = VolumeFile::create(&directory.path().join("image")).unwrap();
        file.extend(1 << 20).unwrap();
        file.write_at(0, &vec![7; 256 * 1024]).unwrap();
        file.sync().unwrap();
        let before = file.taken_bytes().unwrap();
        file.punch(1000, 200_000).unwrap();
        file.sync().unwrap();
        let mut bytes = vec![1; 256 * 1024];
        file.read_at(0, &mut bytes).unwrap();
        let hole = 1000..201_000;
        assert!((0..bytes.len()).all(|at| (bytes[at] == 0) == hole.contains(&at)));
        assert!(file.taken_bytes().unwrap() <= before);
        assert_eq!(file.size(), Ok(1 << 20));
        file.extend(4096).unwrap();
        assert_eq!(file.size(), Ok(1 << 20), "a file never shrinks");
    }

    #[test]
    fn any_number_of_pieces_is_written_one_behind_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let file = VolumeFile::create(&directory.path().join("image")).unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        for size in [1000, 4096, 300_000] {
            let mut pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            // Empty pieces at the front, in between and at the end.
            pieces.insert(0, &[]);
            pieces.insert(pieces.len() / 2, &[]);
            pieces.push(&[]);
            let offset = size as u64;
            file.write_pieces_at(offset, &pieces).unwrap();
            let mut found = vec![0; bytes.len()];
            file.read_at(offset, &mut found).unwrap();
            assert!(found == bytes, "pieces of {size}");
        }
        assert_eq!(file.write_pieces_at(7, &[]), Ok(()));
        let looked_at = VolumeFile::open(&directory.path().join("image"), false).unwrap();
        assert!(looked_at.write_pieces_at(0, &[&bytes]).is_err());
    }

    #[test]
    fn data_is_found_at_any_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = VolumeFile::create(&directory.path().join("image")).unwrap();
        let end = 8 << 20;
        file.extend(end).unwrap();
        file.write_at(4 << 20, &[7; 4096]).unwrap();
        let data = file.next_data(0, end).unwrap();
        assert!(
            data <= 4 << 20,
            "{data}: a file system may report more data than there is, never less"
        );
        assert_eq!(file.next_data(4 << 20, end), Ok(4 << 20));
        assert!(
            file.next_data(0, 4096).unwrap() <= 4096,
            "never beyond the requested end"
        );
        let behind = file.next_data((4 << 20) + 4096, end).unwrap();
        assert!((4 << 20) + 4096 <= behind && behind <= end);
    }

    #[test]
    fn a_modelled_disk_delays_each_sync() {
        let directory = tempfile::tempdir().unwrap();
        let file = VolumeFile::create(&directory.path().join("image")).unwrap();
        let delay = Duration::from_millis(30);
        let file = file.on_modelled_disk(delay).unwrap();
        let began = std::time::Instant::now();
        file.sync().unwrap();
        // A sleep is a lower bound on any machine.
        assert!(began.elapsed() >= delay);
    }

    #[test]
    fn zeros_are_written_if_holes_are_not_supported() {
        let directory = tempfile::tempdir().unwrap();
        let file = VolumeFile::create(&directory.path().join("image")).unwrap();
        file.write_at(0, &vec![7; 200_000]).unwrap();
        file.write_zeros(10, 150_000).unwrap();
        let mut bytes = vec![1; 200_000];
        file.read_at(0, &mut bytes).unwrap();
        assert!((0..bytes.len()).all(|at| (bytes[at] == 0) == (10..150_010).contains(&at)));
    }
}
