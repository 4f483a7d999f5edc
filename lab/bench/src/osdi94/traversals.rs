//! Figures 1 to 3 and table 3: traversals of OO7 that change the database at one node, and the cost of having
//! the changes at another.
//!
//! As in the paper: small-3, one transaction and one lock, no logging to disk, and the receiver has
//! everything in memory. A traversal's overhead has four parts: the time that it takes longer than on
//! untracked memory (*detect*), its commit (*collect*), the record's transfer and the answer's (*send*), and
//! the record's application at the other node (*apply*). The walk itself is left out, since it is the same
//! for all; the paper includes it. At the end both nodes must have the same bytes.

mod flat_space;

use std::cell::Cell;
use std::time::{Duration, Instant};

use netram_heap::Heap;
use netram_oo7::{
    DatabaseSize, DateIndex, HeapSpace, ObjectGraph, Oo7Parameters, Oo7Store, Operation, SEED, build,
};
use netram_proto::port::Durability;
use netram_rvm::record::{KIND_COMPACT, decode};
use netram_rvm::{CaptureMode, Region};
use serde::Serialize;

use super::capture::BY_PAGE;
use super::testbed::{OsdiMemory, PAGE, PollCores};
use super::{OsdiCurve, OsdiPlan, median};
use crate::error::{BenchError, ErrorContext};
use crate::progress::ProgressEvent;
use crate::socket::{RawListener, RawSocket};
use crate::testbed::Testbed;
use flat_space::{DeclaredBytes, FlatSpace, PlainBytes};

/// The figures with their operations.
const FIGURES: [(u8, &[Operation]); 3] = [
    (1, &[Operation::T12a, Operation::T12c]),
    (
        2,
        &[Operation::T2a, Operation::T2b, Operation::T2c, Operation::T3a],
    ),
    (3, &[Operation::T3b, Operation::T3c]),
];
/// Transactions before a measurement, in which twins are made, modes are adapted and buffers grow.
const WARM_UP_TRANSACTIONS: usize = 3;
const WARM_UP_TRANSACTIONS_QUICK: usize = 1;
/// Root of the heap that holds the database.
const ROOT: usize = 0;

/// A traversal's overhead with one way of finding changes. Medians in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiBar {
    /// Number of the paper's figure.
    pub figure: u8,
    /// The traversal.
    pub operation: Operation,
    /// Way of finding changes.
    pub curve: OsdiCurve,
    /// Additional time of the traversal.
    pub detect_us: f64,
    /// Time of the commit.
    pub collect_us: f64,
    /// Time of the record's transfer and the answer's.
    pub send_us: f64,
    /// Time of the record's application at the other node.
    pub apply_us: f64,
    /// Size of the record.
    pub sent: RecordSize,
}

impl OsdiBar {
    /// Sum of the four parts.
    pub fn all_us(&self) -> f64 {
        self.detect_us + self.collect_us + self.send_us + self.apply_us
    }
}

/// Size of a record on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordSize {
    /// Number of `set_range` calls; zero where changes are found by page.
    pub updates: u64,
    /// Number of ranges in the record.
    pub ranges: u64,
    /// Bytes in those ranges.
    pub bytes: u64,
    /// Total bytes of the message.
    pub message_bytes: u64,
    /// Number of pages of 4 KiB with a changed byte.
    pub pages_4k: u64,
    /// Number of pages of 8 KiB with a changed byte.
    pub pages_8k: u64,
}

/// A database that was built once, for many measurements.
struct DatabaseImage {
    bytes: Vec<u8>,
    root: u64,
}

