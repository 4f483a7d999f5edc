//! `netram-csi`: volumes of netram for Kubernetes, by the Container Storage Interface, and for Docker and
//! Podman, as a volume plugin.
//!
//! Both drive the program `netram`, as a person would. A volume's server is a process that this program has
//! no part in: it goes on when this program ends, is replaced, or is killed.
#![forbid(unsafe_code)]

mod class;
mod csi;
mod docker;
mod file_system;
mod host;
mod metrics;
mod mount_table;
mod node;
mod pending;
mod record;
mod refusal;
mod socket;
mod volume_id;
mod volumes;

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use netram_telemetry::{MetricsAddress, MetricsServer};

use crate::csi::CsiDriver;
use crate::docker::DockerPlugin;
use crate::host::HostMachine;
use crate::metrics::DriverMetrics;
use crate::node::VolumeNode;
use crate::pending::PendingRequests;
use crate::socket::DriverSocket;
use crate::volumes::VolumeDirectory;

/// How long requests may take that are being carried out when this process is to end.
const GRACE: Duration = Duration::from_secs(5);

/// A future that ends when the process is to end.
type BoxedStop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Volumes of netram for Kubernetes, Docker and Podman
///
/// Needs root, and the program `netram`. A volume's server is a process of its own: it goes on while this
/// program is replaced or killed, and so does every container that uses the volume.
#[derive(Debug, Parser)]
#[command(name = "netram-csi", version)]
struct DriverProgram {
    #[command(subcommand)]
    command: DriverCommand,
}

#[derive(Debug, Subcommand)]
enum DriverCommand {
    /// Serve Kubernetes: the Container Storage Interface, for the volumes of this machine
    Serve {
        /// Socket to listen at, as unix:///csi/csi.sock
        #[arg(long, value_name = "SOCKET", env = "CSI_ENDPOINT")]
        endpoint: String,
        /// Name of this machine in the cluster
        #[arg(long, value_name = "NAME", env = "NODE_ID")]
        node_id: String,
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// Serve Docker and Podman as a volume plugin
    Docker {
        /// Socket to listen at; its name is the driver's
        #[arg(
            long,
            value_name = "SOCKET",
            default_value = "/run/docker/plugins/netram.sock"
        )]
        socket: String,
        #[command(flatten)]
        machine: MachineArgs,
    },
}

#[derive(Debug, Args)]
struct MachineArgs {
    /// Directory with the volumes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/netram/volumes")]
    directory: PathBuf,
    /// The program `netram`, of the same version
    #[arg(long, value_name = "FILE", default_value = "netram")]
    netram: PathBuf,
    /// This program is in a container: reach the machine's programs, files and mounts through process
    /// 1. Needs the machine's process ids, a privileged container, and systemd on the machine
    #[arg(long)]
    in_container: bool,
    /// Directory for recovery keys of volumes with a data lender; it must be kept elsewhere too
    #[arg(long, value_name = "DIR")]
    recovery_keys: Option<PathBuf>,
    /// Serve the driver's metrics for Prometheus here: IP:PORT or unix:/PATH, open to anyone who reaches
    /// it. A volume's server serves its own, as `metrics` in the volume's settings says
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
}

impl MachineArgs {
    fn serve_metrics(&self) -> Result<Option<Arc<MetricsServer>>> {
        Ok(self.metrics.as_ref().map(MetricsServer::shared).transpose()?)
    }

    fn open(self) -> Result<VolumeNode> {
        let directory = std::path::absolute(&self.directory)?;
        let host = HostMachine::new(self.netram, self.in_container);
        let opened = VolumeDirectory::open(host, directory, self.recovery_keys);
        Ok(VolumeNode {
            volumes: opened.context("opening the directory with the volumes")?,
            pending: PendingRequests::default(),
            metrics: Arc::new(DriverMetrics::register()),
        })
    }
}

fn main() -> ExitCode {
    let program = DriverProgram::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    match run(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: DriverProgram) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("netram-csi needs root, because it makes and mounts block devices");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    match program.command {
        DriverCommand::Serve {
            endpoint,
            node_id,
            machine,
        } => {
            let _page = machine.serve_metrics()?;
            let node = machine.open()?;
            let _lock = node.volumes.records.lock()?;
            let (_socket, listener) = DriverSocket::listen(&endpoint)?;
            tracing::info!(endpoint, node_id, "serving");
            runtime.block_on(serve(listener, |listener, stopped| {
                CsiDriver::new(node, &node_id).serve(listener, stopped)
            }))?;
        }
        DriverCommand::Docker { socket, machine } => {
            let _page = machine.serve_metrics()?;
            let node = machine.open()?;
            let _lock = node.volumes.records.lock()?;
            let plugin = DockerPlugin::new(node)?;
            let (_socket, listener) = DriverSocket::listen(&socket)?;
            tracing::info!(socket, "serving");
            runtime.block_on(serve(listener, |listener, stopped| {
                plugin.serve(listener, stopped)
            }))?;
        }
    }
    // What is still carried out is repeated by whoever asked for it.
    runtime.shutdown_background();
    Ok(())
}

/// Serves until SIGTERM or SIGINT, and then until requests are answered, or for [`GRACE`]: a client that
/// keeps its connection open does not keep this process.
async fn serve<S: Future<Output = std::io::Result<()>>>(
    listener: std::os::unix::net::UnixListener,
    begin: impl FnOnce(tokio::net::UnixListener, BoxedStop) -> S,
) -> std::io::Result<()> {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let served = begin(listener, Box::pin(async { drop(told.await) }));
    let overdue = async {
        stop()?.await;
        // The server may have ended.
        let _ = tell.send(());
        tokio::time::sleep(GRACE).await;
        Ok(())
    };
    tokio::select! {
        ended = served => ended,
        ended = overdue => ended,
    }
}

/// Returns what ends with the first SIGTERM or SIGINT.
fn stop() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(poll_fn(move |context| {
        let ended = terminate.poll_recv(context).is_ready() || interrupt.poll_recv(context).is_ready();
        if ended { Poll::Ready(()) } else { Poll::Pending }
    }))
}
