//! `netram shared serve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use netram_clients::ClientRegistry;
use netram_shared::limit::{LEASE_DEFAULT, RECENT_BYTES_DEFAULT};
use netram_shared::server::{ServeConfig, ServingRegion};
use netram_telemetry::{MetricsAddress, MetricsServer};
use netram_transport::{MulticastGroup, NetAddress, WaitPolicy};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::clients::told;
use crate::notify::{ServiceLook, ServiceNotifier, StopPatience};
use crate::options::{DurationArg, SecurityArgs, SizeArg, default_address};
use crate::output;

/// Port of a server that was not told another one.
const PORT_DEFAULT: u16 = 7440;

/// Serve a shared region to its nodes
///
/// Runs in the foreground until SIGTERM or SIGINT. The server hands out locks, orders the nodes'
/// commits, and brings these to its disk and to the other nodes. Only one process can serve a
/// region. After its end, also by a crash, nodes go on with the next one if it starts within one
/// lease; everything acknowledged is there.
///
/// The key is the cluster key, which nodes and lenders have too; with --clients nodes have keys of
/// their own, all nodes of a region the same. Standard output has a line
/// `listening ADDRESS` for each address, then `ready`; logs go to standard error.
///
///   netram shared serve /var/lib/netram/plan
///   netram shared serve plan --listen unix:/run/plan.sock --insecure
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ServeRegion {
    /// The region's directory
    region: PathBuf,
    /// Address to listen on: tcp://HOST:PORT or unix:/PATH; repeat it for several
    /// [default: tcp://0.0.0.0:7440; with --insecure tcp://127.0.0.1:7440]
    #[arg(long, value_name = "ADDRESS", env = "NETRAM_LISTEN", value_delimiter = ',')]
    listen: Vec<NetAddress>,
    #[command(flatten)]
    security: SecurityArgs,
    /// File of named clients, each with keys and rights of its own, in place of the cluster key on the
    /// links of nodes; made by `netram key add`, and read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "NETRAM_CLIENTS")]
    clients: Option<PathBuf>,
    /// How long a node may be silent before others get its locks: 200ms to 10m [default: 2s]
    #[arg(long, value_name = "TIME")]
    lease: Option<DurationArg>,
    /// Bytes of recent commits that are kept for nodes that fall behind; a node that is further behind
    /// gets the whole region again
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(RECENT_BYTES_DEFAULT as u64))]
    recent: SizeArg,
    /// Multicast group by which nodes send commits to each other: 239.1.2.3:7441, or
    /// 239.1.2.3:7441%eth1 [default: none; they use connections]
    #[arg(long, value_name = "GROUP")]
    multicast: Option<MulticastGroup>,
    /// Serve metrics for Prometheus here: IP:PORT or unix:/PATH, open to anyone who reaches it
    #[arg(long, value_name = "ADDRESS", env = "NETRAM_METRICS")]
    metrics: Option<MetricsAddress>,
    /// How the serving thread waits for work: spin (for dedicated cores only), yield:MICROSECONDS, or
    /// block
    #[arg(long, value_name = "POLICY", default_value_t = WaitPolicy::default(), env = "NETRAM_WAIT")]
    wait: WaitPolicy,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

impl ServeRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        // It holds keys for as long as it runs.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("leaving the process out of core dumps")?;
        let security = self.security.security()?;
        let clients = self.clients.as_deref().map(ClientRegistry::read).transpose()?;
        let clients = clients.map(Arc::new);
        let listen = match self.listen.is_empty() {
            true => vec![default_address(&security, self.clients.is_some(), PORT_DEFAULT)],
            false => self.listen,
        };
        let config = ServeConfig {
            lease: self.lease.map_or(LEASE_DEFAULT, |span| span.0),
            wait: self.wait,
            multicast: self.multicast,
            clients,
            recent_bytes: usize::try_from(self.recent.0)?,
            ..ServeConfig::new(listen, security)
        };
        // An address that cannot be had changes nothing.
        let _page = self.metrics.as_ref().map(MetricsServer::shared).transpose()?;
        // Before the first node: a signal in between must not end this without closing the region.
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("waiting for signals")?;
        let what = || format!("serving {}", self.region.display());
        let serving = Arc::new(ServingRegion::start(&self.region, config).with_context(what)?);
        for address in serving.addresses() {
            output::announce(format_args!("listening {address}"));
        }
        output::announce("ready");
        let watched = Arc::clone(&serving);
        let notifier = ServiceNotifier::ready(move || look(&watched));
        until_signalled(&serving, &notifier, signals)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns whether the serving thread answers, and what it does.
fn look(serving: &ServingRegion) -> ServiceLook {
    let report = serving.report();
    let sentence = report.as_ref().map(|report| {
        let nodes = output::count(report.nodes.len() as u64, "node");
        let stuck = report.nodes.iter().filter(|node| node.stuck.is_some()).count() as u64;
        match stuck {
            0 => format!("serving {nodes}"),
            stuck => format!(
                "serving {nodes}; {} to be recovered: see `netram shared status`",
                output::count(stuck, "dead one")
            ),
        }
    });
    ServiceLook {
        alive: report.is_some(),
        sentence,
    }
}

/// Waits for a signal, or for the end of the server.
fn until_signalled(
    serving: &Arc<ServingRegion>,
    notifier: &ServiceNotifier,
    mut signals: Signals,
) -> Result<()> {
    let handle = signals.handle();
    let waiting = {
        let serving = Arc::clone(serving);
        std::thread::Builder::new()
            .name("netram-wait".to_owned())
            .spawn(move || {
                let ended = serving.wait();
                handle.close();
                ended
            })?
    };
    for signal in signals.forever() {
        if signal != SIGHUP {
            notifier.stopping("what nodes have committed goes to the disk", StopPatience::Extend);
            serving.stop();
            break;
        }
        told(notifier.reload(|| serving.reload_clients()));
    }
    let ended = waiting.join();
    Ok(ended.map_err(|_| anyhow::anyhow!("waiting for the server panicked"))??)
}
