//! The process that has a mount; only its supervisor, `netram mount attach`, starts it.
//!
//! The server mounts by itself, or continues with the kernel's end of a mount whose server died. On its
//! standard output it writes [`ServerLine`]s, and messages on the socket that is its standard input.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use netram_mount::{Mount, MountOptions};
use netram_proto::port::Durability;
use netram_supervise::handover::{HandoverMessage, receive_message, send_message};
use netram_supervise::{Heartbeat, prepare, say_line, say_refused};
use serde::{Deserialize, Serialize};

use super::attach::{report_lines, report_waiting, state_sentence};
use crate::ups::UpsArgs;
use crate::{log, output};

/// Maximum bytes of a sentence, so that its line is written whole or not at all.
const SENTENCE_BYTES_MAX: usize = 1000;

/// A path in JSON, even one that is no text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum JsonPath {
    Text(String),
    Bytes(Vec<u8>),
}

impl JsonPath {
    pub(super) fn of(path: &Path) -> JsonPath {
        match path.to_str() {
            Some(text) => JsonPath::Text(text.to_owned()),
            None => JsonPath::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        match self {
            JsonPath::Text(text) => text.into(),
            JsonPath::Bytes(bytes) => OsString::from_vec(bytes.clone()).into(),
        }
    }
}

/// The part that this process plays, as JSON on its command line. A newer release reads the parts of earlier
/// ones: a supervisor goes on when the program is upgraded.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountServerPart {
    /// The directory.
    pub(super) serve_mount: JsonPath,
    /// The directory as the user named it, for reports.
    #[serde(default)]
    pub(super) named: Option<JsonPath>,
    pub(super) journal: JsonPath,
    /// `remote`, `disk` or `both`.
    pub(super) sync: Option<String>,
    pub(super) checkpoint: Option<Duration>,
    pub(super) threads: Option<u8>,
    pub(super) passthrough: bool,
    #[serde(default)]
    pub(super) io_uring: bool,
    pub(super) accept_loss: bool,
    pub(super) modelled_sync_us: u32,
    pub(super) ups: UpsArgs,
    /// Whether the report is JSON.
    pub(super) json: bool,
    pub(super) with_parent: bool,
    /// Whether another server may continue.
    pub(super) survive: bool,
    /// Number of servers before this one.
    pub(super) restarts: u32,
}

/// A line that a server writes for its supervisor, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ServerLine {
    /// A line for the user.
    Report(String),
    /// The directory is mounted, at this path.
    Mounted(JsonPath),
    /// The mount waits for nothing more.
    Ready,
    /// A sentence: what syncs wait for.
    State(String),
}

impl ServerLine {
    pub(super) fn parse(line: &str) -> Option<ServerLine> {
        serde_json::from_str(line).ok()
    }

    fn say(&self) {
        // A supervisor that is gone does not miss it, and one that was stopped for long gets the next.
        let said = serde_json::to_string(self).map_err(io::Error::from);
        let _ = said.and_then(|line| say_line(format_args!("{line}")));
    }
}

impl MountServerPart {
    /// Returns the options of the mount.
    pub(super) fn options(&self) -> MountOptions {
        let usual = MountOptions::default();
        MountOptions {
            durability: match self.sync.as_deref() {
                Some("disk") => Durability::Disk,
                Some("both") => Durability::Both,
                _ => Durability::Remote,
            },
            checkpoint: self.checkpoint.unwrap_or(usual.checkpoint),
            threads: self.threads.map_or(usual.threads, usize::from),
            passthrough: self.passthrough,
            io_uring: self.io_uring,
            accept_loss: self.accept_loss,
            survive: self.survive,
            restarts: self.restarts,
            on_failed_sync: self.survive.then_some(say_failed),
            modelled_sync_delay: Duration::from_micros(self.modelled_sync_us.into()),
        }
    }

