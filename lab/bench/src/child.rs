//! Child processes of a measurement: started from this program, ended with it.
//!
//! A floor measured between two threads of one process would not be the floor of two processes, so the echo
//! server, the delaying proxy and the lenders are processes. Each says on its standard output when it is
//! ready; each is ended when its guard is dropped, and by the kernel if this process dies first.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::cleanup::CleanupJob;
#[cfg(feature = "experiments")]
use crate::databases::sqlite;
use crate::error::{BenchError, ErrorContext};
#[cfg(feature = "experiments")]
use crate::far::job::FarJob;
#[cfg(feature = "experiments")]
use crate::lnd::device;
#[cfg(feature = "experiments")]
use crate::shared::node_process;
#[cfg(feature = "experiments")]
use crate::sql_stores;
#[cfg(feature = "experiments")]
use crate::volume::{flood, serve, sink};
use crate::{delay, echo, worker};

/// How long a child may take to say that it is ready: it may have to reserve memory on a loaded machine.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a child may take to stop by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a child's first lines. Anything longer is not what was asked for.
const READY_BYTES_MAX: usize = 16 * 1024;
/// How much of a failed child's log is shown.
const LOG_LINES_SHOWN: usize = 5;
/// The program's hidden subcommand that plays a [`ChildRole`].
pub const PLAY: &str = "play";

/// What the program is asked to be, as one argument of its hidden subcommand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildRole {
    /// Answers requests of a fixed size, spinning: the other end of the floor.
    Echo(echo::EchoServer),
    /// Forwards a connection, each way with a delay.
    Delay(delay::DelayProxy),
    /// Runs TPC-A until killed, and says what was acknowledged.
    Teller(worker::BankWorker),
    /// Serves a device over NBD.
    #[cfg(feature = "experiments")]
    Serve(serve::NbdServeJob),
    /// Writes to a volume as fast as it is let.
    #[cfg(feature = "experiments")]
    Flood(flood::FloodJob),
    /// Throws away what it receives.
    #[cfg(feature = "experiments")]
    Sink(sink::SinkServer),
    /// Serves a device to the kernel.
    #[cfg(feature = "experiments")]
    Attach(device::DeviceServeJob),
    /// Is a node of a shared region.
    #[cfg(feature = "experiments")]
    Player(node_process::NodeJob),
    /// Runs a program on memory of which a part is elsewhere.
    #[cfg(feature = "experiments")]
    Far(FarJob),
    /// Commits rows to a SQLite database.
    #[cfg(feature = "experiments")]
    Sqlite(sqlite::SqliteJob),
    /// Does OO7's operations in a database.
    #[cfg(feature = "experiments")]
    Oo7(sql_stores::SqlStoreJob),
    /// Takes away what a measurement has left.
    Clean(CleanupJob),
}

