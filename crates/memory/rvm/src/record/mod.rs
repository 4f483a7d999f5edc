//! A transaction as bytes: the payload of one log record. Both forms are drawn in `docs/design/rvm.md`.
//!
//! | form | kind | written |
//! |---|---|---|
//! | compact (`compact.rs`) | [`KIND_COMPACT`] | by every commit |
//! | wide (`wide.rs`) | [`KIND_TRANSACTION`] | no more; read for ever, since logs have it |
//! | wide (`wide.rs`) | [`KIND_TRANSACTION`] | no longer; existing logs contain it, so it is always read |
//! The log's own header carries the checksum. Decoding still trusts no length: an inconsistent payload is
//! corruption, never the end of the log.

mod compact;
mod wide;

pub(crate) use compact::{
    RANGE_HEADER_BYTES_MAX, RANGE_HEADER_BYTES_MIN, RangeCursor, RecordEncoder, preamble_bytes,
    range_bytes_max,
};
pub use compact::{encode, payload_bytes};

use netram_proto::port::RecordKind;

use crate::error::RecordDecodeError;

/// Kind of a transaction's record in the wide form.
pub const KIND_TRANSACTION: RecordKind = RecordKind(16);
/// Kind of a transaction's record in the compact form.
pub const KIND_COMPACT: RecordKind = RecordKind(17);

/// Whether a record of this kind is a transaction.
pub fn is_transaction(kind: RecordKind) -> bool {
    matches!(kind, KIND_TRANSACTION | KIND_COMPACT)
}

/// One range of a decoded transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeView<'a> {
    /// The segment's number in the segment table.
    pub segment: u32,
    /// Offset in the segment at which the bytes begin.
    pub offset: u64,
    /// The new values.
    pub bytes: &'a [u8],
}

impl RangeView<'_> {
    /// Offset behind the last byte. Decoding has checked that it does not overflow.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A payload that was checked as a whole, so that no part of a damaged record is ever applied.
#[derive(Clone, Copy, Debug)]
pub struct RecordChanges<'a> {
    form: Form,
    preamble: &'a [u8],
    ranges: &'a [u8],
    count: u32,
    bytes: u64,
    scope: RecordScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Wide,
    Compact,
}

/// The segments and offsets that a record's ranges touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordScope {
    /// The record has no ranges.
    Nothing,
    /// All ranges lie in one segment, within these offsets.
    Segment {
        /// Number of the segment.
        segment: u32,
        /// Offset of the first byte.
        start: u64,
        /// Offset behind the last byte.
        end: u64,
    },
    /// The ranges lie in several segments.
    Several,
}

/// Checks the whole payload of a record of this kind. Costs about 1 ns per range.
///
/// # Errors
///
/// [`RecordDecodeError`] if the payload is not a transaction.
pub fn decode(kind: RecordKind, payload: &[u8]) -> Result<RecordChanges<'_>, RecordDecodeError> {
    let (form, preamble, ranges) = match kind {
        KIND_COMPACT => {
            let (preamble, ranges) = compact::split(payload)?;
            (Form::Compact, preamble, ranges)
        }
        KIND_TRANSACTION => (Form::Wide, &[][..], wide::ranges(payload)?),
        kind => return Err(RecordDecodeError::Kind { kind: kind.0 }),
    };
    let mut changes = RecordChanges {
        form,
        preamble,
        ranges,
        count: 0,
        bytes: 0,
        scope: RecordScope::Nothing,
    };
    let mut walk = changes.ranges().0;
    while let Some(range) = walk.step()? {
        changes.count += 1;
        changes.bytes += range.bytes.len() as u64;
        changes.scope = changes.scope.with(&range);
    }
    if form == Form::Wide && changes.count != wide::count(payload) {
        return Err(RecordDecodeError::Count);
    }
    Ok(changes)
}

impl<'a> RecordChanges<'a> {
    /// The preamble that the transaction was given ([`crate::Transaction::set_preamble`]).
    pub fn preamble(&self) -> &'a [u8] {
        self.preamble
    }

    /// The ranges. In the compact form they ascend by segment and offset and do not touch.
    pub fn ranges(&self) -> RecordRanges<'a> {
        RecordRanges(match self.form {
            Form::Wide => Walk::Wide(self.ranges),
            Form::Compact => Walk::Compact(self.ranges, RangeCursor::default()),
        })
    }

    /// Number of ranges.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Total bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The segments and offsets that the ranges touch.
    pub fn scope(&self) -> RecordScope {
        self.scope
    }

    /// The encoded ranges, if the payload is compact.
    pub(crate) fn compact(&self) -> Option<&'a [u8]> {
        (self.form == Form::Compact).then_some(self.ranges)
    }
}

impl RecordScope {
    fn with(self, range: &RangeView<'_>) -> RecordScope {
        match self {
            RecordScope::Nothing => RecordScope::Segment {
                segment: range.segment,
                start: range.offset,
                end: range.end(),
            },
            RecordScope::Segment { segment, start, end } if segment == range.segment => {
                RecordScope::Segment {
                    segment,
                    start: start.min(range.offset),
                    end: end.max(range.end()),
                }
            }
            _ => RecordScope::Several,
        }
    }
}

/// The ranges of a checked payload.
#[derive(Clone, Debug)]
pub struct RecordRanges<'a>(Walk<'a>);

#[derive(Clone, Debug)]
enum Walk<'a> {
    Wide(&'a [u8]),
    Compact(&'a [u8], RangeCursor),
}

impl<'a> Walk<'a> {
    #[inline]
    fn step(&mut self) -> Result<Option<RangeView<'a>>, RecordDecodeError> {
        match self {
            Walk::Compact(left, cursor) => compact::next(left, cursor),
            Walk::Wide(left) => wide::next(left),
        }
    }
}

impl<'a> Iterator for RecordRanges<'a> {
    type Item = RangeView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RangeView<'a>> {
        self.0.step().expect("the whole payload was checked")
    }
}
