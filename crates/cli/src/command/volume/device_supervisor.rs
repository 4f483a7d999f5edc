//! The supervisor of an attached volume: it replaces a server that dies or hangs, and detaches the device on
//! request.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use netram_attach::{
    DetachingDevice, DeviceUser, ReleaseOutcome, RestartBudget, ServerHealth, ServerListener, ServerSource,
    VolumeAttachment,
};
use signal_hook::consts::{SIGCHLD, SIGQUIT};
use signal_hook::iterator::Signals;

use crate::background::SELF;
use crate::notify::{LoopPulse, ServiceNotifier, StopPatience};
use crate::signals;

/// Name of the server in the list of processes. When a machine stops, systemd leaves processes of root whose
/// name begins with @ alive until file systems are unmounted.
const SERVER_NAME: &str = "@netram";
/// Time between two attempts to detach a device that is mounted.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two checks while something is about to end or begin.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two checks of the server's health.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a device may be without a server that another program is to start. Then its users get errors.
const ABSENCE_MAX: Duration = Duration::from_secs(120);
/// Signal that makes a supervisor kill its server and end, sent by `detach --force`.
pub(super) const GIVE_UP: i32 = SIGQUIT;

/// Servers of a device, one after the other.
pub(super) enum ServerSupply {
    /// Each is started here and plays this part, as JSON.
    Part(String),
    /// Each is started by another program, as an ordinary user, and connects.
    Connected(ServerListener),
}

impl ServerSupply {
    /// Returns the next server's source.
    pub(super) fn next(&self) -> ServerSource<'_> {
        match self {
            ServerSupply::Part(role) => {
                let mut server = Command::new(SELF);
                server.arg0(SERVER_NAME).args([crate::command::PART, role]);
                ServerSource::Start(server)
            }
            ServerSupply::Connected(listener) => ServerSource::Accept(listener),
        }
    }
}

/// End of an attachment that a signal asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StopRequest {
    /// No end was asked for.
    Nothing,
    /// Detach the device as soon as it is not in use.
    Stop,
    /// Leave the device to its server, which ends with it.
    Leave,
    /// Give the device up as if its server had crashed.
    GiveUp,
}

impl StopRequest {
    /// Returns what is asked for after another `signal`.
    fn and(self, signal: i32) -> StopRequest {
        match (self, signal) {
            (_, GIVE_UP) => StopRequest::GiveUp,
            (asked, SIGCHLD) => asked,
            (StopRequest::Nothing, _) => StopRequest::Stop,
            (asked, _) => asked.max(StopRequest::Leave),
        }
    }
}

/// The supervisor of an attached volume.
pub(crate) struct DeviceSupervisor {
    servers: ServerSupply,
    signals: Receiver<i32>,
    restarts: RestartBudget,
    /// When to start another server, if one has died.
    due: Option<Instant>,
    /// When there must be another server, if one was due.
    absent_until: Option<Instant>,
    asked: StopRequest,
    /// When detaching began.
    closing: Option<Instant>,
    /// Whether the reason for a delayed end was logged.
    told: bool,
    pulse: Arc<LoopPulse>,
    notifier: ServiceNotifier,
}

impl DeviceSupervisor {
    /// Makes a supervisor of these servers.
    pub(super) fn new(servers: ServerSupply, signals: Signals, restarts: u8) -> Result<DeviceSupervisor> {
        let pulse = Arc::new(LoopPulse::default());
        Ok(DeviceSupervisor {
            notifier: ServiceNotifier::ready(pulse.look()),
            pulse,
            servers,
            signals: signals::channel(signals)?,
            restarts: RestartBudget::new(restarts),
            due: None,
            absent_until: None,
            asked: StopRequest::Nothing,
            closing: None,
            told: false,
        })
    }

    /// Runs until there is no server any more or a signal asked for the end. It never waits for a server,
    /// which may have to be replaced, so signals are always answered.
    pub(super) fn run(mut self, mut attached: VolumeAttachment) -> Result<ExitCode> {
        loop {
            let serving = match self.look(&mut attached) {
                Ok(serving) => serving,
                Err(status) => return Err(lost(attached, &status)),
            };
            match (self.asked, serving) {
                // What was written is brought to the volume first, so its server must run.
                (StopRequest::Stop, ServerHealth::Healthy) => match attached.release() {
                    ReleaseOutcome::Detaching(going) => return self.finish(*going),
                    ReleaseOutcome::Flushing(same) => {
                        attached = *same;
                        let since = *self.closing.get_or_insert_with(Instant::now);
                        if since.elapsed() > HEALTH_CHECK_INTERVAL {
                            self.tell(
                                &attached,
                                "writes to it are still on their way; it goes after them",
                            );
                        }
                    }
                    ReleaseOutcome::InUse(same, users) => {
                        attached = *same;
                        self.closing = None;
                        let users = sentence(&users);
                        self.tell(&attached, &format!("it is {users}; it goes as soon as that ends"));
                    }
                },
                (StopRequest::Stop, _) => {
                    self.tell(
                        &attached,
                        "its server does not answer yet; it goes when that or a new one does",
                    );
                }
                (StopRequest::Leave, ServerHealth::Healthy) => {
                    tracing::warn!(
                        "the volume is served without supervisor until its device is not in use any more"
                    );
                    return Ok(ExitCode::FAILURE);
                }
                (StopRequest::Nothing | StopRequest::Leave | StopRequest::GiveUp, _) => (),
            }
            self.wait(&mut attached, serving)?;
        }
    }

