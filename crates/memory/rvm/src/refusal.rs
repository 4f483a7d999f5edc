//! Errors for segments that a log may not change, built from the stamps found there; and errors of leaving a
//! stamp.

use netram_proto::id::JournalId;

use crate::error::{ForgetError, MapError, SegmentError, SegmentTableError, TruncateError};
use crate::stamp::{SegmentOwnership, SegmentStamp};

/// Why a stamp could not be left on a segment.
#[derive(Debug)]
pub(crate) enum SegmentStampError {
    Segment(SegmentError),
    Table(SegmentTableError),
}

impl From<SegmentError> for SegmentStampError {
    fn from(error: SegmentError) -> SegmentStampError {
        SegmentStampError::Segment(error)
    }
}

impl From<SegmentTableError> for SegmentStampError {
    fn from(error: SegmentTableError) -> SegmentStampError {
        SegmentStampError::Table(error)
    }
}

impl From<SegmentStampError> for MapError {
    fn from(error: SegmentStampError) -> MapError {
        match error {
            SegmentStampError::Segment(error) => error.into(),
            SegmentStampError::Table(error) => error.into(),
        }
    }
}

impl From<SegmentStampError> for ForgetError {
    fn from(error: SegmentStampError) -> ForgetError {
        match error {
            SegmentStampError::Segment(error) => ForgetError::Truncate(error.into()),
            SegmentStampError::Table(error) => error.into(),
        }
    }
}

impl From<SegmentStampError> for TruncateError {
    fn from(error: SegmentStampError) -> TruncateError {
        match error {
            SegmentStampError::Segment(error) => error.into(),
            SegmentStampError::Table(error) => error.into(),
        }
    }
}

/// Returns an error unless this log may change the segment. `found` is the segment's stamp.
pub(crate) fn check(
    standing: SegmentOwnership,
    path: &str,
    found: Option<&SegmentStamp>,
) -> Result<(), SegmentError> {
    let path = path.to_owned();
    let log = found.map_or_else(String::new, |stamp| log_of(&stamp.table).to_owned());
    let journal = found.map_or(JournalId(0), |stamp| stamp.journal);
    match standing {
        SegmentOwnership::Current => Ok(()),
        SegmentOwnership::Overtaken => Err(SegmentError::Overtaken { path, log, journal }),
        SegmentOwnership::OwnedByOtherLog => Err(SegmentError::OwnedByOtherLog { path, log, journal }),
        SegmentOwnership::Older => Err(SegmentError::Older { path }),
        SegmentOwnership::Lost => Err(SegmentError::Foreign { path }),
    }
}

/// The error for a log that is a copy of the one that left `stamp` on the segment at `path`.
pub(crate) fn copy(path: &str, stamp: &SegmentStamp) -> SegmentError {
    SegmentError::Copy {
        path: path.to_owned(),
        log: log_of(&stamp.table).to_owned(),
    }
}

/// Name for messages of the log whose segment table is at `table`: its directory, or its file.
fn log_of(table: &str) -> &str {
    table
        .strip_suffix("/segments")
        .or_else(|| table.strip_suffix(".segments"))
        .unwrap_or(table)
}
