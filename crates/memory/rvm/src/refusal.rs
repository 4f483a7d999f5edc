//! Refusals of segments that are not a log's to change, in words; and why a stamp was not left.

use netram_proto::id::JournalId;

use crate::error::{ForgetError, MapError, SegmentError, TableError, TruncateError};
use crate::stamp::{Stamp, Standing};

/// Why a stamp was not left.
#[derive(Debug)]
pub(crate) enum StampError {
    Segment(SegmentError),
    Table(TableError),
}

impl From<SegmentError> for StampError {
    fn from(error: SegmentError) -> StampError {
        StampError::Segment(error)
    }
}

impl From<TableError> for StampError {
    fn from(error: TableError) -> StampError {
        StampError::Table(error)
    }
}

impl From<StampError> for MapError {
    fn from(error: StampError) -> MapError {
        match error {
            StampError::Segment(error) => error.into(),
            StampError::Table(error) => error.into(),
        }
    }
}

impl From<StampError> for ForgetError {
    fn from(error: StampError) -> ForgetError {
        match error {
            StampError::Segment(error) => ForgetError::Truncate(error.into()),
            StampError::Table(error) => error.into(),
        }
    }
}

impl From<StampError> for TruncateError {
    fn from(error: StampError) -> TruncateError {
        match error {
            StampError::Segment(error) => error.into(),
            StampError::Table(error) => error.into(),
        }
    }
}

/// Refuses a segment that is not this log's to change. `found` is its stamp.
pub(crate) fn check(standing: Standing, path: &str, found: Option<&Stamp>) -> Result<(), SegmentError> {
    let path = path.to_owned();
    let log = found.map_or_else(String::new, |stamp| log_of(&stamp.table).to_owned());
    let journal = found.map_or(JournalId(0), |stamp| stamp.journal);
    match standing {
        Standing::Fit => Ok(()),
        Standing::Overtaken => Err(SegmentError::Overtaken { path, log, journal }),
        Standing::Held => Err(SegmentError::Held { path, log, journal }),
        Standing::Older => Err(SegmentError::Older { path }),
        Standing::Lost => Err(SegmentError::Foreign { path }),
    }
}

/// The refusal of a log that is a copy of the one that left `stamp` on the segment at `path`.
pub(crate) fn copy(path: &str, stamp: &Stamp) -> SegmentError {
    SegmentError::Copy {
        path: path.to_owned(),
        log: log_of(&stamp.table).to_owned(),
    }
}

/// What people call the log by whose segment table is at `table`: its directory, or its file.
fn log_of(table: &str) -> &str {
    table
        .strip_suffix("/segments")
        .or_else(|| table.strip_suffix(".segments"))
        .unwrap_or(table)
}
