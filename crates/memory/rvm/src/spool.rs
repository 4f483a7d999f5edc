//! The spool: lazy commits kept in memory until something must be safe, with each byte held once.
//!
//! A spooled commit copies its values here instead of to the log. The values of many commits go to the log as
//! *one* record, so that recovery finds all of them or none, and a value that a later commit replaced is
//! never logged. While the spool is in use, every append to the log holds its lock and appends the spooled
//! values first: records stand in the log in the order of commits.
//!
//! Values are appended to a list that is sorted when it is full, never to a tree. If a compaction leaves more
//! than half of the list, it is logged, so that the next compaction comes at least half a spool of values
//! later. Spooling therefore costs about one sort of each value, n log n, however commits overlap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::{AppendError, CommitTicket, RecordLog};

use crate::limit::SEGMENTS_MAX;
use crate::merge::{LoggedExtent, Merger};
use crate::record::{KIND_COMPACT, RANGE_HEADER_BYTES_MAX, RecordEncoder, payload_bytes};
use crate::segments::SegmentMark;
use crate::stats::{Counters, add};
use crate::sync::lock;

/// Bytes that a range counts for in the spool, beside its values. Its header in a record may have only 4
/// bytes, but the lists that hold and merge it take 100. So the spool takes at most four times its size in
/// memory.
const RANGE_BYTES: usize = 24;
const _: () = assert!(
    RANGE_BYTES > RANGE_HEADER_BYTES_MAX,
    "a record is never larger than its ranges count for in the spool"
);

/// The spool of one `Rvm`.
#[derive(Debug)]
pub(crate) struct Spool {
    /// Commits must take the lock, because commits are spooled or may be.
    active: AtomicBool,
    contents: Mutex<SpoolContents>,
}

/// The spooled commits.
#[derive(Debug, Default)]
pub(crate) struct SpoolContents {
    /// Limit of `bytes`. Zero turns spooling off.
    bytes_max: usize,
    /// Sum of [`counted_bytes`] of the extents.
    bytes: usize,
    /// The values, oldest first.
    arena: Vec<u8>,
    extents: Vec<LoggedExtent>,
    /// The extents are sorted, each byte is there once, and neighbours are merged.
    is_compact: bool,
    /// Commits spooled since the last record.
    commits: u64,
    /// Ranges and payload bytes of these commits, if each were a record of its own.
    ranges: u64,
    unmerged_bytes: u64,
    /// Marks of the segments in the extents.
    marks: Vec<Arc<SegmentMark>>,
    present: [u64; SEGMENTS_MAX.div_ceil(64)],
    /// The log accepts no more records. Nothing more is spooled, so that commits see the error.
    refused: bool,
    planted: FaultSwitch,
    merger: Merger,
    pieces: Vec<LoggedExtent>,
    spare: Vec<u8>,
}

impl Spool {
    pub(crate) fn new(bytes_max: usize) -> Spool {
        Spool {
            active: AtomicBool::new(bytes_max > 0),
            contents: Mutex::new(SpoolContents {
                bytes_max,
                ..SpoolContents::default()
            }),
        }
    }

    /// Whether commits must take the lock. Called with the regions of a commit locked, so that a value
    /// spooled before its last change is seen.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SpoolContents> {
        lock(&self.contents)
    }

    pub(crate) fn resize(&self, bytes_max: usize) {
        let mut contents = self.lock();
        contents.bytes_max = bytes_max;
        self.settle(&contents);
    }

    pub(crate) fn plant(&self, planted: FaultSwitch) {
        self.lock().planted = planted;
    }

    /// Forgets the logged commits.
    pub(crate) fn logged(&self, contents: &mut SpoolContents) {
        contents.clear();
        self.settle(contents);
    }

    /// Lets commits pass without the lock once no commit is spooled and spooling is off.
    fn settle(&self, contents: &SpoolContents) {
        let active = contents.bytes_max > 0 || contents.commits > 0;
        self.active.store(active, Ordering::Release);
    }
}

impl SpoolContents {
    /// Number of spooled commits, and the bytes they count for.
    pub(crate) fn size(&self) -> (u64, usize) {
        match self.commits {
            0 => (0, 0),
            commits => (commits, self.bytes),
        }
    }

    pub(crate) fn plants(&self, fault: PlantedFault) -> bool {
        self.planted.is(fault)
    }

    pub(crate) fn has(&self, mark: &SegmentMark) -> bool {
        let (word, bit) = bit_position(mark.index);
        self.present[word] & bit != 0
    }

    /// Whether a commit that counts for `more` bytes can be spooled now. On `false` the spool must be logged
    /// first. The commit is then spooled, or, if it still does not fit, logged.
    pub(crate) fn admits(&mut self, more: u64, counters: &Counters) -> bool {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        if self.refused || more > self.bytes_max {
            return false;
        }
        if self.bytes + more <= self.bytes_max {
            return true;
        }
        if self.is_compact {
            return false;
        }
        self.compact();
        add(&counters.spool_compactions, 1);
        self.bytes <= self.bytes_max / 2 && self.bytes + more <= self.bytes_max
    }

