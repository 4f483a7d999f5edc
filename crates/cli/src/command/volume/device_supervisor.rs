//! Looking after what is attached: a server that dies or hangs is replaced, and the device let go when that
//! is asked for.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use netram_attach::{
    DetachingDevice, DeviceUser, ReleaseOutcome, RestartBudget, ServerHealth, VolumeAttachment,
};
use signal_hook::consts::{SIGCHLD, SIGQUIT};
use signal_hook::iterator::Signals;

use crate::notify::notify;

/// The program that runs. Not `current_exe`: an upgraded program has another file there.
pub(super) const SELF: &str = "/proc/self/exe";
/// What the server is called in the list of processes. Those of root that begin so are left alive when a
/// machine stops and systemd kills the rest, before it unmounts what is still mounted: it counts them among
/// what a file system needs.
const SERVER_NAME: &str = "@netram";
/// How often a device that is to go is tried again while it is mounted.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often it is looked whether the server is well.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// What makes a supervisor kill its server and end: `detach --force`.
pub(super) const GIVE_UP: i32 = SIGQUIT;

/// A server's process, which is not started yet.
pub(super) fn server(role: &str) -> Command {
    let mut server = Command::new(SELF);
    server.arg0(SERVER_NAME).args([crate::command::PLAY, role]);
    server
}

/// What whoever looks after a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StopRequest {
    Nothing,
    /// To let it go as soon as it is not in use.
    Stop,
    /// To leave it to its server, which ends with it.
    Leave,
    /// To let it go as if its server had crashed.
    GiveUp,
}

impl StopRequest {
    /// What is asked for by `signal`, after this.
    fn and(self, signal: i32) -> StopRequest {
        match (self, signal) {
            (_, GIVE_UP) => StopRequest::GiveUp,
            (asked, SIGCHLD) => asked,
            (StopRequest::Nothing, _) => StopRequest::Stop,
            (asked, _) => asked.max(StopRequest::Leave),
        }
    }
}

/// Signals as they come, so that they can be waited for and something else too.
fn signal_channel(mut signals: Signals) -> Result<Receiver<i32>> {
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
pub(crate) struct DeviceSupervisor {
    /// What a server is given.
    role: String,
    signals: Receiver<i32>,
    restarts: RestartBudget,
    /// The server has died, and there is to be another then.
    due: Option<Instant>,
    asked: StopRequest,
    /// Since when the device is being let go.
    closing: Option<Instant>,
    /// Whether it has been said what a stop waits for.
    told: bool,
}

impl DeviceSupervisor {
    /// Of servers that are given `role`; `signals` say what is asked for.
    pub(super) fn new(role: String, signals: Signals, restarts: u8) -> Result<DeviceSupervisor> {
        Ok(DeviceSupervisor {
            role,
            signals: signal_channel(signals)?,
            restarts: RestartBudget::new(restarts),
            due: None,
            asked: StopRequest::Nothing,
            closing: None,
            told: false,
        })
    }

    /// Until there is no server any more, or somebody asks for the end. Nothing here waits for a server: it
    /// may have to be replaced, and signals are answered meanwhile.
    pub(super) fn run(mut self, mut attached: VolumeAttachment) -> Result<ExitCode> {
        loop {
            let serving = match self.look(&mut attached) {
                Ok(serving) => serving,
                Err(status) => return Err(lost(attached, &status)),
            };
            match (self.asked, serving) {
                // What was written to it is brought home first, so its server must be there.
                (StopRequest::Stop, ServerHealth::Healthy) => match attached.release() {
                    ReleaseOutcome::Detaching(going) => return self.finish(*going),
                    ReleaseOutcome::Flushing(same) => {
                        attached = *same;
                        let since = *self.closing.get_or_insert_with(Instant::now);
                        if since.elapsed() > HEALTH_CHECK_INTERVAL {
                            self.tell(
                                &attached,
                                "what was written to it is still on its way; it goes then",
                            );
                        }
                    }
                    ReleaseOutcome::InUse(same, users) => {
                        attached = *same;
                        self.closing = None;
                        let users = sentence(&users);
                        self.tell(&attached, &format!("it is {users}; it goes as soon as it is not"));
                    }
                },
                (StopRequest::Stop, _) => {
                    self.tell(
                        &attached,
                        "its server does not answer yet; it goes when that or another does",
                    );
                }
                (StopRequest::Leave, ServerHealth::Healthy) => {
                    tracing::warn!(
                        "the volume is served until its device is not in use any more, unsupervised"
                    );
                    return Ok(ExitCode::FAILURE);
                }
                (StopRequest::Nothing | StopRequest::Leave | StopRequest::GiveUp, _) => (),
            }
            self.wait(&mut attached, serving)?;
        }
    }

    /// Waits until there is something to look at, and hears what is asked for.
    fn wait(&mut self, attached: &mut VolumeAttachment, serving: ServerHealth) -> Result<()> {
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
                notify("STOPPING=1");
            }
            if self.asked == StopRequest::GiveUp {
                attached.give_up()?;
            }
        }
        Ok(())
    }

    /// Says once what a stop waits for.
    fn tell(&mut self, attached: &VolumeAttachment, what: &str) {
        if !self.told {
            let device = attached.record().device.display();
            tracing::warn!(%device, "the device is to go, and {what}. A second signal leaves it to itself");
            self.told = true;
        }
    }

    /// Replaces a server that has died. `Err`: there is none any more, and why.
    fn look(&mut self, attached: &mut VolumeAttachment) -> Result<ServerHealth, String> {
        let now = Instant::now();
        let serving = attached
            .look(now)
            .map_err(|error| format!("giving it another: {error}"))?;
        let ServerHealth::Exited(status) = serving else {
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
        if due > now && self.asked == StopRequest::Nothing {
            return Ok(serving);
        }
        self.due = None;
        let restarted = attached.restart(server(&self.role));
        restarted.map_err(|error| format!("{status}, and for another: {error}"))?;
        Ok(ServerHealth::Waiting)
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

/// Who uses a device, in words.
pub(super) fn sentence(users: &[DeviceUser]) -> String {
    match users {
        [] => "in use by something that is not seen from here".to_owned(),
        users => users
            .iter()
            .map(DeviceUser::to_string)
            .collect::<Vec<_>>()
            .join(" and "),
    }
}