    /// Serves the mount until the directory is unmounted, and gives it back.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        let beat = prepare().context("starting the thread that sends heartbeats")?;
        log::serve();
        netram_process::hide_memory().context("leaving the process out of core dumps")?;
        let begun = match receive_message(io::stdin())? {
            Some(HandoverMessage::Begin) => self.begin(),
            Some(HandoverMessage::Directory(backing)) => match receive_message(io::stdin())? {
                Some(HandoverMessage::Take(control)) => self.take_over(control, backing),
                _ => return Ok(ExitCode::SUCCESS),
            },
            Some(HandoverMessage::Take(_)) => Err(anyhow!("the supervisor is an earlier release's")),
            // The supervisor is gone already.
            _ => return Ok(ExitCode::SUCCESS),
        };
        let mount = match begun {
            Ok(mount) => mount,
            Err(error) => {
                say_refused(&output::sentence(&error));
                return Ok(ExitCode::FAILURE);
            }
        };
        report_waiting(&mount);
        ServerLine::Ready.say();
        tell_state(&beat, &mount)?;
        let ended = mount.wait();
        drop(beat);
        ended?;
        Ok(ExitCode::SUCCESS)
    }

    /// Mounts the directory, and gives the supervisor what another server would need.
    fn begin(&self) -> Result<Mount> {
        let (dir, journal) = (self.serve_mount.path(), self.journal.path());
        let (mount, report) = Mount::begin(&dir, &journal, self.options())?;
        self.watch_ups(&mount)?;
        let named = self.named.as_ref().map(JsonPath::path);
        for line in report_lines(named.as_deref().unwrap_or(&dir), &report, self.json)? {
            ServerLine::Report(line).say();
        }
        ServerLine::Mounted(JsonPath::of(mount.dir())).say();
        match receive_message(io::stdin()) {
            Ok(Some(HandoverMessage::Give)) => give(&mount),
            Ok(Some(_)) => (),
            // It was killed before anybody learned of the mount.
            _ => {
                if let Err(error) = netram_mount::unmount(mount.dir()) {
                    tracing::warn!(%error, "the supervisor is gone, and the directory stays mounted");
                }
            }
        }
        Ok(mount)
    }

    /// Continues the mount of a server that died.
    fn take_over(&self, control: OwnedFd, backing: OwnedFd) -> Result<Mount> {
        let (dir, journal) = (self.serve_mount.path(), self.journal.path());
        let (mount, _) = Mount::take_over(control, backing, &dir, &journal, self.options())?;
        if let Err(error) = self.watch_ups(&mount) {
            tracing::error!(error = format_args!("{error:#}"), "no UPS is watched");
        }
        // A missing supervisor is no error here.
        let _ = send_message(io::stdin(), &HandoverMessage::Serving);
        Ok(mount)
    }

    fn watch_ups(&self, mount: &Mount) -> Result<()> {
        match self.ups.source()? {
            Some(ups) => Ok(mount.journal().watch_ups(&ups).context("watching the UPS")?),
            None => Ok(()),
        }
    }
}

/// Sends the supervisor the kernel's end of the mount.
fn give(mount: &Mount) {
    let control = mount.control().map(|control| control.try_clone_to_owned());
    let word = match control {
        Some(Ok(control)) => HandoverMessage::Yes(control),
        Some(Err(error)) => {
            tracing::warn!(%error, "no other server can continue if this one dies");
            HandoverMessage::No
        }
        None => HandoverMessage::No,
    };
    // If the supervisor is gone, no other server will come.
    let _ = send_message(io::stdin(), &word);
}

/// Tells the supervisor that no other server may continue. It waits until that is said.
fn say_failed() {
    // Without supervisor no other server comes.
    let _ = send_message(io::stdin(), &HandoverMessage::Failed);
}

/// Tells the supervisor once a second what syncs wait for, if that has changed.
fn tell_state(beat: &Heartbeat, mount: &Mount) -> Result<()> {
    // The thread of heartbeats must not wait for a supervisor that is stopped.
    rustix::io::ioctl_fionbio(io::stdout(), true).context("preparing the standard output")?;
    let (watched, mut before, mut failed) = (mount.watched(), String::new(), false);
    beat.watch(move || {
        let Some((failure, journal)) = watched.look() else {
            return;
        };
        if failure.is_some() && !std::mem::replace(&mut failed, true) {
            say_failed();
        }
        let mut sentence = state_sentence(failure, &journal);
        sentence.truncate(sentence.floor_char_boundary(SENTENCE_BYTES_MAX));
        if sentence != before {
            ServerLine::State(sentence.clone()).say();
            before = sentence;
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_paths_are_read_as_they_were_written() {
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/srv/\xff\n"));
        let line = serde_json::to_string(&ServerLine::Mounted(JsonPath::of(odd))).unwrap();
        assert!(!line.contains('\n'));
        let Some(ServerLine::Mounted(path)) = ServerLine::parse(&line) else {
            panic!("{line}")
        };
        assert_eq!(path.path(), odd);
        assert!(matches!(ServerLine::parse("\"ready\""), Some(ServerLine::Ready)));
        assert!(ServerLine::parse("refused no lender").is_none());
    }
}
