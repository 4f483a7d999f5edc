//! Truncation: applying the log to the segments, so that log space can be reused. Recovery does the same
//! before anything is mapped.
//!
//! A round reads stable records, merges them so that each byte is written once, writes the segments, syncs
//! them, and only then trims the log. It reads the log, not memory, which also holds uncommitted bytes. Only
//! records below the *stable* LSN are applied. A record that is merely acknowledged may be lost with its
//! members, so its changes must not reach a segment first.
//!
//! If anything fails or crashes before the trim, the log still holds every record of the round, and the next
//! round begins at its head again: writing the same values twice does no harm. This also handles a failed
//! sync, after which written bytes cannot be trusted: all are written again before the next sync.

use std::sync::{Arc, Mutex};

use netram_proto::id::Lsn;
use netram_proto::port::{LogError, Record, RecordKind, RecordLog, StorageFile};

use crate::error::TruncateError;
use crate::limit::{STEP_READ_BYTES, STEP_WRITE_BYTES, STEP_WRITES_MAX};
use crate::merge::{LoggedExtent, Merger};
use crate::record::{decode, is_transaction};
use crate::run::{WriteCursor, next_run, write_run};
use crate::segments::{Segments, segment_io};
use crate::stats::{Counters, add};
use crate::storage::SegmentStorage;
use crate::sync::lock;

/// Kinds below this belong to the journal itself and are skipped.
const KIND_USER_MIN: RecordKind = RecordKind(16);

/// Result of one step of truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncateProgress {
    /// No stable record is left to apply.
    Idle,
    /// The round is in progress.
    Working,
    /// A round ended, and the log's head is now here.
    Trimmed(Lsn),
}

/// Records that recovery found and applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Transactions read from the log.
    pub transactions: u64,
    /// Ranges in them.
    pub ranges: u64,
    /// Bytes of those ranges.
    pub bytes: u64,
    /// Head of the log.
    pub start: Lsn,
    /// End of the log.
    pub end: Lsn,
}

/// The parts of an `Rvm` that a step of truncation uses.
pub(crate) struct TruncateContext<'w, L, S: SegmentStorage> {
    pub(crate) log: &'w L,
    pub(crate) storage: &'w S,
    pub(crate) segments: &'w Mutex<Segments<S::File>>,
    pub(crate) counters: &'w Counters,
}

enum Phase {
    Idle,
    Reading { from: Lsn },
    Writing(WriteCursor),
    Syncing { target: usize },
    Trimming,
}

/// State of the round in progress. Keeps its buffers from round to round.
pub(crate) struct Truncator<F> {
    phase: Phase,
    /// Syncs and trims only when every stable record is applied: for recovery, where the system then writes a
    /// page only once. Otherwise each batch is synced and trimmed, to free log space early.
    pub(crate) sync_last: bool,
    batch_bytes: usize,
    /// End of the round's records, which becomes the log's head.
    head: Lsn,
    /// End of the stable records when the round began.
    until: Lsn,
    /// Values of the round's ranges, oldest first.
    arena: Vec<u8>,
    extents: Vec<LoggedExtent>,
    merger: Merger,
    pieces: Vec<LoggedExtent>,
    /// Segments that the round writes.
    targets: Vec<Target<F>>,
    staging: Vec<u8>,
    pub(crate) total: RecoveryReport,
}

struct Target<F> {
    segment: u32,
    path: String,
    file: Arc<F>,
}

impl<F: StorageFile> Truncator<F> {
    pub(crate) fn new(batch_bytes: usize) -> Truncator<F> {
        Truncator {
            phase: Phase::Idle,
            sync_last: false,
            batch_bytes,
            head: Lsn(0),
            until: Lsn(0),
            arena: Vec::new(),
            extents: Vec::new(),
            merger: Merger::default(),
            pieces: Vec::new(),
            targets: Vec::new(),
            staging: Vec::new(),
            total: RecoveryReport::default(),
        }
    }

