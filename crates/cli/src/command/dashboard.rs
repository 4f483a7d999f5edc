//! `netram dashboard`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_telemetry::MetricsAddress;
use netram_watch::site::{DashboardError, DashboardServer, SiteToken};
use netram_watch::source::PageTarget;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::watching::WatchArgs;
use crate::notify::{ServiceLook, ServiceNotifier, StopPatience};
use crate::options::UsageError;
use crate::{output, signals};

/// Maximum time of the own server to answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// Serve a page that shows the cluster: what needs a person, what is at risk, and all the rest
///
/// Lenders are found as `netram status` finds them, and journals that are open on this machine by
/// their processes: yours, or all of them if you are root. Journals of other machines are shown
/// if you name the pages of metrics of their processes. Nothing can be changed on the page.
///
/// The page shows addresses, paths and sizes, and no data. Beyond this machine it needs a token,
/// which the browser asks for once. There is no TLS: put a proxy with TLS in front of it, or reach
/// it through a tunnel.
///
///   netram dashboard                                  # then open http://127.0.0.1:7480/
///   netram dashboard --scrape db1:9465 --scrape db2:9465
///
///   (umask 077; openssl rand -hex 24 > token)
///   netram dashboard --listen 0.0.0.0:7480 --token-file token
///
/// Runs in the foreground until SIGTERM or SIGINT. It serves its own /metrics and /health.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ServeDashboard {
    /// Where the page is served: IP:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7480")]
    listen: MetricsAddress,
    /// File with the token, which only you can read
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    watch: WatchArgs,
}

impl ServeDashboard {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut ends = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        signals::take_meaningless()?;
        let token = self.token_file.as_deref().map(SiteToken::read).transpose()?;
        let collector = self.watch.collector()?;
        let server = DashboardServer::start(&self.listen, token, collector).map_err(|error| match error {
            DashboardError::NeedsToken(_) => UsageError(error.to_string()).into(),
            error => anyhow::Error::from(error),
        })?;
        output::announce(match server.address() {
            MetricsAddress::Tcp(address) => format!("the dashboard is at http://{address}/"),
            MetricsAddress::Unix(path) => format!("the dashboard is at unix:{}", path.display()),
        });
        let page = page_of(server.address());
        let notifier = ServiceNotifier::ready(move || look(&page));
        ends.forever().next();
        notifier.stopping("the page is taken away", StopPatience::AsConfigured);
        Ok(ExitCode::SUCCESS)
    }
}

/// Where this process reaches its own server.
fn page_of(address: &MetricsAddress) -> PageTarget {
    match address {
        MetricsAddress::Unix(path) => PageTarget::Unix(path.clone()),
        MetricsAddress::Tcp(address) => {
            let ip = match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                ip => ip,
            };
            PageTarget::Tcp {
                host: SocketAddr::new(ip, address.port()).to_string(),
                path: "/health".to_owned(),
            }
        }
    }
}

/// Returns whether the thread that serves answers. That of a socket with a token answers with a refusal.
fn look(page: &PageTarget) -> ServiceLook {
    let alive = match page.fetch(LOOK_PATIENCE) {
        Ok(_) => true,
        Err(why) => why.starts_with("it answers"),
    };
    ServiceLook {
        alive,
        sentence: alive.then(|| "serving the dashboard".to_owned()),
    }
}
