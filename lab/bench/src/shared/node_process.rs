//! A node in a process of its own, with one thing to do until it is killed.

use std::path::PathBuf;
use std::time::Duration;

use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared_machine::{LockId, LockMode, LockVersion};
use serde::{Deserialize, Serialize};

use super::mix::UserTask;
use super::testbed::update;
use crate::error::{BenchError, ErrorContext};

/// What the process says when it has joined, and does what it is there for.
pub(super) const READY_LINE: &str = "ready";
/// A wait that is not over is begun again this often: what ends the node is found.
pub(super) const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// The lock of whoever asks, and that of whoever answers.
pub(super) const REQUEST_LOCK: LockId = LockId(0);
/// See [`REQUEST_LOCK`].
pub(super) const REPLY_LOCK: LockId = LockId(1);
/// The lock whose updates are watched.
pub(super) const WATCH_LOCK: LockId = LockId(0);
/// What a watching node says, before the version and when it had it.
pub(super) const VERSION_LINE: &str = "seen";
/// The lock that is held until death.
pub(super) const DEATH_LOCK: LockId = LockId(2);

/// A node to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeJob {
    /// Where the server listens.
    pub server: String,
    /// The cluster key's file.
    pub key_file: PathBuf,
    /// The node's files.
    pub directory: PathBuf,
    /// What it is called.
    pub name: String,
    /// How it waits.
    pub wait: String,
    /// It sends the others what it commits, and takes what they send.
    pub straight: bool,
    /// Where it lets other nodes in, for links to them.
    pub listen: Option<String>,
    /// What it does.
    pub act: NodeTask,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeTask {
    /// Has the region, and takes what others write.
    Follow,
    /// Answers each update under one lock with an update under another.
    Answer,
    /// Says when it has each update.
    Watch,
    /// Holds a lock.
    Hold,
    /// Is a user of OO7.
    Use(UserTask),
}

impl NodeJob {
    /// Joins and does it, until killed.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        let node = Node::join(self.options()?).context("join a region")?;
        match self.act {
            NodeTask::Follow => {
                crate::say(READY_LINE)?;
                loop {
                    alive(&node)?;
                    std::thread::sleep(WAIT_INTERVAL);
                }
            }
            NodeTask::Answer => answer(&node),
            NodeTask::Watch => watch(&node),
            NodeTask::Use(task) => super::mix::run(&node, &task),
            NodeTask::Hold => {
                let mut txn = node.begin(RestoreMode::Restore).context("begin a transaction")?;
                txn.acquire(DEATH_LOCK, LockMode::Exclusive)
                    .context("acquire a lock")?;
                crate::say(READY_LINE)?;
                loop {
                    alive(&node)?;
                    std::thread::sleep(WAIT_INTERVAL);
                }
            }
        }
    }
}

fn alive(node: &Node) -> Result<(), BenchError> {
    node.gone().map_or(Ok(()), Err).context("be a node")
}

/// The system's clock, the same for all processes of a machine. Nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn watch(node: &Node) -> Result<(), BenchError> {
    let mut version = node.version(WATCH_LOCK);
    crate::say(READY_LINE)?;
    loop {
        version = LockVersion(version.0 + 1);
        while !node
            .wait_version(WATCH_LOCK, version, WAIT_INTERVAL)
            .context("wait for an update")?
        {}
        let at = now_ns();
        crate::say(&format!("{VERSION_LINE} {} {at}", version.0))?;
    }
}

fn answer(node: &Node) -> Result<(), BenchError> {
    let mut version = node.version(REQUEST_LOCK);
    crate::say(READY_LINE)?;
    loop {
        version = LockVersion(version.0 + 1);
        while !node
            .wait_version(REQUEST_LOCK, version, WAIT_INTERVAL)
            .context("wait for an update")?
        {}
        update(node, REPLY_LOCK, version.0)?;
    }
}
