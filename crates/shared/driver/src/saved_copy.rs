//! A node's saved copy of the region, from which the region is rescued when its server is lost for good.
//!
//! ```text
//! DIR/bytes     the region's bytes; pages of zeros are left out
//! DIR/copy      JSON: the description, with a checksum over it and over the CRC32C of each piece of the bytes;
//!               written last, so that without it there is no copy
//! ```
//!
//! A copy is of one moment: every lock's span is complete at the version that the description gives, and
//! contains nothing of an unacknowledged transaction. Copies of several nodes may have received different
//! commits of others. So a rescue combines copies span by span, and takes each from the copy with the highest
//! version of its lock (`server/rescue.rs`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use netram_process::files::{self, PRIVATE};
use netram_proto::wire::crc32c;
use netram_shared_machine::RegionId;
use serde::{Deserialize, Serialize};

const BYTES: &str = "bytes";
const COPY: &str = "copy";
const FORMAT: u32 = 2;
/// Earlier format, in which the checksum covers only the pieces.
const FORMAT_OLD: u32 = 1;
/// Bytes that are read or written at once. Pages of zeros are not written.
const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;
/// Maximum bytes of a description: 2^20 locks and as many nodes take less.
const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;

/// Description of a saved copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyDescription {
    format: u32,
    /// Identity of the region, in hexadecimal digits.
    region: String,
    /// Id of the node that saved the copy.
    pub node: u64,
    /// Name of that node.
    pub name: String,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Address at which nodes map the region; 0: each node chooses.
    pub address: u64,
    /// Settings of the nodes' lenders, in the settings' format.
    pub settings: String,
    /// Number, offset and length of its span, and version, of each lock.
    pub locks: Vec<(u32, u64, u64, u64)>,
    /// Number of the last record of each node that the copy contains.
    pub numbers: Vec<(u64, u64)>,
    crc: u32,
}

/// Failure to save or open a copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A system call on the file failed.
    #[error("{path}: {cause}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The directory contains no copy, or an incomplete or damaged one.
    #[error("{path} is no saved copy of a region: {reason}; save it again")]
    NoCopy {
        /// The directory.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
}

/// A saved copy whose checksum was verified.
#[derive(Debug)]
pub struct SavedCopy {
    /// Its directory.
    pub path: PathBuf,
    /// Its description.
    pub description: CopyDescription,
    /// Identity of its region.
    pub region: RegionId,
    bytes: File,
}

impl CopyDescription {
    /// Creates a description before the copy's bytes are written.
    pub(crate) fn new(region: RegionId, node: u64, name: String) -> CopyDescription {
        CopyDescription {
            format: FORMAT,
            region: format!("{:032x}", region.0),
            node,
            name,
            bytes: 0,
            address: 0,
            settings: String::new(),
            locks: Vec::new(),
            numbers: Vec::new(),
            crc: 0,
        }
    }

    /// Checksum of the description and, by `pieces`, of the bytes. It covers the description since a wrong
    /// version there would choose the wrong copy for a lock.
    fn checksum(&self, pieces: u32) -> io::Result<u32> {
        match self.format {
            FORMAT_OLD => Ok(pieces),
            _ => {
                let crc = pieces;
                let said = CopyDescription { crc, ..self.clone() };
                Ok(fold(crc, &serde_json::to_vec(&said)?))
            }
        }
    }
}

/// Saves a copy to a new directory that only its owner can read. `read` copies bytes from an offset. `still`
/// tells at the end whether nothing has changed since the start; if something has, the directory is removed.
pub(crate) fn save(
    path: &Path,
    mut description: CopyDescription,
    mut read: impl FnMut(usize, &mut [u8]),
    still: impl FnOnce() -> bool,
) -> Result<bool, CopyError> {
    let system = |cause| CopyError::System {
        path: path.to_owned(),
        cause,
    };
    fs::create_dir(path).map_err(system)?;
    let write = || -> io::Result<bool> {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        let file = files::create_new(&path.join(BYTES), PRIVATE)?;
        file.set_len(description.bytes)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < description.bytes {
            let piece = &mut piece[..(description.bytes - at).min(PIECE as u64) as usize];
            read(at as usize, piece);
            description.crc = fold(description.crc, piece);
            for (index, page) in piece.chunks(PAGE).enumerate() {
                if page.iter().any(|byte| *byte != 0) {
                    file.write_all_at(page, at + (index * PAGE) as u64)?;
                }
            }
            at += piece.len() as u64;
        }
        file.sync_all()?;
        if !still() {
            return Ok(false);
        }
        description.crc = description.checksum(description.crc)?;
        let mut file = files::create_new(&path.join(COPY), PRIVATE)?;
        file.write_all(&serde_json::to_vec(&description)?)?;
        file.sync_all()?;
        File::open(path)?.sync_all()?;
        Ok(true)
    };
    let saved = write();
    if !matches!(saved, Ok(true)) {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(path);
    }
    saved.map_err(system)
}

