//! OO7 between two nodes, as in the paper: one lock, one transaction. One node walks and changes, the other
//! has a copy that follows. Members and server are there, as in use.
//!
//! An operation's *overhead* is the time from its beginning until the other node has all of it, less the
//! unchanged walk. At the end both nodes' databases are audited and must be the same.

use std::time::{Duration, Instant};

use netram_oo7::{
    DateIndex, ObjectGraph, Oo7Parameters, Oo7Store, Oo7Transaction, Operation, SEED, SharedHeapSpace, audit,
    build,
};
use netram_proto::port::Durability;
use netram_shared::Node;
use netram_transport::WaitPolicy;
use serde::Serialize;

use super::node_process::{NodeTask, VERSION_LINE, WATCH_LOCK, now_ns};
use super::testbed::{NODE_TIMEOUT, PeerDelivery, RegionSetup, RegionTestbed};
use crate::child::ChildProcess;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::testbed::Testbed;

/// Operations that change parts, each with a walk of the same kind that does not.
pub const OPERATIONS: [(Operation, Operation); 8] = [
    (Operation::T12a, Operation::T6),
    (Operation::T12c, Operation::T6),
    (Operation::T2a, Operation::T1),
    (Operation::T2b, Operation::T1),
    (Operation::T2c, Operation::T1),
    (Operation::T3a, Operation::T1),
    (Operation::T3b, Operation::T1),
    (Operation::T3c, Operation::T1),
];
const PAGE_BYTES: u64 = 4096;
/// Interval at which the link between the nodes is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Rounds before a measurement, in which buffers grow and pages are touched.
const WARM_UP_ROUNDS: usize = 2;

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct SharedOo7Spec {
    /// The database.
    pub database: Oo7Parameters,
    /// Operations among [`OPERATIONS`].
    pub operations: Vec<Operation>,
    /// Number of rounds of each operation.
    pub rounds: usize,
    /// Number of members of each node's journal.
    pub members: usize,
    /// Wait policy of server, members and nodes.
    pub wait: WaitPolicy,
}

/// Medians of an operation, microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct SharedOo7Row {
    /// The operation.
    pub operation: Operation,
    /// Result of the operation, a count.
    pub count: u64,
    /// The walk without changes.
    pub walk_us: f64,
    /// The walk with changes, before its commit.
    pub change_us: f64,
    /// The commit.
    pub commit_us: f64,
    /// From the walk's beginning until the other node has everything.
    pub total_us: f64,
    /// Additional time of the changes over the walk, until the other node has them; the median over rounds.
    pub overhead_us: f64,
}

/// Measures the operations.
///
/// # Errors
///
/// Fails if the region cannot be set up, or the nodes' databases differ.
pub fn measure(
    site: &Testbed,
    spec: &SharedOo7Spec,
    tell: &mut dyn FnMut(Operation),
) -> Result<Vec<SharedOo7Row>, BenchError> {
    let plan = RegionSetup {
        locks: 1,
        span_bytes: spec.database.heap_bytes().next_multiple_of(PAGE_BYTES),
        members: spec.members,
        wait: spec.wait,
        peer_delivery: PeerDelivery::Links,
        ..RegionSetup::default()
    };
    let place = RegionTestbed::start(site, plan)?;
    let node = place.join()?;
    let space = |node| SharedHeapSpace::open(node, WATCH_LOCK, Durability::Remote).context("open the heap");
    SharedHeapSpace::format(&node, WATCH_LOCK).context("format the heap")?;
    let store =
        ObjectGraph::create(space(&node)?, &spec.database, DateIndex::All).context("create the database")?;
    build(&store, &spec.database).context("build the database")?;
    let mut follower = place.play(NodeTask::Watch)?;
    await_link(&node, &follower)?;
    let mut rows = Vec::new();
    for operation in &spec.operations {
        tell(*operation);
        rows.push(row(&store, &node, &mut follower, spec, *operation)?);
    }
    let heir = place.join()?;
    let inherited = ObjectGraph::open(space(&heir)?.reading()).context("open the database")?;
    let [own, others] = [digest(&store, spec)?, digest(&inherited, spec)?];
    match own == others {
        true => Ok(rows),
        false => Err(BenchError::WrongData {
            place: site.directory().to_owned(),
            why: format!("the nodes' databases differ: {others}, {own}"),
        }),
    }
}

/// Waits until records go directly to the other node.
fn await_link(node: &Node, follower: &ChildProcess) -> Result<(), BenchError> {
    let until = Instant::now() + NODE_TIMEOUT;
    while node.direct_counts().peers == 0 {
        if Instant::now() > until {
            return Err(follower.log_error("no link to it comes about"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn digest(store: &impl Oo7Store, spec: &SharedOo7Spec) -> Result<u64, BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    let found = audit(&mut open, &spec.database, true).context("audit the database")?;
    Ok(found.digest)
}

fn row(
    store: &impl Oo7Store,
    node: &Node,
    follower: &mut ChildProcess,
    spec: &SharedOo7Spec,
    operation: Operation,
) -> Result<SharedOo7Row, BenchError> {
    let walk = OPERATIONS.iter().find(|(changing, _)| *changing == operation);
    let (_, walk) = walk.ok_or_else(|| {
        BenchError::InvalidRequest(format!(
            "{operation} changes no parts; choose among t12a, t12c, t2a to t3c"
        ))
    })?;
    let mut rounds: [Vec<f64>; 5] = Default::default();
    let mut count = 0;
    for round in 0..spec.rounds + WARM_UP_ROUNDS {
        let began = now_ns();
        run_once(store, spec, *walk)?;
        let walked = now_ns() - began;
        let began = now_ns();
        let mut open = store.begin().context("begin a transaction")?;
        count = operation
            .run(&mut open, &spec.database, SEED)
            .context(format_args!("do {operation}"))?;
        let changed = now_ns();
        open.commit().context("commit")?;
        let committed = now_ns();
        let seen = seen_at(follower, node.version(WATCH_LOCK).0)?;
        if round >= WARM_UP_ROUNDS {
            let total = seen - began;
            let times = [
                walked,
                changed - began,
                committed - changed,
                total,
                total.saturating_sub(walked),
            ];
            for (rounds, time) in rounds.iter_mut().zip(times) {
                rounds.push(time as f64 / 1e3);
            }
        }
    }
    let [walk_us, change_us, commit_us, total_us, overhead_us] = rounds.map(median);
    Ok(SharedOo7Row {
        operation,
        count,
        walk_us,
        change_us,
        commit_us,
        total_us,
        overhead_us,
    })
}

/// Runs an operation in its own transaction.
fn run_once(store: &impl Oo7Store, spec: &SharedOo7Spec, operation: Operation) -> Result<(), BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    operation
        .run(&mut open, &spec.database, SEED)
        .context(format_args!("do {operation}"))?;
    open.commit().context("commit")
}

/// Time at which the follower had this version, as it reports.
fn seen_at(follower: &mut ChildProcess, version: u64) -> Result<u64, BenchError> {
    let begins = format!("{VERSION_LINE} {version} ");
    let lines = follower.ready(&begins)?;
    let at = lines
        .iter()
        .find_map(|line| line.strip_prefix(&begins)?.parse().ok());
    at.ok_or_else(|| follower.log_error("it did not report when it had an update"))
}
