//! The mix of several users of OO7, each at a node of its own and in a module of its own: how much they do, by their number.
//!
//! A module is a heap under a lock; the indexes of all are under another. Users who keep to their modules never wait for each other;
//! who goes through shared composites meets the others. The database is built once for all rows. In the end each node audits it, and
//! what the same users do one after the other in plain memory must be the same.

use std::time::{Duration, Instant};

use netram_oo7::operation::mix::{Client, Mix, perform};
use netram_oo7::user::{self, Done, Manner, User};
use netram_oo7::{Parameters, Plain, SEED, Store, Work, audit, build};
use netram_shared::Node;
use netram_shared_machine::{Hold, Version};
use netram_transport::WaitPolicy;
use serde::{Deserialize, Serialize};

use super::place::{Place, Plan};
use super::player::{Act, LOOK_EVERY, READY};
use crate::child::Child;
use crate::error::{BenchError, Context};
use crate::site::Site;

/// Users at most.
pub const NODES_MAX: u32 = 8;
/// What a user says when its time is over: what it has done, as JSON.
const DID: &str = "did";
/// What it says when it has audited the database: the digest.
const FOUND: &str = "found";

/// What the users do, by name: how often they change what they go through, and whether they meet.
pub const MIXES: [(&str, Mix); 3] = [
    ("own modules", mix([50, 0, 50, 0])),
    ("one in five shared", mix([40, 10, 40, 10])),
    ("shared only", mix([0, 50, 0, 50])),
];

const fn mix([private_read, shared_read, private_write, shared_write]: [u32; 4]) -> Mix {
    Mix {
        private_read,
        shared_read,
        private_write,
        shared_write,
        operations: 4,
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The database; it gets a module for each user.
    pub database: Parameters,
    /// Users: one, two ... so many.
    pub nodes: u32,
    /// How they come by their locks.
    pub manner: Manner,
    /// How long each row is measured.
    pub time: Duration,
    /// Members of each node's journal.
    pub members: usize,
    /// How server, members and nodes wait.
    pub wait: WaitPolicy,
}

/// What so many users did.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which of [`MIXES`].
    pub mix: &'static str,
    /// Users.
    pub nodes: u32,
    /// Transactions a second, all users together.
    pub transactions_s: f64,
    /// Of the users' time, what went by while they acquired locks, in percent.
    pub waited_percent: f64,
    /// Transactions in a thousand that died of a lock out of order and were tried again.
    pub died_permille: f64,
    /// Transactions that were tried again because a lock did not come in time.
    pub lost: u64,
}

/// A user to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The database.
    pub database: Parameters,
    /// What the user does.
    pub mix: Mix,
    /// Its module.
    pub module: u32,
    /// How it comes by its locks.
    pub manner: Manner,
    /// For how long.
    pub time: Duration,
}

/// Measures.
pub fn measure(site: &Site, spec: &Spec, tell: &mut dyn FnMut(&str, u32)) -> Result<Vec<Row>, BenchError> {
    let database = spec.database.with_modules(spec.nodes);
    let plan = Plan {
        locks: user::locks(spec.nodes),
        span_bytes: database.home_bytes(),
        members: spec.members,
        wait: spec.wait,
        ..Plan::default()
    };
    let place = Place::start(site, plan)?;
    let judge = place.join()?;
    let store = user::create(&judge, &database).context("create the database")?;
    build(&store, &database).context("build the database")?;
    // What the users will have made of it.
    let plain = Plain::default();
    build(&plain, &database).context("build the database in plain memory")?;
    let mut before = vec![0; spec.nodes as usize];
    let mut rows = Vec::new();
    for (name, mix) in MIXES {
        for nodes in 1..=spec.nodes {
            tell(name, nodes);
            let task = |module| Task {
                database,
                mix,
                module,
                manner: spec.manner,
                time: spec.time,
            };
            let tasks: Vec<Task> = (1..=nodes).map(task).collect();
            let (done, found) = users(&place, &judge, &tasks)?;
            for task in &tasks {
                let committed = user::committed(&judge, &database, task.module).context("read a mark")?;
                let before = &mut before[task.module as usize - 1];
                again(&plain, task, *before..committed)?;
                *before = committed;
            }
            let expected = digest(&plain, &database)?;
            if found.iter().any(|found| *found != expected) {
                return Err(BenchError::Wrong {
                    place: site.folder().to_owned(),
                    why: format!("{nodes} users, {name}: {found:?}, and not {expected}"),
                });
            }
            rows.push(row(name, spec.time, &done));
        }
    }
    Ok(rows)
}

