//! Keeping the lenders of `netram init` running: systemd, or nothing but the processes themselves.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netram_process::rights::user_named;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use super::lenders::{LenderState, OwnLender};
use super::place::{InitPlace, make_file};
use crate::background;
use crate::command::play::without_settings;

/// Exists while systemd is the init process.
const SYSTEMD: &str = "/run/systemd/system";
/// Name of the unit for a lender of this name.
const UNIT: &str = "netram-lender@";
/// The user of that unit.
const USER: &str = "netram";
/// Settings of a unit's process.
const DEFAULTS: &str = "/etc/default";
/// How long a lender may take to start, or to end: it waits five seconds for its clients.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Keeper of running lenders.
pub(super) enum InitService {
    /// Units of systemd, with the number and group of their user.
    Systemd { user: u32, group: u32 },
    /// Processes in the background, with the directory of their logs.
    Background { state: PathBuf },
}

impl InitService {
    pub(super) fn of(place: &InitPlace, background: bool) -> Result<InitService> {
        let is_systemd = geteuid().is_root() && !background && Path::new(SYSTEMD).exists();
        if !is_systemd {
            let state = place.state.clone();
            return Ok(InitService::Background { state });
        }
        let otherwise = "or start the lenders without systemd: netram init --background";
        systemctl(&["cat", &format!("{UNIT}.service")])
            .with_context(|| format!("systemd has no unit {UNIT}.service: `make install`, {otherwise}"))?;
        let user = user_named(USER).context("looking for the units' user")?;
        let (user, group) =
            user.with_context(|| format!("there is no user {USER} yet: run systemd-sysusers, {otherwise}"))?;
        Ok(InitService::Systemd { user, group })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            InitService::Systemd { .. } => "systemd",
            InitService::Background { .. } => "background",
        }
    }

    /// The user whose processes the lenders are.
    pub(super) fn user(&self) -> u32 {
        match self {
            InitService::Systemd { user, .. } => *user,
            InitService::Background { .. } => geteuid().as_raw(),
        }
    }

    /// Where a lender's log is, for people.
    pub(super) fn log_of(&self, name: &str) -> String {
        match self {
            InitService::Systemd { .. } => format!("journalctl -u {UNIT}{name}"),
            InitService::Background { state } => format!("log: {}", log_file(state, name).display()),
        }
    }

    /// Gives a new key to the user of the lenders.
    pub(super) fn give_key(&self, key: &Path) -> Result<()> {
        match self {
            InitService::Systemd { user, group } => chown(key, Some(*user), Some(*group))
                .with_context(|| format!("giving {} to user {USER}", key.display())),
            InitService::Background { .. } => Ok(()),
        }
    }

    /// Asserts that the lenders may read a key.
    pub(super) fn check_key(&self, key: &Path) -> Result<()> {
        if let InitService::Systemd { user, .. } = self {
            let owner = key
                .metadata()
                .with_context(|| format!("looking at {}", key.display()))?
                .uid();
            ensure!(
                owner == *user,
                "the lenders run as user {USER}, who cannot read {0}: chown {USER}: {0}",
                key.display()
            );
        }
        Ok(())
    }

    /// Makes what a unit reads beside the lender's settings.
    pub(super) fn make_environment(
        &self,
        name: &str,
        settings: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<()> {
        if let Some(path) = self.files_of(name) {
            let text = format!("NETRAM_LENDER_ARGS=\"--config {}\"\n", settings.display());
            make_file(&path, &text, made)?;
        }
        Ok(())
    }

    /// Files of a lender beside its settings.
    pub(super) fn files_of(&self, name: &str) -> Option<PathBuf> {
        match self {
            InitService::Systemd { .. } => Some(Path::new(DEFAULTS).join(format!("{UNIT}{name}"))),
            InitService::Background { .. } => None,
        }
    }

    /// Starts a lender, and waits until it serves.
    pub(super) fn start(&self, lender: &OwnLender) -> Result<()> {
        let what = || format!("starting lender {}", lender.name);
        let InitService::Background { state } = self else {
            systemctl(&["enable", "--now", &format!("{UNIT}{}.service", lender.name)]).with_context(what)?;
            return wait_until_running(lender).with_context(what);
        };
        let mut command = Command::new(netram_process::this_program()?);
        without_settings(&mut command);
        command
            .args(["lender", "serve", "--detached", "--config"])
            .arg(&lender.settings);
        background::start_unseen(command, &log_file(state, &lender.name))
            .map(drop)
            .with_context(what)
    }

    /// Ends a lender. Returns whether it ran.
    pub(super) fn stop(&self, lender: &OwnLender) -> Result<bool> {
        let state = lender.state();
        if let InitService::Systemd { .. } = self {
            systemctl(&["disable", "--now", &format!("{UNIT}{}.service", lender.name)])?;
            return Ok(!state.is_down());
        }
        match state {
            LenderState::Running(report) => end(report.pid, lender).map(|()| true),
            LenderState::Down => Ok(false),
            LenderState::Taken(why) => bail!("lender {} is not told to stop: {why}", lender.name),
        }
    }
}

fn log_file(state: &Path, name: &str) -> PathBuf {
    state.join(format!("{name}.log"))
}

/// Ends the process of a lender that this command started, and waits for its end.
fn end(id: u32, lender: &OwnLender) -> Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let pid = pid.context("the lender names no process")?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("opening process {id}")),
    };
    // The number is from a lender's own report. A process in a container has another one here.
    let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let settings = lender.settings.as_os_str().as_encoded_bytes();
    let is_own = line.split(|byte| *byte == 0).any(|word| word == settings);
    ensure!(
        is_own,
        "lender {} was not started by `netram init`: process {id} has not {}",
        lender.name,
        lender.settings.display()
    );
    pidfd_send_signal(&process, Signal::TERM).with_context(|| format!("ending process {id}"))?;
    let limit = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)))?;
    ensure!(
        ended == 1,
        "lender {} (process {id}) has not ended in {PATIENCE:?}",
        lender.name
    );
    Ok(())
}

fn wait_until_running(lender: &OwnLender) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match lender.state() {
            LenderState::Running(_) => return Ok(()),
            state if Instant::now() >= deadline => match state {
                LenderState::Taken(why) => bail!(why),
                _ => bail!("it does not listen: journalctl -u {UNIT}{}", lender.name),
            },
            _ => std::thread::sleep(POLL_EVERY),
        }
    }
}

/// Runs systemctl; the error is what it says.
fn systemctl(words: &[&str]) -> Result<()> {
    let ran = Command::new("systemctl")
        .args(words)
        .stdin(Stdio::null())
        .output();
    let ran = ran.context("running systemctl")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(
        ran.status.success(),
        "systemctl {}: {}",
        words.join(" "),
        said.trim()
    );
    Ok(())
}
