//! The mix of several users of OO7, each at its own node and in its own module: throughput by the number of
//! users.
//!
//! A module is a heap under a lock; the indexes of all modules are under another. Users who stay in their
//! modules never wait for each other; users who traverse shared composites do. The database is built once for
//! all rows. At the end each node audits it, and it must equal the result of the same users' transactions in
//! plain memory, one after the other.

use std::time::{Duration, Instant};

use netram_oo7::operation::mix::{MixClient, OperationMix, perform};
use netram_oo7::user::{self, LockAcquisition, MixUser, UserProgress};
use netram_oo7::{Oo7Parameters, Oo7Store, Oo7Transaction, PlainStore, SEED, audit, build};
use netram_shared::Node;
use netram_shared_machine::{LockMode, LockVersion};
use netram_transport::WaitPolicy;
use serde::{Deserialize, Serialize};

use super::node_process::{NodeTask, READY_LINE, WAIT_INTERVAL};
use super::testbed::{RegionSetup, RegionTestbed};
use crate::child::ChildProcess;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Maximum number of users.
pub const NODES_MAX: u32 = 8;
/// Prefix of a user's line with its progress as JSON, printed when its time is over.
const PROGRESS_LINE: &str = "did";
/// Prefix of a user's line with the digest of the audited database.
const DIGEST_LINE: &str = "found";

/// Operation mixes by name: how often users change visited objects, and whether they share any.
pub const MIXES: [(&str, OperationMix); 3] = [
    ("own modules", mix([50, 0, 50, 0])),
    ("one in five shared", mix([40, 10, 40, 10])),
    ("shared only", mix([0, 50, 0, 50])),
];

const fn mix([private_read, shared_read, private_write, shared_write]: [u32; 4]) -> OperationMix {
    OperationMix {
        private_read,
        shared_read,
        private_write,
        shared_write,
        operations: 4,
    }
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct UserMixSpec {
    /// The database, with a module for each user.
    pub database: Oo7Parameters,
    /// Maximum number of users; every number up to it is measured.
    pub nodes: u32,
    /// Way in which users acquire their locks.
    pub manner: LockAcquisition,
    /// Duration of each row.
    pub time: Duration,
    /// Number of members of each node's journal.
    pub members: usize,
    /// Wait policy of server, members and nodes.
    pub wait: WaitPolicy,
}

/// Result for one number of users.
#[derive(Clone, Debug, Serialize)]
pub struct UserMixRow {
    /// Name of the mix, one of [`MIXES`].
    pub mix: &'static str,
    /// Number of users.
    pub nodes: u32,
    /// Transactions per second, all users together.
    pub transactions_s: f64,
    /// Share of the users' time spent acquiring locks, in percent.
    pub waited_percent: f64,
    /// Transactions in a thousand that died because of a lock out of order and were retried.
    pub died_permille: f64,
    /// Number of transactions that were retried because a lock did not come in time.
    pub lost: u64,
}

/// Job of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserTask {
    /// The database.
    pub database: Oo7Parameters,
    /// The user's mix.
    pub mix: OperationMix,
    /// Index of its module.
    pub module: u32,
    /// Way in which it acquires its locks.
    pub manner: LockAcquisition,
    /// Duration of its work.
    pub time: Duration,
}

/// Measures every mix with every number of users.
///
/// # Errors
///
/// Fails if the region cannot be set up, or the nodes' databases differ.
pub fn measure(
    site: &Testbed,
    spec: &UserMixSpec,
    tell: &mut dyn FnMut(&str, u32),
) -> Result<Vec<UserMixRow>, BenchError> {
    let database = spec.database.with_modules(spec.nodes);
    let plan = RegionSetup {
        locks: user::locks(spec.nodes),
        span_bytes: database.lock_span_bytes(),
        members: spec.members,
        wait: spec.wait,
        ..RegionSetup::default()
    };
    let place = RegionTestbed::start(site, plan)?;
    let judge = place.join()?;
    let store = user::create(&judge, &database).context("create the database")?;
    build(&store, &database).context("build the database")?;
    // The same users' transactions in plain memory.
    let plain = PlainStore::default();
    build(&plain, &database).context("build the database in plain memory")?;
    let mut before = vec![0; spec.nodes as usize];
    let mut rows = Vec::new();
    for (name, mix) in MIXES {
        for nodes in 1..=spec.nodes {
            tell(name, nodes);
            let task = |module| UserTask {
                database,
                mix,
                module,
                manner: spec.manner,
                time: spec.time,
            };
            let tasks: Vec<UserTask> = (1..=nodes).map(task).collect();
            let (done, found) = users(&place, &judge, &tasks)?;
            for task in &tasks {
                let committed = user::committed(&judge, &database, task.module).context("read a mark")?;
                let before = &mut before[task.module as usize - 1];
                replay_user(&plain, task, *before..committed)?;
                *before = committed;
            }
            let expected = digest(&plain, &database)?;
            if found.iter().any(|found| *found != expected) {
                return Err(BenchError::WrongData {
                    place: site.directory().to_owned(),
                    why: format!("{nodes} users, {name}: {found:?}, and not {expected}"),
                });
            }
            rows.push(row(name, &done));
        }
    }
    Ok(rows)
}

