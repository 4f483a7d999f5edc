//! A bank in recoverable memory. Each thread has its own area, whose every byte follows from the thread's
//! number and its count of transactions, so recovery can check exactly what must be there.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netram_journal::Journal;
use netram_rvm::{RealStorage, Region, RestoreMode, Rvm, RvmCommitError, RvmOptions, SegmentAllocation};

use super::{WorkerEnd, WorkerMessage, WorkerSettings, say, say_acked, setup};
use crate::faults::harness::random::FaultsRandom;

/// Bytes of one thread's area: a page with counter and accounts, then the trail.
const AREA_BYTES: usize = 64 * 1024;
const TRAIL: usize = 4096;
const ACCOUNTS: u64 = 32;
const ACCOUNTS_AT: usize = 64;
const ACCOUNT_BYTES: usize = 16;
/// Threads that a segment has areas for.
pub(crate) const THREADS: usize = 4;

type Bank = Rvm<Journal, RealStorage>;

pub(super) fn run(work: &WorkerSettings, segment: &Path, table: &Path, sparse: bool) -> WorkerEnd {
    let (journal, mut report) = match setup::open(work) {
        Ok(opened) => opened,
        Err(end) => return end,
    };
    let lossy = report.loss.is_some();
    let (rvm, region) = match open(journal, segment, table, sparse) {
        Ok(opened) => opened,
        Err(text) => return WorkerEnd::Refused(text),
    };
    let mut areas = match check(work, &region, lossy) {
        Ok(areas) => areas,
        Err(text) => return WorkerEnd::Wrong(text),
    };
    report.last = areas.iter().map(|area| area.count).collect();
    say(&WorkerMessage::Recovered(report));
    setup::await_members(work, rvm.log());
    if let Err(error) = rvm.start_truncation() {
        return WorkerEnd::Refused(error.to_string());
    }
    let (done, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let rvm = &*rvm;
        scope.spawn(|| setup::tell_standing(&|| rvm.log().status(), &|| !done.load(Ordering::Relaxed)));
        let tellers: Vec<_> = areas
            .iter_mut()
            .take(work.threads)
            .map(|area| {
                let (region, failed) = (&region, &failed);
                scope.spawn(move || serve(work, rvm, region, area, failed))
            })
            .collect();
        for teller in tellers {
            let _ = teller.join();
        }
        std::thread::sleep(Duration::from_millis(30));
        done.store(true, Ordering::Relaxed);
    });
    drop(region);
    drop(rvm);
    match failed.into_inner() {
        true => WorkerEnd::Failed,
        false => WorkerEnd::Done,
    }
}

fn open(journal: Journal, segment: &Path, table: &Path, sparse: bool) -> Result<(Arc<Bank>, Region), String> {
    let (path, table) = (segment.display().to_string(), table.display().to_string());
    let storage = match Path::new(&table).try_exists().unwrap_or(true) {
        true => RealStorage::open(&table),
        false => RealStorage::create(&table),
    };
    let storage = storage.map_err(|error| format!("{table}: {error}"))?;
    let options = RvmOptions::new(journal.id());
    let rvm = Rvm::open(journal, storage, options).map_err(|error| error.to_string())?;
    if !segment.try_exists().unwrap_or(true) {
        let allocation = match sparse {
            true => SegmentAllocation::Sparse,
            false => SegmentAllocation::Preallocated,
        };
        let bytes = (THREADS * AREA_BYTES) as u64;
        rvm.create_segment(&path, bytes, allocation)
            .map_err(|error| error.to_string())?;
    }
    let region = rvm.map(&path, 0, 0).map_err(|error| error.to_string())?;
    Ok((Arc::new(rvm), region))
}

/// One thread's area, as it must be after `count` transactions.
struct Area {
    thread: usize,
    count: u64,
    bytes: Vec<u8>,
}

/// A stretch of an area that a transaction changes.
type Stretch = std::ops::Range<usize>;

impl Area {
    fn new(thread: usize) -> Area {
        Area {
            thread,
            count: 0,
            bytes: vec![0; AREA_BYTES],
        }
    }

    fn base(&self) -> usize {
        self.thread * AREA_BYTES
    }

