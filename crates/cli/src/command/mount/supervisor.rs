//! The supervisor of a mounted directory: it starts the server, and another when that dies or hangs.
//!
//! The supervisor keeps the kernel's end of the mount. While it has that, programs only wait when the server
//! is gone. Therefore it never asks anything of the mount, where it would wait with them: another process
//! unmounts. Of the directory beneath it has descriptors, which it gives to later servers.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use netram_mount::BackingHandles;
use netram_process::rights::owner_of;
use netram_supervise::handover::HandoverMessage;
use netram_supervise::{RestartBudget, ServerError, ServerProcess, become_io_flusher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attach::STOPPING;
use super::record::MountRecord;
use super::server::{JsonPath, MountServerPart, ServerLine};
use crate::background::{self, SELF};
use crate::command::PART;
use crate::notify::{LoopPulse, ServiceNotifier, StopPatience};
use crate::{log, output, signals};

/// Time between two checks of the server's health.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks while another server begins.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How servers are replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacementRule {
    /// Maximum number of restarts within ten minutes.
    pub(super) restarts: u8,
    /// Silence after which a server is killed; `None`: never.
    pub(super) hung_after: Option<Duration>,
    /// Whether every server is replaced at once, for tests that kill many.
    pub(super) at_once: bool,
}

impl ReplacementRule {
    fn budget(self) -> RestartBudget {
        match self.at_once {
            true => RestartBudget::unlimited(),
            false => RestartBudget::new(self.restarts),
        }
    }
}

/// The part of a process that unmounts a directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnmountPart {
    unmount: JsonPath,
}

impl UnmountPart {
    pub(crate) fn run(&self) -> ExitCode {
        match netram_mount::unmount(&self.unmount.path()) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::warn!(%error, "the directory stays mounted");
                ExitCode::FAILURE
            }
        }
    }
}

/// The program of servers: the running one, or what has been installed in its place since.
#[derive(Debug)]
struct ServerProgram {
    installed: Option<PathBuf>,
    /// Whether the installed program has failed to take over.
    is_spoilt: bool,
}

impl ServerProgram {
    fn path(&self) -> &Path {
        let usable = |path: &&PathBuf| path.is_file() && matches!(owner_of([path.as_path()]), Ok(None));
        let installed = self.installed.as_ref().filter(|_| !self.is_spoilt);
        installed.filter(usable).map_or(Path::new(SELF), PathBuf::as_path)
    }
}

fn play(program: &Path, part: &impl Serialize) -> Result<Command> {
    let mut command = Command::new(program);
    if let Some(name) = std::env::args_os().next() {
        // systemd spares a service whose processes' names begin with @.
        command.arg0(name);
    }
    command
        .args(log::own_arguments())
        .args([PART, &serde_json::to_string(part)?]);
    Ok(command)
}

/// The supervisor of a mounted directory.
pub(super) struct MountSupervisor {
    part: MountServerPart,
    /// The directory's path, as the kernel has it.
    dir: PathBuf,
    rule: ReplacementRule,
    program: ServerProgram,
    server: ServerProcess,
    /// The kernel's end of the mount, if another server can continue with it.
    control: Option<OwnedFd>,
    backing: BackingHandles,
    /// Whether the server is another's successor and does not serve yet.
    succeeding: bool,
    restarts: RestartBudget,
    /// When to start another server, if one has died.
    due: Option<Instant>,
    signals: Receiver<i32>,
    unmounting: Option<Child>,
    /// Whether this process has to say that the mount is ready.
    awaited: bool,
    state: String,
    pulse: Arc<LoopPulse>,
    notifier: Option<ServiceNotifier>,
    _record: Option<MountRecord>,
}

