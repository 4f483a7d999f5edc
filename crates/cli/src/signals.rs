//! Signals that mean nothing to a service, and would end it if nobody took them.
//!
//! A terminal that closes sends SIGHUP to what was started there. A service goes on: a mount that ended would
//! leave its users with errors, and a lender would take its windows along. SIGUSR1, SIGUSR2 and SIGALRM are
//! not used here.
//!
//! They are caught, not ignored: an ignored signal stays so in every program that a service starts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel as queue};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

const MEANINGLESS: [i32; 4] = [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM];

/// From now on this process takes signals that mean nothing, and goes on.
pub fn take_meaningless() -> io::Result<()> {
    for signal in MEANINGLESS {
        // Nobody looks at the flag: that it can be set is what takes the signal.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// Returns a channel that receives signals, for waiting with a timeout.
pub(crate) fn channel(mut signals: Signals) -> Result<Receiver<i32>> {
    let (tell, told) = queue();
    let tell_all = move || {
        for signal in signals.forever() {
            if tell.send(signal).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new()
        .name("netram-signals".into())
        .spawn(tell_all);
    started.context("starting the thread that waits for signals")?;
    Ok(told)
}
