//! Measures the cost of a transaction on shared memory in the node's thread, compared with one of recoverable
//! memory on a similar lender: `cargo run --release -p netram-shared --example transaction -- [commits]
//! [spin|yield:50|block]`. Server and lenders are a process of their own. `netram-lab bench paper --only
//! osdi94` is the full measurement; these are the loops alone, for a profiler.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig, JournalPaths};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, RestoreMode, Rvm, RvmOptions as MemoryOptions, SegmentAllocation};
use netram_shared::server::serve::{ServeConfig, ServingRegion};
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::{NetAddress, Security, WaitPolicy};

const SPAN: usize = 4096;
const LOCKS: usize = 64;
const LOG_BYTES: u64 = 64 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn address(directory: &Path, name: &str) -> NetAddress {
    NetAddress::Unix(directory.join(format!("{name}.sock")))
}

/// Runs the other process: a lender for the node, one for the recoverable memory, and the server.
fn serve(directory: &Path) -> Result<()> {
    let lender = |name: &str| {
        Lender::start(LenderConfig {
            name: name.to_owned(),
            listen: vec![address(directory, name)],
            security: Security::Insecure,
            memory: 64 << 20,
            ..LenderConfig::default()
        })
    };
    let _lenders = [lender("a")?, lender("b")?];
    let bytes = (LOCKS * SPAN) as u64;
    let region = directory.join("region");
    let plan = RegionPlan {
        bytes,
        address: 0,
        spans: Spans::even(bytes, SPAN as u64)?,
        log_bytes: LOG_BYTES,
        nodes_settings: format!(
            "[journal]\nlenders = [\"{}\"]\ninsecure = true\none-domain = true\nmembers = 1\n",
            address(directory, "a")
        ),
    };
    RegionStore::create(&region, &plan)?;
    let _serving = ServingRegion::start(
        &region,
        ServeConfig::new(vec![address(directory, "server")], Security::Insecure),
    )?;
    writeln!(std::io::stdout(), "serving")?;
    std::io::stdin().lines().next();
    Ok(())
}

/// Median of the runs' times in microseconds.
fn median(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..runs / 10 {
        run()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        run()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[runs / 2].as_secs_f64() * 1e6)
}

fn recoverable(directory: &Path, wait: WaitPolicy, runs: usize) -> Result<f64> {
    let root = directory.join("alone");
    Journal::create(&root, LOG_BYTES)?;
    let lenders = vec![address(directory, "b")];
    let config = JournalConfig {
        one_domain: true,
        wait,
        ..JournalConfig::with_lenders(lenders, Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(&root, config)?;
    journal
        .wait_for_members(Duration::from_secs(10))
        .map_err(|blocked| format!("{blocked:?}"))?;
    let options = MemoryOptions::new(journal.id());
    let table = JournalPaths::at(&root).table();
    let storage = RealStorage::create(table.to_str().ok_or("a path")?)?;
    let rvm = Rvm::open(journal, storage, options)?;
    let path = root.join("segment");
    let path = path.to_str().ok_or("a path")?;
    rvm.create_segment(path, (LOCKS * SPAN) as u64, SegmentAllocation::Sparse)?;
    let region = rvm.map(path, 0, 0)?;
    let mut value = 0_u64;
    median(runs, || {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        value += 1;
        transaction.set(&region, SPAN, &value)?;
        transaction.commit(Durability::Remote)?;
        Ok(())
    })
}

fn measure(directory: &Path, wait: WaitPolicy, runs: usize) -> Result<()> {
    let mut out = std::io::stdout();
    let options = NodeOptions {
        wait,
        log_bytes: LOG_BYTES,
        ..NodeOptions::new(
            address(directory, "server"),
            Security::Insecure,
            directory.join("node"),
        )
    };
    let node = Node::join(options)?;
    let mut value = 0_u64;
    let mut commit = || {
        let mut txn = node.begin(RestoreMode::Restore)?;
        txn.acquire(LockId(1), LockMode::Exclusive)?;
        value += 1;
        txn.set(SPAN, &value)?;
        txn.commit(Durability::Remote)?;
        Ok(())
    };
    let shared = median(runs, &mut commit)?;
    const AT_ONCE: usize = 1000;
    let many = median(1000, || {
        for _ in 0..AT_ONCE {
            node.begin(RestoreMode::Restore)?
                .acquire(LockId(1), LockMode::Exclusive)?;
        }
        Ok(())
    })?;
    let bare = median(1000, || {
        for _ in 0..AT_ONCE {
            node.begin(RestoreMode::Restore)?;
        }
        Ok(())
    })?;
    writeln!(out, "begin and drop: {:.0} ns", bare * 1e3 / AT_ONCE as f64)?;
    writeln!(
        out,
        "re-acquiring a kept lock: {:.0} ns",
        (many - bare) * 1e3 / AT_ONCE as f64
    )?;
    node.leave()?;
    let alone = recoverable(directory, wait, runs)?;
    writeln!(
        out,
        "begin, acquire, set 8 bytes, commit: {shared:.1} us; of recoverable memory alone: {alone:.1} us; ratio {:.2}",
        shared / alone
    )?;
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, directory] = &arguments[..]
        && first == "serve"
    {
        return serve(&PathBuf::from(directory));
    }
    let runs = arguments.get(1).map_or(Ok(20_000), |text| text.parse())?;
    let wait = arguments
        .get(2)
        .map_or(Ok(WaitPolicy::default()), |text| text.parse())?;
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .arg(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let said = server.stdout.take().ok_or("a pipe")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line)?;
    let measured = measure(directory.path(), wait, runs);
    server.kill()?;
    server.wait()?;
    measured
}
