//! OO7 on recoverable memory: the same operations with the local disk and with members.
//!
//! The database is built once for each row of lenders. Before each operation its segment is mapped again and
//! the file dropped from the page cache, as far as the kernel allows: the first repetition is *cold*. *Hot*
//! is the mean of the others without the last. Log bytes are counted in a separate repetition, which is not
//! timed.

use std::fs::File;
use std::time::{Duration, Instant};

use netram_heap::Heap;
use netram_journal::Journal;
use netram_oo7::{
    CountingLog, DatabaseSize, DateIndex, HeapSpace, LogCounts, ObjectGraph, Oo7Parameters, Oo7Store,
    Oo7Transaction, Operation, audit, build,
};
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, Rvm, RvmOptions, SegmentAllocation};
use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::commit::name_of;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};

/// Minimum number of repetitions; with fewer there is none between the first and the last.
pub const REPETITIONS_MIN: usize = 3;
/// The seed of the operations' random choices.
pub(crate) const SEED: u64 = 1;

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Oo7Spec {
    /// The database.
    pub database: Oo7Parameters,
    /// The operations, run one after the other on one database.
    pub operations: Vec<Operation>,
    /// Repetitions of each, including the cold one; at least [`REPETITIONS_MIN`].
    pub repetitions: usize,
    /// Whether all repetitions run in one transaction, instead of one each.
    pub single: bool,
    /// Number of members, each a lender process; with none, commits wait for the disk.
    pub members: usize,
    /// Wait policy of client and lenders.
    pub wait: WaitPolicy,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Oo7Report {
    /// Name of the database.
    pub database: String,
    /// Durability of each commit.
    pub durability: &'static str,
    /// Number of members.
    pub members: usize,
    /// Seconds of building, with one transaction for each composite.
    pub build_s: f64,
    /// Bytes of the heap's allocated blocks.
    pub taken_bytes: u64,
    /// One row for each operation.
    pub rows: Vec<Oo7Row>,
}

/// Times of an operation, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Oo7Row {
    /// The operation.
    pub operation: Operation,
    /// Result of the operation, a count.
    pub count: u64,
    /// The first repetition, without its commit.
    pub cold_us: f64,
    /// Mean of a later repetition, without its commit.
    pub hot_us: f64,
    /// Mean of a later commit; with a single transaction, its one commit.
    pub commit_us: f64,
    /// Number of `set_range` calls in one repetition.
    pub updates: u64,
    /// Log bytes of one repetition in its own transaction.
    pub logged: LogCounts,
}

struct Oo7Setup {
    rvm: Rvm<CountingLog<Journal>, RealStorage>,
    segment: String,
    durability: Durability,
}

type HeapStore<'h> = ObjectGraph<HeapSpace<'h, CountingLog<Journal>, RealStorage>>;

/// Builds a database and measures the operations on it. Audits it at the end, because figures of a broken one
/// would mean nothing.
///
/// # Errors
///
/// Fails if the testbed cannot be set up, an operation fails, or the audit finds an error.
pub fn measure(
    site: &Testbed,
    spec: &Oo7Spec,
    tick: &mut dyn FnMut(Operation),
) -> Result<Oo7Report, BenchError> {
    if spec.repetitions < REPETITIONS_MIN {
        return Err(BenchError::InvalidRequest(format!(
            "{} repetitions are too few; choose at least {REPETITIONS_MIN}",
            spec.repetitions
        )));
    }
    let lenders = lenders(site, spec)?;
    let place = Oo7Setup::new(site, spec, &lenders)?;
    let began = Instant::now();
    let heap = place.format(&spec.database)?;
    let build_s = began.elapsed().as_secs_f64();
    let taken_bytes = heap.statistics().context("look at the heap")?.bytes_taken;
    drop(heap);
    let mut rows = Vec::new();
    for operation in &spec.operations {
        tick(*operation);
        rows.push(place.row(spec, *operation)?);
    }
    place.check(&spec.database)?;
    Ok(Oo7Report {
        database: spec.database.to_string(),
        durability: name_of(place.durability),
        members: spec.members,
        build_s,
        taken_bytes,
        rows,
    })
}

fn lenders(site: &Testbed, spec: &Oo7Spec) -> Result<Vec<LenderProcess>, BenchError> {
    let lender = |_| {
        site.lender(LenderSpec {
            wire: SocketKind::Tcp,
            secure: true,
            wait: spec.wait,
            core: None,
        })
    };
    (0..spec.members).map(lender).collect()
}

