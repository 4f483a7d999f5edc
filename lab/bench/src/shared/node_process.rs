//! A node in its own process, with one task until it is killed.

use std::path::PathBuf;
use std::time::Duration;

use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared_machine::{LockId, LockMode, LockVersion};
use serde::{Deserialize, Serialize};

use super::mix::UserTask;
use super::testbed::update;
use crate::child::ChildJob;
use crate::error::{BenchError, ErrorContext};

/// Line that the process prints when it has joined and begun its task.
pub(super) const READY_LINE: &str = "ready";
/// Interval at which a wait is begun again, so that the end of the node is noticed.
pub(super) const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// Lock of the requesting node; [`REPLY_LOCK`] is that of the answering one.
pub(super) const REQUEST_LOCK: LockId = LockId(0);
/// See [`REQUEST_LOCK`].
pub(super) const REPLY_LOCK: LockId = LockId(1);
/// The lock whose updates are watched.
pub(super) const WATCH_LOCK: LockId = LockId(0);
/// Prefix of a watching node's line, before the version and the time at which it came.
pub(super) const VERSION_LINE: &str = "seen";
/// The lock that is held until death.
pub(super) const DEATH_LOCK: LockId = LockId(2);

/// Job of a node's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeJob {
    /// Address of the server.
    pub server: String,
    /// File of the cluster key.
    pub key_file: PathBuf,
    /// Directory of the node's files.
    pub directory: PathBuf,
    /// Name of the node.
    pub name: String,
    /// Its wait policy.
    pub wait: String,
    /// Whether it exchanges records directly with other nodes.
    pub straight: bool,
    /// Address at which it accepts links of other nodes.
    pub listen: Option<String>,
    /// Its task.
    pub act: NodeTask,
}

/// Task of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeTask {
    /// Maps the region and applies the records of others.
    Follow,
    /// Answers each update under one lock with an update under another.
    Answer,
    /// Reports the time of each update.
    Watch,
    /// Holds a lock.
    Hold,
    /// Runs a user of OO7.
    Use(UserTask),
}

impl ChildJob for NodeJob {
    const ROLE: &'static str = "Player";

    // Joins and performs the task until killed.
    fn run(&self) -> Result<(), BenchError> {
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

/// The system's clock in nanoseconds, the same for all processes of a machine.
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
