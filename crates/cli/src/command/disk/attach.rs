//! `netram disk attach`: the supervisor in the foreground, or a process in the background that is one.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use netram_attach::{Attached, Going, Record, Release, Request, User, Way, name_of};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::server::Server;
use super::{absolute, need_root, registry};
use crate::output;

/// The program that runs. Not `current_exe`: an upgraded program has another file there.
const SELF: &str = "/proc/self/exe";
/// The last thing that a supervisor says before it only watches.
const READY: &str = "ready";
/// How often a device that is to go is tried again while it is mounted.
const RETRY: Duration = Duration::from_millis(200);
const WATCH: Duration = Duration::from_millis(20);
/// Servers that may die in so much time before the device is given up.
const RESTARTS_MAX: usize = 8;
const RESTARTS_SPAN: Duration = Duration::from_secs(600);

/// Give a volume a block device on this machine
///
/// Needs root. The device is /dev/nbdN or /dev/loopN, and /dev/netram/NAME leads
/// to it each time. A process in the background serves it until `netram disk detach`; what
/// it says is in /run/netram-disk/NAME/log.
///
/// A flush of a file system arrives at the volume, and so does a forced write.
/// When the serving process dies, nothing that was flushed is missing. By way of
/// nbd another takes over and the file system waits; otherwise the device gives
/// errors: unmount, attach again, mount.
///
///   netram disk attach /var/lib/netram/db
///   mkfs.ext4 /dev/netram/db && mount /dev/netram/db /srv/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Attach {
    /// The volume's directory
    volume: PathBuf,
    /// What the device is called; by default as the volume's directory
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Bytes of a logical block. With 4096 no write changes half a block, which would have to be read first
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = block_bytes())]
    block_size: u32,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// How the kernel reaches the volume: `nbd`, its own client, or `fuse`, a file with a loop device on it.
    /// By default nbd if its driver is loaded
    #[arg(long, value_name = "WAY", value_parser = ways())]
    way: Option<Way>,
    /// Stay in the foreground, as systemd wants it. SIGTERM detaches as soon as the device is not in use
    #[arg(long)]
    foreground: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    detached: bool,
}

fn block_bytes() -> impl clap::builder::TypedValueParser<Value = u32> {
    PossibleValuesParser::new(["512", "4096"]).try_map(|text| text.parse::<u32>())
}

fn ways() -> impl clap::builder::TypedValueParser<Value = Way> {
    PossibleValuesParser::new(["nbd", "fuse"]).try_map(|text| text.parse::<Way>())
}

impl Attach {
    pub(super) fn run(self) -> Result<ExitCode> {
        need_root("attaching a volume")?;
        let volume = absolute(&self.volume)?;
        let name = self.name.clone().unwrap_or_else(|| name_of(&volume));
        match self.foreground {
            true => self.supervise(volume, &name),
            false => self.start(&volume, &name),
        }
    }

    /// Starts a supervisor in the background, and waits until it is ready.
    fn start(self, volume: &Path, name: &str) -> Result<ExitCode> {
        let registry = registry();
        // Whoever cannot have the name learns it here; the supervisor takes it itself.
        drop(registry.claim(name, volume)?);
        let path = registry.log(name);
        let mut log = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("opening the log {}", path.display()))?;
        let before = log.seek(SeekFrom::End(0))?;
        let mut command = Command::new(SELF);
        command
            .args(["disk", "attach", "--foreground", "--detached", "--name", name])
            .args(["--block-size", &self.block_size.to_string()])
            .args(self.read_only.then_some("--read-only"))
            .args(
                self.way
                    .iter()
                    .flat_map(|way| ["--way".to_owned(), way.to_string()]),
            )
            .arg(volume);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?);
        let mut supervisor = command
            .spawn()
            .context("starting the process in the background")?;
        let output = supervisor.stdout.take().context("its output is a pipe")?;
        let ready = BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .any(|line| line == READY);
        if !ready {
            let status = supervisor.wait()?;
            log.seek(SeekFrom::Start(before))?;
            let mut said = String::new();
            log.read_to_string(&mut said)?;
            let reason = said.lines().rev().find_map(|line| line.strip_prefix("netram: "));
            bail!(match reason {
                Some(reason) => reason.to_owned(),
                None => format!("it ended ({status}); {} says more", path.display()),
            });
        }
        let entry = registry.find(volume)?.filter(|entry| entry.alive);
        let record = entry.context("it ended at once; the log says more")?.record;
        self.tell(&record)?;
        Ok(ExitCode::SUCCESS)
    }

    fn tell(&self, record: &Record) -> Result<()> {
        match self.json {
            true => output::json(record),
            false => output::line(format_args!(
                "{} ({})",
                record.link.display(),
                record.device.display()
            )),
        }
    }

    /// Attaches, and looks after it until it is told to stop.
    fn supervise(self, volume: PathBuf, name: &str) -> Result<ExitCode> {
        if self.detached {
            rustix::process::setsid().context("leaving the terminal")?;
            std::env::set_current_dir("/").context("leaving the directory")?;
        }
        let claim = registry().claim(name, &volume)?;
        if let Some(stale) = &claim.stale {
            remark_stale(stale)?;
        }
        let request = Request {
            volume: volume.clone(),
            block_bytes: self.block_size,
            read_only: self.read_only,
            way: self.way.unwrap_or_else(Way::best),
        };
        let role = Server::of(volume, request.way, self.read_only).role()?;
        let server = || {
            let mut server = Command::new(SELF);
            server.args([netram_bench::child::PLAY, &role]);
            server
        };
        let what = || format!("attaching {}", self.volume.display());
        let attached = netram_attach::attach(claim, &request, server()).with_context(what)?;
        // Not earlier: until here a signal simply ends this process, and with it what it has begun.
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD]).context("waiting for signals")?;
        self.tell(attached.record())?;
        output::line(READY)?;
        notify("READY=1");
        watch(attached, &mut signals, &mut Restarts::new(&server))
    }
}

