//! The persistent heap: cost of allocating and freeing beside malloc and free, and the effect of a long load.
//!
//! Blocks are allocated and freed in transactions of many, committed lazily to a journal on the local disk.
//! This measures the heap and its share of the commit, not the disk. The truncation thread runs, as in a
//! program.

use std::hint::black_box;
use std::time::Instant;

use netram_heap::{AllocError, Heap, Ptr};
use netram_journal::Journal;
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, RestoreMode, Rvm, RvmOptions, SegmentAllocation};
use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::testbed::Testbed;

/// Measured block sizes in bytes.
pub const SIZES: [usize; 7] = [16, 64, 256, 1024, 4096, 16 << 10, 64 << 10];
/// Number of blocks in one transaction.
const BATCH: usize = 500;
/// Size of the log in bytes; it is never full during a measurement.
const LOG_BYTES: u64 = 64 << 20;
/// Size in bytes of the heap for speed measurements; it holds a batch of the largest blocks.
const SPEED_BYTES: u64 = 64 << 20;
/// Size of the opened heap in bytes.
const OPEN_BYTES: u64 = 1 << 30;
/// Number of openings.
const OPENINGS: usize = 9;
/// Share of the heap that the load allocates, in percent.
const LOAD_PERCENT: u64 = 75;

/// Extent of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct HeapEffort {
    /// Number of transactions for each size.
    pub rounds: usize,
    /// Number of allocations for each load.
    pub steps: usize,
    /// Size in bytes of the heap under load.
    pub load_bytes: u64,
}

impl HeapEffort {
    /// The documented extent.
    pub const FULL: HeapEffort = HeapEffort {
        rounds: 200,
        steps: 1_000_000,
        load_bytes: 32 << 20,
    };
    /// A run of a few seconds.
    pub const QUICK: HeapEffort = HeapEffort {
        rounds: 20,
        steps: 50_000,
        load_bytes: 16 << 20,
    };
}

/// Cost of one block size. Nanoseconds are medians over transactions, divided by their blocks.
#[derive(Clone, Debug, Serialize)]
pub struct HeapSpeed {
    /// Requested bytes.
    pub bytes: usize,
    /// Time of allocating a block.
    pub alloc_ns: f64,
    /// Time of freeing a block.
    pub free_ns: f64,
    /// A block's share of the commit that allocated it.
    pub alloc_commit_ns: f64,
    /// A block's share of the commit that freed it.
    pub free_commit_ns: f64,
    /// The floor: `malloc` of as many bytes in this process.
    pub malloc_ns: f64,
    /// The floor: `free`.
    pub c_free_ns: f64,
    /// Bytes of log for an allocated block.
    pub alloc_log_bytes: f64,
    /// Bytes of log for a freed block.
    pub free_log_bytes: f64,
    /// Bytes of log for a block allocated in its own transaction.
    pub single_log_bytes: f64,
}

/// Distribution of a load's block sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeMix {
    /// 1 to 256 bytes, evenly.
    Small,
    /// 1 byte to 64 KiB, each doubling equally often.
    Mixed,
    /// 4 to 64 KiB, evenly.
    Large,
    /// Drifting sizes: small ones first, larger ones with time, and small again. The worst case of size
    /// classes.
    Drifting,
}

/// All loads.
pub const LOADS: [SizeMix; 4] = [SizeMix::Small, SizeMix::Mixed, SizeMix::Large, SizeMix::Drifting];

/// State of a heap after a load.
#[derive(Clone, Debug, Serialize)]
pub struct HeapLoad {
    /// The distribution of sizes.
    pub sizes: SizeMix,
    /// Number of allocations, and about as many frees.
    pub steps: usize,
    /// Number of allocations that found no room.
    pub refused: u64,
    /// Requested bytes of the live blocks.
    pub asked: u64,
    /// Bytes of pages in use for each of those.
    pub pages_per_byte: f64,
    /// The same at the worst of the sampled moments.
    pub pages_per_byte_max: f64,
    /// Share of the free pages outside the largest free extent.
    pub scattered: f64,
    /// Median nanoseconds of one allocation with its own commit and the frees before it.
    pub step_ns: f64,
}

/// Cost of opening a heap.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeapOpening {
    /// Size of the heap in bytes.
    pub bytes: u64,
    /// Number of blocks in it.
    pub blocks: u64,
    /// Median milliseconds of one opening, without mapping its region.
    pub ms: f64,
}

/// A heap in its own journal.
struct HeapSetup {
    rvm: Rvm<Journal, RealStorage>,
    heap: Heap,
    segment: String,
}