    fn add(&mut self, account: usize, amount: i64) -> Stretch {
        let at = ACCOUNTS_AT + account * ACCOUNT_BYTES;
        let balance = i64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"));
        self.bytes[at..at + 8].copy_from_slice(&(balance + amount).to_le_bytes());
        self.bytes[at + 8..at + 16].copy_from_slice(&self.count.to_le_bytes());
        at..at + ACCOUNT_BYTES
    }

    /// The next transaction: money from one account to another, a trail of what was done, the count.
    fn step(&mut self, trail_bytes_max: u64) -> [Stretch; 4] {
        self.count += 1;
        let mut random = FaultsRandom(self.count ^ (self.thread as u64) << 56);
        let (source, target) = (random.below(ACCOUNTS) as usize, random.below(ACCOUNTS) as usize);
        let amount = random.below(1000) as i64;
        let length = 16 + random.below(trail_bytes_max.max(1)) as usize;
        let at = TRAIL + random.below((AREA_BYTES - TRAIL - length) as u64) as usize;
        let (source, target) = (self.add(source, -amount), self.add(target, amount));
        random.fill(&mut self.bytes[at..at + length]);
        self.bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        [0..8, source, target, at..at + length]
    }

    fn total(&self) -> i64 {
        let accounts = &self.bytes[ACCOUNTS_AT..][..ACCOUNTS as usize * ACCOUNT_BYTES];
        let balances = accounts.chunks_exact(ACCOUNT_BYTES);
        balances
            .map(|account| i64::from_le_bytes(account[..8].try_into().expect("eight bytes")))
            .sum()
    }
}

/// Plays every area's transactions again up to the count found, and compares.
fn check(work: &WorkerSettings, region: &Region, lossy: bool) -> Result<Vec<Area>, String> {
    let mut areas = Vec::new();
    for thread in 0..THREADS {
        let mut area = Area::new(thread);
        let count: u64 = region.get(area.base()).map_err(|error| error.to_string())?;
        let acked = work.acked.get(thread).copied().unwrap_or(0);
        if count < acked && !lossy {
            return Err(format!(
                "thread {thread}: transaction {acked} was acknowledged, {count} are there"
            ));
        }
        if count > acked.saturating_add(1 << 32) {
            return Err(format!("thread {thread}: a count of {count} is no count"));
        }
        while area.count < count {
            area.step(work.bytes_max);
        }
        let memory = region.read();
        let found = &memory[area.base()..][..AREA_BYTES];
        if let Some(at) = (0..AREA_BYTES).find(|&at| found[at] != area.bytes[at]) {
            return Err(format!(
                "thread {thread}: byte {at} is not what transaction {count} left"
            ));
        }
        assert_eq!(area.total(), 0, "money was made");
        areas.push(area);
    }
    Ok(areas)
}

fn serve(work: &WorkerSettings, rvm: &Bank, region: &Region, area: &mut Area, failed: &AtomicBool) {
    let mut left = work.commits.unwrap_or(u64::MAX);
    while left > 0 && !failed.load(Ordering::Relaxed) {
        let stretches = area.step(work.bytes_max);
        match commit(work, rvm, region, area, &stretches) {
            Ok(votes) => say_acked(area.thread, area.count, votes),
            Err(text) => {
                say(&WorkerMessage::Failed {
                    thread: area.thread,
                    text,
                });
                failed.store(true, Ordering::Relaxed);
            }
        }
        left -= 1;
    }
}

fn commit(
    work: &WorkerSettings,
    rvm: &Bank,
    region: &Region,
    area: &Area,
    stretches: &[Stretch],
) -> Result<netram_proto::port::CommitVotes, String> {
    let mut told = false;
    loop {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        for stretch in stretches {
            let bytes = &area.bytes[stretch.clone()];
            transaction
                .write(region, area.base() + stretch.start, bytes)
                .map_err(|error| error.to_string())?;
        }
        match transaction.commit(setup::durability(work)) {
            Ok(commit) => return Ok(commit.votes),
            Err(error @ RvmCommitError::Full { .. }) => {
                if !told {
                    say(&WorkerMessage::Full {
                        text: error.to_string(),
                    });
                    told = true;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
