//! `netram disk attach`: the supervisor in the foreground, or a process in the background that is one.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use netram_attach::{Attached, Going, Record, Release, Request, Restarts, Serving, User, Way, name_of};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::server::Server;
use super::{absolute, need_root, registry};
use crate::options::Span;
use crate::output;

/// The program that runs. Not `current_exe`: an upgraded program has another file there.
const SELF: &str = "/proc/self/exe";
/// The last thing that a supervisor says before it only watches.
const READY: &str = "ready";
/// How often a device that is to go is tried again while it is mounted.
const RETRY: Duration = Duration::from_millis(200);
const WATCH: Duration = Duration::from_millis(20);
/// How often it is looked whether the server is well.
const LOOK: Duration = Duration::from_secs(1);
/// What makes a supervisor kill its server and end: `detach --force`.
const GIVE_UP: i32 = SIGQUIT;

/// Give a volume a block device on this machine
///
/// Needs root. The device is /dev/ublkbN, /dev/nbdN or /dev/loopN, and
/// /dev/netram/NAME leads to it each time. A process in the background serves it until
/// `netram disk detach`; what it says is in /run/netram-disk/NAME/log.
///
/// A flush of a file system arrives at the volume, and so does a forced write.
/// When the serving process dies, another takes over, and the file system waits
/// (by way of FUSE since Linux 6.9). When that cannot be, the device gives errors:
/// unmount, attach again, mount; nothing that was flushed is missing.
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
    /// How the kernel reaches the volume: `ublk`, `nbd`, its own client, or `fuse`, a file with a loop device on it.
    /// By default the first of them whose driver is loaded
    #[arg(long, value_name = "WAY", value_parser = ways())]
    way: Option<Way>,
    /// How many servers that died are replaced within ten minutes; with 0 the device gives errors when the first has
    #[arg(long, value_name = "COUNT", default_value = "8")]
    restarts: u8,
    /// How long an opening waits for lenders that must answer, as 500ms, 30s or 2m; without it as the settings say
    #[arg(long, value_name = "TIME")]
    patience: Option<Span>,
    /// How long a server may say nothing before it is killed as one that hangs; 0s: for ever. One that waits for its disk
    /// or for lenders does not hang
    #[arg(long, value_name = "TIME", default_value = "30s")]
    hung_after: Span,
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
    PossibleValuesParser::new(["ublk", "nbd", "fuse"]).try_map(|text| text.parse::<Way>())
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
            .args(["--restarts", &self.restarts.to_string()])
            .args([
                "--hung-after",
                &humantime::format_duration(self.hung_after.0).to_string(),
            ])
            .args(self.read_only.then_some("--read-only"))
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
            restart: self.restarts > 0,
            hung_after: Some(self.hung_after.0).filter(|time| !time.is_zero()),
        };
        let role = Server::of(volume, request.way, self.read_only, self.patience).role()?;
        let what = || format!("attaching {}", self.volume.display());
        let attached = netram_attach::attach(claim, &request, server(&role)).with_context(what)?;
        // Not earlier: until here a signal simply ends this process, and with it what it has begun.
        let signals = Signals::new([SIGTERM, SIGINT, GIVE_UP, SIGCHLD]).context("waiting for signals")?;
        self.tell(attached.record())?;
        output::line(READY)?;
        notify("READY=1");
        let watch = Watch {
            role,
            signals: told_of(signals)?,
            restarts: Restarts::new(self.restarts),
            due: None,
            asked: Asked::Nothing,
            told: false,
        };
        watch.run(attached)
    }
}

/// A server's process, which is not started yet.
fn server(role: &str) -> Command {
    let mut server = Command::new(SELF);
    server.args([netram_bench::child::PLAY, role]);
    server
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
    // Before it fails: a device of ublk is not there any more then, whoever has it mounted.
    let users = netram_attach::users(&stale.device);
    netram_attach::fail(stale)?;
    for user in users {
        output::remark(format_args!(
            "{} is still {user}: it gives errors only",
            stale.device.display()
        ));
    }
    Ok(())
}

/// What whoever looks after a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Nothing,
    /// To let it go as soon as it is not in use.
    Stop,
    /// To leave it to its server, which ends with it.
    Leave,
    /// To let it go as if its server had crashed.
    GiveUp,
}

impl Asked {
    /// What is asked for by `signal`, after this.
    fn and(self, signal: i32) -> Asked {
        match (self, signal) {
            (_, GIVE_UP) => Asked::GiveUp,
            (asked, SIGCHLD) => asked,
            (Asked::Nothing, _) => Asked::Stop,
            (asked, _) => asked.max(Asked::Leave),
        }
    }
}

