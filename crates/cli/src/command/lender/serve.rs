//! `netram lender serve`: the service.

#[cfg(feature = "products")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_discover::mdns::{Announcement, LenderNotice, what_to_announce};
use netram_lender::{DataService, Lender, LenderConfig};
use netram_transport::NetAddress;
use netram_ups::{PowerReason, PowerState, PowerStatus, UpsMonitor, UpsSource};
#[cfg(feature = "products")]
use netram_volume::replica::ReplicaHost;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::serve_settings::ServeSettings;
use crate::background;
use crate::clients::told;
use crate::notify::{ServiceLook, ServiceNotifier, StopPatience};
use crate::options::UsageError;
use crate::output;

/// Signal by which an init says that power ends (`sigpwr.target`). signal-hook has no name for it.
const SIGPWR: i32 = Signal::POWER.as_raw();

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
/// it at once. With --ups clients are asked to move away while this machine is on battery, and a
/// low battery ends the lender. If the machine runs short of memory, what is free is returned to
/// it, then pages of programs under `netram run` and windows of journals are moved to other
/// lenders. It is lent again once there has been enough for a while.
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
    /// Leave the terminal: `netram init` started this process
    #[arg(long, hide = true)]
    detached: bool,
}

impl ServeLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        if self.detached {
            background::leave_terminal()?;
        }
        // It holds keys for as long as it runs.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("leaving the process out of core dumps")?;
        let file = self.config.as_deref().map(ServeSettings::read).transpose()?;
        let settings = self.settings.or(file.unwrap_or_default());
        let (grace, ups_grace, forget) = (settings.grace(), settings.ups_grace(), settings.forget());
        let ups = settings.ups()?;
        #[cfg(feature = "products")]
        let (data, limits) = (settings.data().map(Path::to_owned), settings.replica_limits()?);
        #[cfg(not(feature = "products"))]
        if settings.data().is_some() {
            let sentence = "this program was built for the demo and keeps no copies of volumes: build it with `make build`";
            return Err(UsageError(sentence.to_owned()).into());
        }
        // First of all: an address that is in use must change nothing.
        let page = settings.serve_metrics()?;
        let announce = settings.announce();
        let config = settings.config()?;
        let notice = announce.then(|| notice(&config)).transpose()?;
        // Before the lender starts: a signal in between must not end it without notice to its clients.
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGPWR]).context("waiting for signals")?;
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
        if let Some(page) = &page {
            output::announce(format_args!("metrics {}", page.address()));
        }
        let _announcement = notice.and_then(|notice| begin_announcement(notice, lender.addresses()));
        output::announce("ready");
        let watched = Arc::clone(&lender);
        let notifier = ServiceNotifier::ready(move || look(&watched));
        let served = PoweredLender::new((lender, notifier), grace, ups_grace, forget).serve(signals, ups);
        #[cfg(feature = "products")]
        if let Some(host) = host {
            host.stop();
        }
        served
    }
}

/// Returns whether the lender's threads serve, and what it lends.
fn look(lender: &Lender) -> ServiceLook {
    let report = lender.report_of_memory();
    let (lent, left) = (
        output::bytes(report.memory.offered.unwrap_or(report.memory.reserved)),
        report.left,
    );
    let held = match (left.windows, left.pages) {
        (0, 0) => "nothing of clients is here".to_owned(),
        (windows, 0) => format!(
            "{} with {} of clients",
            output::count(windows as u64, "window"),
            output::bytes(left.bytes)
        ),
        (windows, pages) => format!(
            "{} with {} and {} of clients",
            output::count(windows as u64, "window"),
            output::bytes(left.bytes),
            output::count(pages, "page")
        ),
    };
    ServiceLook {
        alive: lender.threads_answered(),
        sentence: Some(match report.draining {
            true => format!("drained, takes nothing new: {held}"),
            false => format!("lending {lent}: {held}"),
        }),
    }
}

/// Returns what the lender will say of itself, if it listens where others can reach it.
fn notice(config: &LenderConfig) -> Result<LenderNotice> {
    let ports = what_to_announce(&config.listen).map_err(|error| UsageError(error.to_string()))?;
    Ok(LenderNotice {
        name: config.name.clone(),
        domain: config.domain.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ports,
    })
}

/// Announces the lender at the addresses where it listens now. A lender that cannot is found by its address.
fn begin_announcement(notice: LenderNotice, listening: &[NetAddress]) -> Option<Announcement> {
    let ports = what_to_announce(listening).unwrap_or_default();
    match Announcement::begin(&LenderNotice { ports, ..notice }) {
        Ok(announcement) => Some(announcement),
        Err(error) => {
            tracing::warn!(%error, "the lender is not announced; clients find it by its address only");
            None
        }
    }
}