impl MountSupervisor {
    /// Starts the first server, and waits until it has mounted the directory. `awaited`: whether whoever
    /// started this process waits until it is ready.
    pub(super) fn begin(
        part: MountServerPart,
        rule: ReplacementRule,
        awaited: bool,
    ) -> Result<MountSupervisor> {
        if rustix::process::geteuid().is_root() {
            // A program may wait for this process to start another server, so memory reclaim must not make it
            // wait for the program's files.
            become_io_flusher();
        }
        // Before anything is mounted: a signal in between must not leave it mounted.
        let taken = Signals::new([SIGTERM, SIGINT, SIGCHLD]).context("waiting for signals")?;
        let backing = BackingHandles::open(&part.serve_mount.path(), usize::from(rule.restarts) + 1)?;
        let mut server = ServerProcess::start(play(Path::new(SELF), &part)?, rule.hung_after)?;
        // A server that is gone is noticed by the offer.
        let _ = server.say(&HandoverMessage::Begin);
        let dir = match await_mount(&mut server) {
            Ok(dir) => dir,
            Err(error) => {
                server.give_up();
                return Err(error.into());
            }
        };
        // Before this process has what makes programs wait, because it looks at the directory.
        let record = MountRecord::keep(&dir, &part.journal.path());
        let control = server.take_control();
        Ok(MountSupervisor {
            part,
            dir,
            rule,
            program: ServerProgram {
                installed: std::env::current_exe().ok(),
                is_spoilt: false,
            },
            server,
            control,
            backing,
            succeeding: false,
            restarts: rule.budget(),
            due: None,
            signals: signals::channel(taken)?,
            unmounting: None,
            awaited,
            state: "the directory is mounted".to_owned(),
            pulse: Arc::new(LoopPulse::default()),
            notifier: None,
            _record: record,
        })
    }

    /// Looks after the mount until it is unmounted or lost.
    pub(super) fn run(mut self) -> Result<ExitCode> {
        self.notifier = Some(ServiceNotifier::ready(self.pulse.look()));
        loop {
            if let Some(code) = self.look()? {
                return Ok(code);
            }
            self.look_after_unmount()?;
            self.wait()?;
        }
    }

    /// Reads what the server says, and replaces one that has died. Returns this process's exit code if the
    /// mount is over.
    fn look(&mut self) -> Result<Option<ExitCode>> {
        let now = Instant::now();
        // Checked first, because lines written before its end are read after it.
        let ended = self.server.look(now).context("watching the server")?;
        self.read_lines()?;
        if self.succeeding && self.server.serves() {
            let restarts = self.part.restarts;
            tracing::warn!(directory = %self.dir.display(), restarts, "a new server serves the directory");
            (self.succeeding, self.program.is_spoilt) = (false, false);
            self.backing.on_synced();
            self.say_ready();
        }
        match ended {
            None => Ok(None),
            Some(status) if self.is_over() => self.ended(status).map(Some),
            Some(status) => self.replace(status, now).map(|()| None),
        }
    }

