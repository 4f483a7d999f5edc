//! Cost for the writer of each following node: processor time and latency of a commit by the number of
//! followers.
//!
//! Every process sleeps while it waits, because polling would count as work. Nodes join one after the other.
//! The whole is repeated, each time with a new region, so that a disturbance does not look like one more
//! follower.

use netram_transport::WaitPolicy;
use serde::Serialize;

use super::local::during;
use super::node_process::{NodeTask, REQUEST_LOCK};
use super::testbed::{PeerDelivery, RegionSetup, RegionTestbed, update};
use crate::commit::CommitEffort;
use crate::error::BenchError;
use crate::histogram::{LatencySummary, median};
use crate::testbed::Testbed;

/// Maximum number of followers.
pub const FOLLOWERS_MAX: usize = 4;

/// Medians over passes.
#[derive(Clone, Debug, Serialize)]
pub struct FanoutCost {
    /// The writer's commits with zero, one, two ... followers.
    pub commits: Vec<LatencySummary>,
    /// Growth of the writer's processor time for each follower after the first, in percent.
    pub percent_a_follower: f64,
}

/// Measures the cost.
///
/// # Errors
///
/// Fails if the region cannot be set up, or if [`PeerDelivery::Multicast`] is requested and the loopback
/// carries none, since the figure would be another one.
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
            // Buffers grow and links are made.
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