    /// Waits until the next check is due or a signal comes.
    fn wait(&mut self, attached: &mut VolumeAttachment, serving: ServerHealth) -> Result<()> {
        self.pulse.beat(match serving {
            ServerHealth::Healthy => "the device is served",
            ServerHealth::Waiting => "the device waits for its server",
            ServerHealth::Exited(_) => "the server died; the device waits for another",
        });
        let longest = match (self.due, serving) {
            (Some(due), _) => due
                .saturating_duration_since(Instant::now())
                .min(HEALTH_CHECK_INTERVAL),
            (None, ServerHealth::Waiting) => POLL_INTERVAL,
            (None, _) if self.closing.is_some() => POLL_INTERVAL,
            (None, _) if self.asked == StopRequest::Stop => RETRY_INTERVAL,
            (None, _) => HEALTH_CHECK_INTERVAL,
        };
        let before = self.asked;
        let Ok(first) = self.signals.recv_timeout(longest) else {
            return Ok(());
        };
        self.asked = self.signals.try_iter().fold(before.and(first), StopRequest::and);
        if self.asked != before {
            if before == StopRequest::Nothing {
                let sentence = "the device goes as soon as nothing uses it";
                self.notifier.stopping(sentence, StopPatience::AsConfigured);
            }
            if self.asked == StopRequest::GiveUp {
                attached.give_up()?;
            }
        }
        Ok(())
    }

    /// Logs once why the end is delayed.
    fn tell(&mut self, attached: &VolumeAttachment, what: &str) {
        if !self.told {
            let device = attached.record().device.display();
            tracing::warn!(%device, "the device is to be detached, and {what}. A second signal leaves it to its server");
            self.told = true;
        }
    }

    /// Replaces a server that has died.
    ///
    /// # Errors
    ///
    /// There is no server any more; the error says why.
    fn look(&mut self, attached: &mut VolumeAttachment) -> Result<ServerHealth, String> {
        let now = Instant::now();
        let serving = attached
            .look(now)
            .map_err(|error| format!("replacing the server: {error}"))?;
        let ServerHealth::Exited(status) = serving else {
            return Ok(serving);
        };
        // A server that ended well has lost its device, which another program took away.
        if !attached.can_restart() || status.success() {
            return Err(status.to_string());
        }
        let due = match self.due {
            Some(due) => due,
            None => {
                let pause = self.restarts.next(now).ok_or_else(|| status.to_string())?;
                let device = attached.record().device.display();
                tracing::warn!(%device, %status, ?pause, "the server died; the device waits for a new one");
                *self.due.insert(now + pause)
            }
        };
        // An end needs the server at once, without the pause.
        if due > now && self.asked == StopRequest::Nothing {
            return Ok(serving);
        }
        let restarted = attached.restart(self.servers.next());
        match restarted.map_err(|error| format!("{status}, and a new one could not be started: {error}"))? {
            true => {
                (self.due, self.absent_until) = (None, None);
                Ok(ServerHealth::Waiting)
            }
            false if now > *self.absent_until.get_or_insert(now + ABSENCE_MAX) => {
                Err(format!("{status}, and no other has come"))
            }
            false => {
                self.due = Some(now + POLL_INTERVAL);
                Ok(serving)
            }
        }
    }

    /// Waits until the volume is closed.
    fn finish(self, mut going: DetachingDevice) -> Result<ExitCode> {
        loop {
            match going.ended(Instant::now())? {
                Some(status) if status.success() => return Ok(ExitCode::SUCCESS),
                Some(status) => bail!(
                    "the server did not close the volume ({status}); nothing that was flushed is missing, and the next \
                     attach recovers it"
                ),
                None => (),
            }
            match self.signals.recv_timeout(POLL_INTERVAL) {
                Ok(GIVE_UP) => going.give_up()?,
                Ok(SIGCHLD) | Err(_) => (),
                Ok(_) => bail!("the server is still closing the volume; not waiting for it"),
            }
        }
    }
}

fn lost(attached: VolumeAttachment, status: &str) -> anyhow::Error {
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

/// Returns the users of a device, in words.
pub(super) fn sentence(users: &[DeviceUser]) -> String {
    match users {
        [] => "in use by a program that cannot be seen from here".to_owned(),
        users => users
            .iter()
            .map(DeviceUser::to_string)
            .collect::<Vec<_>>()
            .join(" and "),
    }
}
