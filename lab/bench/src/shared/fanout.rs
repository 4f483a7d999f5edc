//! What the writer pays for each node that follows: its processor time and latency a commit, by the number of them.
//!
//! Everybody sleeps while he waits: the time that a process spends looking is no work. Nodes join one after the other; so
//! that a disturbance does not look like one more of them, the whole is done several times, each with a fresh region.

use netram_transport::WaitPolicy;
use serde::Serialize;

use super::local::during;
use super::place::{Place, Plan, Straight, update};
use super::player::{ASKS, Act};
use crate::commit::Effort;
use crate::error::BenchError;
use crate::histogram::{Summary, median};
use crate::site::Site;

/// Nodes that follow, at most.
pub const FOLLOWERS_MAX: usize = 4;

/// Medians over passes.
#[derive(Clone, Debug, Serialize)]
pub struct Fanout {
    /// The writer's commits with none, one, two ... nodes that follow.
    pub commits: Vec<Summary>,
    /// By how many percent the writer's processor time grows with each node after the first.
    pub percent_a_follower: f64,
}

/// Measures. With [`Straight::Multicast`] it is an error where loopback carries none: the figure would be another one.
pub fn measure(site: &Site, plan: Plan, effort: Effort) -> Result<Fanout, BenchError> {
    let plan = Plan {
        wait: WaitPolicy::Block,
        ..plan
    };
    let mut passes: Vec<Vec<Summary>> = vec![Vec::new(); FOLLOWERS_MAX + 1];
    let mut grown = Vec::new();
    for _ in 0..effort.rounds {
        let place = Place::start(site, plan)?;
        let node = place.join()?;
        let mut followers = Vec::new();
        let before = node.straight();
        let mut costs = Vec::new();
        for passes in &mut passes {
            // Buffers grow, links are made.
            during(effort, |value| update(&node, ASKS, value))?;
            let commits = during(effort, |value| update(&node, ASKS, value))?;
            costs.push(commits.cpu_us);
            passes.push(commits);
            if followers.len() < FOLLOWERS_MAX {
                followers.push(place.play(Act::Follow)?);
            }
        }
        if plan.straight == Straight::Multicast && node.straight().cast == before.cast {
            let why = "no record was multicast: it does not get through here";
            return Err(BenchError::Asked(why.to_owned()));
        }
        grown.push((costs[FOLLOWERS_MAX] / costs[1] - 1.0) * 100.0 / (FOLLOWERS_MAX - 1) as f64);
    }
    Ok(Fanout {
        commits: passes.iter().map(|rounds| Summary::median(rounds)).collect(),
        percent_a_follower: median(grown),
    })
}
