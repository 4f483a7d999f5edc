//! The segments that the log knows: their entries in the table, and the files opened so far.
//!
//! A file is opened when it is first needed, so that a segment that no record names may be away.

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

/// What commits need of a segment.
#[derive(Debug)]
pub(crate) struct SegmentMark {
    pub(crate) index: u32,
    /// Where the last record that names the segment ends.
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

/// A segment ready for mapping.
pub(crate) struct OpenSegment<F> {
    pub(crate) file: Arc<F>,
    pub(crate) mark: Arc<SegmentMark>,
    pub(crate) size: u64,
}

pub(crate) struct Segments<F> {
    journal: JournalId,
    /// Identities and stamps are not compared: whoever opened the log answers for its segments.
    adopt: bool,
    /// The log is applied here, so segments have its stamp.
    stamps: bool,
    /// Stamps are left and not looked at: a fault, for the simulator.
    blind: bool,
    table: SegmentTable,
    /// The table differs from what its file holds.
    unwritten: bool,
    /// One for each entry of the table, in the same order.
    states: Vec<State<F>>,
}

/// How a log comes to a segment.
#[derive(Clone, Copy)]
pub(crate) struct LogProgress {
    /// Where the log ends.
    pub(crate) end: Lsn,
    /// It has records that change the segment.
    pub(crate) unapplied: bool,
}

struct State<F> {
    file: Option<Arc<F>>,
    mark: Arc<SegmentMark>,
    /// The stamp on the file, or the one that was to be left there last.
    stamp: Option<SegmentStamp>,
    /// That stamp is on the disk for certain, because this process has synced it.
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

    /// The mark of the segment called `name`, if the table has it.
    pub(crate) fn mark(&self, name: &str) -> Option<Arc<SegmentMark>> {
        let at = self.table.entries.iter().position(|entry| entry.path == name)?;
        Some(self.states[at].mark.clone())
    }

    /// The file of segment `index`, which the table must know and which records are to be applied to, and its
    /// path.
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
        at.expect("records of unknown segments are refused when read")
    }

    /// Opens the segment called `name` for mapping, and enters it in the table if it is new. The log, of
    /// which everything below `applied` is in its segments, has nothing for this one.
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
            // Records may now name the longer part: from here on, a shorter file is an error.
            entry.length = size;
            self.unwritten = true;
        }
        if self.stamps && !self.states[at].opened {
            // Before any record names it: whoever finds the stamp knows that this log may have some.
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

    /// Takes a segment out of the table. Its records must have been trimmed.
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
            // The file may hold the table without it by now: written again before a record names it.
            self.unwritten = true;
            return Err(error.into());
        }
        self.states.remove(at);
        Ok(())
    }

    /// Refuses a log that is not the newest of one of the segments that it may have records for, before it is
    /// applied to any: it could change the one, be refused the other, and have taken the first from its
    /// newest log.
    pub(crate) fn judge_all<S: SegmentStorage<File = F>>(
        &self,
        storage: &S,
        end: Lsn,
    ) -> Result<(), SegmentError> {
        let unapplied = true;
        for entry in self.table.entries.iter().filter(|entry| entry.stamps.open) {
            // One that is away, or another file by now, may be one that no record names.
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

    /// Leaves stamps that say that the log has nothing more for its segments: everything below `applied` is
    /// in them. One that is away, or another's by now, keeps what it has.
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
        // Whoever adopts segments adopts those that are used, not all that the log has ever had.
        let adopt = std::mem::replace(&mut self.adopt, false);
        open.retain(|at| self.open(storage, *at, coming).is_ok());
        self.adopt = adopt;
        match open.is_empty() {
            true => Ok(()),
            false => self.stamp(storage, &open, applied, false),
        }
    }

    /// The same, of one segment.
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

    /// Before records below `applied` are written to the segments `indexes`, whose files are open.
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

    /// Leaves new stamps on the segments at `places`, whose files are open, durably.
    ///
    /// At every moment the stamp on the disk is one of the two in the table on the disk: first what is on the
    /// file is made certain, then the table names that and the next, then the next is left. So a crash, or a
    /// failure, between any two of these finds a stamp that the log knows.
    fn stamp<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        places: &[usize],
        applied: Lsn,
        open: bool,
    ) -> Result<(), SegmentStampError> {
        for at in places {
            if !self.states[*at].settled && self.states[*at].stamp.is_some() {
                // It may be in the cache alone, left by a process that was killed or by a sync that failed.
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

    /// Puts the stamp of the segment at `at` on its file.
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

    /// Enters a segment, which reaches the file with its first stamp.
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
        // Another log may have it: then nothing of it is changed, nor of the table.
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

    /// The file of the entry at `at`, opened and checked on first use. Later it must still be the one at its
    /// path: what is written to a file that was replaced is lost when that is closed.
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

    /// Whether it is the file that the table says.
    fn identify<S: SegmentStorage<File = F>>(
        &mut self,
        storage: &S,
        at: usize,
        file: &F,
    ) -> Result<(), SegmentError> {
        let entry = &mut self.table.entries[at];
        let io = |cause| segment_io(&entry.path, cause);
        let identity = storage.identity(file).map_err(io)?;
        // Zeros in the table: the file system could not keep an identity then, so there is none to compare.
        if entry.identity == SegmentIdentity::default() || entry.identity == identity {
            return Ok(());
        }
        if !self.adopt {
            return Err(SegmentError::Foreign {
                path: entry.path.clone(),
            });
        }
        // Reaches the disk when the segment is mapped; until then each opening has to adopt again.
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
            // This log is where that one was: whoever deleted it has given up what it had.
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

    /// Whether this log is a copy of the one that left `stamp`, which is still where it was then. A copy of
    /// the segment itself is nobody's but this log's.
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

/// Sorts an I/O error by what a person must do.
pub(crate) fn segment_io(name: &str, cause: IoError) -> SegmentError {
    let path = name.to_owned();
    match cause.errno {
        2 => SegmentError::Missing { path },
        17 => SegmentError::Exists { path },
        26 => SegmentError::InUse { path },
        _ => SegmentError::Io { path, cause },
    }
}
