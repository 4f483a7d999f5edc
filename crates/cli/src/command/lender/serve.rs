//! `netram lender serve`: the service.

#[cfg(feature = "products")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_lender::{DataService, Lender};
#[cfg(feature = "products")]
use netram_volume::replica::ReplicaHost;
use rustix::process::Signal;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::serve_settings::ServeSettings;
use crate::clients::told;
#[cfg(not(feature = "products"))]
use crate::options::UsageError;
use crate::output;

/// Lend this machine's memory to journals of other machines
///
/// Runs in the foreground until SIGTERM, SIGINT or SIGPWR. The memory is reserved at the start,
/// and never grows. Bytes that journals keep here survive a restart of this process; with --spill
/// they also survive a shutdown of the machine.
///
///   netram lender serve --domain ups-1 --memory 4GiB
///   netram lender serve --listen tcp://10.0.0.2:7420 --key-file /etc/netram/key
///   netram lender serve --listen unix:/run/netram.sock --insecure
///   netram lender serve --config /etc/netram/lender.toml
///
/// With --data it also keeps copies of volumes on its disk, as a data lender:
///
///   netram lender serve --domain ups-1 --data /var/lib/netram/kept
///
/// Flags override NETRAM_* variables, which override the configuration file. That file has the
/// long flags as its keys:
///
///   listen = ["tcp://0.0.0.0:7420"]
///   key-file = "/etc/netram/key"
///   memory = "4GiB"
///   domain = "ups-1"
///
/// With --clients FILE each client has a name, a key and limits of its own (netram key add). SIGHUP
/// makes the lender read that file again; connections of clients that are still in it go on.
///
/// Standard output has a line `listening ADDRESS` for each address, then `ready`; logs go to
/// standard error. The first signal asks clients to move away before the end, a second one ends
/// it at once. If the machine runs short of memory, pages of programs under `netram run` are
/// moved away and their memory is returned; journals stay.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ServeLender {
    #[command(flatten)]
    settings: ServeSettings,
    /// TOML file with settings
    #[arg(long, value_name = "FILE", env = "NETRAM_CONFIG")]
    config: Option<PathBuf>,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

impl ServeLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        // It holds keys for as long as it runs.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("leaving the process out of core dumps")?;
        let file = self.config.as_deref().map(ServeSettings::read).transpose()?;
        let settings = self.settings.or(file.unwrap_or_default());
        let (grace, forget) = (settings.grace(), settings.forget());
        #[cfg(feature = "products")]
        let (data, limits) = (settings.data().map(Path::to_owned), settings.replica_limits()?);
        #[cfg(not(feature = "products"))]
        if settings.data().is_some() {
            let sentence = "this program was built for the demo and keeps no copies of volumes: build it with `make build`";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let config = settings.config()?;
        // Before the lender starts: a signal in between must not end it without notice to its clients.
        let signals =
            Signals::new([SIGTERM, SIGINT, SIGHUP, Signal::POWER.as_raw()]).context("waiting for signals")?;
        #[cfg(feature = "products")]
        let host = data
            .map(|directory| ReplicaHost::start_with(&directory, limits).map(Arc::new))
            .transpose()?;
        #[cfg(feature = "products")]
        let service = host.clone().map(|host| host as Arc<dyn DataService>);
        #[cfg(not(feature = "products"))]
        let service: Option<Arc<dyn DataService>> = None;
        let lender = Arc::new(Lender::start_with(config, service).context("starting the lender")?);
        for address in lender.addresses() {
            output::announce(format_args!("listening {address}"));
        }
        for address in lender.data_addresses() {
            output::announce(format_args!("data sessions {address}"));
        }
        output::announce("ready");
        let served = serve(&lender, signals, grace, forget);
        #[cfg(feature = "products")]
        if let Some(host) = host {
            host.stop();
        }
        served
    }
}

/// Waits for signals until the lender has stopped.
fn serve(lender: &Arc<Lender>, mut signals: Signals, grace: Duration, forget: bool) -> Result<ExitCode> {
    let handle = signals.handle();
    let waiting = {
        let lender = Arc::clone(lender);
        let wait = move || {
            let stopped = lender.wait();
            handle.close();
            stopped
        };
        let thread = std::thread::Builder::new().name("netram-wait".into());
        thread.spawn(wait).context("starting a thread")?
    };
    let mut stopping = None;
    for signal in signals.forever() {
        if signal == SIGHUP {
            told(lender.reload_clients());
            continue;
        }
        if stopping.is_some() {
            tracing::warn!(
                signal,
                "second signal: stopping at once; the lent memory is kept for the next start of this boot"
            );
            return Ok(ExitCode::FAILURE);
        }
        let lender = Arc::clone(lender);
        let stop = move || {
            if forget {
                lender.stop_and_give_back(grace);
                Ok(())
            } else {
                lender.stop_and_spill(grace).map(drop)
            }
        };
        match std::thread::Builder::new().spawn(stop.clone()) {
            Ok(thread) => stopping = Some(thread),
            // If no thread can be started, a second signal is not noticed.
            Err(_) => stop()?,
        }
    }
    if let Some(stopping) = stopping {
        stopping
            .join()
            .map_err(|_| anyhow::anyhow!("stopping the lender panicked"))?
            .context("the windows that are left are in this machine's memory only")?;
    }
    let stopped = waiting
        .join()
        .map_err(|_| anyhow::anyhow!("waiting for the lender panicked"))?;
    if stopped.failed {
        anyhow::bail!("a thread of the lender panicked; the log above says where");
    }
    Ok(ExitCode::SUCCESS)
}