/// Measures the traversals of these figures.
pub(super) fn measure(
    site: &Testbed,
    plan: &OsdiPlan,
    figures: &[u8],
    skipped: &mut Vec<String>,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<Vec<OsdiBar>, BenchError> {
    let parameters = Oo7Parameters::of(DatabaseSize::Small, 3);
    tell(ProgressEvent::Next("figures 1 to 3: the database"));
    let image = image(site, &parameters)?;
    let wanted = FIGURES.iter().filter(|(figure, _)| figures.contains(figure));
    let operations: Vec<(u8, Operation)> = wanted
        .flat_map(|(figure, operations)| operations.iter().map(|operation| (*figure, *operation)))
        .collect();
    let mut bars = Vec::new();
    for (curve, capture) in std::iter::once((OsdiCurve::Log, CaptureMode::Declared)).chain(BY_PAGE) {
        tell(ProgressEvent::Next(&format!("figures 1 to 3: {}", curve.label())));
        let writer = match OsdiMemory::holding(site, &image.bytes, capture)? {
            Ok(writer) => writer,
            Err(refused) => {
                skipped.push(format!("figures 1 to 3, {}: {refused}", curve.label()));
                continue;
            }
        };
        bars.extend(measure_curve(
            site,
            plan,
            &parameters,
            &image,
            &writer,
            curve,
            &operations,
        )?);
    }
    bars.sort_by_key(|bar| {
        operations
            .iter()
            .position(|(_, operation)| *operation == bar.operation)
    });
    Ok(bars)
}

/// One traversal with declared updates.
pub(super) fn declared(site: &Testbed, plan: &OsdiPlan, operation: Operation) -> Result<OsdiBar, BenchError> {
    let parameters = Oo7Parameters::of(DatabaseSize::Small, 3);
    let image = image(site, &parameters)?;
    let writer = OsdiMemory::holding(site, &image.bytes, CaptureMode::Declared)?
        .map_err(BenchError::InvalidRequest)?;
    let bars = measure_curve(
        site,
        plan,
        &parameters,
        &image,
        &writer,
        OsdiCurve::Log,
        &[(8, operation)],
    )?;
    let bar = bars.into_iter().next();
    bar.ok_or_else(|| BenchError::InvalidRequest(format!("{operation} was not measured")))
}

/// The traversals with one way of finding changes, between two nodes.
fn measure_curve(
    site: &Testbed,
    plan: &OsdiPlan,
    parameters: &Oo7Parameters,
    image: &DatabaseImage,
    writer: &OsdiMemory,
    curve: OsdiCurve,
    operations: &[(u8, Operation)],
) -> Result<Vec<OsdiBar>, BenchError> {
    let follower = OsdiMemory::holding(site, &image.bytes, CaptureMode::Declared)?
        .map_err(BenchError::InvalidRequest)?;
    let gate = RawListener::open(&"tcp://127.0.0.1:0".parse().context("name an address")?)?;
    let address = gate.address()?;
    let cores = PollCores::choose();
    let _pinned = cores.pin_near()?;
    let (bars, followed) = std::thread::scope(|scope| {
        let following = scope.spawn(|| follow(&gate, &follower.region, cores));
        let socket = RawSocket::connect(&address);
        let bars = socket.and_then(|socket| {
            let mut node = TraversalWriter {
                parameters,
                memory: writer,
                curve,
                socket,
                cores,
                root: image.root,
                plain: image.bytes.clone(),
                spares: [
                    Cell::new(image.bytes.len() as u64),
                    Cell::new(image.bytes.len() as u64),
                ],
            };
            operations
                .iter()
                .map(|(figure, operation)| node.bar(plan, *figure, *operation))
                .collect()
        });
        (bars, following.join())
    });
    let bars: Vec<OsdiBar> = bars?;
    followed.expect("the follower's thread does not panic")?;
    let same = *writer.region.read() == *follower.region.read();
    match same {
        true => Ok(bars),
        false => Err(BenchError::WrongData {
            place: site.directory().to_owned(),
            why: format!(
                "the follower's memory differs from the writer's ({})",
                curve.label()
            ),
        }),
    }
}

/// The node that runs the traversals.
struct TraversalWriter<'w> {
    parameters: &'w Oo7Parameters,
    memory: &'w OsdiMemory,
    curve: OsdiCurve,
    socket: RawSocket,
    cores: PollCores,
    root: u64,
    /// The same database in untracked memory.
    plain: Vec<u8>,
    /// End of the next allocation in the region and in `plain`.
    spares: [Cell<u64>; 2],
}

