//! What the writer pays for each node that follows: its processor time and latency a commit, by the number of
//! them.
//!
//! Everybody sleeps while he waits: the time that a process spends looking is no work. Nodes join one after
//! the other; so that a disturbance does not look like one more of them, the whole is done several times,
//! each with a fresh region.

use netram_transport::WaitPolicy;
use serde::Serialize;

use super::local::during;
use super::node_process::{NodeTask, REQUEST_LOCK};
use super::testbed::{PeerDelivery, RegionSetup, RegionTestbed, update};
use crate::commit::CommitEffort;
use crate::error::BenchError;
use crate::histogram::{LatencySummary, median};
use crate::testbed::Testbed;

/// Nodes that follow, at most.
pub const FOLLOWERS_MAX: usize = 4;

/// Medians over passes.
#[derive(Clone, Debug, Serialize)]
pub struct FanoutCost {
    /// The writer's commits with none, one, two ... nodes that follow.
    pub commits: Vec<LatencySummary>,
    /// By how many percent the writer's processor time grows with each node after the first.
    pub percent_a_follower: f64,
}

/// Measures. With [`PeerDelivery::Multicast`] it is an error where loopback carries none: the figure would be
/// another one.
pub fn measure(site: &Testbed, plan: RegionSetup, effort: CommitEffort) -> Result<FanoutCost, BenchError> {
    let plan = RegionSetup {
        wait: WaitPolicy::Block,
        ..plan
    };
    let mut passes: Vec<Vec<LatencySummary>> = vec![Vec::new(); FOLLOWERS_MAX + 1];
    let mut grown = Vec::new();
    for _ in 0..effort.rounds {
        let place = RegionTestbed::start(site, plan)?;
        let node = place.join()?;
        let mut followers = Vec::new();
        let before = node.direct_counts();
        let mut costs = Vec::new();
        for passes in &mut passes {
            // Buffers grow, links are made.
            during(effort, |value| update(&node, REQUEST_LOCK, value))?;
            let commits = during(effort, |value| update(&node, REQUEST_LOCK, value))?;
            costs.push(commits.cpu_us);
            passes.push(commits);
            if followers.len() < FOLLOWERS_MAX {
                followers.push(place.play(NodeTask::Follow)?);
            }
        }
        if plan.peer_delivery == PeerDelivery::Multicast && node.direct_counts().multicast == before.multicast
        {
            let why = "no record was multicast: it does not get through here";
            return Err(BenchError::InvalidRequest(why.to_owned()));
        }
        grown.push((costs[FOLLOWERS_MAX] / costs[1] - 1.0) * 100.0 / (FOLLOWERS_MAX - 1) as f64);
    }
    Ok(FanoutCost {
        commits: passes
            .iter()
            .map(|rounds| LatencySummary::median(rounds))
            .collect(),
        percent_a_follower: median(grown),
    })
}