    /// Adds one range of an admitted commit and returns its bytes for the caller to fill.
    pub(crate) fn range(&mut self, mark: &Arc<SegmentMark>, offset: u64, length: u32) -> &mut [u8] {
        let (word, bit) = bit_position(mark.index);
        if self.present[word] & bit == 0 {
            self.present[word] |= bit;
            self.marks.push(mark.clone());
        }
        let source = self.arena.len();
        self.extents.push(LoggedExtent {
            segment: mark.index,
            offset,
            length: u64::from(length),
            source,
        });
        self.arena.resize(source + length as usize, 0);
        self.bytes += counted_bytes(length) as usize;
        &mut self.arena[source..]
    }

    /// Completes an admitted commit of `ranges` ranges, whose own record would have had `length` bytes.
    pub(crate) fn commit(&mut self, ranges: usize, length: usize) {
        assert!(self.bytes <= self.bytes_max);
        self.is_compact = false;
        self.commits += 1;
        self.ranges += ranges as u64;
        self.unmerged_bytes += length as u64;
    }

    /// Keeps the latest value of each byte, and merges neighbours.
    fn compact(&mut self) {
        let before = self.bytes;
        self.merger.merge(&mut self.extents, &mut self.pieces);
        self.extents.clear();
        self.spare.clear();
        for piece in &self.pieces {
            let source = self.spare.len();
            let from = piece.source;
            self.spare
                .extend_from_slice(&self.arena[from..from + piece.length as usize]);
            match self.extents.last_mut() {
                Some(last) if last.segment == piece.segment && last.end() == piece.offset => {
                    last.length += piece.length;
                }
                _ => self.extents.push(LoggedExtent { source, ..*piece }),
            }
        }
        std::mem::swap(&mut self.arena, &mut self.spare);
        // Bounded by the largest spool, so every length fits.
        let counted = self
            .extents
            .iter()
            .map(|extent| counted_bytes(extent.length as u32));
        self.bytes = counted.sum::<u64>() as usize;
        assert!(
            self.bytes <= before,
            "merged ranges count for no more than separate ones"
        );
        self.is_compact = true;
    }

    /// Appends the commits to `log` as one record; waits only for the log's window. After an error the spool
    /// is unchanged. `None` if there is nothing to log.
    pub(crate) fn log(
        &mut self,
        log: &impl RecordLog,
        counters: &Counters,
    ) -> Result<Option<CommitTicket>, AppendError> {
        if self.commits == 0 || self.plants(PlantedFault::SpoolDropped) {
            return Ok(None);
        }
        if !self.is_compact {
            self.compact();
        }
        let bytes = self.record_bytes();
        // The record is no larger than the spool's size, which fits.
        let append = log.append(KIND_COMPACT, bytes as usize, &mut |payload| self.encode(payload));
        let ticket = append.inspect_err(|error| {
            self.refused = !matches!(error, AppendError::Full { .. });
        })?;
        for mark in &self.marks {
            mark.note(ticket.end);
        }
        counters.spool_logged(
            self.commits,
            self.ranges - self.extents.len() as u64,
            self.unmerged_bytes - bytes,
        );
        add(&counters.ranges_logged, self.extents.len() as u64);
        add(&counters.bytes_logged, bytes);
        Ok(Some(ticket))
    }

    /// Payload bytes of the record that holds the extents, once they are compact.
    fn record_bytes(&self) -> u64 {
        assert!(self.is_compact);
        let ranges = self
            .extents
            .iter()
            .map(|extent| (extent.segment, extent.offset, extent.length as u32));
        payload_bytes(0, ranges)
    }

    /// Writes the payload of the spool's record.
    fn encode(&self, payload: &mut [u8]) {
        let mut encoder = RecordEncoder::new(payload, &[]);
        for extent in &self.extents {
            let bytes = encoder.range(extent.segment, extent.offset, extent.length as u32);
            bytes.copy_from_slice(&self.arena[extent.source..extent.source + bytes.len()]);
        }
        encoder.finish();
    }

    fn clear(&mut self) {
        self.bytes = 0;
        self.arena.clear();
        self.extents.clear();
        self.is_compact = false;
        self.marks.clear();
        self.present = Default::default();
        (self.commits, self.ranges, self.unmerged_bytes) = (0, 0, 0);
    }
}

/// Bytes that a range of `length` bytes counts for in the spool.
pub(crate) fn counted_bytes(length: u32) -> u64 {
    RANGE_BYTES as u64 + u64::from(length).next_multiple_of(8)
}

fn bit_position(index: u32) -> (usize, u64) {
    assert!((index as usize) < SEGMENTS_MAX);
    (index as usize / 64, 1 << (index % 64))
}
