//! Random histories of a volume and its copy. After any crash or broken connection the volume has what was
//! written to it, and a whole copy equals the volume as of its journal's end. A lost volume is restored from
//! the copy.

use crate::common::pair::Pair;
use crate::common::{BLOCK, Machine, Random, SECTOR, cases};
use netram_block::{DeviceError, PendingWrite};
use netram_proto::id::Lsn;
use netram_proto::port::{IoError, RecordLog};
use netram_proto::time::Time;
use proptest::prelude::*;

const BLOCKS: usize = 40;
const BYTES: usize = BLOCKS * BLOCK;
const LOG_BYTES: u64 = 96 * 1024;
const FILES: [&str; 4] = ["image", "sums", "dirty", "superblock"];

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, sectors: usize, value: u8 },
    Zero { at: usize, sectors: usize },
    Read { at: usize, sectors: usize },
    Wait,
    Tick { ms: u64 },
    Apply { steps: u8 },
    Drain,
    Ship { records: usize },
    Follow,
    Resync { frames: usize },
    ApplyCopy { steps: u8 },
    Leave,
    Return,
    Rot { block: usize, how: u8 },
    RotCopy { block: usize },
    TearMap { at: usize },
    FailMap,
    FailSync { file: &'static str },
    Kill,
    Crash { seed: u64 },
    CrashCopy { seed: u64 },
    PlanCrash { operations: u64 },
    PlanCopyCrash { operations: u64 },
    LoseVolume,
    Copy { steps: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    // Half of the requests are whole blocks. Each request is one record.
    let place = || {
        (0..BLOCKS * 8, 1..20usize).prop_map(|(at, sectors)| match sectors % 2 {
            0 => (at / 8 * 8, (sectors % 5 + 1) * 8),
            _ => (at, sectors),
        })
    };
    prop_oneof![
        20 => (place(), 1..255u8).prop_map(|((at, sectors), value)| Step::Write { at, sectors, value }),
        4 => place().prop_map(|(at, sectors)| Step::Zero { at, sectors }),
        4 => place().prop_map(|(at, sectors)| Step::Read { at, sectors }),
        3 => Just(Step::Wait),
        1 => (0..8u64).prop_map(|ms| Step::Tick { ms }),
        6 => (1..8u8).prop_map(|steps| Step::Apply { steps }),
        2 => Just(Step::Drain),
        5 => (1..12usize).prop_map(|records| Step::Ship { records }),
        4 => Just(Step::Follow),
        3 => prop_oneof![Just(1000usize), 0..16usize].prop_map(|frames| Step::Resync { frames }),
        2 => (1..8u8).prop_map(|steps| Step::ApplyCopy { steps }),
        1 => Just(Step::Leave),
        1 => Just(Step::Return),
        2 => (0..BLOCKS, any::<u8>()).prop_map(|(block, how)| Step::Rot { block, how }),
        1 => (0..BLOCKS).prop_map(|block| Step::RotCopy { block }),
        1 => (0..4096usize).prop_map(|at| Step::TearMap { at }),
        1 => Just(Step::FailMap),
        2 => proptest::sample::select(&FILES[..]).prop_map(|file| Step::FailSync { file }),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        1 => any::<u64>().prop_map(|seed| Step::CrashCopy { seed }),
        1 => (0..60u64).prop_map(|operations| Step::PlanCrash { operations }),
        1 => (0..60u64).prop_map(|operations| Step::PlanCopyCrash { operations }),
        1 => Just(Step::LoseVolume),
        2 => (1..4u8).prop_map(|steps| Step::Copy { steps }),
    ]
}

struct DiskPairModelRun {
    pair: Pair,
    away: bool,
    /// Records: end LSN, offset in the volume, bytes.
    records: Vec<(Lsn, usize, Vec<u8>)>,
    pending: Vec<PendingWrite>,
    completed: Lsn,
    copied: u64,
    now_ms: u64,
}

impl DiskPairModelRun {
    fn begin() -> DiskPairModelRun {
        let mut pair = Pair::new(LOG_BYTES, BYTES as u64);
        pair.client_disk = Some(pair.open());
        DiskPairModelRun {
            pair,
            away: false,
            records: Vec::new(),
            pending: Vec::new(),
            completed: Lsn(0),
            copied: 0,
            now_ms: 0,
        }
    }

    /// The volume's bytes as of an LSN.
    fn as_of(&self, end: Lsn) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        for (_, at, data) in self.records.iter().take_while(|record| record.0 <= end) {
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        bytes
    }

    fn newest(&self) -> Vec<u8> {
        self.as_of(Lsn(u64::MAX))
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { at, sectors, value } => {
                let range = range(at, sectors);
                let bytes: Vec<u8> = (range.clone())
                    .map(|at| value.wrapping_add((at / SECTOR) as u8))
                    .collect();
                self.write(range.start, bytes);
            }
            Step::Zero { at, sectors } => {
                let range = range(at, sectors);
                let zeroed = self.pair.disk().zero(range.start as u64, range.len() as u64);
                self.logged(range.start, vec![0; range.len()], zeroed);
            }
            Step::Read { at, sectors } => self.read(range(at, sectors)),
            Step::Wait => {
                if let Some(last) = self.pending.last().copied()
                    && self.pair.disk().wait(last).is_ok()
                {
                    self.completed = self.completed.max(last.0);
                }
            }
            Step::Tick { ms } => {
                self.now_ms += ms;
                self.pair.disk().tick(Time(self.now_ms * 1_000_000));
            }
            Step::Apply { steps } => {
                for _ in 0..steps {
                    let _ = self.pair.disk().apply_step();
                }
            }
            Step::Drain => {
                let _ = self.pair.disk().drain();
            }
            Step::FailMap => {
                self.pair.client.fail_dirty(Some(IoError::ENOSPC));
                let _ = self.pair.disk().drain();
                self.pair.client.fail_dirty(None);
            }
            Step::FailSync { file } => self.pair.client.fail_syncs(file, 1),
            Step::TearMap { at } => self.tear_map(at),
            Step::Rot { block, how } => self.rot(block, how),
            Step::Copy { steps } => self.copy(steps),
            Step::Leave | Step::Return => {
                self.away = matches!(step, Step::Leave);
                match self.away {
                    true => self.pair.copy.leave(),
                    false => self.pair.copy.come_back(),
                }
            }
            Step::Kill => {
                self.pair.client_disk = None;
                self.pair.client.kill();
                self.reopen(1);
            }
            Step::Crash { seed } => self.crash(seed),
            Step::PlanCrash { operations } => self.pair.client.crash_after(operations),
            ref of_copy => self.run_copy(of_copy),
        }
        self.settle();
    }

    /// Steps of the data lender and of the connection.
    fn run_copy(&mut self, step: &Step) {
        match *step {
            Step::PlanCopyCrash { operations } => self.pair.replica.crash_after(operations),
            Step::CrashCopy { seed } => self.pair.crash_replica(seed),
            Step::ApplyCopy { steps } => {
                for _ in 0..steps {
                    let _ = self.pair.replica_disk.apply_step();
                }
            }
            _ if self.away => (),
            Step::Ship { records } => {
                self.pair.client.ship(&self.pair.replica, records);
            }
            Step::Follow => self.follow(),
            Step::Resync { frames } => {
                if self.pair.resync_until(frames).is_ok() {
                    self.compare();
                }
            }
            Step::RotCopy { block } => self.rot_copy(block),
            Step::LoseVolume => self.lose(),
            _ => unreachable!("{step:?} is a step of the client"),
        }
    }

    /// Reboots each machine that has crashed.
    fn settle(&mut self) {
        if self.pair.replica.has_crashed() {
            let seed = self.pair.replica.operations();
            self.pair.crash_replica(seed);
        }
        if self.pair.client.has_crashed() {
            let seed = self.pair.client.operations();
            self.crash(seed);
        }
    }

    fn write(&mut self, at: usize, bytes: Vec<u8>) {
        let wrote = self.pair.disk().write(at as u64, &bytes);
        self.logged(at, bytes, wrote);
    }

    /// A request counts if it is in the journal, whatever it returned.
    fn logged(&mut self, at: usize, bytes: Vec<u8>, done: Result<PendingWrite, DeviceError>) {
        let tail = self.pair.client.state().tail;
        if self.records.last().map_or(Lsn(64), |record| record.0) < tail {
            self.records.push((tail, at, bytes));
        }
        match done {
            Ok(pending) => self.pending.push(pending),
            // A failed sync, or a partial write whose base is only at the data lender.
            Err(DeviceError::Io(_) | DeviceError::Missing { .. }) => (),
            Err(error) => assert!(self.pair.client.has_crashed(), "{error}"),
        }
    }

    fn read(&self, range: std::ops::Range<usize>) {
        let mut found = vec![0xee; range.len()];
        match self.pair.disk().read(range.start as u64, &mut found) {
            Ok(()) => {
                let differing = differing(&found, &self.newest()[range.clone()], range.start);
                assert_eq!(differing, "", "bytes {range:?}");
            }
            Err(DeviceError::Missing { .. }) => assert!(self.pair.disk().is_restoring()),
            Err(error) => assert!(self.pair.client.has_crashed(), "{error}"),
        }
    }

    fn follow(&mut self) {
        let shipped = self.pair.client.ship(&self.pair.replica, usize::MAX);
        if shipped && self.pair.follow_only().is_ok() && self.pair.consistent {
            self.pair.is_whole();
            self.compare();
        }
    }

    /// The whole copy must equal the volume as of its journal's end.
    fn compare(&self) {
        let end = self.pair.replica.state().tail;
        let mut found = vec![0xee; BYTES];
        match self.pair.replica_disk.read(0, &mut found) {
            Ok(()) => {
                let expected = self.as_of(end);
                assert_eq!(differing(&found, &expected, 0), "", "the copy at {end}");
            }
            Err(error) => assert!(self.pair.replica.has_crashed(), "{error}"),
        }
    }

    /// Damages a block of the image. A read repairs it or is refused; then the block is overwritten.
    fn rot(&mut self, block: usize, how: u8) {
        if self.pair.client.has_crashed() || self.pair.disk().drain().is_err() {
            return;
        }
        // Damage to a block that a crash may tear is another test's.
        self.pair.client.cancel_crash();
        self.syncs_work();
        let at = (block + 1) * BLOCK + usize::from(how) * 16;
        self.pair.client.change_file("image", |bytes| bytes[at] ^= 1);
        let mut expected = self.newest()[block * BLOCK..][..BLOCK].to_vec();
        match how % 3 {
            0 => (),
            1 => drop(self.pair.disk().scrub(block as u64, 1)),
            _ => {
                expected[512..1024].fill(how);
                self.write(block * BLOCK + 512, vec![how; 512]);
                let _ = self.pair.disk().drain();
            }
        }
        let mut found = vec![0xee; BLOCK];
        match self.pair.disk().read((block * BLOCK) as u64, &mut found) {
            Ok(()) => assert!(found == expected, "block {block} was passed on damaged"),
            Err(DeviceError::Missing { .. }) => return,
            Err(DeviceError::Corrupt { .. }) => self.write(block * BLOCK, expected),
            Err(_) => (),
        }
        if self.pair.disk().drain().is_err() {
            let _ = self.pair.disk().drain();
        }
    }

    /// Damages a block of the copy, which must then be sent again.
    fn rot_copy(&mut self, block: usize) {
        // While the volume is being restored the copy is the only one.
        let only = self.pair.disk().is_restoring();
        if only || self.pair.replica.has_crashed() || self.pair.replica_disk.drain().is_err() {
            return;
        }
        self.pair.replica.cancel_crash();
        let at = (block + 1) * BLOCK + 100;
        self.pair
            .replica
            .change_file("image", |bytes| bytes[at] = bytes[at].wrapping_add(1));
        let found = self.pair.replica_disk.scrub(0, BLOCKS as u64).unwrap();
        assert!(found.bad.contains(&(block as u64)));
        let bad = self.pair.replica_disk.take_bad_blocks();
        if self.pair.disk().mark_dirty(&bad).is_ok() {
            match self.pair.resync_until(usize::MAX) {
                Ok(_) => self.compare(),
                Err(_) => self.pair.consistent = false,
            }
        } else {
            // Opened as a copy that has had no client since.
            self.pair.consistent = false;
            self.pair.whole_at = None;
            let bytes = self.newest()[block * BLOCK..][..BLOCK].to_vec();
            self.write(block * BLOCK, bytes);
        }
    }

    fn syncs_work(&self) {
        for file in FILES {
            self.pair.client.fail_syncs(file, 0);
        }
    }

    fn tear_map(&mut self, at: usize) {
        self.pair.client_disk = None;
        self.pair.client.change_file("dirty", |bytes| {
            if let Some(byte) = bytes.get_mut(2 * BLOCK + at) {
                *byte ^= 8;
            }
        });
        self.pair.client.kill();
        self.reopen(1);
    }

    fn copy(&mut self, steps: u8) {
        for _ in 0..steps {
            match self.pair.disk().copy_step(self.copied % BLOCKS as u64) {
                Ok(copied) => self.copied = copied.next,
                Err(_) => return,
            }
        }
    }

    /// Loses the client's disk. The members' part of the log must reach back to the copy's end, or nothing is
    /// restored.
    fn lose(&mut self) {
        let restoring = self.pair.disk().is_restoring();
        let reaches = self.pair.client.state().head <= self.pair.replica.state().tail;
        if restoring || !self.pair.consistent || !reaches || self.pair.client.has_crashed() {
            return;
        }
        self.pair.client.cancel_crash();
        self.syncs_work();
        self.pair.lose_client();
        self.copied = 0;
        if self.pair.restore().is_ok() {
            return self.reopen(1);
        }
        // The data lender crashed during the restore and is rebooted.
        self.pair.crash_replica(1);
        self.pair.lose_client();
        self.pair.restore().unwrap();
        self.reopen(1);
    }

    fn crash(&mut self, seed: u64) {
        self.pair.client_disk = None;
        self.pair.client.crash(seed);
        self.reopen(seed);
    }

    /// The volume recovers, with further crashes in between, and must equal what the journal kept.
    fn reopen(&mut self, seed: u64) {
        self.pair.client_disk = None;
        self.pending.clear();
        let tail = self.pair.client.state().tail;
        assert!(tail >= self.completed);
        self.records.retain(|record| record.0 <= tail);
        self.completed = tail;
        self.syncs_work();
        let mut random = Random(seed);
        for _ in 0..random.below(3) {
            self.pair.client.crash_after(random.below(40));
            drop(self.pair.try_open());
            self.pair.client.crash(random.below(u64::MAX));
        }
        // The journal may have a part of a block whose rest is only at the data lender.
        if self.pair.replica.has_crashed() {
            self.pair.crash_replica(seed);
        }
        self.pair.replica.cancel_crash();
        self.pair.copy.come_back();
        self.away = false;
        self.pair.client_disk = Some(self.pair.open());
        self.read(0..BYTES);
        assert_eq!(self.pair.disk().status().statistics.corrupt_bases, 0);
        self.copy_has_only_what_was_kept();
    }

    /// Each sector of the copy, whole or not, is zeros or was written by a record that the journal kept.
    fn copy_has_only_what_was_kept(&self) {
        let mut block = vec![0; BLOCK];
        for number in 0..BLOCKS {
            if self
                .pair
                .replica_disk
                .read_own(number as u64, &mut block)
                .is_err()
            {
                continue;
            }
            for (sector, found) in block.chunks(SECTOR).enumerate() {
                let at = number * BLOCK + sector * SECTOR;
                let wrote = |(_, start, data): &(Lsn, usize, Vec<u8>)| {
                    let from = at.checked_sub(*start);
                    from.and_then(|from| data.get(from..from + SECTOR)) == Some(found)
                };
                let kept = self.records.iter().any(wrote) || found == [0; SECTOR];
                assert!(
                    kept,
                    "block {number}.{sector} of the copy has {:#04x}, which is lost",
                    found[0]
                );
            }
        }
    }
}

