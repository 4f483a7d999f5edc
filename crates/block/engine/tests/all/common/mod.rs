//! A log and files in memory that lose unsynced bytes in a crash.
//!
//! Failure model: at a crash each unsynced write or punched hole is on the disk whole, torn at a sector, or
//! not at all, in any combination. Acknowledged records stay, and any prefix of the later ones. A crash can
//! be planned for the Nth operation: that one and all later ones fail until the reboot.

pub(crate) mod pair;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use netram_block::{Disk, DiskFiles, DiskOpenError, DiskOptions, SparseFile, StagePolicy, VolumeId, create};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, StorageFile, WaitError,
};
use netram_proto::time::Nanos;

pub(crate) const JOURNAL: JournalId = JournalId(0x1234);
pub(crate) const VOLUME: VolumeId = VolumeId(0x5678);
/// An open volume on the machine.
pub(crate) type TestDisk = Disk<Machine, MachineFile>;

pub(crate) const SECTOR: usize = 512;
pub(crate) const BLOCK: usize = 4096;
/// Bytes of the machine's log before a record's payload.
pub(crate) const RECORD_HEADER: u64 = 40;

/// The machine; clone it to reach it after a crash.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Mutex<State>>);

struct State {
    files: BTreeMap<&'static str, Contents>,
    log: LogContents,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    /// Error of writes and syncs of the image.
    image_fails: Option<IoError>,
    /// Error of writes of the dirty map.
    dirty_fails: Option<IoError>,
    /// The next write to the dirty map is done, and refused all the same.
    dirty_refuses: Option<IoError>,
    /// Byte range of the dirty map that cannot be read.
    dirty_unreadable: Option<Range<u64>>,
    /// Blocks of the image that cannot be read until they are written.
    image_unreadable: BTreeSet<u64>,
    /// Delays reads of checksums and writes of the image, so that the two overlap.
    slow: bool,
    /// Number of syncs of each file that fail and lose the bytes that they should have made durable.
    syncs_fail: BTreeMap<&'static str, u32>,
}

#[derive(Default, Clone)]
struct Contents {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

struct LogContents {
    records: VecDeque<(Lsn, RecordKind, Vec<u8>)>,
    head: Lsn,
    stable: Lsn,
    acked: Lsn,
    tail: Lsn,
    capacity: u64,
}

/// Number of random histories of a model; `PROPTEST_CASES` raises it.
pub(crate) fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(usual)
}