/// A lender that ends by signals, and with its UPS's battery.
struct PoweredLender {
    lender: Arc<Lender>,
    notifier: ServiceNotifier,
    grace: Duration,
    ups_grace: Duration,
    forget: bool,
    /// Threads that wait for the lender's end, and then for its disk.
    stopping: Mutex<Vec<JoinHandle<Result<()>>>>,
}

impl PoweredLender {
    fn new(
        (lender, notifier): (Arc<Lender>, ServiceNotifier),
        grace: Duration,
        ups_grace: Duration,
        forget: bool,
    ) -> Arc<PoweredLender> {
        Arc::new(PoweredLender {
            lender,
            notifier,
            grace,
            ups_grace,
            forget,
            stopping: Mutex::default(),
        })
    }

    /// Waits for signals and the UPS until the lender has stopped.
    fn serve(self: Arc<PoweredLender>, mut signals: Signals, ups: Option<UpsSource>) -> Result<ExitCode> {
        let handle = signals.handle();
        let waiting = {
            let lender = Arc::clone(&self.lender);
            let wait = move || {
                let stopped = lender.wait();
                handle.close();
                stopped
            };
            let thread = std::thread::Builder::new().name("netram-wait".into());
            thread.spawn(wait).context("starting a thread")?
        };
        // It is logged in until the lender has ended: so long upsd keeps the power on.
        let _monitor = ups.map(|ups| Arc::clone(&self).watch(ups)).transpose()?;
        let mut asked = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => told(self.notifier.reload(|| self.lender.reload_clients())),
                SIGPWR => self.on_power(
                    "the service manager",
                    &PowerStatus {
                        state: PowerState::LowBattery,
                        reason: Some(PowerReason::Signal),
                    },
                )?,
                _ if asked => {
                    tracing::warn!(
                        signal,
                        "second signal: stopping at once; the lent memory is kept for the next start of this boot"
                    );
                    return Ok(ExitCode::FAILURE);
                }
                _ => {
                    asked = true;
                    self.stop(self.grace)?;
                }
            }
        }
        for stopping in std::mem::take(&mut *self.stopping()) {
            stopping
                .join()
                .map_err(|_| anyhow::anyhow!("stopping the lender panicked"))??;
        }
        let stopped = waiting
            .join()
            .map_err(|_| anyhow::anyhow!("waiting for the lender panicked"))?;
        if stopped.failed {
            anyhow::bail!("a thread of the lender panicked; the log above says where");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn watch(self: Arc<PoweredLender>, ups: UpsSource) -> Result<UpsMonitor> {
        let name = ups.name.to_string();
        ups.watch(move |status| {
            if let Err(error) = self.on_power(&name, status) {
                tracing::error!(
                    error = format_args!("{error:#}"),
                    "the lender could not be stopped in good order"
                );
            }
        })
        .context("watching the UPS")
    }

    /// Handles what feeds the machine now.
    fn on_power(&self, ups: &str, status: &PowerStatus) -> Result<()> {
        self.lender.power(ups, status);
        match status.state {
            PowerState::LowBattery => self.stop(self.ups_grace),
            _ => Ok(()),
        }
    }

    /// Begins to stop the lender, or shortens the grace of a stop that has begun, which writes what is left.
    fn stop(&self, grace: Duration) -> Result<()> {
        let mut stopping = self.stopping();
        if stopping.is_empty() {
            let sentence = "clients move what they have here away; what is left is kept for the next start";
            self.notifier.stopping(sentence, StopPatience::Extend);
        }
        let (lender, forget, first) = (Arc::clone(&self.lender), self.forget, stopping.is_empty());
        let stop = move || match (first, forget) {
            (false, _) => {
                lender.stop(grace);
                Ok(())
            }
            (true, true) => {
                lender.stop_and_give_back(grace);
                Ok(())
            }
            (true, false) => lender
                .stop_and_spill(grace)
                .map(drop)
                .context("the windows that are left are in this machine's memory only"),
        };
        match std::thread::Builder::new().spawn(stop.clone()) {
            Ok(thread) => stopping.push(thread),
            // If no thread can be started, a second signal is not noticed.
            Err(_) => stop()?,
        }
        Ok(())
    }

    fn stopping(&self) -> MutexGuard<'_, Vec<JoinHandle<Result<()>>>> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
