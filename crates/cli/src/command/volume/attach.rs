//! `netram volume attach`: the supervisor in the foreground, or a process in the background that is one.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use netram_attach::{AttachMethod, AttachRecord, AttachRequest, NameClaim, ServerListener, name_of};
use netram_process::rights::user_named;
use netram_volume::control::{VolumeReply, VolumeRequest};
use netram_volume::{VolumePaths, ask};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::device_supervisor::{DeviceSupervisor, GIVE_UP, ServerSupply};
use super::server::VolumeServerPart;
use super::{absolute, need_root, registry};
use crate::background::{self, SELF};
use crate::options::DurationArg;
use crate::output;
use crate::ups::UpsArgs;

/// How long a server may take to end after it was killed or lost its last user.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks whether a server has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long lenders may take to join before it is reported that writes wait for the disk.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(3);

/// Give a volume a block device on this machine
///
/// Needs root. Returns when the device is ready: /dev/netram/NAME, which leads to /dev/ublkbN,
/// /dev/nbdN or /dev/loopN. A process in the background serves it until `netram volume detach`;
/// its log is /run/netram-volume/NAME/log. With --foreground the command itself is that process.
///
/// Flushes and forced writes of a file system reach the volume. If the serving process dies,
/// another takes its place while the file system waits (with fuse since Linux 6.9). If that
/// fails, the device gives errors: unmount it, attach the volume again, mount it. Nothing that
/// was flushed is lost.
///
///   netram volume attach /var/lib/netram/db
///   mkfs.ext4 /dev/netram/db && mount /dev/netram/db /srv/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AttachVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Name of the device [default: the name of the volume's directory]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Bytes of a logical block: 4096, or 512 for programs that need it, at some cost in speed
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = block_bytes())]
    block_size: u32,
    #[command(flatten)]
    ups: UpsArgs,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Driver by which the kernel reaches the volume: ublk, nbd, or fuse (a file with a loop device
    /// on it) [default: the first of these that is loaded]
    #[arg(long, value_name = "WAY", value_parser = attach_methods())]
    way: Option<AttachMethod>,
    /// How many times a serving process that died is replaced within ten minutes; then the device
    /// gives errors
    #[arg(long, value_name = "COUNT", default_value = "8")]
    restarts: u8,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: as in the
    /// settings, or 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// How long the serving process may make no progress before it is killed and replaced; 0s: for
    /// ever. Waiting for its disk or for lenders does not count
    #[arg(long, value_name = "TIME", default_value = "30s")]
    hung_after: DurationArg,
    /// Stay in the foreground, as for systemd; SIGTERM detaches as soon as the device is not in use
    #[arg(long)]
    foreground: bool,
    /// Start no serving process and open no file of the volume: wait for this user's `netram volume
    /// serve --for-device`, which needs no rights. With fuse only
    #[arg(long, value_name = "USER", requires = "foreground")]
    server_user: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the process in the background
    #[arg(long, hide = true)]
    detached: bool,
}

fn block_bytes() -> impl clap::builder::TypedValueParser<Value = u32> {
    PossibleValuesParser::new(["512", "4096"]).try_map(|text| text.parse::<u32>())
}

fn attach_methods() -> impl clap::builder::TypedValueParser<Value = AttachMethod> {
    PossibleValuesParser::new(["ublk", "nbd", "fuse"]).try_map(|text| text.parse::<AttachMethod>())
}