impl TraversalWriter<'_> {
    fn bar(&mut self, plan: &OsdiPlan, figure: u8, operation: Operation) -> Result<OsdiBar, BenchError> {
        let mut rounds: [Vec<f64>; 4] = Default::default();
        let mut sent = RecordSize::default();
        let before = if plan.quick {
            WARM_UP_TRANSACTIONS_QUICK
        } else {
            WARM_UP_TRANSACTIONS
        };
        for round in 0..plan.rounds + before {
            let (times, what) = self.once(operation)?;
            if round >= before {
                for (rounds, time) in rounds.iter_mut().zip(times) {
                    rounds.push(time.as_secs_f64() * 1e6);
                }
                sent = what;
            }
        }
        let [detect_us, collect_us, send_us, apply_us] = rounds.map(|mut rounds| median(&mut rounds));
        Ok(OsdiBar {
            figure,
            operation,
            curve: self.curve,
            detect_us,
            collect_us,
            send_us,
            apply_us,
            sent,
        })
    }

    /// Runs one traversal; returns the times to detect, collect, send and apply.
    fn once(&mut self, operation: Operation) -> Result<([Duration; 4], RecordSize), BenchError> {
        let TraversalWriter { parameters, root, .. } = *self;
        let [spare, plain_spare] = &self.spares;
        let began = Instant::now();
        run(
            FlatSpace::new(PlainBytes(&mut self.plain), root, plain_spare),
            parameters,
            operation,
        )?;
        let floor = began.elapsed();
        let before = self.memory.declared();
        let mut open = self.memory.begin()?;
        let began = Instant::now();
        {
            let mut edit = open.edit(&self.memory.region);
            match self.curve {
                OsdiCurve::Log | OsdiCurve::Adaptive => run(
                    FlatSpace::new(DeclaredBytes(edit), root, spare),
                    parameters,
                    operation,
                )?,
                _ => {
                    let bytes = edit
                        .range_mut(0, self.memory.pages * PAGE)
                        .context("borrow the region")?;
                    run(
                        FlatSpace::new(PlainBytes(bytes), root, spare),
                        parameters,
                        operation,
                    )?;
                }
            }
        }
        let detect = began.elapsed().saturating_sub(floor);
        let began = Instant::now();
        open.commit(Durability::Lazy).context("commit")?;
        let collect = began.elapsed();
        // They are counted when they are logged. Changes found by page count there too, but were not
        // declared.
        let updates = match self.curve {
            OsdiCurve::Log | OsdiCurve::Adaptive => self.memory.declared() - before,
            _ => 0,
        };
        // An even number of exchanges leaves all bytes as they were: pages show no change, and nothing is
        // sent.
        if self.memory.with_last_record(<[u8]>::is_empty) {
            let nothing = RecordSize {
                updates,
                ..RecordSize::default()
            };
            return Ok(([detect, collect, Duration::ZERO, Duration::ZERO], nothing));
        }
        let began = Instant::now();
        let apply = self
            .memory
            .with_last_record(|record| exchange(&self.socket, self.cores, record))?;
        let send = began.elapsed().saturating_sub(apply);
        let sent = self.memory.with_last_record(|record| count(updates, record))?;
        Ok(([detect, collect, send, apply], sent))
    }
}

fn run<A: flat_space::ByteAccess>(
    space: FlatSpace<'_, A>,
    parameters: &Oo7Parameters,
    operation: Operation,
) -> Result<(), BenchError> {
    let graph = ObjectGraph::open(space).context("open the database")?;
    let mut open = graph.begin().context("begin a transaction")?;
    let what = format_args!("do {operation}");
    operation.run(&mut open, parameters, SEED).context(what)?;
    Ok(())
}

/// Sends a record and waits until it is applied; returns the time of the application.
fn exchange(socket: &RawSocket, cores: PollCores, record: &[u8]) -> Result<Duration, BenchError> {
    socket.send_all(&(record.len() as u64).to_le_bytes())?;
    socket.send_all(record)?;
    let mut took = [0; 8];
    match socket.receive_all(&mut took, cores.pause())? {
        true => Ok(Duration::from_nanos(u64::from_le_bytes(took))),
        false => Err(BenchError::InvalidRequest(
            "the follower closed the connection".to_owned(),
        )),
    }
}

