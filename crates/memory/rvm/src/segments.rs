//! The segments of a log: their entries in the segment table, and the files opened so far.
//!
//! A file is opened when it is first needed, so a segment without records may be missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{IoError, StorageFile};

use netram_proto::planted::PlantedFault;

use crate::error::{ForgetError, MapError, SegmentError, SegmentTableError};
use crate::limit::{PATH_BYTES_MAX, SEGMENTS_MAX};
use crate::options::{RvmOptions, TruncationPolicy};
use crate::refusal::{SegmentStampError, check, copy};
use crate::stamp::{SegmentOwnership, SegmentStamp, StampHistory, ownership};
use crate::storage::{SegmentIdentity, SegmentStorage};
use crate::table::{self, SegmentTable, TableEntry};

/// Data about a segment that commits need.
#[derive(Debug)]
pub(crate) struct SegmentMark {
    pub(crate) index: u32,
    /// End of the last record that changes the segment.
    end: AtomicU64,
}

impl SegmentMark {
    pub(crate) fn note(&self, end: Lsn) {
        self.end.fetch_max(end.0, Ordering::Release);
    }

    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.end.load(Ordering::Acquire))
    }
}

/// A segment that is ready for mapping.
pub(crate) struct OpenSegment<F> {
    pub(crate) file: Arc<F>,
    pub(crate) mark: Arc<SegmentMark>,
    pub(crate) size: u64,
}

pub(crate) struct Segments<F> {
    journal: JournalId,
    /// Identities and stamps are not compared: the opening chose `adopt_segments`.
    adopt: bool,
    /// Segments get stamps, because the log is applied by this process.
    stamps: bool,
    /// Stamps are left but not checked: a fault planted by the simulator.
    blind: bool,
    table: SegmentTable,
    /// The table in memory differs from the one in its file.
    unwritten: bool,
    /// State of each entry of the table, in the same order.
    states: Vec<State<F>>,
}

/// State of a log when it begins to use a segment.
#[derive(Clone, Copy)]
pub(crate) struct LogProgress {
    /// End of the log.
    pub(crate) end: Lsn,
    /// The log has records that change the segment.
    pub(crate) unapplied: bool,
}

struct State<F> {
    file: Option<Arc<F>>,
    mark: Arc<SegmentMark>,
    /// The stamp on the file, or the one that was to be left there last.
    stamp: Option<SegmentStamp>,
    /// The stamp is certainly on the disk, because this process has synced it.
    settled: bool,
    /// This process has left a stamp that says that the log is open.
    opened: bool,
}

impl<F: StorageFile> State<F> {
    fn new(index: u32) -> State<F> {
        State {
            file: None,
            mark: Arc::new(SegmentMark {
                index,
                end: AtomicU64::new(0),
            }),
            stamp: None,
            settled: false,
            opened: false,
        }
    }
}

impl<F: StorageFile> Segments<F> {
    pub(crate) fn new(table: SegmentTable, options: &RvmOptions) -> Segments<F> {
        let states = table
            .entries
            .iter()
            .map(|entry| State::new(entry.index))
            .collect();
        Segments {
            journal: options.journal,
            adopt: options.adopt_segments,
            stamps: options.truncation == TruncationPolicy::Here,
            blind: options.planted.is(PlantedFault::StampIgnored),
            table,
            unwritten: false,
            states,
        }
    }

    pub(crate) fn entries(&self) -> &[TableEntry] {
        &self.table.entries
    }

    pub(crate) fn knows(&self, index: u32) -> bool {
        self.table.entries.iter().any(|entry| entry.index == index)
    }

    /// The mark of the segment `name`, if the table has it.
    pub(crate) fn mark(&self, name: &str) -> Option<Arc<SegmentMark>> {
        let at = self.table.entries.iter().position(|entry| entry.path == name)?;
        Some(self.states[at].mark.clone())
    }

