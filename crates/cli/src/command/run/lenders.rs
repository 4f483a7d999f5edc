//! Whether lenders are there, before a program relies on them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use netram_far::{RemotePages, RemotePagesConfig};

use crate::output;

/// How long they have to answer.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// Waits until all lenders have taken a deposit, or time is up. One is enough, and none if there is a spill
/// file: others may come later.
pub(super) fn wait_for_deposits(config: RemotePagesConfig) -> Result<()> {
    let (lenders, spills) = (config.lenders.clone(), config.spill.is_some());
    let depot = RemotePages::open(RemotePagesConfig {
        // Nothing is left there: it is given back at the end.
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
            "no lender takes pages: {all}. Is `netram lend` running there, with this cluster key, and not with `--deposits 0`? \
             (-vv says what happened)"
        );
    }
    if !missing.is_empty() {
        output::remark(format_args!(
            "netram run: so far without {all}: pages may be in fewer places than they should be"
        ));
    }
    Ok(())
}