    /// Performs one bounded step. After an error the round begins again at the log's head.
    pub(crate) fn step<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
    ) -> Result<TruncateProgress, TruncateError> {
        let stepped = match self.phase {
            Phase::Idle => Ok(self.start(world)),
            Phase::Reading { from } => self.read(world, from),
            Phase::Writing(cursor) => self.write(world, cursor),
            Phase::Syncing { target } => self.sync(target),
            Phase::Trimming => self.trim(world),
        };
        if stepped.is_err() {
            self.clear();
        }
        stepped
    }

    fn clear(&mut self) {
        self.phase = Phase::Idle;
        self.targets.clear();
        self.forget_batch();
    }

    fn forget_batch(&mut self) {
        self.arena.clear();
        self.extents.clear();
        self.pieces.clear();
    }

    fn start<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
    ) -> TruncateProgress {
        let state = world.log.state();
        if state.head >= state.stable {
            return TruncateProgress::Idle;
        }
        self.clear();
        self.until = state.stable;
        self.phase = Phase::Reading { from: state.head };
        TruncateProgress::Working
    }

    fn read<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
        from: Lsn,
    ) -> Result<TruncateProgress, TruncateError> {
        let until = self.until;
        let step_bytes = STEP_READ_BYTES.min(self.batch_bytes);
        let mut next = from;
        let mut refused = None;
        let before = self.arena.len();
        let transactions = self.total.transactions;
        {
            let segments = lock(world.segments);
            let mut each = |record: Record<'_>| match self.take(&segments, record) {
                Ok(()) => {
                    next = record.next;
                    self.arena.len() - before < step_bytes && next < until
                }
                Err(error) => {
                    refused = Some(error);
                    false
                }
            };
            let stopped = world.log.read(from, &mut each).map_err(TruncateError::Log)?;
            if let Some(error) = refused {
                return Err(error);
            }
            // The log may skip records of its own without showing them.
            next = next.max(stopped);
        }
        if next == from {
            // A record must exist below the stable LSN.
            return Err(TruncateError::Log(LogError::Corrupt(from)));
        }
        add(
            &world.counters.transactions_applied,
            self.total.transactions - transactions,
        );
        add(&world.counters.bytes_read, (self.arena.len() - before) as u64);
        if next < until && self.arena.len() < self.batch_bytes {
            self.phase = Phase::Reading { from: next };
            return Ok(TruncateProgress::Working);
        }
        self.head = next;
        self.merger.merge(&mut self.extents, &mut self.pieces);
        self.find_targets(world)?;
        self.phase = Phase::Writing(WriteCursor::default());
        Ok(TruncateProgress::Working)
    }

    /// Adds one record's ranges to the round.
    fn take(&mut self, segments: &Segments<F>, record: Record<'_>) -> Result<(), TruncateError> {
        let lsn = record.lsn;
        if record.kind < KIND_USER_MIN {
            return Ok(());
        }
        if !is_transaction(record.kind) {
            return Err(TruncateError::ForeignKind {
                lsn,
                kind: record.kind,
            });
        }
        let changes =
            decode(record.kind, record.payload).map_err(|cause| TruncateError::Damaged { lsn, cause })?;
        for range in changes.ranges() {
            // Neighbouring ranges mostly have the same segment, so the table is rarely searched.
            let same = self
                .extents
                .last()
                .is_some_and(|last| last.segment == range.segment);
            if !same && !segments.knows(range.segment) {
                return Err(TruncateError::UnknownSegment {
                    lsn,
                    segment: range.segment,
                });
            }
            let source = self.arena.len();
            self.arena.extend_from_slice(range.bytes);
            self.extents.push(LoggedExtent {
                segment: range.segment,
                offset: range.offset,
                length: range.bytes.len() as u64,
                source,
            });
        }
        self.total.transactions += 1;
        self.total.ranges += u64::from(changes.count());
        self.total.bytes += changes.bytes();
        Ok(())
    }

    /// Opens, checks and stamps every segment of the round, so that none is written if another is unusable.
    fn find_targets<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
    ) -> Result<(), TruncateError> {
        let mut segments = lock(world.segments);
        let end = world.log.state().tail;
        let mut fresh = Vec::new();
        for pieces in self.pieces.chunk_by(|a, b| a.segment == b.segment) {
            let last = pieces[pieces.len() - 1];
            let needed = last.offset + last.length;
            let (file, path) = segments.file(world.storage, last.segment, end)?;
            let path = path.to_owned();
            let found = file.size().map_err(|cause| segment_io(&path, cause))?;
            if found < needed {
                return Err(crate::error::SegmentError::Short { path, found, needed }.into());
            }
            // Kept sorted by segment; an earlier batch may already have added it.
            let segment = last.segment;
            if let Err(at) = self
                .targets
                .binary_search_by_key(&segment, |target| target.segment)
            {
                self.targets.insert(at, Target { segment, path, file });
                fresh.push(segment);
            }
        }
        // Durable before the first byte is written: a copy of this log without these records must recognise
        // that it was overtaken, however many of them a crash leaves in the segments.
        segments.stamp_before(world.storage, &fresh, self.until)?;
        Ok(())
    }

    fn write<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
        mut cursor: WriteCursor,
    ) -> Result<TruncateProgress, TruncateError> {
        let mut step_bytes = 0;
        for _ in 0..STEP_WRITES_MAX {
            let Some((run, next)) = next_run(&self.pieces, cursor) else {
                break;
            };
            if step_bytes + run.length > STEP_WRITE_BYTES {
                break;
            }
            // Every segment of the pieces was added before.
            let at = self
                .targets
                .partition_point(|target| target.segment < run.segment);
            let Target { file, path, .. } = &self.targets[at];
            let written = write_run(&**file, &run, &self.pieces, &self.arena, &mut self.staging);
            let written = written.map_err(|cause| segment_io(path, cause))?;
            add(&world.counters.bytes_applied, written as u64);
            step_bytes += run.length;
            cursor = next;
        }
        self.phase = if cursor.piece < self.pieces.len() {
            Phase::Writing(cursor)
        } else if self.sync_last && self.head < self.until {
            self.forget_batch();
            Phase::Reading { from: self.head }
        } else {
            Phase::Syncing { target: 0 }
        };
        Ok(TruncateProgress::Working)
    }

    fn sync(&mut self, target: usize) -> Result<TruncateProgress, TruncateError> {
        let Some(segment) = self.targets.get(target) else {
            self.phase = Phase::Trimming;
            return Ok(TruncateProgress::Working);
        };
        segment
            .file
            .sync()
            .map_err(|cause| segment_io(&segment.path, cause))?;
        self.phase = Phase::Syncing { target: target + 1 };
        Ok(TruncateProgress::Working)
    }

    fn trim<L: RecordLog, S: SegmentStorage<File = F>>(
        &mut self,
        world: &TruncateContext<'_, L, S>,
    ) -> Result<TruncateProgress, TruncateError> {
        world.log.trim(self.head).map_err(TruncateError::Log)?;
        add(&world.counters.rounds, 1);
        self.clear();
        Ok(TruncateProgress::Trimmed(self.head))
    }
}