    fn read_lines(&mut self) -> Result<()> {
        loop {
            match self.server.offered(ServerLine::parse) {
                Ok(None) => return Ok(()),
                Ok(Some(ServerLine::Ready)) => self.say_ready(),
                Ok(Some(ServerLine::State(sentence))) => self.state = sentence,
                Ok(Some(ServerLine::Report(_) | ServerLine::Mounted(_))) => (),
                Err(ServerError::Refused(reason)) => {
                    tracing::warn!(%reason, "a new server could not take the directory over");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn say_ready(&mut self) {
        if std::mem::take(&mut self.awaited) {
            // Whoever waited may have given up.
            let _ = background::ready();
        }
    }

    /// Whether the mount is gone, now that its server is.
    fn is_over(&self) -> bool {
        let Some(control) = &self.control else {
            return true;
        };
        let mut end = [PollFd::new(control, PollFlags::empty())];
        let polled = retry_on_intr(|| poll(&mut end, Some(&Timespec::default())));
        polled.is_ok() && end[0].revents().contains(PollFlags::ERR)
    }

    /// Returns the exit code of this process after the end of the last server.
    fn ended(&self, status: ExitStatus) -> Result<ExitCode> {
        let dir = self.dir.display();
        if status.success() {
            return Ok(ExitCode::SUCCESS);
        }
        if status.code().is_some() {
            // It has logged why.
            return Ok(ExitCode::FAILURE);
        }
        match &self.control {
            None => bail!(
                "the process that served {dir} died ({status}), and no other can continue: programs get errors there. \
                 Nothing that was synced is missing: stop them, and run `netram mount attach` again"
            ),
            Some(_) => bail!(
                "the process that served {dir} died ({status}) after it was unmounted: its files are not back until \
                 `netram mount recover {dir}` or `netram mount attach`"
            ),
        }
    }

    /// Replaces a server that has died while its mount exists.
    ///
    /// # Errors
    ///
    /// No other server may continue; the error says why.
    fn replace(&mut self, status: ExitStatus, now: Instant) -> Result<()> {
        if self.server.has_failed() {
            return Err(self.lost(
                &format!(
                    "the disk failed, and the process that serves {} died ({status})",
                    self.dir.display()
                ),
                "The journal has everything that was synced: repair the disk, stop them, and run",
            ));
        }
        if std::mem::take(&mut self.succeeding) {
            self.program.is_spoilt = true;
            self.backing.on_ended();
        }
        let due = match self.due {
            Some(due) => due,
            None => {
                let Some(pause) = self.restarts.next(now) else {
                    let (dir, most) = (self.dir.display(), self.rule.restarts);
                    let what =
                        format!("the process that serves {dir} died more than {most} times ({status})");
                    return Err(self.lost(&what, "Nothing that was synced is missing: stop them, and run"));
                };
                let directory = self.dir.display();
                tracing::warn!(%directory, %status, ?pause, "the server died; programs wait for a new one");
                *self.due.insert(now + pause)
            }
        };
        // An unmount needs the server at once, without the pause.
        if due > now && self.unmounting.is_none() {
            return Ok(());
        }
        self.due = None;
        if let Err(error) = self.start_successor() {
            self.program.is_spoilt = true;
            tracing::error!(
                error = format_args!("{error:#}"),
                "a new server could not be started"
            );
        }
        Ok(())
    }

    fn start_successor(&mut self) -> Result<()> {
        let control = self.control.as_ref().context("the kernel's end is missing")?;
        let control = control.try_clone().context("copying the kernel's end")?;
        let backing = self
            .backing
            .next()
            .context("copying the directory's descriptor")?;
        self.part.restarts = self.part.restarts.saturating_add(1);
        self.part.serve_mount = JsonPath::of(&self.dir);
        // It was accepted for what was missing then.
        self.part.accept_loss = false;
        let command = play(self.program.path(), &self.part)?;
        self.server = ServerProcess::start(command, self.rule.hung_after)?;
        self.succeeding = true;
        // A server that is dead already is noticed by the next look.
        let _ = { self.server.say(&HandoverMessage::Directory(backing)) }
            .and_then(|()| self.server.say(&HandoverMessage::Take(control)));
        Ok(())
    }

    fn lost(&self, what: &str, remedy: &str) -> anyhow::Error {
        anyhow!(
            "{what}: programs get errors there. {remedy} `netram mount attach` again for {}",
            self.dir.display()
        )
    }

    /// Waits until the next check is due or a signal comes.
    fn wait(&mut self) -> Result<()> {
        self.pulse.beat(match (self.succeeding, self.due) {
            (false, None) => &self.state,
            _ => "the server died; the directory waits for another",
        });
        let longest = match self.due {
            Some(due) => due
                .saturating_duration_since(Instant::now())
                .min(HEALTH_CHECK_INTERVAL),
            None if self.succeeding => POLL_INTERVAL,
            None => HEALTH_CHECK_INTERVAL,
        };
        let Ok(first) = self.signals.recv_timeout(longest) else {
            return Ok(());
        };
        let stops = std::iter::once(first).chain(self.signals.try_iter());
        if stops.filter(|signal| *signal != SIGCHLD).count() > 0 && self.unmounting.is_none() {
            let part = UnmountPart {
                unmount: JsonPath::of(&self.dir),
            };
            let mut command = play(Path::new(SELF), &part)?;
            command.stdin(Stdio::null()).stdout(Stdio::null());
            match command.spawn() {
                Ok(child) => self.unmounting = Some(child),
                Err(error) => tracing::warn!(%error, "the directory stays mounted"),
            }
        }
        Ok(())
    }

    /// Tells the service manager when the directory has been unmounted on a signal.
    fn look_after_unmount(&mut self) -> io::Result<()> {
        let Some(status) = self
            .unmounting
            .as_mut()
            .map(Child::try_wait)
            .transpose()?
            .flatten()
        else {
            return Ok(());
        };
        self.unmounting = None;
        if let Some(notifier) = self.notifier.as_ref().filter(|_| status.success()) {
            notifier.stopping(STOPPING, StopPatience::Extend);
        }
        Ok(())
    }
}

/// Waits until the server has mounted the directory, and shows its report. Returns the directory's path.
fn await_mount(server: &mut ServerProcess) -> Result<PathBuf, ServerError> {
    loop {
        match server.offer(ServerLine::parse)? {
            // The mount goes on if nobody reads it.
            ServerLine::Report(line) => drop(output::line(line)),
            ServerLine::Mounted(dir) => return Ok(dir.path()),
            ServerLine::Ready | ServerLine::State(_) => (),
        }
    }
}