/// Signals as they come, so that they can be waited for and something else too.
fn told_of(mut signals: Signals) -> Result<Receiver<i32>> {
    let (tell, told) = channel();
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

/// Looks after what is attached.
struct Watch {
    /// What a server is given.
    role: String,
    signals: Receiver<i32>,
    restarts: Restarts,
    /// The server has died, and there is to be another then.
    due: Option<Instant>,
    asked: Asked,
    /// Whether it has been said what a stop waits for.
    told: bool,
}

impl Watch {
    /// Until there is no server any more, or somebody asks for the end. Nothing here waits for a server: it may have to be
    /// replaced, and signals are answered meanwhile.
    fn run(mut self, mut attached: Attached) -> Result<ExitCode> {
        loop {
            let serving = match self.look(&mut attached) {
                Ok(serving) => serving,
                Err(status) => return Err(lost(attached, &status)),
            };
            match (self.asked, serving) {
                // Closing a device may wait for what was written to it, so its server must be there.
                (Asked::Stop, Serving::Well) => match attached.release() {
                    Release::Going(going) => return self.finish(*going),
                    Release::InUse(same, users) => {
                        attached = *same;
                        let users = sentence(&users);
                        self.tell(&attached, &format!("it is {users}; it goes as soon as it is not"));
                    }
                },
                (Asked::Stop, _) => {
                    self.tell(
                        &attached,
                        "its server does not answer yet; it goes when that or another does",
                    );
                }
                (Asked::Leave, Serving::Well) => {
                    tracing::warn!(
                        "the volume is served until its device is not in use any more, unsupervised"
                    );
                    return Ok(ExitCode::FAILURE);
                }
                (Asked::Nothing | Asked::Leave | Asked::GiveUp, _) => (),
            }
            self.wait(&mut attached, serving)?;
        }
    }

    /// Waits until there is something to look at, and hears what is asked for.
    fn wait(&mut self, attached: &mut Attached, serving: Serving) -> Result<()> {
        let longest = match (self.due, serving) {
            (Some(due), _) => due.saturating_duration_since(Instant::now()).min(LOOK),
            (None, Serving::Waiting) => WATCH,
            (None, _) if self.asked == Asked::Stop => RETRY,
            (None, _) => LOOK,
        };
        let before = self.asked;
        let Ok(first) = self.signals.recv_timeout(longest) else {
            return Ok(());
        };
        self.asked = self.signals.try_iter().fold(before.and(first), Asked::and);
        if self.asked != before {
            if before == Asked::Nothing {
                notify("STOPPING=1");
            }
            if self.asked == Asked::GiveUp {
                attached.give_up()?;
            }
        }
        Ok(())
    }

    /// Says once what a stop waits for.
    fn tell(&mut self, attached: &Attached, what: &str) {
        if !self.told {
            let device = attached.record().device.display();
            tracing::warn!(%device, "the device is to go, and {what}. A second signal leaves it to itself");
            self.told = true;
        }
    }

    /// Replaces a server that has died. `Err`: there is none any more, and why.
    fn look(&mut self, attached: &mut Attached) -> Result<Serving, String> {
        let now = Instant::now();
        let serving = attached
            .look(now)
            .map_err(|error| format!("giving it another: {error}"))?;
        let Serving::Ended(status) = serving else {
            return Ok(serving);
        };
        // One that ended well has lost its device: somebody else took that away.
        if !attached.can_restart() || status.success() {
            return Err(status.to_string());
        }
        let due = match self.due {
            Some(due) => due,
            None => {
                let pause = self.restarts.next(now).ok_or_else(|| status.to_string())?;
                let device = attached.record().device.display();
                tracing::warn!(%device, %status, ?pause, "the server died; the device waits for another");
                *self.due.insert(now + pause)
            }
        };
        // Who wants to stop needs the server sooner than it would be sensible otherwise.
        if due > now && self.asked == Asked::Nothing {
            return Ok(serving);
        }
        self.due = None;
        let restarted = attached.restart(server(&self.role));
        restarted.map_err(|error| format!("{status}, and for another: {error}"))?;
        Ok(Serving::Waiting)
    }

    /// Waits until the volume is closed.
    fn finish(self, mut going: Going) -> Result<ExitCode> {
        loop {
            match going.ended()? {
                Some(status) if status.success() => return Ok(ExitCode::SUCCESS),
                Some(status) => bail!(
                    "the server did not close the volume ({status}); nothing that was flushed is missing, and the next \
                     attach recovers it"
                ),
                None => (),
            }
            let stop = |signal: i32| signal != SIGCHLD;
            if self.signals.recv_timeout(WATCH).is_ok_and(stop) {
                bail!("the server is still closing the volume; not waiting for it");
            }
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
