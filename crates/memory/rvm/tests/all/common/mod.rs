//! A log and files in memory that lose what was not synced when they crash.
//!
//! Failure model: at a crash each unsynced write is on the disk whole, torn at a sector, or not at all, in
//! any combination. Acknowledged records stay, with any prefix of the later ones. A crash can be planned for
//! the Nth operation: that one and all later ones fail until the reboot.

mod storage;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, StorageFile, WaitError,
};
use netram_rvm::limit::TABLE_BYTES;
use netram_rvm::{RealStorage, Rvm, RvmOpenError, RvmOptions, SegmentIdentity, SegmentStamp};

pub(crate) use storage::MachineStorage;

pub(crate) const JOURNAL: JournalId = JournalId(0x1234);
/// Recoverable memory on the machine.
pub(crate) type TestRvm = Rvm<Machine, MachineStorage>;

const SECTOR: usize = 512;
const RECORD_HEADER: u64 = 40;
const TABLE: &str = "table";
/// Heap bytes cannot be mapped at a chosen address.
const NOT_SUPPORTED: IoError = IoError { errno: 95 };

/// The machine; a clone of it stays usable after a crash.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Mutex<State>>);

struct State {
    files: BTreeMap<String, Contents>,
    log: LogContents,
    operations: u64,
    /// Number of calls of `now`.
    asked: u64,
    crash_at: Option<u64>,
    crashed: bool,
    /// Error of writes to segments, if they fail.
    segments_fail: Option<IoError>,
    syncs_fail: u32,
    /// Number of the table's sync that fails, counted from the next, which is one; zero if none.
    table_sync_fails: u32,
    /// The disk is copied before this operation.
    copy_at: Option<u64>,
    copy: Option<(BTreeMap<String, Contents>, LogContents)>,
    identities: u8,
    stamps: u64,
    /// Distinguishes a copy of the machine from its original.
    machine: u8,
}

#[derive(Default, Clone)]
struct Contents {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
    identity: SegmentIdentity,
    stamp: Option<SegmentStamp>,
    number: u64,
}

#[derive(Clone)]
struct LogContents {
    records: VecDeque<(Lsn, RecordKind, usize, usize)>,
    bytes: Vec<u8>,
    head: Lsn,
    stable: Lsn,
    acked: Lsn,
    tail: Lsn,
    capacity: u64,
}

/// A small generator, so that a test's seed determines everything.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