/// The other node: applies records until the connection ends.
fn follow(gate: &RawListener, region: &Region, cores: PollCores) -> Result<(), BenchError> {
    let _pinned = cores.pin_far()?;
    let socket = gate.accept()?;
    let mut record = Vec::new();
    let mut length = [0; 8];
    while socket.receive_all(&mut length, cores.pause())? {
        record.resize(u64::from_le_bytes(length) as usize, 0);
        if !socket.receive_all(&mut record, cores.pause())? {
            break;
        }
        let began = Instant::now();
        let changes = decode(KIND_COMPACT, &record).context("read a record")?;
        region.apply(&changes).context("install a record")?;
        socket.send_all(&(began.elapsed().as_nanos() as u64).to_le_bytes())?;
    }
    Ok(())
}

fn count(updates: u64, record: &[u8]) -> Result<RecordSize, BenchError> {
    let changes = decode(KIND_COMPACT, record).context("read a record")?;
    let mut sent = RecordSize {
        updates,
        message_bytes: record.len() as u64,
        ..RecordSize::default()
    };
    // Ranges come in the order of their offsets.
    let mut after = [0; 2];
    for range in changes.ranges().filter(|range| !range.bytes.is_empty()) {
        sent.ranges += 1;
        sent.bytes += range.bytes.len() as u64;
        for (pages, (after, size)) in [&mut sent.pages_4k, &mut sent.pages_8k]
            .into_iter()
            .zip(after.iter_mut().zip([4096, 8192]))
        {
            let (first, end) = (range.offset / size, range.end().div_ceil(size));
            *pages += end.saturating_sub(first.max(*after));
            *after = end.max(*after);
        }
    }
    Ok(sent)
}

/// Builds the database with the date index of 1994: one part for each date.
fn image(site: &Testbed, parameters: &Oo7Parameters) -> Result<DatabaseImage, BenchError> {
    let pages = (parameters.heap_bytes() as usize).div_ceil(PAGE);
    let memory = OsdiMemory::new(site, pages, CaptureMode::Declared)?.map_err(BenchError::InvalidRequest)?;
    let OsdiMemory { region, rvm, .. } = memory;
    let heap = Heap::format(&rvm, region).context("format the heap")?;
    let space = HeapSpace::new(&rvm, &heap, Durability::Lazy);
    let store = ObjectGraph::create(space, parameters, DateIndex::One).context("create the database")?;
    build(&store, parameters).context("build the database")?;
    let root = heap.root::<u8>(ROOT).context("find the database")?.offset();
    let bytes = heap.region().read()[heap.start()..].to_vec();
    Ok(DatabaseImage { bytes, root })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_declares_the_papers_ranges_and_the_follower_has_the_same_bytes() {
        let site = Testbed::new("unused".into(), &std::env::temp_dir()).unwrap();
        let plan = OsdiPlan {
            figures: vec![1],
            rounds: 1,
            quick: true,
        };
        let mut skipped = Vec::new();
        let bars = measure(&site, &plan, &[1], &mut skipped, &mut |_| ()).unwrap();
        let of = |curve| {
            bars.iter()
                .find(|bar| bar.curve == curve && bar.operation == Operation::T12a)
        };
        let log = of(OsdiCurve::Log).unwrap().sent;
        assert_eq!(
            (log.updates, log.ranges, log.bytes, log.pages_4k),
            (2_187, 495, 3_960, 495)
        );
        // A composite that is used an even number of times is unchanged in the end.
        let compared = of(OsdiCurve::CompareTrap).unwrap().sent;
        assert!(
            compared.updates == 0 && compared.bytes < log.bytes,
            "{compared:?}"
        );
        let whole = of(OsdiCurve::PageTrap).unwrap().sent;
        assert_eq!((whole.pages_4k, whole.bytes), (495, 495 * 4096));
    }
}