/// Has users work for their time. What they did, and the digests of what each has in the end.
fn users(place: &Place<'_>, judge: &Node, tasks: &[Task]) -> Result<(Vec<Done>, Vec<u64>), BenchError> {
    let started: Result<Vec<Child>, _> = tasks.iter().map(|task| place.play(Act::Use(*task))).collect();
    let mut users = started?;
    signal(judge, &tasks[0].database)?;
    let done: Result<Vec<Done>, BenchError> = users.iter_mut().map(|user| said(user, DID)).collect();
    let done = done?;
    signal(judge, &tasks[0].database)?;
    let found: Result<Vec<u64>, BenchError> = users.iter_mut().map(|user| said(user, FOUND)).collect();
    Ok((done, found?))
}

/// Makes a version of the common lock, for which the users wait. Nothing changes.
fn signal(node: &Node, database: &Parameters) -> Result<(), BenchError> {
    let store = user::open(node, database).context("open the database")?;
    let ground = store.space().begin_with(&[(user::COMMON, Hold::Exclusive)]);
    let mut open = store.within(ground.context("acquire the common lock")?);
    open.complete().context("write the same again")?;
    open.commit().context("commit")
}

fn said<T: for<'d> Deserialize<'d>>(user: &mut Child, word: &str) -> Result<T, BenchError> {
    let begins = format!("{word} ");
    let lines = user.ready(&begins)?;
    let rest = lines.iter().find_map(|line| line.strip_prefix(&begins));
    let value = rest.and_then(|rest| serde_json::from_str(rest).ok());
    value.ok_or_else(|| user.failed("it does not say what it has done"))
}

fn row(mix: &'static str, time: Duration, done: &[Done]) -> Row {
    let sum = |value: fn(&Done) -> f64| done.iter().map(value).sum::<f64>();
    let transactions = sum(|done| done.transactions as f64);
    let all = time.as_secs_f64() * done.len() as f64;
    Row {
        mix,
        nodes: done.len() as u32,
        transactions_s: transactions / time.as_secs_f64(),
        waited_percent: 100.0 * sum(|done| done.waited.as_secs_f64()) / all,
        died_permille: 1000.0 * sum(|done| done.died as f64) / transactions.max(1.0),
        lost: done.iter().map(|done| done.lost).sum(),
    }
}

/// Does what a user has done since, in plain memory.
fn again(plain: &Plain, task: &Task, transactions: std::ops::Range<u64>) -> Result<(), BenchError> {
    let mut client = Client::new(task.mix, &task.database, task.module, SEED);
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

fn digest(store: &impl Store, database: &Parameters) -> Result<u64, BenchError> {
    let mut open = store.begin().context("begin a transaction")?;
    let found = audit(&mut open, database, true).context("audit the database")?;
    Ok(found.digest)
}

/// A user at its node: begins when it is told, tells what it did, audits when it is told, and stays until killed.
pub(super) fn run(node: &Node, task: &Task) -> Result<(), BenchError> {
    let Task {
        database,
        mix,
        module,
        manner,
        time,
    } = *task;
    let mut user = User::new(node, &database, mix, module, SEED, manner).context("open the database")?;
    let Version(begun) = node.version(user::COMMON);
    crate::say(READY)?;
    told(node, begun + 1)?;
    // Its locks come, its buffers grow.
    user.transact().context("do a transaction")?;
    let before = user.done();
    let began = Instant::now();
    while began.elapsed() < time {
        user.transact().context("do a transaction")?;
    }
    let done = user.done().since(&before);
    drop(user);
    let done = serde_json::to_string(&done).context("say what was done")?;
    crate::say(&format!("{DID} {done}"))?;
    told(node, begun + 2)?;
    let store = user::open(node, &database).context("open the database")?;
    crate::say(&format!("{FOUND} {}", digest(&store, &database)?))?;
    loop {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits for a version of the common lock.
fn told(node: &Node, version: u64) -> Result<(), BenchError> {
    while !node
        .wait_version(user::COMMON, Version(version), LOOK_EVERY)
        .context("wait for the signal")?
    {}
    Ok(())
}