impl Machine {
    pub(crate) fn new(log_capacity: u64) -> Machine {
        let table = Contents {
            durable: vec![0; TABLE_BYTES as usize],
            current: vec![0; TABLE_BYTES as usize],
            ..Contents::default()
        };
        let first = Lsn(64);
        Machine(Arc::new(Mutex::new(State {
            files: BTreeMap::from([(TABLE.to_owned(), table)]),
            log: LogContents {
                records: VecDeque::with_capacity(1 << 14),
                bytes: Vec::with_capacity(log_capacity as usize),
                head: first,
                stable: first,
                acked: first,
                tail: first,
                capacity: log_capacity,
            },
            operations: 0,
            asked: 0,
            crash_at: None,
            crashed: false,
            segments_fail: None,
            syncs_fail: 0,
            table_sync_fails: 0,
            copy_at: None,
            copy: None,
            identities: 0,
            stamps: 0,
            machine: 1,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Small batches, so that small logs take several.
    pub(crate) fn options() -> RvmOptions {
        RvmOptions {
            truncation_batch_bytes: 1000,
            ..RvmOptions::new(JOURNAL)
        }
    }

    pub(crate) fn open(&self) -> Result<TestRvm, netram_rvm::RvmOpenError> {
        Rvm::open(self.clone(), self.storage(), Machine::options())
    }

    /// Makes the operation after the next `operations` fail, and everything after it.
    pub(crate) fn crash_after(&self, operations: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.operations + operations);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.state().crashed
    }

    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(crate) fn fail_segment_writes(&self, error: Option<IoError>) {
        self.state().segments_fail = error;
    }

    pub(crate) fn fail_syncs(&self, count: u32) {
        self.state().syncs_fail = count;
    }

    /// Makes a later sync of the segment table fail although the disk took the bytes. The next sync has the
    /// number 1.
    pub(crate) fn fail_table_sync(&self, number: u32) {
        self.state().table_sync_fails = number;
    }

    /// Copies the disk before the operation that follows the next `operations`.
    pub(crate) fn copy_after(&self, operations: u64) {
        let mut state = self.state();
        state.copy_at = Some(state.operations + operations);
    }

    /// A machine with the copied disk after a crash.
    pub(crate) fn copied(&self, seed: u64) -> Option<Machine> {
        let (files, log) = self.state().copy.clone()?;
        let copy = Machine::new(log.capacity);
        {
            let mut state = copy.state();
            (state.files, state.log) = (files, log);
            state.machine = 2;
        }
        copy.crash(seed);
        Some(copy)
    }

    /// Another machine with a copy of the log and of all files.
    pub(crate) fn fork(&self) -> Machine {
        let here = self.state();
        let copy = Machine::new(here.log.capacity);
        {
            let mut there = copy.state();
            (there.files, there.log) = (here.files.clone(), here.log.clone());
            there.machine = 2;
        }
        copy
    }

    /// Gives this log the segments of `other` under the same paths: the paths of logs and segments are
    /// independent.
    pub(crate) fn share_segments_of(&self, other: &Machine) {
        let segments = other.state().files.clone();
        let here = &mut *self.state();
        let table = here.files.remove(TABLE).unwrap();
        here.files = segments;
        here.files.insert(TABLE.to_owned(), table);
    }

    /// Power loss and reboot.
    pub(crate) fn crash(&self, seed: u64) {
        let mut random = Random(seed);
        let state = &mut *self.state();
        for contents in state.files.values_mut() {
            let unsynced = std::mem::take(&mut contents.unsynced);
            for (offset, bytes) in unsynced {
                let kept = match random.below(3) {
                    0 => 0,
                    1 => bytes.len(),
                    _ => {
                        // Torn at the end of a sector.
                        let cut = random.below(bytes.len() as u64 + 1) as usize;
                        ((offset + cut) / SECTOR * SECTOR).saturating_sub(offset)
                    }
                };
                contents.durable[offset..offset + kept].copy_from_slice(&bytes[..kept]);
            }
            contents.current.clone_from(&contents.durable);
        }
        state.log.crash(&mut random);
        state.crashed = false;
        state.crash_at = None;
        state.segments_fail = None;
    }

    /// Makes the whole log durable on the local disk.
    pub(crate) fn log_syncs(&self) {
        let log = &mut self.state().log;
        log.stable = log.tail;
        log.acked = log.tail;
    }

    pub(crate) fn acked(&self) -> Lsn {
        self.state().log.acked
    }

    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        self.state().files[path].current.clone()
    }

    pub(crate) fn change_file(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.state();
        let contents = state.files.get_mut(path).unwrap();
        change(&mut contents.current);
        contents.durable.clone_from(&contents.current);
    }

    pub(crate) fn remove_file(&self, path: &str) {
        self.state().files.remove(path);
    }

    /// Replaces a segment by another file.
    pub(crate) fn replace_file(&self, path: &str) {
        self.state().files.get_mut(path).unwrap().identity = [0xff; 16];
    }

    pub(crate) fn change_log(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state().log.bytes);
    }
}

impl State {
    /// Counts an operation; returns `false` from the planned crash on.
    fn operate(&mut self) -> bool {
        if self.copy_at == Some(self.operations) {
            self.copy = Some((self.files.clone(), self.log.clone()));
        }
        self.operations += 1;
        self.crashed |= self.crash_at.is_some_and(|at| self.operations > at);
        !self.crashed
    }
}

impl LogContents {
    fn crash(&mut self, random: &mut Random) {
        while let Some((lsn, ..)) = self.records.back().copied() {
            if lsn < self.acked || random.below(3) == 0 {
                break;
            }
            self.tail = lsn;
            self.records.pop_back();
        }
        // The log's own recovery writes the records it found to the disk before it serves.
        self.acked = self.tail;
        self.stable = self.tail;
    }
}

impl RecordLog for Machine {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        let state = &mut *self.state();
        if !state.operate() {
            return Err(AppendError::Closed);
        }
        let log = &mut state.log;
        let max = log.capacity as usize / 4;
        if length > max {
            return Err(AppendError::TooLarge { bytes: length, max });
        }
        let used = log.tail.since(log.head);
        let end = log.tail.plus(RECORD_HEADER + length as u64);
        if end.since(log.head) > log.capacity {
            return Err(AppendError::Full {
                used,
                capacity: log.capacity,
            });
        }
        if log.records.is_empty() {
            log.bytes.clear();
        }
        let from = log.bytes.len();
        log.bytes.resize(from + length, 0xee);
        fill(&mut log.bytes[from..]);
        let lsn = log.tail;
        log.records.push_back((lsn, kind, from, length));
        log.tail = end;
        Ok(CommitTicket { lsn, end })
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        let state = &mut *self.state();
        if durability == Durability::Lazy {
            return Ok(CommitVotes::default());
        }
        if !state.operate() {
            return Err(WaitError::Closed);
        }
        state.log.acked = state.log.acked.max(ticket.end);
        if durability != Durability::Remote {
            state.log.stable = state.log.stable.max(ticket.end);
        }
        Ok(CommitVotes {
            members: 1,
            rule: true,
            disk: durability != Durability::Remote,
        })
    }

    fn state(&self) -> LogState {
        let log = &Machine::state(self).log;
        LogState {
            head: log.head,
            stable: log.stable,
            acked: log.acked,
            tail: log.tail,
            capacity: log.capacity,
            payload_max: log.capacity as usize / 4,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let state = &mut *Machine::state(self);
        if !state.operate() {
            return Err(LogError::Closed);
        }
        let log = &state.log;
        if from < log.head || from > log.stable {
            return Err(LogError::OutOfRange(from));
        }
        let mut next = from;
        for (lsn, kind, at, length) in &log.records {
            if *lsn < from || *lsn >= log.stable {
                continue;
            }
            next = lsn.plus(RECORD_HEADER + *length as u64);
            let payload = &log.bytes[*at..*at + *length];
            if !each(Record {
                lsn: *lsn,
                next,
                epoch: Epoch(1),
                kind: *kind,
                payload,
            }) {
                break;
            }
        }
        Ok(next)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        let state = &mut *Machine::state(self);
        if !state.operate() {
            return Err(LogError::Closed);
        }
        let log = &mut state.log;
        assert!(head <= log.stable, "only stable records may be trimmed");
        while log.records.front().is_some_and(|record| record.0 < head) {
            log.records.pop_front();
        }
        assert!(
            log.records.front().is_none_or(|record| record.0 == head),
            "trimmed inside a record"
        );
        log.head = log.head.max(head);
        Ok(())
    }
}

/// A file of the machine.
pub(crate) struct MachineFile {
    machine: Machine,
    path: String,
}

impl StorageFile for MachineFile {
    fn size(&self) -> Result<u64, IoError> {
        let state = self.machine.state();
        state
            .files
            .get(&self.path)
            .map(|contents| contents.current.len() as u64)
            .ok_or(IoError::ENOENT)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let state = &mut *self.machine.state();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let contents = &state.files[&self.path].current;
        let from = contents.get(offset as usize..).ok_or(IoError::EOF)?;
        into.copy_from_slice(from.get(..into.len()).ok_or(IoError::EOF)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let state = &mut *self.machine.state();
        let works = state.operate();
        if let (true, Some(error)) = (self.path != TABLE, state.segments_fail) {
            return Err(error);
        }
        let contents = state.files.get_mut(&self.path).unwrap();
        let offset = offset as usize;
        assert!(
            offset + bytes.len() <= contents.current.len(),
            "files of the test machine have a fixed length"
        );
        // The write during which the machine crashes may reach the disk in part; later ones never begin.
        if works || state.crash_at == Some(state.operations - 1) {
            contents.unsynced.push((offset, bytes.to_vec()));
        }
        if !works {
            return Err(IoError::EIO);
        }
        contents.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        let state = &mut *self.machine.state();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let contents = state.files.get_mut(&self.path).unwrap();
        if state.syncs_fail > 0 && self.path != TABLE {
            state.syncs_fail -= 1;
            // Like Linux: after a failed sync the pages count as clean, and are lost with memory.
            contents.unsynced.clear();
            return Err(IoError::EIO);
        }
        for (offset, bytes) in contents.unsynced.drain(..) {
            contents.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        if state.table_sync_fails > 0 && self.path == TABLE {
            state.table_sync_fails -= 1;
            if state.table_sync_fails == 0 {
                return Err(IoError::EIO);
            }
        }
        Ok(())
    }
}

/// Real files, with the machine's log.
pub(crate) struct TestDirectory(pub(crate) tempfile::TempDir);

impl TestDirectory {
    pub(crate) fn new() -> TestDirectory {
        TestDirectory(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// The path as the system resolves it.
    pub(crate) fn real(&self, name: &str) -> String {
        let directory = self.0.path().canonicalize().unwrap();
        directory.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn open(&self, machine: &Machine) -> Result<Rvm<Machine, RealStorage>, RvmOpenError> {
        let table = self.path("table");
        let storage = RealStorage::open(&table)
            .or_else(|_| RealStorage::create(&table))
            .unwrap();
        Rvm::open(machine.clone(), storage, Machine::options())
    }
}

/// Reports that a test, or a part of it, cannot run here. Written to standard error directly, because output
/// of a passing test is captured.
pub(crate) fn skipped(missing: impl std::fmt::Display) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // There is no way to report a failure of this write.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}