/// A small generator, so that a test's seed determines the whole run.
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
    /// A machine with a volume of `bytes`.
    pub(crate) fn new(log_capacity: u64, bytes: u64) -> Machine {
        let first = Lsn(64);
        let names = ["image", "sums", "superblock", "dirty"];
        let machine = Machine(Arc::new(Mutex::new(State {
            files: names.map(|name| (name, Contents::default())).into(),
            log: LogContents {
                records: VecDeque::new(),
                head: first,
                stable: first,
                acked: first,
                tail: first,
                capacity: log_capacity,
            },
            operations: 0,
            crash_at: None,
            crashed: false,
            image_fails: None,
            dirty_fails: None,
            dirty_refuses: None,
            dirty_unreadable: None,
            image_unreadable: BTreeSet::new(),
            slow: false,
            syncs_fail: BTreeMap::new(),
        })));
        create(machine.files(), VOLUME, JOURNAL, bytes).unwrap();
        machine
    }

    fn inside(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn files(&self) -> DiskFiles<MachineFile> {
        let file = |name| MachineFile {
            machine: self.clone(),
            name,
        };
        DiskFiles {
            image: file("image"),
            sums: file("sums"),
            superblock: file("superblock"),
            dirty: None,
        }
    }

    /// The files with a dirty map: the volume has a data lender.
    pub(crate) fn files_kept_twice(&self) -> DiskFiles<MachineFile> {
        let dirty = Some(MachineFile {
            machine: self.clone(),
            name: "dirty",
        });
        DiskFiles {
            dirty,
            ..self.files()
        }
    }

    /// Options with small stages, so that short histories use several.
    pub(crate) fn options() -> DiskOptions {
        DiskOptions {
            policy: StagePolicy {
                bytes: 6 * BLOCK as u64,
                age: Nanos::from_ms(10),
                closed_max: 2,
            },
            ..DiskOptions::new(JOURNAL)
        }
    }

    pub(crate) fn open(&self) -> Result<TestDisk, DiskOpenError> {
        Disk::open(self.clone(), self.files(), Machine::options())
    }

    /// Opens the volume as a data lender opens its copy.
    pub(crate) fn open_restarted(&self) -> Result<TestDisk, DiskOpenError> {
        let options = DiskOptions {
            restarted: true,
            ..Machine::options()
        };
        Disk::open(self.clone(), self.files(), options)
    }

    /// Empties all files, as new ones are.
    pub(crate) fn lose_files(&self) {
        self.inside()
            .files
            .values_mut()
            .for_each(|file| *file = Contents::default());
    }

    pub(crate) fn fail_dirty(&self, error: Option<IoError>) {
        self.inside().dirty_fails = error;
    }

    /// Lets the next write to the dirty map be done and reported as refused.
    pub(crate) fn refuse_dirty(&self, error: IoError) {
        self.inside().dirty_refuses = Some(error);
    }

    /// Makes these bytes of the dirty map unreadable.
    pub(crate) fn spoil_dirty(&self, bytes: Option<Range<u64>>) {
        self.inside().dirty_unreadable = bytes;
    }

    /// Makes a sector of this block unreadable until the whole block is written.
    pub(crate) fn spoil_image(&self, block: u64) {
        self.inside().image_unreadable.insert(block);
    }

    /// Plans a crash after `operations` more operations.
    pub(crate) fn crash_after(&self, operations: u64) {
        let mut state = self.inside();
        state.crash_at = Some(state.operations + operations);
    }

    /// Cancels a planned crash.
    pub(crate) fn cancel_crash(&self) {
        self.inside().crash_at = None;
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.inside().crashed
    }

    pub(crate) fn operations(&self) -> u64 {
        self.inside().operations
    }

    pub(crate) fn fail_image(&self, error: Option<IoError>) {
        self.inside().image_fails = error;
    }

    pub(crate) fn slow_down(&self) {
        self.inside().slow = true;
    }

    pub(crate) fn fail_image_syncs(&self, count: u32) {
        self.fail_syncs("image", count);
    }

    pub(crate) fn fail_syncs(&self, name: &'static str, count: u32) {
        self.inside().syncs_fail.insert(name, count);
    }

    /// Power loss and reboot.
    pub(crate) fn crash(&self, seed: u64) {
        let mut random = Random(seed);
        let state = &mut *self.inside();
        for contents in state.files.values_mut() {
            for (offset, bytes) in std::mem::take(&mut contents.unsynced) {
                let kept = match random.below(3) {
                    0 => 0,
                    1 => bytes.len(),
                    _ => {
                        // Torn at a sector's end.
                        let cut = random.below(bytes.len() as u64 + 1) as usize;
                        ((offset + cut) / SECTOR * SECTOR).saturating_sub(offset)
                    }
                };
                // Bytes written beyond the durable end of the file are lost with the file's new size.
                if offset + kept <= contents.durable.len() {
                    contents.durable[offset..offset + kept].copy_from_slice(&bytes[..kept]);
                }
            }
            contents.current.clone_from(&contents.durable);
        }
        state.log.crash(&mut random);
        state.crashed = false;
        state.crash_at = None;
        state.image_fails = None;
    }

    /// Power loss that removes every unsynced byte and every unacknowledged record.
    pub(crate) fn crash_to_what_was_synced(&self) {
        {
            let state = &mut *self.inside();
            (state.files.values_mut()).for_each(|contents| contents.unsynced.clear());
            let log = &mut state.log;
            while let Some((lsn, ..)) = log.records.pop_back_if(|record| record.0 >= log.acked) {
                log.tail = lsn;
            }
        }
        // No random choice is left.
        self.crash(0);
    }

    /// The process dies, and the operating system keeps its writes.
    pub(crate) fn kill(&self) {
        let state = &mut *self.inside();
        state.log.stable = state.log.tail;
        state.log.acked = state.log.tail;
        state.crashed = false;
        state.crash_at = None;
    }

    /// The local disk catches up with the log.
    pub(crate) fn log_syncs(&self) {
        let log = &mut self.inside().log;
        log.stable = log.tail;
        log.acked = log.tail;
    }

    /// Sends the stable records that `to` lacks, at most `most`, and syncs them there. `false`: they were
    /// trimmed here.
    pub(crate) fn ship(&self, to: &Machine, most: usize) -> bool {
        let from = to.inside().log.tail;
        let records: Vec<_> = {
            let log = &self.inside().log;
            if log.head > from {
                return false;
            }
            let wanted = |record: &&(Lsn, RecordKind, Vec<u8>)| record.0 >= from && record.0 < log.stable;
            log.records.iter().filter(wanted).take(most).cloned().collect()
        };
        let log = &mut to.inside().log;
        for (lsn, kind, payload) in records {
            assert_eq!(lsn, log.tail);
            log.tail = lsn.plus(RECORD_HEADER + payload.len() as u64);
            log.records.push_back((lsn, kind, payload));
        }
        (log.stable, log.acked) = (log.tail, log.tail);
        true
    }

    /// Loses the log below `from`; only the members' part from there on is left.
    pub(crate) fn keep_log_from(&self, from: Lsn) {
        let log = &mut self.inside().log;
        log.records.retain(|record| record.0 >= from);
        log.head = from;
        (log.tail, log.acked) = (log.tail.max(from), log.tail.max(from));
        log.stable = log.tail;
    }

    /// Begins the log anew at `from`, empty and durable.
    pub(crate) fn restart_log(&self, from: Lsn) {
        let log = &mut self.inside().log;
        log.records.clear();
        (log.head, log.stable, log.acked, log.tail) = (from, from, from, from);
    }

    pub(crate) fn change_file(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.inside();
        let contents = state.files.get_mut(name).unwrap();
        change(&mut contents.current);
        contents.durable.clone_from(&contents.current);
    }
}

