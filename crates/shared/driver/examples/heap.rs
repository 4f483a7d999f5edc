//! Measures the cost of blocks of a heap in a shared region under a held lock, compared with a heap in one
//! process's recoverable memory: `cargo run --release -p netram-shared --example heap`. Prints medians of
//! transactions that allocate 500 blocks of 64 bytes.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_heap::{Heap, Transact};
use netram_journal::{Journal, JournalConfig, JournalPaths};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, RestoreMode, Rvm, RvmOptions as MemoryOptions, SegmentAllocation};
use netram_shared::server::serve::{ServeConfig, ServingRegion};
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions, Txn};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::{NetAddress, Security};

const HEAP: u64 = 32 << 20;
const LOCK: LockId = LockId(0);
const LOG_BYTES: u64 = 64 << 20;
const BLOCKS: usize = 500;
const RUNS: usize = 400;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn address(directory: &Path, name: &str) -> NetAddress {
    NetAddress::Unix(directory.join(format!("{name}.sock")))
}

fn allocate<X: Transact>(heap: &Heap, transaction: &mut X, blocks: usize) -> Result<()> {
    for _ in 0..blocks {
        heap.allocate(transaction, 64)?;
    }
    Ok(())
}

/// Median of the runs' times in nanoseconds.
fn median(mut run: impl FnMut() -> Result<Duration>) -> Result<f64> {
    let mut times = (0..RUNS).map(|_| run()).collect::<Result<Vec<Duration>>>()?;
    times.sort_unstable();
    Ok(times[RUNS / 2].as_secs_f64() * 1e9)
}

fn begin(node: &Node) -> Result<Txn<'_>> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    txn.acquire(LOCK, LockMode::Exclusive)?;
    Ok(txn)
}

/// Measures a heap of recoverable memory on a lender of its own.
fn alone(directory: &Path) -> Result<f64> {
    let root = directory.join("alone");
    Journal::create(&root, LOG_BYTES)?;
    let config = JournalConfig {
        one_domain: true,
        ..JournalConfig::with_lenders(vec![address(directory, "b")], Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(&root, config)?;
    let options = MemoryOptions::new(journal.id());
    let table = JournalPaths::at(&root).table();
    let storage = RealStorage::create(table.to_str().ok_or("a path")?)?;
    let rvm = Rvm::open(journal, storage, options)?;
    let path = root.join("segment");
    let path = path.to_str().ok_or("a path")?;
    rvm.create_segment(path, HEAP, SegmentAllocation::Sparse)?;
    let heap = Heap::format(&rvm, rvm.map(path, 0, 0)?)?;
    median(|| {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        let began = Instant::now();
        allocate(&heap, &mut transaction, BLOCKS)?;
        Ok(began.elapsed())
    })
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let directory = directory.path();
    let lender = |name: &str| {
        Lender::start(LenderConfig {
            name: name.to_owned(),
            listen: vec![address(directory, name)],
            security: Security::Insecure,
            memory: 128 << 20,
            ..LenderConfig::default()
        })
    };
    let _lenders = [lender("a")?, lender("b")?];
    let plan = RegionPlan {
        bytes: HEAP,
        address: 0,
        spans: Spans::even(HEAP, HEAP)?,
        log_bytes: LOG_BYTES,
        nodes_settings: format!(
            "[journal]\nlenders = [\"{}\"]\ninsecure = true\none-domain = true\nmembers = 1\n",
            address(directory, "a")
        ),
    };
    let region = directory.join("region");
    RegionStore::create(&region, &plan)?;
    let served = ServeConfig::new(vec![address(directory, "server")], Security::Insecure);
    let _serving = ServingRegion::start(&region, served)?;
    let join = |name: &str| {
        let server = address(directory, "server");
        Node::join(NodeOptions::new(server, Security::Insecure, directory.join(name)))
    };
    let nodes = [join("one")?, join("other")?];
    let mut txn = begin(&nodes[0])?;
    txn.format_heap(LOCK)?;
    txn.commit(Durability::Remote)?;
    let open = |node| -> Result<Arc<Heap>> { Ok(begin(node)?.heap(LOCK)?) };
    let heaps = [open(&nodes[0])?, open(&nodes[1])?];

    let kept = median(|| {
        let mut txn = begin(&nodes[0])?;
        let began = Instant::now();
        allocate(&heaps[0], &mut txn, BLOCKS)?;
        Ok(began.elapsed())
    })?;
    let beside = alone(directory)?;
    let foreign = median(|| {
        let mut txn = begin(&nodes[1])?;
        allocate(&heaps[1], &mut txn, 4)?;
        txn.commit(Durability::Remote)?;
        let mut txn = begin(&nodes[0])?;
        let began = Instant::now();
        allocate(&heaps[0], &mut txn, 1)?;
        Ok(began.elapsed())
    })?;
    writeln!(
        std::io::stdout(),
        "a block under a kept lock: {:.0} ns; in recoverable memory alone: {:.0} ns; the first after another node's commit: {foreign:.0} ns",
        kept / BLOCKS as f64,
        beside / BLOCKS as f64,
    )?;
    Ok(())
}