    /// The file of segment `index` and its path. The table must have the segment, and records are about to be
    /// applied to it.
    pub(crate) fn file<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        index: u32,
        end: Lsn,
    ) -> Result<(Arc<F>, &str), SegmentError> {
        let at = self.index_of(index);
        let unapplied = true;
        let file = self.open(storage, at, LogProgress { end, unapplied })?;
        Ok((file, &self.table.entries[at].path))
    }

    fn index_of(&self, index: u32) -> usize {
        let at = self.table.entries.iter().position(|entry| entry.index == index);
        at.expect("records of unknown segments are refused when they are read")
    }

    /// Opens the segment `name` for mapping, and adds it to the table if it is new. Every record below
    /// `applied` is in the log's segments, and the log has no record of this one.
    pub(crate) fn enter<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        name: &str,
        applied: Lsn,
        end: Lsn,
    ) -> Result<OpenSegment<F>, MapError> {
        let known = self.table.entries.iter().position(|entry| entry.path == name);
        let unapplied = false;
        let at = match known {
            Some(at) => at,
            None => self.add(storage, name, LogProgress { end, unapplied })?,
        };
        let file = self.open(storage, at, LogProgress { end, unapplied })?;
        let size = file.size().map_err(|cause| segment_io(name, cause))?;
        let entry = &mut self.table.entries[at];
        if size > entry.length {
            // Records may now change the longer part: from here on, a shorter file is an error.
            entry.length = size;
            self.unwritten = true;
        }
        if self.stamps && !self.states[at].opened {
            // Stamped before any record changes it: the stamp tells other logs that this one may have
            // records.
            self.stamp(storage, &[at], applied, true)?;
        }
        if self.unwritten {
            self.write(storage)?;
        }
        Ok(OpenSegment {
            file,
            mark: self.states[at].mark.clone(),
            size,
        })
    }

    /// Removes a segment from the table. Its records must have been trimmed.
    pub(crate) fn forget<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        name: &str,
    ) -> Result<(), ForgetError> {
        let known = self.table.entries.iter().position(|entry| entry.path == name);
        let at = known.ok_or_else(|| ForgetError::Unknown {
            path: name.to_owned(),
        })?;
        let entry = self.table.entries.remove(at);
        if let Err(error) = self.write(storage) {
            self.table.entries.insert(at, entry);
            // The file may already have the table without this entry, so it is written again before a record
            // uses it.
            self.unwritten = true;
            return Err(error.into());
        }
        self.states.remove(at);
        Ok(())
    }

    /// Refuses a log that is not the newest of one of the segments that it may have records for. Checked
    /// before the log is applied to any: otherwise it could change one segment, be refused another, and have
    /// taken the first from its newest log.
    pub(crate) fn judge_all<S: SegmentStorage<File = F>>(
        &self,
        storage: &S,
        end: Lsn,
    ) -> Result<(), SegmentError> {
        let unapplied = true;
        for entry in self.table.entries.iter().filter(|entry| entry.stamps.open) {
            // A missing or replaced segment is ignored here, because no record may change it.
            let Ok(file) = storage.open_segment(&entry.path) else {
                continue;
            };
            if !matches!(storage.stamp(&file, &entry.path), Ok(Some(_))) {
                continue;
            }
            self.judge(storage, entry, &file, LogProgress { end, unapplied })?;
        }
        Ok(())
    }

    /// Leaves stamps that say that the log has nothing left to apply: every record below `applied` is in the
    /// segments. A segment that is missing or belongs to another log keeps its stamp.
    pub(crate) fn close<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        applied: Lsn,
        end: Lsn,
    ) -> Result<(), SegmentStampError> {
        let mut open: Vec<usize> = (0..self.states.len())
            .filter(|at| self.stamps && self.table.entries[*at].stamps.open)
            .collect();
        let unapplied = false;
        let coming = LogProgress { end, unapplied };
        // Adopting applies only to segments in use, not to all that the log ever had.
        let adopt = std::mem::replace(&mut self.adopt, false);
        open.retain(|at| self.open(storage, *at, coming).is_ok());
        self.adopt = adopt;
        match open.is_empty() {
            true => Ok(()),
            false => self.stamp(storage, &open, applied, false),
        }
    }

    /// Closes one segment like [`Segments::close`].
    pub(crate) fn close_one<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        index: u32,
        applied: Lsn,
        end: Lsn,
    ) -> Result<(), SegmentStampError> {
        let at = self.index_of(index);
        let unapplied = false;
        let coming = LogProgress { end, unapplied };
        let open = self.stamps && self.table.entries[at].stamps.open;
        match open && self.open(storage, at, coming).is_ok() {
            true => self.stamp(storage, &[at], applied, false),
            false => Ok(()),
        }
    }

    /// Stamps the segments `indexes` before records below `applied` are written to them. Their files must be
    /// open.
    pub(crate) fn stamp_before<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        indexes: &[u32],
        applied: Lsn,
    ) -> Result<(), SegmentStampError> {
        if !self.stamps || indexes.is_empty() {
            return Ok(());
        }
        let places: Vec<usize> = indexes.iter().map(|index| self.index_of(*index)).collect();
        self.stamp(storage, &places, applied, true)
    }

    /// Durably leaves new stamps on the segments at `places`, whose files must be open.
    ///
    /// At every moment the stamp on the disk is one of the two in the table on the disk. First the stamp on
    /// the file is made durable, then the table records it and the next one, then the next one is left. So
    /// after a crash or failure at any point the log recognises the stamp.
    fn stamp<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        places: &[usize],
        applied: Lsn,
        open: bool,
    ) -> Result<(), SegmentStampError> {
        for at in places {
            if !self.states[*at].settled && self.states[*at].stamp.is_some() {
                // The stamp may be only in the cache, left by a process that was killed or by a failed sync.
                self.leave(storage, *at)?;
            }
        }
        let mut next = Vec::with_capacity(places.len());
        for at in places {
            let path = &self.table.entries[*at].path;
            let file = self.states[*at].file.as_ref().expect("the file is open");
            let number = storage.number(file).map_err(|cause| segment_io(path, cause))?;
            let id = storage.draw_stamp().map_err(|cause| segment_io(path, cause))?;
            let known = &mut self.table.entries[*at].stamps;
            let before = self.states[*at].stamp.as_ref();
            *known = StampHistory {
                before: before.map_or([0; 16], |stamp| stamp.id),
                written: id,
                generation: known.generation.max(before.map_or(0, |stamp| stamp.generation)) + 1,
                open,
            };
            next.push(SegmentStamp {
                id,
                journal: self.journal,
                generation: known.generation,
                applied,
                open,
                file: number,
                table: storage.table_path().to_owned(),
            });
        }
        self.unwritten = true;
        self.write(storage)?;
        for (at, stamp) in places.iter().zip(next) {
            self.states[*at].stamp = Some(stamp);
            self.states[*at].settled = false;
            self.leave(storage, *at)?;
            self.states[*at].opened = open;
        }
        Ok(())
    }

    /// Writes the stamp of the segment at `at` to its file.
    fn leave<S: SegmentStorage<File = F>>(&mut self, storage: &S, at: usize) -> Result<(), SegmentError> {
        let path = &self.table.entries[at].path;
        let state = &mut self.states[at];
        let (Some(file), Some(stamp)) = (&state.file, &state.stamp) else {
            return Ok(());
        };
        let left = storage.leave_stamp(file, path, stamp);
        let kept = left.map_err(|cause| segment_io(path, cause))?;
        if !kept {
            state.stamp = None;
        }
        state.settled = true;
        Ok(())
    }

    fn write<S: SegmentStorage<File = F>>(&mut self, storage: &S) -> Result<(), SegmentTableError> {
        self.table
            .write(storage.table(), self.journal, storage.directory())?;
        self.unwritten = false;
        Ok(())
    }

    /// Adds a segment to the table in memory. The table's file gets it with the segment's first stamp.
    fn add<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        name: &str,
        coming: LogProgress,
    ) -> Result<usize, MapError> {
        if self.table.entries.len() == SEGMENTS_MAX {
            return Err(SegmentTableError::Full { max: SEGMENTS_MAX }.into());
        }
        let bytes = table::name(name, storage.directory()).len();
        if bytes > PATH_BYTES_MAX {
            let (path, max) = (name.to_owned(), PATH_BYTES_MAX);
            return Err(SegmentTableError::PathTooLong { path, bytes, max }.into());
        }
        let io = |cause| segment_io(name, cause);
        let file = open_file(storage, name)?;
        let index = (0..SEGMENTS_MAX as u32)
            .find(|index| !self.knows(*index))
            .expect("the table has room");
        let mut entry = TableEntry {
            index,
            path: name.to_owned(),
            length: file.size().map_err(io)?,
            identity: storage.identity(&file).map_err(io)?,
            stamps: StampHistory::default(),
        };
        // If another log has the segment, neither it nor the table is changed.
        let stamp = self.judge(storage, &entry, &file, coming)?;
        if entry.identity == SegmentIdentity::default() {
            entry.identity = storage.assign_identity(&file).map_err(io)?;
        }
        self.table.entries.push(entry);
        self.unwritten = true;
        self.states.push(State {
            file: Some(Arc::new(file)),
            stamp,
            ..State::new(index)
        });
        Ok(self.states.len() - 1)
    }

    /// The file of the entry at `at`, opened and checked on first use. Later it must still be the file at its
    /// path: writes to a replaced file are lost when it is closed.
    fn open<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        at: usize,
        coming: LogProgress,
    ) -> Result<Arc<F>, SegmentError> {
        let path = &self.table.entries[at].path;
        if let Some(file) = &self.states[at].file {
            return match storage.is_same(file, path) {
                Ok(true) => Ok(file.clone()),
                Ok(false) => Err(SegmentError::Foreign { path: path.clone() }),
                Err(cause) => Err(segment_io(path, cause)),
            };
        }
        let file = Arc::new(open_file(storage, path)?);
        self.identify(storage, at, &file)?;
        let entry = &self.table.entries[at];
        let found = file.size().map_err(|cause| segment_io(&entry.path, cause))?;
        if found < entry.length {
            return Err(SegmentError::Short {
                path: entry.path.clone(),
                found,
                needed: entry.length,
            });
        }
        let stamp = self.judge(storage, entry, &file, coming)?;
        let state = &mut self.states[at];
        state.file = Some(file.clone());
        state.stamp = stamp;
        Ok(file)
    }

    /// Checks that the file is the one in the table.
    fn identify<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        at: usize,
        file: &F,
    ) -> Result<(), SegmentError> {
        let entry = &mut self.table.entries[at];
        let io = |cause| segment_io(&entry.path, cause);
        let identity = storage.identity(file).map_err(io)?;
        // Zeros in the table mean that the file system could not keep an identity, so there is none to
        // compare.
        if entry.identity == SegmentIdentity::default() || entry.identity == identity {
            return Ok(());
        }
        if !self.adopt {
            return Err(SegmentError::Foreign {
                path: entry.path.clone(),
            });
        }
        // Written to the disk when the segment is mapped; until then each opening must adopt it again.
        entry.identity = match identity == SegmentIdentity::default() {
            true => storage.assign_identity(file).map_err(io)?,
            false => identity,
        };
        self.unwritten = true;
        Ok(())
    }

    /// The stamp on the file, if this log may change the file.
    fn judge<S: SegmentStorage<File = F>>(
        &self,
        storage: &S,
        entry: &TableEntry,
        file: &F,
        coming: LogProgress,
    ) -> Result<Option<SegmentStamp>, SegmentError> {
        if !self.stamps {
            return Ok(None);
        }
        let io = |cause| segment_io(&entry.path, cause);
        let mut found = storage.stamp(file, &entry.path).map_err(io)?;
        if self.adopt || self.blind {
            return Ok(found);
        }
        if let Some(stamp) = &mut found
            && stamp.journal != self.journal
            && stamp.table == storage.table_path()
            && !stamp.table.is_empty()
        {
            // This log is at the other log's path: the other one was deleted, and its unapplied records with
            // it.
            stamp.open = false;
        }
        let LogProgress { end, unapplied } = coming;
        let stands = ownership(&entry.stamps, found.as_ref(), self.journal, end, unapplied);
        if self.table.other_damaged
            && stands != SegmentOwnership::Current
            && found.as_ref().is_some_and(|stamp| stamp.journal == self.journal)
        {
            let (path, table) = (entry.path.clone(), storage.table_path().to_owned());
            return Err(SegmentError::TableOlder { path, table });
        }
        check(stands, &entry.path, found.as_ref())?;
        match &found {
            Some(stamp) if self.is_copy(storage, entry, file, stamp)? => Err(copy(&entry.path, stamp)),
            _ => Ok(found),
        }
    }

    /// Whether this log is a copy of the one that left `stamp`, whose table still exists at its old path. A
    /// copy of the segment as well belongs to this log alone.
    fn is_copy<S: SegmentStorage<File = F>>(
        &self,
        storage: &S,
        entry: &TableEntry,
        file: &F,
        stamp: &SegmentStamp,
    ) -> Result<bool, SegmentError> {
        let io = |cause| segment_io(&entry.path, cause);
        let same = stamp.journal == self.journal && stamp.file == storage.number(file).map_err(io)?;
        Ok(same && stamp.table != storage.table_path() && storage.is_table_of(&stamp.table, self.journal))
    }
}

fn open_file<S: SegmentStorage>(storage: &S, name: &str) -> Result<S::File, SegmentError> {
    storage
        .open_segment(name)
        .map_err(|cause| segment_io(name, cause))
}

/// Refuses a path that no file can have.
pub(crate) fn check_name(path: &str) -> Result<(), SegmentError> {
    match path.contains('\0') {
        true => Err(SegmentError::Name {
            path: path.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Converts an I/O error by the reaction that it needs from the user.
pub(crate) fn segment_io(name: &str, cause: IoError) -> SegmentError {
    let path = name.to_owned();
    match cause.errno {
        2 => SegmentError::Missing { path },
        17 => SegmentError::Exists { path },
        26 => SegmentError::InUse { path },
        _ => SegmentError::Io { path, cause },
    }
}
