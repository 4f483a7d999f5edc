//! `netram volume serve`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_nbd::{NbdExport, NbdServer, NbdServerConfig, TlsFiles, TlsKeys, TlsMode};
use netram_transport::NetAddress;
use netram_vhost::{VhostServer, VhostServerConfig};
use netram_volume::{BlockDevice, Volume, VolumeControl, VolumePaths};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::front_end::FrontEnd;
use super::opener::start_control;
use super::{absolute, device_server, refuse_attached};
use crate::notify::{ServiceLook, ServiceNotifier, StopPatience, commit_state};
use crate::options::DurationArg;
use crate::output;
use crate::ups::UpsArgs;

/// Serve a volume to network block device (NBD) clients, or to a virtual machine
///
/// Runs in the foreground until SIGTERM, and then answers what was asked and closes the volume.
/// Standard output has a line `listening ADDRESS` for each address, then `ready`. Other machines
/// may connect with TLS only, unless --insecure is given.
///
///   netram volume serve /var/lib/netram/db --listen unix:/run/db.nbd
///   nbdinfo 'nbd+unix:///?socket=/run/db.nbd'
///   netram volume serve db --listen tcp://0.0.0.0:10809 --tls /etc/pki/nbd
///
/// With --vhost-user a virtual machine on this machine has the volume as a disk (vhost-user-blk),
/// without a copy through a socket. Its memory must be shared. QEMU waits while this command is
/// restarted, and nothing is lost:
///
///   netram volume serve db --vhost-user /run/netram/db.vhost
///   qemu-system-x86_64 -m 4G -object memory-backend-memfd,id=m,size=4G,share=on \
///     -machine memory-backend=m -chardev socket,id=d,path=/run/netram/db.vhost,reconnect=1 \
///     -device vhost-user-blk-pci,chardev=d ...
///
/// With --for-device it serves no client, but the block device that root's `netram volume attach
/// --server-user` makes, and needs no rights for it.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ServeVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Address to listen on: unix:/PATH or tcp://HOST:PORT; repeat it for several
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["for_device", "vhost_user"])]
    listen: Vec<NetAddress>,
    /// Unix socket to which one virtual machine's process connects (vhost-user-blk)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "for_device", "tls", "insecure"])]
    vhost_user: Option<PathBuf>,
    /// Serve the block device of this name, not clients [default name: as for --name]
    #[arg(
        long,
        conflicts_with_all = ["listen", "read_only", "tls", "insecure", "other_users"]
    )]
    for_device: bool,
    /// Name by which clients ask for it; the empty name works too [default: the name of the
    /// volume's directory]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: as in the
    /// settings, or 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    #[command(flatten)]
    ups: UpsArgs,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Require TLS, with the files ca-cert.pem, server-cert.pem and server-key.pem in this directory,
    /// and ca-crl.pem if certificates were revoked. SIGHUP reads them again and ends the sessions of
    /// clients that they no longer admit
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Exports that each client may open: lines of a DNS name or common name in its certificate, and
    /// export names, or * for all [default: every certificate opens every export]
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_clients: Option<PathBuf>,
    /// Let other machines read and change everything without TLS
    #[arg(long, conflicts_with = "tls")]
    insecure: bool,
    /// Let other users of this machine connect to Unix sockets, if the directory's permissions do
    #[arg(long)]
    other_users: bool,
    /// This process was marked as an I/O flusher before it gave up the right to be
    #[arg(long, hide = true, requires = "for_device")]
    marked: bool,
}

impl ServeVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        if self.for_device {
            let name = self.name.unwrap_or_else(|| netram_attach::name_of(&path));
            let patience = self.patience.map(|time| time.0);
            return device_server::run(&path, &name, (patience, &self.ups), self.marked);
        }
        netram_process::hide_memory().context("leaving the process out of core dumps")?;
        refuse_attached(&path)?;
        let files = self.tls.as_deref().map(|directory| TlsFiles {
            clients: self.tls_clients.clone(),
            ..TlsFiles::in_directory(directory)
        });
        let keys = files.as_ref().map(TlsKeys::load).transpose()?;
        let ups = self.ups.source()?;
        let what = || format!("serving {}", self.volume.display());
        let mut settings = VolumePaths::at(&path).settings().with_context(what)?;
        settings.journal.patience = self.patience.map(|time| time.0).or(settings.journal.patience);
        let (volume, _) = Volume::open_with(&path, &settings).with_context(what)?;
        if let Some(ups) = &ups {
            volume.journal().watch_ups(ups).context("watching the UPS")?;
        }
        let volume = Arc::new(volume);
        // Before the first client: a signal in between must not end this without closing the volume.
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("waiting for signals")?;
        let device: Arc<dyn BlockDevice> = Arc::<Volume>::clone(&volume);
        let server = Arc::new(self.front_end(&path, device, keys.zip(files))?);
        let control = control(&volume, &server);
        for address in server.addresses() {
            output::announce(format_args!("listening {address}"));
        }
        output::announce("ready");
        let notifier = notify(&volume);
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            notifier.reload(|| server.reload());
        }
        notifier.stopping(STOPPING, StopPatience::Extend);
        drop(control);
        let left = Arc::into_inner(server).map_or(0, FrontEnd::stop);
        match Arc::into_inner(volume) {
            Some(volume) => volume.close()?,
            None => bail!(
                "{} for the volume; the next opening recovers it",
                output::counted(left as u64, "connection still waits", "connections still wait")
            ),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Starts the server that was asked for.
    fn front_end(
        self,
        path: &Path,
        device: Arc<dyn BlockDevice>,
        tls: Option<(TlsKeys, TlsFiles)>,
    ) -> Result<FrontEnd> {
        let name = self.name.unwrap_or_else(|| netram_attach::name_of(path));
        if let Some(socket) = self.vhost_user {
            let server = VhostServer::start(VhostServerConfig {
                socket: std::path::absolute(&socket).context("finding the current directory")?,
                device,
                name,
                read_only: self.read_only,
                other_users: self.other_users,
            })?;
            return Ok(FrontEnd::Vhost(server));
        }
        let (keys, files) = tls.unzip();
        let server = NbdServer::start(NbdServerConfig {
            listen: self.listen,
            exports: vec![NbdExport {
                name,
                description: String::new(),
                device,
                read_only: self.read_only,
            }],
            tls: keys.map_or(TlsMode::Off, TlsMode::Require),
            insecure: self.insecure,
            other_users: self.other_users,
        })?;
        Ok(FrontEnd::Nbd(server, files))
    }
}

/// Sentence of a volume's server that ends.
pub(super) const STOPPING: &str = "what was written goes to the volume's image";

/// Returns whether requests could get the volume's locks, and what they wait for.
fn look(volume: &Volume) -> ServiceLook {
    volume.probe();
    ServiceLook {
        alive: true,
        sentence: Some(commit_state(&volume.journal().status())),
    }
}

/// Begins to tell the service manager of a volume.
pub(super) fn notify(volume: &Arc<Volume>) -> ServiceNotifier {
    let watched = Arc::clone(volume);
    ServiceNotifier::ready(move || look(&watched))
}

/// Lets other commands ask this process about the volume; it is served even if that fails.
fn control(volume: &Arc<Volume>, server: &Arc<FrontEnd>) -> Option<VolumeControl> {
    let server = Arc::clone(server);
    start_control(volume, move || Some(server.status()))
}
