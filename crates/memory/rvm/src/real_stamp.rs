//! Storage of a real segment's stamp: an extended attribute of its file, or a file beside it where the file
//! system keeps no attributes. Never the segment's own bytes, which belong to the user.
//!
//! The attribute follows the file: `mv`, `cp -a`, `rsync -aX`, hard links and bind mounts keep it. A file
//! beside the segment is trusted only for the exact file that it was written for, because nothing else
//! connects the two.

use std::fs::{self, File as StdFile};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use netram_process::files::{self, FileRefusal, PRIVATE};
use netram_proto::port::IoError;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::file::{errno, io_error, refused, sync_parent};
use crate::stamp::{STAMP_BYTES, SegmentStamp, decode, encode};

/// Name of the extended attribute that holds a segment's stamp.
const ATTRIBUTE: &str = "user.netram.stamp";
/// Suffix of the name of the file beside a segment.
const BESIDE: &str = ".netram-stamp";

/// The stamp of `file`, which is at `path`: the later of the attribute and the file beside it.
pub(crate) fn read(file: &StdFile, path: &str) -> Result<Option<SegmentStamp>, IoError> {
    let mut bytes = [0; STAMP_BYTES];
    let inside = match rustix::fs::fgetxattr(file, ATTRIBUTE, &mut bytes) {
        Ok(length) => decode(&bytes[..length]),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => None,
        Err(error) => return Err(errno(error)),
    };
    let number = number(file)?;
    let beside = format!("{path}{BESIDE}");
    let beside = match files::read(Path::new(&beside), STAMP_BYTES as u64) {
        Ok(bytes) => decode(&bytes).filter(|stamp| stamp.file == number),
        Err(FileRefusal::System(error)) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(refusal) => return Err(refused(&refusal)),
    };
    Ok([inside, beside]
        .into_iter()
        .flatten()
        .max_by_key(|stamp| stamp.generation))
}

/// Leaves a stamp durably on `file`, which is at `path`. Returns `false` if no stamp can be kept here.
pub(crate) fn leave(file: &StdFile, path: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
    match rustix::fs::fsetxattr(file, ATTRIBUTE, &encode(stamp), XattrFlags::empty()) {
        Ok(()) => file.sync_all().map(|()| true).map_err(io_error),
        // A full disk gives the same error as full attributes; writing the file beside it shows which.
        Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::TOOBIG | Errno::PERM) => leave_beside(path, stamp),
        Err(error) => Err(errno(error)),
    }
}

fn leave_beside(path: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
    let (beside, new) = (format!("{path}{BESIDE}"), format!("{path}{BESIDE}.new"));
    // The remains of a process that was killed, or somebody's link.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(error)),
        _ => (),
    }
    let written = files::create_new(Path::new(&new), PRIVATE).and_then(|mut file| {
        file.write_all(&encode(stamp))?;
        file.sync_all()?;
        fs::rename(&new, &beside)
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return match io_error(error) {
            // EPERM, EACCES, EROFS: this program may not write to the directory.
            IoError { errno: 1 | 13 | 30 } => Ok(false),
            error => Err(error),
        };
    }
    sync_parent(path).map(|()| true)
}

/// A number that a file keeps while it exists and that no copy of it has.
pub(crate) fn number(file: &StdFile) -> Result<u64, IoError> {
    let metadata = file.metadata().map_err(io_error)?;
    // An inode number is reused for later files; the time of creation distinguishes them.
    let made = metadata
        .created()
        .ok()
        .and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let made = made.map_or(0, |made| made.as_nanos() as u64);
    Ok(metadata.ino().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ made)
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{JournalId, Lsn};

    use super::*;

    fn stamp(generation: u64, file: u64) -> SegmentStamp {
        SegmentStamp {
            id: [generation as u8; 16],
            journal: JournalId(7),
            generation,
            applied: Lsn(100),
            open: true,
            file,
            table: "/bank/segments".to_owned(),
        }
    }

    /// A directory, a segment in it and the segment's number.
    fn segment() -> (tempfile::TempDir, String, StdFile, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a").to_str().unwrap().to_owned();
        fs::write(&path, [0; 4096]).unwrap();
        let file = StdFile::open(&path).unwrap();
        let number = number(&file).unwrap();
        (directory, path, file, number)
    }

    #[test]
    fn a_stamp_stays_on_a_renamed_file() {
        let (directory, path, file, number) = segment();
        assert_eq!(read(&file, &path).unwrap(), None);
        assert!(leave(&file, &path, &stamp(1, number)).unwrap());
        let moved = directory.path().join("b").to_str().unwrap().to_owned();
        fs::rename(&path, &moved).unwrap();
        let file = StdFile::open(&moved).unwrap();
        assert_eq!(read(&file, &moved).unwrap(), Some(stamp(1, number)));
        assert_eq!(super::number(&file).unwrap(), number);
    }

    #[test]
    fn a_stamp_beside_a_segment_is_ignored_for_a_file_that_replaced_it() {
        let (_directory, path, file, number) = segment();
        assert!(leave_beside(&path, &stamp(2, number)).unwrap());
        assert_eq!(read(&file, &path).unwrap(), Some(stamp(2, number)));
        fs::remove_file(&path).unwrap();
        drop(file);
        fs::write(&path, [0; 4096]).unwrap();
        let file = StdFile::open(&path).unwrap();
        assert_eq!(read(&file, &path).unwrap(), None);
    }

    #[test]
    fn the_later_of_two_stamps_is_read() {
        let (_directory, path, file, number) = segment();
        assert!(leave(&file, &path, &stamp(5, number)).unwrap());
        assert!(leave_beside(&path, &stamp(4, number)).unwrap());
        assert_eq!(read(&file, &path).unwrap(), Some(stamp(5, number)));
        assert!(leave_beside(&path, &stamp(6, number)).unwrap());
        assert_eq!(read(&file, &path).unwrap(), Some(stamp(6, number)));
    }
}
