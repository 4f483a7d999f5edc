//! The newest records as the log has them, for nodes that lacked some when the server ended: without them
//! such a node would have to begin anew.
//!
//! A merged record's ranges are in the log as they came, among those of the table. Before them stands what
//! makes a record of them again:
//!
//! ```text
//! node, number, position    varints
//! stamp                     as it came
//! ```
//!
//! A log that was trimmed a moment before has few records, and one of an earlier release says nothing before
//! its ranges. So what is found may be too little for somebody. It is never anything else than what was:
//! positions follow on without a gap, up to the table's.

use std::collections::VecDeque;

use netram_proto::port::{Record, RecordLog};
use netram_proto::wire::{ByteReader, put_varint};
use netram_rvm::limit::PREAMBLE_BYTES_MAX;
use netram_rvm::record::{KIND_COMPACT, decode, encode, is_transaction};
use netram_rvm::{RangeView, RecordChanges};
use netram_shared_machine::limit::STAMP_LOCKS_MAX;
use netram_shared_machine::{NodeId, Position, RecordNumber};

/// The longest varint: 64 bits, seven a byte.
const VARINT_BYTES_MAX: usize = 10;

const _: () = assert!(
    3 * VARINT_BYTES_MAX + 2 * VARINT_BYTES_MAX + STAMP_LOCKS_MAX * (5 + VARINT_BYTES_MAX)
        <= PREAMBLE_BYTES_MAX,
    "what stands before the ranges fits"
);

/// One record in the server's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentRecord {
    /// Whose.
    pub node: NodeId,
    /// Its number.
    pub number: RecordNumber,
    /// Stamp and ranges.
    pub payload: Vec<u8>,
}

/// What stands before a record's ranges in the log.
pub(super) fn preamble(
    node: NodeId,
    number: RecordNumber,
    position: Position,
    record: &RecordChanges<'_>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * VARINT_BYTES_MAX + record.preamble().len());
    for word in [node.0, number.0, position.0] {
        put_varint(&mut bytes, word);
    }
    bytes.extend_from_slice(record.preamble());
    bytes
}

/// The newest records of a log, while it is read: as it has them, with the table's changes.
pub(super) struct LogHistory {
    records: VecDeque<(Position, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
}

impl LogHistory {
    pub(super) fn new(bytes_max: usize) -> LogHistory {
        LogHistory {
            records: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Reads a log that was recovered. What is damaged in it is not found here: the memory over it is opened
    /// next.
    pub(super) fn read(&mut self, log: &impl RecordLog) {
        if self.bytes_max == 0 {
            return;
        }
        let read = log.read(log.state().head, &mut |record| {
            self.take(&record);
            true
        });
        if read.is_err() {
            self.records.clear();
        }
    }

    fn take(&mut self, record: &Record<'_>) {
        if !is_transaction(record.kind) {
            return;
        }
        let said = decode(record.kind, record.payload)
            .ok()
            .and_then(|changes| whose(&changes));
        let Some((_, _, position, _)) = said else {
            return;
        };
        let follows = self
            .records
            .back()
            .is_none_or(|(last, _)| last.next() == position);
        if !follows {
            self.records.clear();
            self.bytes = 0;
        }
        self.bytes += record.payload.len();
        self.records.push_back((position, record.payload.to_vec()));
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.records.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// The records again, as their nodes had sent them. `position` is the newest that the table knows.
    pub(super) fn end(self, position: Position, segment: u32) -> Vec<RecentRecord> {
        if self.records.back().map(|(last, _)| *last) != Some(position) {
            return Vec::new();
        }
        let records = self.records.iter();
        let mut recent = Vec::with_capacity(self.records.len());
        for found in records.map(|(_, payload)| again(payload, segment)) {
            match found {
                Some(record) => recent.push(record),
                None => recent.clear(),
            }
        }
        recent
    }
}

fn again(payload: &[u8], segment: u32) -> Option<RecentRecord> {
    let changes = decode(KIND_COMPACT, payload).ok()?;
    let (node, number, _, stamp) = whose(&changes)?;
    let ranges: Vec<RangeView<'_>> = changes
        .ranges()
        .filter(|range| range.segment == segment)
        .collect();
    Some(RecentRecord {
        node,
        number,
        payload: encode(stamp, &ranges),
    })
}

/// What stands before the ranges. `None`: it is none of a node's records.
fn whose<'a>(changes: &RecordChanges<'a>) -> Option<(NodeId, RecordNumber, Position, &'a [u8])> {
    let mut cursor = ByteReader::new(changes.preamble());
    let mut word = || cursor.varint().ok();
    let (node, number, position) = (NodeId(word()?), RecordNumber(word()?), Position(word()?));
    Some((node, number, position, cursor.rest()))
}