/// Servers that are started in place of those that die: one that dies at once each time is not started for ever.
struct Restarts<'a> {
    server: &'a dyn Fn() -> Command,
    recent: VecDeque<Instant>,
}

impl Restarts<'_> {
    fn new(server: &dyn Fn() -> Command) -> Restarts<'_> {
        Restarts {
            server,
            recent: VecDeque::new(),
        }
    }

    /// Starts another server, if the device can have one. `false`: it is lost.
    fn restart(&mut self, attached: &mut Attached, status: &str) -> bool {
        if !attached.can_restart() {
            return false;
        }
        let (device, now) = (attached.record().device.clone(), Instant::now());
        let device = device.display();
        self.recent
            .retain(|earlier| now.duration_since(*earlier) < RESTARTS_SPAN);
        if self.recent.len() >= RESTARTS_MAX {
            tracing::error!(%device, restarts = RESTARTS_MAX, "the servers die one after the other; no more of them");
            return false;
        }
        self.recent.push_back(now);
        tracing::warn!(%device, status, "the server died; the device waits for another");
        match attached.restart((self.server)()) {
            Ok(()) => {
                tracing::info!(%device, "another server has taken over; nothing is missing");
                true
            }
            Err(error) => {
                tracing::error!(%device, %error, "no other server can take over");
                false
            }
        }
    }
}

/// What the last supervisor of this name left behind when it was killed.
fn remark_stale(stale: &Record) -> Result<()> {
    output::remark(format_args!(
        "the process that served {} was killed; its record is replaced",
        stale.device.display()
    ));
    if stale.server.is_alive() {
        // It has the volume; opening that says so.
        return Ok(());
    }
    netram_attach::fail(stale)?;
    for user in netram_attach::users(&stale.device) {
        output::remark(format_args!(
            "{} is still {user}: it gives errors only",
            stale.device.display()
        ));
    }
    Ok(())
}

fn asked_to_stop(signals: impl Iterator<Item = i32>) -> bool {
    // All are looked at, so that none is left for the next call.
    signals.filter(|signal| *signal != SIGCHLD).count() > 0
}

/// Looks after what is attached, until the server dies or somebody asks for the end.
fn watch(mut attached: Attached, signals: &mut Signals, restarts: &mut Restarts<'_>) -> Result<ExitCode> {
    loop {
        if let Some(status) = attached.ended()? {
            // One that ended well has lost its device: somebody else took that away.
            let restarted = !status.success() && restarts.restart(&mut attached, &status.to_string());
            if !restarted {
                return Err(lost(attached, &status.to_string()));
            }
        }
        if asked_to_stop(signals.wait()) {
            break;
        }
    }
    notify("STOPPING=1");
    let mut told = false;
    loop {
        // First: closing a device whose server is dead may have to wait for what was written to it.
        if let Some(status) = attached.ended()? {
            return Err(lost(attached, &status.to_string()));
        }
        let users = match attached.release() {
            Release::Going(going) => return finish(*going, signals),
            Release::InUse(same, users) => {
                attached = *same;
                users
            }
        };
        if !told {
            let device = attached.record().device.display();
            let users = sentence(&users);
            tracing::warn!(%device, "the device is {users}; it goes as soon as it is not. A second signal leaves it to itself");
            told = true;
        }
        if asked_to_stop(signals.pending()) {
            tracing::warn!("the volume is served until its device is not in use any more, unsupervised");
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(RETRY);
    }
}

/// Waits until the volume is closed.
fn finish(mut going: Going, signals: &mut Signals) -> Result<ExitCode> {
    loop {
        match going.ended()? {
            Some(status) if status.success() => return Ok(ExitCode::SUCCESS),
            Some(status) => bail!(
                "the server did not close the volume ({status}); nothing that was flushed is missing, and the next attach \
                 recovers it"
            ),
            None if asked_to_stop(signals.pending()) => {
                bail!("the server is still closing the volume; not waiting for it")
            }
            None => std::thread::sleep(WATCH),
        }
    }
}

fn lost(attached: Attached, status: &str) -> anyhow::Error {
    let device = attached.record().device.clone();
    let users = attached.abandon();
    let remedy = match users.is_empty() {
        true => String::new(),
        false => format!(" It is {}; unmount it first.", sentence(&users)),
    };
    anyhow!(
        "the server of {} died ({status}): the device gives errors only. Nothing that was flushed is missing; attach the \
         volume again.{remedy}",
        device.display()
    )
}

/// Who uses a device, in words.
pub(super) fn sentence(users: &[User]) -> String {
    match users {
        [] => "in use by something that is not seen from here".to_owned(),
        users => users
            .iter()
            .map(User::to_string)
            .collect::<Vec<_>>()
            .join(" and "),
    }
}

/// Tells systemd, if it started this process and wants to know.
fn notify(what: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(what.as_bytes(), &address?));
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd could not be told: {what}");
    }
}