/// Extends the checksum of all pieces so far by one more.
fn fold(before: u32, piece: &[u8]) -> u32 {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&before.to_le_bytes());
    both[4..].copy_from_slice(&crc32c(piece).to_le_bytes());
    crc32c(&both)
}

impl SavedCopy {
    /// Opens a copy, and reads all of it once to verify its checksum.
    ///
    /// # Errors
    ///
    /// [`CopyError::System`] if a file cannot be read; [`CopyError::NoCopy`] if the copy is incomplete,
    /// damaged or of another format.
    pub fn open(path: &Path) -> Result<SavedCopy, CopyError> {
        let system = |cause| CopyError::System {
            path: path.to_owned(),
            cause,
        };
        let no_copy = |reason: String| CopyError::NoCopy {
            path: path.to_owned(),
            reason,
        };
        let mut text = Vec::new();
        let file = match File::open(path.join(COPY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(no_copy("the file `copy` is missing".to_owned()));
            }
            file => file.map_err(system)?,
        };
        file.take(DESCRIPTION_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(system)?;
        let description: CopyDescription =
            serde_json::from_slice(&text).map_err(|error| no_copy(error.to_string()))?;
        if ![FORMAT_OLD, FORMAT].contains(&description.format) {
            return Err(no_copy(format!(
                "format {} is unknown; it was saved by another version of netram",
                description.format
            )));
        }
        let region = u128::from_str_radix(&description.region, 16);
        let region = RegionId(region.map_err(|error| no_copy(error.to_string()))?);
        let bytes = File::open(path.join(BYTES)).map_err(system)?;
        if bytes.metadata().map_err(system)?.len() != description.bytes {
            return Err(no_copy(
                "the file `bytes` does not have the length that `copy` states".to_owned(),
            ));
        }
        let saved = SavedCopy {
            path: path.to_owned(),
            description,
            region,
            bytes,
        };
        let mut crc = 0;
        saved
            .each(0, saved.description.bytes, &mut |_, piece| {
                crc = fold(crc, piece);
                Ok(())
            })
            .map_err(system)?;
        let crc = saved.description.checksum(crc).map_err(system)?;
        match crc == saved.description.crc {
            true => Ok(saved),
            false => Err(no_copy("the checksum is wrong".to_owned())),
        }
    }

    /// Calls `each` with these bytes, piece by piece.
    pub(crate) fn each(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset.saturating_add(length).min(self.description.bytes);
        let mut piece = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
        let mut at = offset;
        while at < end {
            let piece = &mut piece[..(end - at).min(PIECE as u64) as usize];
            self.bytes.read_exact_at(piece, at)?;
            each(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_OF_REGION: [u8; 3 * PAGE] = [7; 3 * PAGE];

    fn saved(path: &Path) -> CopyDescription {
        let description = CopyDescription {
            bytes: BYTES_OF_REGION.len() as u64,
            locks: vec![(0, 0, PAGE as u64, 41), (1, PAGE as u64, PAGE as u64, 5)],
            numbers: vec![(3, 46)],
            ..CopyDescription::new(RegionId(9), 3, "desk".to_owned())
        };
        let read = |at: usize, into: &mut [u8]| into.copy_from_slice(&BYTES_OF_REGION[at..][..into.len()]);
        assert!(save(path, description, read, || true).unwrap());
        SavedCopy::open(path).unwrap().description
    }

    /// Format 1 had a checksum over the bytes only: a wrong version in the description made the copy count as
    /// the newest.
    #[test]
    fn a_description_that_reads_otherwise_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        saved(&path);
        let text = fs::read_to_string(path.join(COPY)).unwrap();
        for (there, instead) in [
            (",41]", ",49]"),
            ("[3,46]", "[3,47]"),
            ("\"node\":3", "\"node\":2"),
        ] {
            assert_eq!(text.matches(there).count(), 1, "{text}");
            fs::write(path.join(COPY), text.replace(there, instead)).unwrap();
            let refused = SavedCopy::open(&path).unwrap_err();
            assert!(refused.to_string().contains("checksum"), "{refused}");
        }
        fs::write(path.join(COPY), text).unwrap();
        SavedCopy::open(&path).unwrap();
    }

    #[test]
    fn a_copy_of_an_earlier_release_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        let description = CopyDescription {
            format: FORMAT_OLD,
            crc: fold(0, &BYTES_OF_REGION),
            ..saved(&path)
        };
        fs::write(path.join(COPY), serde_json::to_vec(&description).unwrap()).unwrap();
        assert_eq!(SavedCopy::open(&path).unwrap().description, description);
    }
}
