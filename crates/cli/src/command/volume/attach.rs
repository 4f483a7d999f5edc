//! `netram disk attach`: the supervisor in the foreground, or a process in the background that is one.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use netram_attach::{AttachMethod, AttachRecord, AttachRequest, name_of};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::device_supervisor::{DeviceSupervisor, GIVE_UP, SELF, server};
use super::server::VolumeServerPart;
use super::{absolute, need_root, registry};
use crate::notify::notify;
use crate::options::DurationArg;
use crate::output;

/// The last thing that a supervisor says before it only watches.
const READY: &str = "ready";
/// What stands before the reason in the last line of one that failed.
const REASON: &str = "netram: ";
/// How long a server that was killed, or has lost its last user, may take to end.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked what a supervisor in the background says.
const OUTPUT_POLL_INTERVAL: Duration = Duration::from_millis(200);
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
pub struct AttachVolume {
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
    /// How the kernel reaches the volume: `ublk`, `nbd`, its own client, or `fuse`, a file with a loop device
    /// on it. By default the first of them whose driver is loaded
    #[arg(long, value_name = "WAY", value_parser = attach_methods())]
    way: Option<AttachMethod>,
    /// How many servers that died are replaced within ten minutes; with 0 the device gives errors when the
    /// first has
    #[arg(long, value_name = "COUNT", default_value = "8")]
    restarts: u8,
    /// How long an opening waits for lenders that must answer, as 500ms, 30s or 2m; without it as the
    /// settings say
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// How long a server may say nothing before it is killed as one that hangs; 0s: for ever. One that waits
    /// for its disk or for lenders does not hang
    #[arg(long, value_name = "TIME", default_value = "30s")]
    hung_after: DurationArg,
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

fn attach_methods() -> impl clap::builder::TypedValueParser<Value = AttachMethod> {
    PossibleValuesParser::new(["ublk", "nbd", "fuse"]).try_map(|text| text.parse::<AttachMethod>())
}

impl AttachVolume {
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
        if !wait_for(output, &path, before)? {
            let status = supervisor.wait()?;
            log.seek(SeekFrom::Start(before))?;
            let mut said = String::new();
            log.read_to_string(&mut said)?;
            let reason = said.lines().rev().find_map(|line| line.strip_prefix(REASON));
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

    /// Attaches, and looks after it until it is told to stop.
    fn supervise(self, volume: PathBuf, name: &str) -> Result<ExitCode> {
        if self.detached {
            rustix::process::setsid().context("leaving the terminal")?;
            std::env::set_current_dir("/").context("leaving the directory")?;
        }
        let registry = registry();
        let claim = registry.claim(name, &volume)?;
        if let Some(stale) = &claim.stale {
            remark_stale(stale, &volume)?;
        }
        for stale in registry.stale(&volume)? {
            // By the name there may be another one by now, which somebody looks after.
            if stale.name != name {
                remark_stale(&stale, &volume)?;
                registry.forget(&stale.name)?;
            }
        }
        let request = AttachRequest {
            volume: volume.clone(),
            block_bytes: self.block_size,
            read_only: self.read_only,
            method: self.way.unwrap_or_else(AttachMethod::best),
            restart: self.restarts > 0,
            hung_after: Some(self.hung_after.0).filter(|time| !time.is_zero()),
        };
        let role = VolumeServerPart::of(volume, request.method, self.read_only, self.patience).role()?;
        let what = || format!("attaching {}", self.volume.display());
        let attached = netram_attach::attach(claim, &request, server(&role)).with_context(what)?;
        // Not earlier: until here a signal simply ends this process, and with it what it has begun.
        let signals = Signals::new([SIGTERM, SIGINT, GIVE_UP, SIGCHLD]).context("waiting for signals")?;
        self.tell(attached.record())?;
        output::line(READY)?;
        notify("READY=1");
        let watch = DeviceSupervisor::new(role, signals, self.restarts)?;
        watch.run(attached)
    }
}

/// Waits until a supervisor in the background is ready, and shows what it logs meanwhile: it may wait for
/// lenders. `false`: it ended before.
fn wait_for(output: ChildStdout, log: &Path, mut from: u64) -> Result<bool> {
    let (tell, told) = channel();
    // It ends with the supervisor's output, if not before.
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let ready = lines.any(|line| line == READY);
        // Nobody listens any more if the log cannot be read.
        let _ = tell.send(ready);
    });
    loop {
        let ready = told.recv_timeout(OUTPUT_POLL_INTERVAL);
        let mut said = Vec::new();
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut said)?;
        let whole = |line: &&[u8]| line.ends_with(b"\n");
        for line in said.split_inclusive(|byte| *byte == b'\n').filter(whole) {
            from += line.len() as u64;
            let line = String::from_utf8_lossy(line);
            if !line.starts_with(REASON) {
                output::remark(line.trim_end());
            }
        }
        match ready {
            Ok(ready) => return Ok(ready),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
}

/// What a supervisor left behind when it was killed. As long as its server lives the record stays: were that
/// killed too, nothing else would tell which device is to fail.
fn remark_stale(stale: &AttachRecord, volume: &Path) -> Result<()> {
    let deadline = Instant::now() + SERVER_END_TIMEOUT;
    while stale.server.is_alive() && Instant::now() < deadline {
        std::thread::sleep(OUTPUT_POLL_INTERVAL);
    }
    if stale.server.is_alive() {
        if stale.volume != volume {
            bail!(
                "the name {} belongs to {}, which is served until nobody uses {} any more; give another one with --name",
                stale.name,
                stale.volume.display(),
                stale.device.display()
            );
        }
        bail!(
            "{} is served until nobody uses {} any more: the process that looked after that was killed, its server goes on",
            stale.volume.display(),
            stale.device.display()
        );
    }
    output::remark(format_args!(
        "the process that served {} was killed; its record is replaced",
        stale.device.display()
    ));
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
