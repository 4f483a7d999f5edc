//! Whether lenders can be reached and have room, before a program relies on them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use netram_far::{RemotePages, RemotePagesConfig};
use netram_lender::StatusReport;

use crate::output;

/// How long lenders may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until all lenders have accepted pages, or time is up. One is enough, or none with a spill file:
/// others may come later.
pub(super) fn wait_for_deposits(config: RemotePagesConfig) -> Result<()> {
    let (lenders, spills) = (config.lenders.clone(), config.spill.is_some());
    let depot = RemotePages::open(RemotePagesConfig {
        // Nothing stays there: it is returned at the end.
        pages_max: 1,
        grow: 1,
        ..config
    })?;
    let start = Instant::now();
    let missing = loop {
        let status = depot.status();
        let missing: Vec<String> = lenders
            .iter()
            .zip(&status.lenders)
            .filter(|(_, lender)| !lender.linked)
            .map(|(address, _)| address.to_string())
            .collect();
        if missing.is_empty() || start.elapsed() > PATIENCE {
            break missing;
        }
        std::thread::sleep(LOOK);
    };
    let all = missing.join(", ");
    if missing.len() == lenders.len() && !spills {
        bail!(
            "no lender takes pages: {all}. Is `netram lender serve` running there, with this cluster key, and not with \
             `--deposits 0`? (-vv says what happened)"
        );
    }
    if !missing.is_empty() {
        output::remark(format_args!(
            "netram run: lender {all} cannot be reached yet: until then pages may have fewer copies"
        ));
    }
    Ok(())
}

/// Returns the bytes that a lender has left for pages.
pub(super) fn room(report: &StatusReport) -> u64 {
    let memory = report.memory;
    let limit = memory
        .deposits_limit
        .unwrap_or(memory.deposits_max)
        .min(memory.deposits_max);
    limit.saturating_sub(memory.deposits).min(memory.free)
}

/// Returns the bytes of pages that fit into `rooms` with each page at `copies` different lenders.
pub(super) fn room_for_copies(rooms: &[u64], copies: usize) -> u64 {
    let all: u64 = rooms.iter().fold(0, |sum, room| sum.saturating_add(*room));
    match (copies, rooms.iter().max()) {
        (2, Some(largest)) => (all / 2).min(all - largest),
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_need_two_lenders() {
        assert_eq!(room_for_copies(&[10, 4], 2), 4);
        assert_eq!(room_for_copies(&[10, 6, 8], 2), 12);
        assert_eq!(room_for_copies(&[10], 2), 0);
        assert_eq!(room_for_copies(&[10, 4], 1), 14);
        assert_eq!(room_for_copies(&[], 2), 0);
    }
}