/// Runs users for their time. Returns their progress, and each node's digest at the end.
fn users(
    place: &RegionTestbed<'_>,
    judge: &Node,
    tasks: &[UserTask],
) -> Result<(Vec<UserProgress>, Vec<u64>), BenchError> {
    let started: Result<Vec<ChildProcess>, _> = tasks
        .iter()
        .map(|task| place.play(NodeTask::Use(*task)))
        .collect();
    let mut users = started?;
    signal(judge, &tasks[0].database)?;
    let done: Result<Vec<UserProgress>, BenchError> = users
        .iter_mut()
        .map(|user| read_line(user, PROGRESS_LINE))
        .collect();
    let done = done?;
    signal(judge, &tasks[0].database)?;
    let found: Result<Vec<u64>, BenchError> = users
        .iter_mut()
        .map(|user| read_line(user, DIGEST_LINE))
        .collect();
    Ok((done, found?))
}

/// Creates a version of the common lock, for which the users wait. Nothing is changed.
fn signal(node: &Node, database: &Oo7Parameters) -> Result<(), BenchError> {
    let store = user::open(node, database).context("open the database")?;
    let ground = store.space().begin_with(&[(user::COMMON, LockMode::Exclusive)]);
    let mut open = store.with_transaction(ground.context("acquire the common lock")?);
    open.complete().context("write the same again")?;
    open.commit().context("commit")
}

fn read_line<T: for<'d> Deserialize<'d>>(user: &mut ChildProcess, word: &str) -> Result<T, BenchError> {
    let begins = format!("{word} ");
    let lines = user.ready(&begins)?;
    let rest = lines.iter().find_map(|line| line.strip_prefix(&begins));
    let value = rest.and_then(|rest| serde_json::from_str(rest).ok());
    value.ok_or_else(|| user.log_error("it does not say what it has done"))
}

fn row(mix: &'static str, done: &[UserProgress]) -> UserMixRow {
    let sum = |value: fn(&UserProgress) -> f64| done.iter().map(value).sum::<f64>();
    let transactions = sum(|done| done.transactions as f64);
    // The last transaction of each may end a little later than it was asked to.
    let all = sum(|done| done.time.as_secs_f64());
    UserMixRow {
        mix,
        nodes: done.len() as u32,
        transactions_s: transactions * done.len() as f64 / all,
        waited_percent: 100.0 * sum(|done| done.waited.as_secs_f64()) / all,
        died_permille: 1000.0 * sum(|done| done.died as f64) / transactions.max(1.0),
        lost: done.iter().map(|done| done.lost).sum(),
    }
}

/// Repeats a user's transactions in plain memory.
fn replay_user(
    plain: &PlainStore,
    task: &UserTask,
    transactions: std::ops::Range<u64>,
) -> Result<(), BenchError> {
    let mut client = MixClient::new(task.mix, &task.database, task.module, SEED);
    for number in 0..transactions.end {
        let mut open = plain.begin().context("begin a transaction")?;
        let steps = client.choose(&mut open).context("choose")?;
        if number >= transactions.start {
            for step in &steps {
                perform(&mut open, step).context("do a step")?;
            }
        }
        open.commit().context("commit")?;
    }
    Ok(())
}

fn digest(store: &impl Oo7Store, database: &Oo7Parameters) -> Result<u64, BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    let found = audit(&mut open, database, true).context("audit the database")?;
    Ok(found.digest)
}

/// A user at its node: it begins on a signal, reports its progress, audits on another signal, and stays until
/// killed.
pub(super) fn run(node: &Node, task: &UserTask) -> Result<(), BenchError> {
    let UserTask {
        database,
        mix,
        module,
        manner,
        time,
    } = *task;
    let mut user = MixUser::new(node, &database, mix, module, SEED, manner).context("open the database")?;
    let LockVersion(begun) = node.version(user::COMMON);
    crate::say(READY_LINE)?;
    wait_for_version(node, begun + 1)?;
    // Warm-up: its locks arrive, its buffers grow.
    user.transact().context("do a transaction")?;
    let before = user.done();
    let began = Instant::now();
    while began.elapsed() < time {
        user.transact().context("do a transaction")?;
    }
    let done = user.done().since(&before);
    drop(user);
    let done = serde_json::to_string(&done).context("say what was done")?;
    crate::say(&format!("{PROGRESS_LINE} {done}"))?;
    wait_for_version(node, begun + 2)?;
    let store = user::open(node, &database).context("open the database")?;
    crate::say(&format!("{DIGEST_LINE} {}", digest(&store, &database)?))?;
    loop {
        std::thread::sleep(WAIT_INTERVAL);
    }
}

/// Waits for a version of the common lock.
fn wait_for_version(node: &Node, version: u64) -> Result<(), BenchError> {
    while !node
        .wait_version(user::COMMON, LockVersion(version), WAIT_INTERVAL)
        .context("wait for the signal")?
    {}
    Ok(())
}
