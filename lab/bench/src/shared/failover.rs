//! Failover time of a lock: from its holder's death until another node has it.

use std::time::{Duration, Instant};

use netram_rvm::RestoreMode;
use netram_shared_machine::LockMode;
use serde::Serialize;

use super::node_process::{DEATH_LOCK, NodeTask};
use super::testbed::{RegionSetup, RegionTestbed};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Kind of a node's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeDeath {
    /// Its process is killed; its machine closes its links.
    Killed,
    /// The node stops answering with its links open, as when its machine fails.
    Silent,
}

/// The longest failover of `rounds` deaths.
///
/// # Errors
///
/// Fails if the region cannot be set up, or the lock does not come.
pub fn measure(
    site: &Testbed,
    plan: RegionSetup,
    death: NodeDeath,
    rounds: usize,
) -> Result<Duration, BenchError> {
    let place = RegionTestbed::start(site, plan)?;
    let heir = place.join()?;
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let holder = place.play(NodeTask::Hold)?;
        let died = Instant::now();
        let silent = match death {
            NodeDeath::Killed => {
                holder.kill();
                None
            }
            NodeDeath::Silent => {
                holder.pause()?;
                Some(holder)
            }
        };
        let mut txn = heir.begin(RestoreMode::Restore).context("begin a transaction")?;
        txn.acquire(DEATH_LOCK, LockMode::Exclusive)
            .context("acquire a dead node's lock")?;
        longest = longest.max(died.elapsed());
        drop(txn);
        drop(silent);
    }
    Ok(longest)
}