/// Plays `role`; returns when the other side is done.
pub fn play(role: &ChildRole) -> Result<(), BenchError> {
    // A cleaner was its parent's child before.
    if !matches!(role, ChildRole::Clean(_)) {
        netram_process::die_with_parent().context("ask to end with the parent")?;
    }
    match role {
        ChildRole::Echo(echo) => echo.run(),
        ChildRole::Delay(delay) => delay.run(),
        ChildRole::Teller(teller) => teller.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Serve(serve) => serve.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Flood(flood) => flood.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Sink(sink) => sink.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Attach(server) => server.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Player(player) => player.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Far(job) => job.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Sqlite(job) => job.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Oo7(job) => job.run(),
        ChildRole::Clean(cleaner) => cleaner.run(),
    }
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct ChildProcess {
    process: std::process::Child,
    role: &'static str,
    log: PathBuf,
    /// Bytes that the child has said and nobody has heard yet.
    output: Vec<u8>,
}

impl ChildProcess {
    /// Starts `program play ROLE`; its messages go to a file in `directory`.
    pub fn play(
        program: &Path,
        role: &ChildRole,
        name: &'static str,
        directory: &Path,
    ) -> Result<ChildProcess, BenchError> {
        let argument = serde_json::to_string(role).context("describe a role")?;
        ChildProcess::start(program, [PLAY, argument.as_str()], name, directory)
    }

    /// The same with more in its environment.
    pub(crate) fn play_in(
        program: &Path,
        role: &ChildRole,
        name: &'static str,
        directory: &Path,
        environment: &[(&str, String)],
    ) -> Result<ChildProcess, BenchError> {
        let argument = serde_json::to_string(role).context("describe a role")?;
        ChildProcess::start_in(program, [PLAY, argument.as_str()], name, directory, environment)
    }

    /// Starts `program` with `arguments`; its messages go to a file in `directory`.
    pub fn start<'a>(
        program: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
        role: &'static str,
        directory: &Path,
    ) -> Result<ChildProcess, BenchError> {
        ChildProcess::start_in(program, arguments, role, directory, &[])
    }

    fn start_in<'a>(
        program: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
        role: &'static str,
        directory: &Path,
        environment: &[(&str, String)],
    ) -> Result<ChildProcess, BenchError> {
        let what = format_args!("start a {role} process");
        let (file, log) = tempfile::Builder::new()
            .prefix(&format!("{role}-"))
            .suffix(".log")
            .tempfile_in(directory)
            .and_then(|file| file.keep().map_err(|error| error.error))
            .context(what)?;
        let process = Command::new(program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .context(what)?;
        Ok(ChildProcess {
            process,
            role,
            log,
            output: Vec::new(),
        })
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What the process has logged so far.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until the child has said a line that begins with `last`; returns all lines up to it. What it has
    /// said behind that is heard by the next.
    pub fn ready(&mut self, last: &str) -> Result<Vec<String>, BenchError> {
        self.ready_within(last, READY_TIMEOUT)
    }

    /// The same, if it may take longer.
    pub(crate) fn ready_within(&mut self, last: &str, patience: Duration) -> Result<Vec<String>, BenchError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(lines) = lines_up_to(last, &mut self.output) {
                return Ok(lines);
            }
            if self.output.len() > READY_BYTES_MAX {
                return Err(self.log_error("it said something else than expected"));
            }
            let mut piece = [0; 1024];
            match self.read_output(&mut piece, deadline)? {
                0 => return Err(self.log_error("it ended before it was ready")),
                heard => self.output.extend_from_slice(&piece[..heard]),
            }
        }
    }

    /// What the child says on its standard output; zero bytes when it has closed it.
    fn read_output(&mut self, into: &mut [u8], deadline: Instant) -> Result<usize, BenchError> {
        let Some(output) = self.process.stdout.as_mut() else {
            return Err(BenchError::InvalidRequest(
                "the child's output was taken".to_owned(),
            ));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let ready = poll(&mut [PollFd::new(&output.as_fd(), PollFlags::IN)], Some(&timeout));
        if ready.context("wait for a child")? == 0 {
            return Err(self.log_error("it was not ready in time"));
        }
        output.read(into).context("hear a child")
    }

    /// How it has ended. `None`: it runs, though its output may be closed.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut byte = [0];
        // One whose output is closed is about to end.
        let closed = matches!(self.read_output(&mut byte, Instant::now()), Ok(0));
        loop {
            let ended = self
                .process
                .try_wait()
                .context("look whether a child has ended")?;
            if ended.is_some() || !closed || Instant::now() > deadline {
                return Ok(ended);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the process where it stands, so that it takes no processor time; undone by [`Child::resume`].
    pub fn pause(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process run on.
    pub fn resume(&self) -> Result<(), BenchError> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        kill_process(self.pid(), signal).context(format_args!(
            "signal the {} process {}",
            self.role,
            self.id()
        ))
    }

    /// The child is not reaped before the guard says so: its id cannot have gone to another process.
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill(mut self) {
        self.end();
    }

    /// Asks the process to stop (SIGTERM) and waits; kills it if it does not.
    pub fn stop(mut self) -> Result<(), BenchError> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            match self.process.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.log_error(&format!("it stopped with {status}"))),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(self.log_error("it did not stop when asked"))
    }

    fn end(&mut self) {
        // Both fail only when the process has ended and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// An error that shows the end of the child's log.
    pub fn log_error(&self, why: &str) -> BenchError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        let why = if shown.is_empty() {
            why.to_owned()
        } else {
            format!("{why}; it logged: {}", shown.join(" | "))
        };
        BenchError::Child {
            role: self.role,
            pid: self.id(),
            why,
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes lines out of what was said: up to the first that begins so. `None`: it was not said yet.
fn lines_up_to(last: &str, said: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    for line in said.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n")?;
        bytes += line.len() + 1;
        lines.push(String::from_utf8_lossy(line).trim_end().to_owned());
        if line.starts_with(last.as_bytes()) {
            said.drain(..bytes);
            return Some(lines);
        }
    }
    None
}

/// Where a child listens, from its line `listening ADDRESS`.
pub fn listening_addresses(lines: &[String]) -> Result<Vec<NetAddress>, BenchError> {
    let addresses = lines.iter().filter_map(|line| line.strip_prefix("listening "));
    addresses
        .map(|text| text.parse().context("read where a child listens"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_says_at_once_is_heard_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let words = ["-c", "printf 'a\\nfilled\\ndone 7\\nmore'"];
        let mut child = ChildProcess::start(Path::new("sh"), words, "sh", directory.path()).unwrap();
        // All is said, and it has ended, before anybody listens.
        child.process.wait().unwrap();
        assert_eq!(child.ready("filled").unwrap(), ["a", "filled"]);
        assert_eq!(child.ready("done ").unwrap(), ["done 7"]);
        let refused = child.ready("more").unwrap_err().to_string();
        assert!(refused.contains("it ended before it was ready"), "{refused}");
    }
}