/// Bytes of the window, half of which a record may take, and of the log. A medium t5do logs every document:
/// 10 MB.
fn log_bytes(database: &Oo7Parameters) -> (u64, u64) {
    match database.size {
        DatabaseSize::Tiny | DatabaseSize::Small => (8 << 20, 64 << 20),
        DatabaseSize::Medium | DatabaseSize::Large => (64 << 20, 256 << 20),
    }
}

impl Oo7Setup {
    fn new(site: &Testbed, spec: &Oo7Spec, lenders: &[LenderProcess]) -> Result<Oo7Setup, BenchError> {
        let addresses = lenders.iter().map(|lender| lender.address().clone()).collect();
        let (window_bytes, log_bytes) = log_bytes(&spec.database);
        let mut config = site.config(addresses, true, spec.wait);
        config.window_bytes = window_bytes;
        if spec.members == 0 {
            config.disk_delay = Duration::ZERO;
        }
        let opened = site.journal(log_bytes, config)?;
        let path = |name: &str| opened.directory.join(name).to_string_lossy().into_owned();
        let storage = RealStorage::create(&path("segments")).context("create the segment table")?;
        let rvm = Rvm::open(
            CountingLog::new(opened.journal),
            storage,
            RvmOptions::new(opened.id),
        )
        .context("open recoverable memory")?;
        rvm.start_truncation().context("start truncation")?;
        let segment = path("oo7");
        rvm.create_segment(
            &segment,
            spec.database.heap_bytes(),
            SegmentAllocation::Preallocated,
        )
        .context("create the database's segment")?;
        Ok(Oo7Setup {
            rvm,
            segment,
            durability: match spec.members {
                0 => Durability::Disk,
                _ => Durability::Remote,
            },
        })
    }

    fn format(&self, database: &Oo7Parameters) -> Result<Heap, BenchError> {
        let region = self.rvm.map(&self.segment, 0, 0).context("map the database")?;
        let heap = Heap::format(&self.rvm, region).context("format the heap")?;
        let space = HeapSpace::new(&self.rvm, &heap, Durability::Lazy);
        let store = ObjectGraph::create(space, database, DateIndex::All).context("create the database")?;
        build(&store, database).context("build the database")?;
        self.rvm.flush(self.durability).context("build the database")?;
        Ok(heap)
    }

    fn open(&self) -> Result<Heap, BenchError> {
        let region = self.rvm.map(&self.segment, 0, 0).context("map the database")?;
        Heap::open(region).context("open the heap")
    }

    fn store<'h>(&'h self, heap: &'h Heap) -> Result<HeapStore<'h>, BenchError> {
        ObjectGraph::open(HeapSpace::new(&self.rvm, heap, self.durability)).context("open the database")
    }

    /// Applies everything to the segment's file, and has the kernel drop the file's pages.
    fn cool(&self) -> Result<(), BenchError> {
        self.rvm.flush(Durability::Disk).context("flush")?;
        self.rvm.truncate().context("truncate the log")?;
        let file = File::open(&self.segment).context("open the database's segment")?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("drop the cached segment")
    }

    fn row(&self, spec: &Oo7Spec, operation: Operation) -> Result<Oo7Row, BenchError> {
        let around = OperationFixture::of(operation);
        {
            let heap = self.open()?;
            around.before(&self.store(&heap)?, spec)?;
        }
        self.cool()?;
        let heap = self.open()?;
        let store = self.store(&heap)?;
        let (runs, commits) = match spec.single {
            true => single(&store, spec, operation, around)?,
            false => many(&store, spec, operation, around)?,
        };
        let count = runs[0].0;
        if runs.iter().any(|(found, _)| *found != count) {
            return Err(BenchError::WrongData {
                place: self.segment.clone().into(),
                why: format!("{operation} returned another count when it was repeated"),
            });
        }
        let hot = |times: &[Duration]| match times {
            [_, middle @ .., _] if !middle.is_empty() => {
                middle.iter().sum::<Duration>().as_secs_f64() * 1e6 / middle.len() as f64
            }
            times => times.iter().sum::<Duration>().as_secs_f64() * 1e6,
        };
        let times: Vec<Duration> = runs.iter().map(|(_, took)| *took).collect();
        let (updates, logged) = self.count(&store, spec, operation, around)?;
        Ok(Oo7Row {
            operation,
            count,
            cold_us: times[0].as_secs_f64() * 1e6,
            hot_us: hot(&times),
            commit_us: hot(&commits),
            updates,
            logged,
        })
    }