impl HeapSetup {
    fn new(site: &Testbed, bytes: u64) -> Result<HeapSetup, BenchError> {
        let config = site.config(Vec::new(), true, WaitPolicy::default());
        let opened = site.journal(LOG_BYTES, config)?;
        let path = |name: &str| opened.directory.join(name).to_string_lossy().into_owned();
        let storage = RealStorage::create(&path("segments")).context("create the segment table")?;
        let rvm = Rvm::open(opened.journal, storage, RvmOptions::new(opened.id))
            .context("open recoverable memory")?;
        rvm.start_truncation().context("start truncation")?;
        let segment = path("heap");
        rvm.create_segment(&segment, bytes, SegmentAllocation::Sparse)
            .context("create the heap's segment")?;
        let region = rvm.map(&segment, 0, 0).context("map the heap")?;
        let heap = Heap::format(&rvm, region).context("format the heap")?;
        Ok(HeapSetup { rvm, heap, segment })
    }

    fn logged(&self) -> u64 {
        self.rvm.statistics().bytes_logged
    }
}

/// A small random generator, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Measures one size.
///
/// # Errors
///
/// Fails if the journal or the heap cannot be set up, or the heap is found broken.
pub fn speed(site: &Testbed, bytes: usize, effort: HeapEffort) -> Result<HeapSpeed, BenchError> {
    let place = HeapSetup::new(site, SPEED_BYTES)?;
    let mut random = Random(bytes as u64);
    let mut times: [Vec<f64>; 6] = Default::default();
    let (mut alloc_log, mut free_log) = (0, 0);
    for _ in 0..effort.rounds {
        let [alloc, alloc_commit, free, free_commit, malloc, c_free] = &mut times;
        let before = place.logged();
        let mut open = place.rvm.begin(RestoreMode::Restore);
        let mut blocks: Vec<Ptr<u8>> = Vec::with_capacity(BATCH);
        timed(alloc, || {
            for _ in 0..BATCH {
                blocks.push(place.heap.allocate(&mut open, bytes).context("allocate")?);
            }
            Ok(())
        })?;
        timed(alloc_commit, || {
            open.commit(Durability::Lazy).map(drop).context("commit")
        })?;
        alloc_log += place.logged() - before;
        random.shuffle(&mut blocks);
        let before = place.logged();
        let mut open = place.rvm.begin(RestoreMode::Restore);
        timed(free, || {
            let mut blocks = blocks.iter();
            blocks.try_for_each(|block| place.heap.free(&mut open, *block).context("free"))
        })?;
        timed(free_commit, || {
            open.commit(Durability::Lazy).map(drop).context("commit")
        })?;
        free_log += place.logged() - before;
        floor(bytes, &mut random, malloc, c_free)?;
    }
    let before = place.logged();
    for _ in 0..BATCH {
        let mut open = place.rvm.begin(RestoreMode::Restore);
        place.heap.allocate(&mut open, bytes).context("allocate")?;
        open.commit(Durability::Lazy).context("commit")?;
    }
    let single_log = place.logged() - before;
    let blocks = (effort.rounds * BATCH) as f64;
    let [
        alloc_ns,
        alloc_commit_ns,
        free_ns,
        free_commit_ns,
        malloc_ns,
        c_free_ns,
    ] = times.map(median);
    Ok(HeapSpeed {
        bytes,
        alloc_ns,
        free_ns,
        alloc_commit_ns,
        free_commit_ns,
        malloc_ns,
        c_free_ns,
        alloc_log_bytes: alloc_log as f64 / blocks,
        free_log_bytes: free_log as f64 / blocks,
        single_log_bytes: single_log as f64 / BATCH as f64,
    })
}

/// The same with the process's own allocator.
fn floor(
    bytes: usize,
    random: &mut Random,
    malloc: &mut Vec<f64>,
    c_free: &mut Vec<f64>,
) -> Result<(), BenchError> {
    let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    timed(malloc, || {
        for _ in 0..BATCH {
            blocks.push(black_box(Vec::with_capacity(black_box(bytes))));
        }
        Ok(())
    })?;
    random.shuffle(&mut blocks);
    timed(c_free, || {
        blocks.clear();
        Ok(())
    })
}

/// Adds the time of one block of a batch.
fn timed(times: &mut Vec<f64>, work: impl FnOnce() -> Result<(), BenchError>) -> Result<(), BenchError> {
    let began = Instant::now();
    work()?;
    times.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
    Ok(())
}

impl SizeMix {
    fn next(self, random: &mut Random, step: usize, steps: usize) -> usize {
        let bytes = match self {
            SizeMix::Small => 1 + random.below(256),
            SizeMix::Mixed => {
                let doubling = random.below(17);
                1 + random.below(1 << doubling)
            }
            SizeMix::Large => 4096 + random.below(60 << 10),
            SizeMix::Drifting => {
                // Eight phases; each requests sizes around a doubling that the phase before hardly had.
                let phase = (step * 8 / steps) as u64;
                let middle = 32 << (phase % 4 * 3);
                middle / 2 + random.below(middle)
            }
        };
        bytes as usize
    }
}

