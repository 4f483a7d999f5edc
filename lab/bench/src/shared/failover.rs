//! How long a dead node's lock is missed: from its death until another node has it.

use std::time::{Duration, Instant};

use netram_rvm::Mode;
use netram_shared_machine::Hold;
use serde::Serialize;

use super::place::{Place, Plan};
use super::player::{Act, HELD};
use crate::error::{BenchError, Context};
use crate::site::Site;

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Death {
    /// Its process is killed; its machine closes its links.
    Killed,
    /// It falls silent with its links open, as when its machine fails.
    Silent,
}

/// The longest of `rounds` deaths.
pub fn measure(site: &Site, plan: Plan, death: Death, rounds: usize) -> Result<Duration, BenchError> {
    let place = Place::start(site, plan)?;
    let heir = place.join()?;
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let holder = place.play(Act::Hold)?;
        let died = Instant::now();
        let silent = match death {
            Death::Killed => {
                holder.kill();
                None
            }
            Death::Silent => {
                holder.pause()?;
                Some(holder)
            }
        };
        let mut txn = heir.begin(Mode::Restore).context("begin a transaction")?;
        txn.acquire(HELD, Hold::Exclusive)
            .context("acquire a dead node's lock")?;
        longest = longest.max(died.elapsed());
        drop(txn);
        drop(silent);
    }
    Ok(longest)
}
