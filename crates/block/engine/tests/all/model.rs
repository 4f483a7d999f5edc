//! Random histories compared with a plain array of bytes. After every crash the volume is a prefix of the
//! records that includes every completed one, and a read never returns anything else.

use crate::common::{BLOCK, Machine, RECORD_HEADER, Random, SECTOR, TestDisk, cases};
use netram_block::{DeviceError, PendingWrite};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;
use netram_proto::time::Time;
use proptest::prelude::*;

/// Initial number of blocks; the volume may grow to twice as many.
const BLOCKS: usize = 40;
const LOG_BYTES: u64 = 64 * 1024;
/// Maximum bytes of data in one record of the machine's log.
const RECORD_DATA: usize = (LOG_BYTES as usize / 4 - 8) / SECTOR * SECTOR;

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, sectors: usize, value: u8 },
    Zero { at: usize, sectors: usize },
    Read { at: usize, sectors: usize },
    Extents { at: usize, sectors: usize },
    Wait { newest: bool },
    Flush,
    LogSyncs,
    Tick { ms: u64 },
    Apply { steps: u8 },
    Drain,
    FailSync,
    Grow { blocks: usize },
    Kill,
    Crash { seed: u64 },
    PlanCrash { operations: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (any::<prop::sample::Index>(), 1..20usize);
    let sector = |at: prop::sample::Index| at.index(BLOCKS * 8);
    // Half of the requests are whole blocks, as from file systems.
    let aligned = move |(at, sectors): (prop::sample::Index, usize)| match sectors % 2 {
        0 => (sector(at) / 8 * 8, sectors / 2 * 8),
        _ => (sector(at), sectors),
    };
    prop_oneof![
        14 => (place(), 1..255u8).prop_map(move |(place, value)| {
            let (at, sectors) = aligned(place);
            Step::Write { at, sectors, value }
        }),
        4 => place().prop_map(move |place| {
            let (at, sectors) = aligned(place);
            Step::Zero { at, sectors }
        }),
        6 => place().prop_map(move |place| {
            let (at, sectors) = aligned(place);
            Step::Read { at, sectors }
        }),
        1 => place().prop_map(move |place| {
            let (at, sectors) = aligned(place);
            Step::Extents { at, sectors: sectors * 8 }
        }),
        4 => any::<bool>().prop_map(|newest| Step::Wait { newest }),
        1 => Just(Step::Flush),
        1 => Just(Step::LogSyncs),
        2 => (0..8u64).prop_map(|ms| Step::Tick { ms }),
        6 => (1..8u8).prop_map(|steps| Step::Apply { steps }),
        1 => Just(Step::Drain),
        1 => Just(Step::FailSync),
        1 => (BLOCKS..2 * BLOCKS).prop_map(|blocks| Step::Grow { blocks }),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        1 => (0..40u64).prop_map(|operations| Step::PlanCrash { operations }),
    ]
}

struct DiskModelRun {
    machine: Machine,
    disk: Option<TestDisk>,
    /// Bytes that a reader must see.
    newest: Vec<u8>,
    /// Bytes that were durable at the last reboot.
    base: Vec<u8>,
    /// Records since then: end LSN, offset in the volume, bytes.
    records: Vec<(Lsn, usize, Vec<u8>)>,
    pending: Vec<PendingWrite>,
    completed: Lsn,
    now_ms: u64,
}

impl DiskModelRun {
    fn begin() -> DiskModelRun {
        let machine = Machine::new(LOG_BYTES, (BLOCKS * BLOCK) as u64);
        DiskModelRun {
            disk: Some(machine.open().unwrap()),
            machine,
            newest: vec![0; BLOCKS * BLOCK],
            base: vec![0; BLOCKS * BLOCK],
            records: Vec::new(),
            pending: Vec::new(),
            completed: Lsn(0),
            now_ms: 0,
        }
    }

    fn disk(&self) -> &TestDisk {
        self.disk.as_ref().unwrap()
    }