impl AttachVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        need_root("attaching a volume")?;
        let volume = match &self.server_user {
            None => absolute(&self.volume)?,
            // The volume is the user's, and root does not look there. The path only names it.
            Some(_) => std::path::absolute(&self.volume)?,
        };
        if self.server_user.is_none() && !VolumePaths::at(&volume).exists() {
            bail!(
                "{} is not a volume; name the directory that `netram volume create` made",
                volume.display()
            );
        }
        let name = self.name.clone().unwrap_or_else(|| name_of(&volume));
        match self.foreground {
            true => self.supervise(volume, &name),
            false => self.start(&volume, &name),
        }
    }

    /// Starts a supervisor in the background, and waits until it is ready.
    fn start(self, volume: &Path, name: &str) -> Result<ExitCode> {
        let registry = registry();
        // A name that is taken is refused here; the supervisor claims it itself.
        drop(registry.claim(name, volume)?);
        let mut command = Command::new(SELF);
        command
            .args(["volume", "attach", "--foreground", "--detached", "--name", name])
            .args(["--block-size", &self.block_size.to_string()])
            .args(["--restarts", &self.restarts.to_string()])
            .args([
                "--hung-after",
                &humantime::format_duration(self.hung_after.0).to_string(),
            ])
            .args(self.read_only.then_some("--read-only"))
            .args(self.ups.arguments())
            .args(self.patience.iter().flat_map(|time| {
                [
                    "--patience".to_owned(),
                    humantime::format_duration(time.0).to_string(),
                ]
            }))
            .args(
                self.way
                    .iter()
                    .flat_map(|way| ["--way".to_owned(), way.to_string()]),
            )
            .arg(volume);
        background::start(command, &registry.log(name))?;
        let entry = registry.find(volume)?.filter(|entry| entry.alive);
        let record = entry.context("it ended at once; the log has more")?.record;
        self.tell(&record)?;
        remark_waiting(volume);
        Ok(ExitCode::SUCCESS)
    }

    fn tell(&self, record: &AttachRecord) -> Result<()> {
        match self.json {
            true => output::json(record),
            false => output::line(format_args!(
                "{} ({})",
                record.link.display(),
                record.device.display()
            )),
        }
    }

    /// Attaches the volume, and looks after its server until a signal asks for the end.
    fn supervise(self, volume: PathBuf, name: &str) -> Result<ExitCode> {
        if self.detached {
            background::leave_terminal()?;
        }
        let registry = registry();
        let claim = registry.claim(name, &volume)?;
        if let Some(stale) = &claim.stale {
            remark_stale(stale, &volume)?;
        }
        for stale in registry.stale(&volume)? {
            // The name may have another attachment by now, which has a supervisor.
            if stale.name != name {
                remark_stale(&stale, &volume)?;
                registry.forget(&stale.name)?;
            }
        }
        let method = self.method()?;
        let request = AttachRequest {
            volume: volume.clone(),
            block_bytes: self.block_size,
            read_only: self.read_only,
            method,
            restart: self.restarts > 0,
            hung_after: Some(self.hung_after.0).filter(|time| !time.is_zero()),
        };
        let servers = self.servers(&claim, volume, method)?;
        let what = || format!("attaching {}", self.volume.display());
        let attached = netram_attach::attach(claim, &request, servers.next()).with_context(what)?;
        // Not earlier: until here a signal ends this process, and with it what it has begun.
        let signals = Signals::new([SIGTERM, SIGINT, GIVE_UP, SIGCHLD]).context("waiting for signals")?;
        self.tell(attached.record())?;
        background::ready()?;
        let watch = DeviceSupervisor::new(servers, signals, self.restarts)?;
        watch.run(attached)
    }

    fn method(&self) -> Result<AttachMethod> {
        match (self.way, &self.server_user) {
            (way, None) => Ok(way.unwrap_or_else(AttachMethod::best)),
            (None | Some(AttachMethod::Fuse), Some(_)) => Ok(AttachMethod::Fuse),
            (Some(way), Some(_)) => bail!(
                "with --way {way} the serving process needs root; leave out --server-user, or use --way fuse"
            ),
        }
    }

    fn servers(&self, claim: &NameClaim, volume: PathBuf, method: AttachMethod) -> Result<ServerSupply> {
        let Some(user) = &self.server_user else {
            let (patience, ups) = (self.patience, self.ups.clone());
            let role = VolumeServerPart::of(volume, method, self.read_only, patience, ups).role()?;
            return Ok(ServerSupply::Part(role));
        };
        let found = user_named(user).with_context(|| format!("looking for the user {user}"))?;
        let (user, group) = found.with_context(|| format!("the system knows no user {user}"))?;
        let listener = ServerListener::bind(claim.server_socket(), user, group)
            .context("making the socket for the serving process")?;
        tracing::info!(socket = %listener.path().display(), "waiting for the serving process");
        Ok(ServerSupply::Connected(listener))
    }
}

/// Clears what a supervisor left behind when it was killed. The record stays while its server lives: if that
/// is killed too, only the record says which device must fail.
fn remark_stale(stale: &AttachRecord, volume: &Path) -> Result<()> {
    let deadline = Instant::now() + SERVER_END_TIMEOUT;
    while stale.server.is_alive() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
    if stale.server.is_alive() {
        if stale.volume != volume {
            bail!(
                "the name {} belongs to {}, which is served until {} is not in use any more; give another name with --name",
                stale.name,
                stale.volume.display(),
                stale.device.display()
            );
        }
        bail!(
            "{} is served until {} is not in use any more: its supervisor was killed, and its server goes on",
            stale.volume.display(),
            stale.device.display()
        );
    }
    output::remark(format_args!(
        "the process that served {} was killed; its record is replaced",
        stale.device.display()
    ));
    // Asked first: once it fails, a ublk device is gone, even if it is mounted.
    let users = netram_attach::users(&stale.device);
    netram_attach::fail(stale)?;
    for user in users {
        output::remark(format_args!(
            "{} is still {user}, and gives errors only",
            stale.device.display()
        ));
    }
    Ok(())
}

/// Says why writes wait for the disk, if the volume has lenders and they do not count.
fn remark_waiting(volume: &Path) {
    let place = VolumePaths::at(volume);
    let deadline = Instant::now() + MEMBERS_PATIENCE;
    loop {
        let asked = ask(&place, &VolumeRequest::Status, &mut |_| ());
        let Ok(Some(VolumeReply::Status(report))) = asked else {
            return;
        };
        let Some(why) = report.journal.blocked.filter(|_| !report.lenders.is_empty()) else {
            return;
        };
        if Instant::now() > deadline {
            return output::remark(format_args!("writes wait for the disk: {why}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