    /// Log bytes of one repetition.
    fn count(
        &self,
        store: &HeapStore<'_>,
        spec: &Oo7Spec,
        operation: Operation,
        around: OperationFixture,
    ) -> Result<(u64, LogCounts), BenchError> {
        around.before(store, spec)?;
        let before = self.rvm.statistics().ranges_declared;
        self.rvm.log().start();
        run_once(store, spec, operation)?;
        let logged = self.rvm.log().stop();
        let updates = self.rvm.statistics().ranges_declared - before;
        around.after(store, spec)?;
        Ok((updates, logged))
    }

    fn check(&self, database: &Oo7Parameters) -> Result<(), BenchError> {
        let heap = self.open()?;
        let store = self.store(&heap)?;
        let mut open = store.begin().context("begin a transaction")?;
        audit(&mut open, database, true).context("audit the database")?;
        Ok(())
    }
}

/// Changes around an operation that make it repeatable: changed documents are changed back, inserted objects
/// are deleted.
#[derive(Clone, Copy)]
pub(crate) struct OperationFixture {
    pub(crate) before: Option<Operation>,
    pub(crate) after: Option<Operation>,
}

impl OperationFixture {
    pub(crate) fn of(operation: Operation) -> OperationFixture {
        let (before, after) = match operation {
            Operation::T5Do => (None, Some(Operation::T5Undo)),
            Operation::T5Undo => (Some(Operation::T5Do), None),
            Operation::I => (None, Some(Operation::D)),
            Operation::D => (Some(Operation::I), None),
            _ => (None, None),
        };
        OperationFixture { before, after }
    }

    fn before(self, store: &HeapStore<'_>, spec: &Oo7Spec) -> Result<(), BenchError> {
        self.before
            .map_or(Ok(()), |operation| run_once(store, spec, operation))
    }

    fn after(self, store: &HeapStore<'_>, spec: &Oo7Spec) -> Result<(), BenchError> {
        self.after
            .map_or(Ok(()), |operation| run_once(store, spec, operation))
    }
}

/// Runs an operation in its own transaction.
fn run_once(store: &HeapStore<'_>, spec: &Oo7Spec, operation: Operation) -> Result<(), BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    step(&mut open, spec, operation)?;
    open.commit().context("commit")
}

fn step<W: Oo7Transaction>(
    open: &mut W,
    spec: &Oo7Spec,
    operation: Operation,
) -> Result<(u64, Duration), BenchError> {
    let began = Instant::now();
    let count = operation.run(open, &spec.database, SEED);
    let took = began.elapsed();
    Ok((count.context(format_args!("do {operation}"))?, took))
}

/// Counts and times of the repetitions, and times of the commits.
type RunTimes = (Vec<(u64, Duration)>, Vec<Duration>);

/// One transaction for each repetition. The first finds its needs prepared.
fn many(
    store: &HeapStore<'_>,
    spec: &Oo7Spec,
    operation: Operation,
    around: OperationFixture,
) -> Result<RunTimes, BenchError> {
    let (mut runs, mut commits) = (Vec::new(), Vec::new());
    for repetition in 0..spec.repetitions {
        if repetition > 0 {
            around.before(store, spec)?;
        }
        let mut open = store.begin().context("begin a transaction")?;
        runs.push(step(&mut open, spec, operation)?);
        let began = Instant::now();
        open.commit().context("commit")?;
        commits.push(began.elapsed());
        around.after(store, spec)?;
    }
    Ok((runs, commits))
}

/// One transaction for all repetitions.
fn single(
    store: &HeapStore<'_>,
    spec: &Oo7Spec,
    operation: Operation,
    around: OperationFixture,
) -> Result<RunTimes, BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    let mut runs = Vec::new();
    for repetition in 0..spec.repetitions {
        if let Some(before) = around.before.filter(|_| repetition > 0) {
            step(&mut open, spec, before)?;
        }
        runs.push(step(&mut open, spec, operation)?);
        if let Some(after) = around.after {
            step(&mut open, spec, after)?;
        }
    }
    let began = Instant::now();
    open.commit().context("commit")?;
    Ok((runs, vec![began.elapsed()]))
}
