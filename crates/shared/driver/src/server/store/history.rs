//! Recovers the newest records from the log, for nodes that lacked some when the server ended. Without them
//! such a node would have to fetch the region anew.
//!
//! A merged record's ranges are in the log as they came, among those of the table. They are preceded by the
//! data from which the record is restored:
//!
//! ```text
//! node, number, position    varints
//! stamp                     as it came
//! ```
//!
//! A log that was just trimmed has few records, and one of an earlier release lacks this data. So too few
//! records may be found for some node. But they are never wrong: their positions are without a gap, up to the
//! table's.

use std::collections::VecDeque;

use netram_proto::port::{Record, RecordLog};
use netram_proto::wire::{ByteReader, put_varint};
use netram_rvm::limit::PREAMBLE_BYTES_MAX;
use netram_rvm::record::{KIND_COMPACT, decode, encode, is_transaction};
use netram_rvm::{RangeView, RecordChanges};
use netram_shared_machine::limit::STAMP_LOCKS_MAX;
use netram_shared_machine::{NodeId, Position, RecordNumber};

/// Maximum bytes of a varint: 64 bits, seven per byte.
const VARINT_BYTES_MAX: usize = 10;

const _: () = assert!(
    3 * VARINT_BYTES_MAX + 2 * VARINT_BYTES_MAX + STAMP_LOCKS_MAX * (5 + VARINT_BYTES_MAX)
        <= PREAMBLE_BYTES_MAX,
    "the data before the ranges fits the preamble"
);

/// One record in the server's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentRecord {
    /// Node that wrote it.
    pub node: NodeId,
    /// Its number.
    pub number: RecordNumber,
    /// Stamp and ranges.
    pub payload: Vec<u8>,
}

/// Data that precedes a record's ranges in the log.
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

/// The newest records of a log while it is read, with the table's changes still in them.
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

    /// Reads a recovered log. It ignores damage, which is found when the memory over the log is opened next.
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

    /// The records as their nodes had sent them. `position`: the newest position in the table.
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

/// Reads the data before the ranges; `None`: it is not a node's record.
fn whose<'a>(changes: &RecordChanges<'a>) -> Option<(NodeId, RecordNumber, Position, &'a [u8])> {
    let mut cursor = ByteReader::new(changes.preamble());
    let mut word = || cursor.varint().ok();
    let (node, number, position) = (NodeId(word()?), RecordNumber(word()?), Position(word()?));
    Some((node, number, position, cursor.rest()))
}
