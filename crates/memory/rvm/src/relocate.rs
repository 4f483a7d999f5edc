//! Recording the new paths of segments that were moved.

use std::path::Path;

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};

use crate::error::{SegmentError, SegmentTableError};
use crate::limit::PATH_BYTES_MAX;
use crate::real_storage::RealStorage;
use crate::segments::segment_io;
use crate::storage::{SegmentIdentity, SegmentStorage};
use crate::table::{self, SegmentTable};

/// One segment with its old and new path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocatedSegment {
    /// Its path before.
    pub from: String,
    /// Its path from now on.
    pub to: String,
}

/// Why no segment was relocated. The table is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// The segment table is unusable, or a program has it open.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
    /// A program has the log open.
    #[error("the log is open; stop the program that has it, then relocate its segments")]
    Open,
    /// The log has no segment at that path or in that directory.
    #[error(
        "the log has no segment {from}, and none inside a directory of that name; `netram rvm status` lists \
         its segments"
    )]
    Unknown {
        /// The path asked for.
        from: String,
    },
    /// The log has another segment at the new path.
    #[error("{to} is the path of another segment of this log; give the path to which the segment was moved")]
    Taken {
        /// The new path.
        to: String,
    },
    /// The file at the new path is not the one that the log's records were written for.
    #[error("{0}")]
    Segment(#[from] SegmentError),
}

/// Changes the path of the segment `from`, or of all segments in the directory `from`, in the segment table
/// of the log of `journal`. The files at the new paths must be the segments that the log knows, unless
/// `adopt` is set.
///
/// The table is written once: after a crash all segments are relocated, or none.
///
/// # Errors
///
/// [`RelocateError`]; the table is unchanged then.
pub fn relocate(
    table: &Path,
    journal: JournalId,
    from: &str,
    to: &str,
    adopt: bool,
) -> Result<Vec<RelocatedSegment>, RelocateError> {
    let name = table.to_str().unwrap_or_default();
    let storage = RealStorage::open(name).map_err(|cause| match cause.errno {
        26 => RelocateError::Open,
        _ => SegmentTableError::Io { cause }.into(),
    })?;
    let mut table = SegmentTable::read(storage.table(), journal, storage.directory())?;
    let mut moved = Vec::new();
    for at in 0..table.entries.len() {
        let Some(rest) = beneath(&table.entries[at].path, from) else {
            continue;
        };
        let to = full(&storage, &format!("{to}{rest}"))?;
        let mut others = (0..table.entries.len()).filter(|other| *other != at);
        if others.any(|other| table.entries[other].path == to) {
            return Err(RelocateError::Taken { to });
        }
        fits(&storage, &to)?;
        let entry = &mut table.entries[at];
        verify(&storage, entry, &to, adopt)?;
        let from = std::mem::replace(&mut entry.path, to.clone());
        moved.push(RelocatedSegment { from, to });
    }
    if moved.is_empty() {
        let from = from.to_owned();
        return Err(RelocateError::Unknown { from });
    }
    table.write(storage.table(), journal, storage.directory())?;
    Ok(moved)
}

/// The rest of `path` behind `from`, if `from` is the path itself or a directory above it.
fn beneath<'p>(path: &'p str, from: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(from.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn full(storage: &RealStorage, path: &str) -> Result<String, SegmentError> {
    storage.name(path).map_err(|cause| match cause {
        IoError::ENOENT => SegmentError::Missing {
            path: path.to_owned(),
        },
        cause => segment_io(path, cause),
    })
}

fn fits(storage: &RealStorage, path: &str) -> Result<(), SegmentTableError> {
    let bytes = table::name(path, storage.directory()).len();
    let (path, max) = (path.to_owned(), PATH_BYTES_MAX);
    match bytes <= max {
        true => Ok(()),
        false => Err(SegmentTableError::PathTooLong { path, bytes, max }),
    }
}

/// Checks that the file at `to` is the segment of `entry`.
fn verify(
    storage: &RealStorage,
    entry: &mut table::TableEntry,
    to: &str,
    adopt: bool,
) -> Result<(), SegmentError> {
    let io = |cause| segment_io(to, cause);
    let file = storage.open_segment(to).map_err(io)?;
    let identity = storage.identity(&file).map_err(io)?;
    let path = to.to_owned();
    if entry.identity != SegmentIdentity::default() && entry.identity != identity {
        if !adopt {
            return Err(SegmentError::Foreign { path });
        }
        entry.identity = match identity == SegmentIdentity::default() {
            true => storage.assign_identity(&file).map_err(io)?,
            false => identity,
        };
    }
    if adopt {
        // The stamp counts whichever log left it.
        let found = storage.stamp(&file, to).map_err(io)?;
        entry.stamps.before = found.map_or_else(Default::default, |stamp| stamp.id);
    }
    let (found, needed) = (file.size().map_err(io)?, entry.length);
    match found >= needed {
        true => Ok(()),
        false => Err(SegmentError::Short { path, found, needed }),
    }
}