/// Puts a heap under a long random load.
///
/// # Errors
///
/// Fails if the journal or the heap cannot be set up, or the heap is found broken.
pub fn load(site: &Testbed, sizes: SizeMix, effort: HeapEffort) -> Result<HeapLoad, BenchError> {
    let place = HeapSetup::new(site, effort.load_bytes)?;
    let mut random = Random(7);
    let mut live: Vec<(Ptr<u8>, usize)> = Vec::new();
    let (mut asked, mut refused, mut worst) = (0u64, 0, 0f64);
    let mut times = Vec::with_capacity(effort.steps);
    for step in 0..effort.steps {
        let bytes = sizes.next(&mut random, step, effort.steps);
        let began = Instant::now();
        let mut open = place.rvm.begin(RestoreMode::NoRestore);
        while asked + bytes as u64 > effort.load_bytes * LOAD_PERCENT / 100 {
            let (block, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
            place.heap.free(&mut open, block).context("free")?;
            asked -= bytes as u64;
        }
        match place.heap.allocate(&mut open, bytes) {
            Ok(block) => {
                live.push((block, bytes));
                asked += bytes as u64;
            }
            Err(AllocError::NoRoom { .. }) => {
                // As a program would: it frees something, and the next request may find room.
                refused += 1;
                let (block, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
                place.heap.free(&mut open, block).context("free")?;
                asked -= bytes as u64;
            }
            Err(error) => return Err(error).context("allocate"),
        }
        open.commit(Durability::Lazy).context("commit")?;
        times.push(began.elapsed().as_nanos() as f64);
        if step % (effort.steps / 50) == 0 && step > effort.steps / 10 {
            worst = worst.max(pages_per_byte(&place, asked)?.0);
        }
    }
    let (pages_per_byte, scattered) = pages_per_byte(&place, asked)?;
    check(&place, &live)?;
    Ok(HeapLoad {
        sizes,
        steps: effort.steps,
        refused,
        asked,
        pages_per_byte,
        pages_per_byte_max: worst.max(pages_per_byte),
        scattered,
        step_ns: median(times),
    })
}

/// Opens a large heap, half of it allocated, several times.
///
/// # Errors
///
/// Fails if the journal or the heap cannot be set up, or an opening fails.
pub fn opening(site: &Testbed) -> Result<HeapOpening, BenchError> {
    let HeapSetup { rvm, heap, segment } = HeapSetup::new(site, OPEN_BYTES)?;
    let mut random = Random(5);
    let (mut taken, mut blocks) = (0, 0);
    while taken < OPEN_BYTES / 2 {
        let mut open = rvm.begin(RestoreMode::NoRestore);
        for _ in 0..BATCH {
            let bytes = SizeMix::Mixed.next(&mut random, 0, 1);
            heap.allocate(&mut open, bytes).context("allocate")?;
            taken += bytes as u64;
            blocks += 1;
        }
        open.commit(Durability::Lazy).context("commit")?;
    }
    drop(heap);
    let mut times = Vec::new();
    for _ in 0..OPENINGS {
        let region = rvm.map(&segment, 0, 0).context("map the heap")?;
        let began = Instant::now();
        let heap = Heap::open(region).context("open the heap")?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        drop(heap);
    }
    Ok(HeapOpening {
        bytes: OPEN_BYTES,
        blocks,
        ms: median(times),
    })
}

fn pages_per_byte(place: &HeapSetup, asked: u64) -> Result<(f64, f64), BenchError> {
    let statistics = place.heap.statistics().context("look at the heap")?;
    let in_use = statistics.bytes_usable - statistics.bytes_free_pages;
    Ok((in_use as f64 / asked as f64, statistics.fragmentation()))
}

/// Checks the heap, since a figure of a broken one would mean nothing.
fn check(place: &HeapSetup, live: &[(Ptr<u8>, usize)]) -> Result<(), BenchError> {
    let report = place.heap.check().context("check the heap")?;
    let mut known: Vec<u64> = live.iter().map(|(block, _)| block.offset()).collect();
    known.sort_unstable();
    match report.blocks.iter().map(|(at, _)| at).eq(&known) {
        true => Ok(()),
        false => Err(BenchError::WrongData {
            place: place.heap.region().segment_path().into(),
            why: format!(
                "{} blocks are allocated, {} were kept",
                report.blocks.len(),
                known.len()
            ),
        }),
    }
}
