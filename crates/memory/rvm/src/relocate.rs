//! Telling a log where its segments are after they were moved.

use std::path::Path;

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};

use crate::error::{SegmentError, SegmentTableError};
use crate::limit::PATH_BYTES_MAX;
use crate::segments::segment_io;
use crate::storage::{RealStorage, SegmentIdentity, SegmentStorage};
use crate::table::{self, SegmentTable};

/// One segment that is called by another path now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocatedSegment {
    /// Its path before.
    pub from: String,
    /// Its path from now on.
    pub to: String,
}

/// Why no segment was relocated. The table is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// The table is unusable, or a program has it open.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
    /// A program has the log open.
    #[error("the log is open; stop the program that has it, then relocate its segments")]
    Open,
    /// The log knows no such segment.
    #[error("the log knows no segment {from}, and none beneath it; `netram rvm show` lists those it knows")]
    Unknown {
        /// The path asked for.
        from: String,
    },
    /// The log knows another segment by the new path.
    #[error("the log knows another segment {to}; name the place where the segment was moved to")]
    Taken {
        /// The new path.
        to: String,
    },
    /// The file at the new path is none that the log's records were written for.
    #[error("{0}")]
    Segment(#[from] SegmentError),
}

/// Calls the segment `from` of the log of `journal`, or all segments beneath the directory `from`, by where
/// they are now. The files must be those that the log knows; `adopt` takes any.
///
/// One write of the table: after a crash all of them are relocated, or none.
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

/// What follows `from` in `path`, if that is the path or a directory above it.
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

/// Whether the file at `to` is the segment of `entry`.
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
        // Whatever log left its stamp there last.
        let found = storage.stamp(&file, to).map_err(io)?;
        entry.stamps.before = found.map_or_else(Default::default, |stamp| stamp.id);
    }
    let (found, needed) = (file.size().map_err(io)?, entry.length);
    match found >= needed {
        true => Ok(()),
        false => Err(SegmentError::Short { path, found, needed }),
    }
}