/// Names the bytes from `at` that differ from the expected ones, sector by sector.
fn differing(found: &[u8], expected: &[u8], at: usize) -> String {
    let (found, expected) = (found.chunks(SECTOR), expected.chunks(SECTOR));
    let mut differing = String::new();
    for (index, (found, expected)) in found.zip(expected).enumerate() {
        if let Some(byte) = (0..found.len()).find(|byte| found[*byte] != expected[*byte]) {
            let sector = at / SECTOR + index;
            let (block, within) = (sector / 8, sector % 8);
            let (found, expected) = (found[byte], expected[byte]);
            differing += &format!(" block {block}.{within}: {found:#04x} for {expected:#04x};");
        }
    }
    differing
}

fn range(at: usize, sectors: usize) -> std::ops::Range<usize> {
    at * SECTOR..((at + sectors) * SECTOR).min(BYTES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(400)))]
    #[test]
    fn a_volume_and_its_copy_stay_equal(steps in proptest::collection::vec(step(), 1..150)) {
        let mut story = DiskPairModelRun::begin();
        steps.iter().for_each(|step| story.run(step));
        story.read(0..BYTES);
        story.pair.crash_replica(1);
        story.crash(1);
        story.pair.client.log_syncs();
        story.pair.resync();
        for _ in 0..3 * BLOCKS {
            story.copy(1);
        }
        assert!(!story.pair.disk().is_restoring());
        story.compare();
        let machine: &Machine = &story.pair.replica;
        assert_eq!(machine.state().tail, story.pair.client.state().tail);
    }
}
