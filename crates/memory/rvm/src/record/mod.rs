//! A transaction as bytes: the payload of one log record. Both forms are drawn in `docs/rvm.md`.
//!
//! | form | kind | written |
//! |---|---|---|
//! | compact (`compact.rs`) | [`KIND_COMPACT`] | by every commit |
//! | wide (`wide.rs`) | [`KIND_TRANSACTION`] | no more; read for ever, since logs have it |
//!
//! The log's own header carries the checksum. Decoding still trusts no length: a payload that does not hold
//! together is corruption, never the end of the log.

mod compact;
mod wide;

pub(crate) use compact::{
    RANGE_HEADER_BYTES_MAX, RANGE_HEADER_BYTES_MIN, RangeCursor, RecordEncoder, preamble_bytes,
    range_bytes_max,
};
pub use compact::{encode, payload_bytes};

use netram_proto::port::RecordKind;

use crate::error::RecordDecodeError;

/// The kind of a transaction's record in the wide form.
pub const KIND_TRANSACTION: RecordKind = RecordKind(16);
/// The kind of a transaction's record in the compact form.
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
    /// Where in the segment the bytes go.
    pub offset: u64,
    /// The new values.
    pub bytes: &'a [u8],
}

impl RangeView<'_> {
    /// Where the bytes end. Checked when decoded: it is an offset.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A whole payload that was checked: none of a damaged record is ever applied.
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

/// What a record's ranges touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordScope {
    /// There are none.
    Nothing,
    /// Of one segment, nothing outside these offsets.
    Segment {
        /// Its number.
        segment: u32,
        /// Where the first byte goes.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Several segments.
    Several,
}

/// Checks a whole payload of a record of this kind. About 1 ns a range.
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
    /// The bytes that the transaction was given for others to read ([`crate::Transaction::set_preamble`]).
    pub fn preamble(&self) -> &'a [u8] {
        self.preamble
    }

    /// The ranges. In the compact form they ascend by segment and offset, and none meets another.
    pub fn ranges(&self) -> RecordRanges<'a> {
        RecordRanges(match self.form {
            Form::Wide => Walk::Wide(self.ranges),
            Form::Compact => Walk::Compact(self.ranges, RangeCursor::default()),
        })
    }

    /// How many ranges there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the ranges touch.
    pub fn scope(&self) -> RecordScope {
        self.scope
    }

    /// The ranges as they stand in the payload, if it is compact.
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
            Walk::Compact(left, place) => compact::next(left, place),
            Walk::Wide(left) => wide::next(left),
        }
    }
}

impl<'a> Iterator for RecordRanges<'a> {
    type Item = RangeView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RangeView<'a>> {
        self.0.step().expect("the payload was checked whole")
    }
}