    /// The request's range in bytes, cut at the end of the volume.
    fn range(&self, at: usize, sectors: usize) -> std::ops::Range<usize> {
        let end = ((at + sectors) * SECTOR).min(self.newest.len());
        at * SECTOR..end
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { at, sectors, value } => {
                let range = self.range(at, sectors);
                let bytes: Vec<u8> = (range.clone())
                    .map(|at| value.wrapping_add((at / SECTOR) as u8))
                    .collect();
                let tail = self.machine.clone().state().tail;
                let wrote = self.disk().write(range.start as u64, &bytes);
                self.logged(tail, range.start, bytes, 8, wrote);
            }
            Step::Zero { at, sectors } => {
                let range = self.range(at, sectors);
                let tail = self.machine.clone().state().tail;
                let zeroed = self.disk().zero(range.start as u64, range.len() as u64);
                let zeros = vec![0; range.len()];
                self.logged(tail, range.start, zeros, 16, zeroed);
            }
            Step::Read { at, sectors } => self.read(self.range(at, sectors)),
            Step::Extents { at, sectors } => self.extents(self.range(at, sectors)),
            Step::Wait { newest } => self.wait(newest),
            Step::Flush => {
                if self.disk().flush().is_ok() {
                    self.completed = self.pending.last().map_or(self.completed, |last| last.0);
                }
            }
            Step::LogSyncs if !self.machine.has_crashed() => self.machine.log_syncs(),
            Step::LogSyncs => (),
            Step::Tick { ms } => {
                self.now_ms += ms;
                self.disk().tick(Time(self.now_ms * 1_000_000));
            }
            Step::Apply { steps } => {
                for _ in 0..steps {
                    let _ = self.disk().apply_step();
                }
            }
            Step::Drain => {
                if self.disk().drain().is_ok() {
                    let state = self.machine.clone().state();
                    assert_eq!(state.head, state.tail);
                }
            }
            Step::FailSync => self.machine.fail_image_syncs(1),
            Step::Grow { blocks } => self.grow(blocks),
            Step::Kill => {
                self.machine.kill();
                return self.reopen(1);
            }
            Step::Crash { seed } => {
                self.machine.crash(seed);
                return self.reopen(seed);
            }
            Step::PlanCrash { operations } => self.machine.crash_after(operations),
        }
        if self.machine.has_crashed() {
            let seed = self.machine.operations();
            self.machine.crash(seed);
            self.reopen(seed);
        }
    }

    /// Waits for the newest pending request, or for the oldest.
    fn wait(&mut self, newest: bool) {
        let pending = match newest {
            true => self.pending.last(),
            false => self.pending.first(),
        };
        if let Some(pending) = pending.copied()
            && self.disk().wait(pending).is_ok()
        {
            self.pending.retain(|other| *other > pending);
            self.completed = self.completed.max(pending.0);
        }
    }

    /// Counts those records of a request that reached the log behind `tail`.
    fn logged(
        &mut self,
        tail: Lsn,
        offset: usize,
        bytes: Vec<u8>,
        header: u64,
        done: Result<PendingWrite, DeviceError>,
    ) {
        let now = self.machine.clone().state().tail;
        let data_max = if header == 8 { RECORD_DATA } else { bytes.len() };
        let (mut end, mut at) = (tail, offset);
        for data in bytes.chunks(data_max) {
            let carried = if header == 8 { data.len() as u64 } else { 0 };
            end = end.plus(RECORD_HEADER + header + carried);
            if end > now {
                break;
            }
            self.newest[at..at + data.len()].copy_from_slice(data);
            self.records.push((end, at, data.to_vec()));
            at += data.len();
        }
        match done {
            Ok(pending) => {
                assert_eq!(pending, PendingWrite(now));
                self.pending.push(pending);
            }
            // Without an applier thread, the writer itself gets the error of a failed sync of the image.
            Err(DeviceError::Io(_)) => (),
            Err(error) => assert!(self.machine.has_crashed(), "{error}"),
        }
    }

    fn read(&self, range: std::ops::Range<usize>) {
        let mut found = vec![0xee; range.len()];
        match self.disk().read(range.start as u64, &mut found) {
            Ok(()) => assert!(found == self.newest[range.clone()], "bytes {range:?}"),
            Err(error) => assert!(self.machine.has_crashed(), "{error}"),
        }
    }

    fn extents(&self, range: std::ops::Range<usize>) {
        let mut at = range.start;
        let mut before = None;
        let walked = self
            .disk()
            .extents(range.start as u64, range.len() as u64, &mut |length, hole| {
                assert!(length > 0);
                assert_ne!(before.replace(hole), Some(hole), "adjacent runs differ");
                let bytes = &self.newest[at..at + length as usize];
                assert!(
                    !hole || bytes.iter().all(|byte| *byte == 0),
                    "hole with data at {at}"
                );
                at += length as usize;
                true
            });
        match walked {
            Ok(()) => assert_eq!(at, range.end),
            Err(error) => assert!(self.machine.has_crashed(), "{error}"),
        }
    }

    fn grow(&mut self, blocks: usize) {
        let bytes = blocks * BLOCK;
        match self.disk().grow(bytes as u64) {
            Ok(()) => {
                assert!(bytes >= self.newest.len());
                self.newest.resize(bytes, 0);
                self.base.resize(bytes, 0);
            }
            Err(error) => assert!(
                bytes < self.newest.len() || self.machine.has_crashed() || error.to_string().contains("EIO"),
                "{error}"
            ),
        }
    }

    /// The volume recovers, with further crashes in between, and must equal the prefix that the log kept.
    fn reopen(&mut self, seed: u64) {
        self.disk = None;
        self.pending.clear();
        let tail = self.machine.state().tail;
        assert!(tail >= self.completed);
        let mut random = Random(seed);
        self.machine.fail_image_syncs(0);
        for _ in 0..random.below(4) {
            self.machine.crash_after(random.below(25));
            drop(self.machine.open());
            self.machine.crash(random.below(u64::MAX));
        }
        assert_eq!(self.machine.state().tail, tail, "recovery appends nothing");
        let disk = self.machine.open().unwrap();
        // A crash during growth leaves either size.
        let bytes = disk.geometry().bytes as usize;
        assert!(bytes >= self.base.len());
        self.base.resize(bytes, 0);
        for (end, at, data) in std::mem::take(&mut self.records) {
            if end <= tail {
                self.base[at..at + data.len()].copy_from_slice(&data);
            }
        }
        self.newest.clone_from(&self.base);
        self.disk = Some(disk);
        self.completed = tail;
        self.read(0..self.newest.len());
        let statistics = self.disk().status().statistics;
        assert_eq!((statistics.corrupt_reads, statistics.corrupt_bases), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(400)))]
    #[test]
    fn the_volume_is_always_a_prefix_of_its_writes(steps in proptest::collection::vec(step(), 1..150)) {
        let mut story = DiskModelRun::begin();
        steps.iter().for_each(|step| story.run(step));
        story.read(0..story.newest.len());
        story.machine.crash(1);
        story.reopen(1);
    }
}