impl State {
    /// Counts an operation; `false` from the planned crash on.
    fn operate(&mut self) -> bool {
        self.operations += 1;
        self.crashed |= self.crash_at.is_some_and(|at| self.operations > at);
        !self.crashed
    }
}

impl LogContents {
    fn crash(&mut self, random: &mut Random) {
        while let Some((lsn, ..)) = self.records.back() {
            if *lsn < self.acked || random.below(3) == 0 {
                break;
            }
            self.tail = *lsn;
            self.records.pop_back();
        }
        // The log's own recovery makes its records durable before it serves.
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
        let state = &mut *self.inside();
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
            let capacity = log.capacity;
            return Err(AppendError::Full { used, capacity });
        }
        let mut payload = vec![0xee; length];
        fill(&mut payload);
        let lsn = log.tail;
        log.records.push_back((lsn, kind, payload));
        log.tail = end;
        Ok(CommitTicket { lsn, end })
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        let state = &mut *self.inside();
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
        let log = &self.inside().log;
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
        let state = &mut *self.inside();
        if !state.operate() {
            return Err(LogError::Closed);
        }
        let log = &state.log;
        if from < log.head || from > log.stable {
            return Err(LogError::OutOfRange(from));
        }
        let mut next = from;
        for (lsn, kind, payload) in &log.records {
            if *lsn < from || *lsn >= log.stable {
                continue;
            }
            next = lsn.plus(RECORD_HEADER + payload.len() as u64);
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
        let state = &mut *self.inside();
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
    name: &'static str,
}

impl MachineFile {
    fn dawdle(&self, name: &str) {
        if self.name == name && self.machine.inside().slow {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    fn change(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.dawdle("image");
        let state = &mut *self.machine.inside();
        let works = state.operate();
        if let (true, Some(error)) = (self.name == "image", state.image_fails) {
            return Err(error);
        }
        if let (true, Some(error)) = (self.name == "dirty", state.dirty_fails) {
            return Err(error);
        }
        let contents = state.files.get_mut(self.name).unwrap();
        let offset = offset as usize;
        assert!(
            offset + bytes.len() <= contents.current.len(),
            "writes must stay inside the file"
        );
        // The write during which the crash happens may have reached the disk in part; later ones never began.
        if works || state.crash_at == Some(state.operations - 1) {
            contents.unsynced.push((offset, bytes.to_vec()));
        }
        if !works {
            return Err(IoError::EIO);
        }
        contents.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        if self.name == "image" {
            let written = (offset / BLOCK) as u64..((offset + bytes.len()) / BLOCK) as u64;
            state
                .image_unreadable
                .retain(|block| !written.contains(&(block + 1)));
        }
        Ok(())
    }
}

impl StorageFile for MachineFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.machine.inside().files[self.name].current.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.dawdle("sums");
        let state = &mut *self.machine.inside();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let end = offset + into.len() as u64;
        let spoilt = state.dirty_unreadable.as_ref().filter(|_| self.name == "dirty");
        if spoilt.is_some_and(|bytes| offset < bytes.end && bytes.start < end) {
            return Err(IoError::EIO);
        }
        // The first block of the file is its header.
        let blocks = (offset / BLOCK as u64).saturating_sub(1)..(end / BLOCK as u64).saturating_sub(1);
        if self.name == "image" && state.image_unreadable.range(blocks).next().is_some() {
            return Err(IoError::EIO);
        }
        let contents = &state.files[self.name].current;
        let from = contents.get(offset as usize..).ok_or(IoError::EOF)?;
        into.copy_from_slice(from.get(..into.len()).ok_or(IoError::EOF)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.change(offset, bytes)?;
        let mut state = self.machine.inside();
        match (self.name, state.dirty_refuses.take()) {
            ("dirty", Some(error)) => Err(error),
            (_, refusal) => {
                state.dirty_refuses = refusal;
                Ok(())
            }
        }
    }

    fn sync(&self) -> Result<(), IoError> {
        let state = &mut *self.machine.inside();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let contents = state.files.get_mut(self.name).unwrap();
        let fails = state.syncs_fail.get_mut(self.name).filter(|count| **count > 0);
        if let Some(count) = fails {
            *count -= 1;
            // As Linux does it: the pages now count as clean, and are lost with the memory.
            contents.unsynced.clear();
            return Err(IoError::EIO);
        }
        contents.durable.resize(contents.current.len(), 0);
        for (offset, bytes) in contents.unsynced.drain(..) {
            contents.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

impl SparseFile for MachineFile {
    fn punch(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.change(offset, &vec![0; length as usize])
    }

    fn extend(&self, bytes: u64) -> Result<(), IoError> {
        let state = &mut *self.machine.inside();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let current = &mut state.files.get_mut(self.name).unwrap().current;
        let longer = current.len().max(bytes as usize);
        current.resize(longer, 0);
        Ok(())
    }
}
