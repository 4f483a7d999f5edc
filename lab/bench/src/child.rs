//! Child processes of a measurement: started from this program, ended with it.
//!
//! A floor measured between two threads of one process would not be the floor of two processes, so the echo
//! server, the delaying proxy and the lenders are processes. Each prints a line when it is ready. Each is
//! ended when its guard is dropped, and by the kernel if this process dies first.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::error::{BenchError, ErrorContext};

/// Time within which a child must be ready. It may have to reserve memory on a loaded machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which a child must stop by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size in bytes of a child's first lines. Longer output is an error.
const READY_BYTES_MAX: usize = 16 * 1024;
/// Number of lines of a failed child's log that an error shows.
const LOG_LINES_SHOWN: usize = 5;
/// The program's hidden subcommand that does a [`ChildJob`].
pub const PART: &str = "part";

/// A job of a child process: a role of this program, which `roles` lists under its name.
pub trait ChildJob: Serialize {
    /// Name of the role.
    const ROLE: &'static str;

    /// Does the job; returns when the other side is done.
    ///
    /// # Errors
    ///
    /// Fails if the role cannot be set up, or its measurement fails.
    fn run(&self) -> Result<(), BenchError>;
}

/// The job as the one argument of the hidden subcommand.
pub(crate) fn role_argument<J: ChildJob>(job: &J) -> Result<String, BenchError> {
    serde_json::to_string(&BTreeMap::from([(J::ROLE, job)])).context("describe a role")
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct ChildProcess {
    process: std::process::Child,
    role: &'static str,
    log: PathBuf,
    /// Output of the child that no reader has taken yet.
    output: Vec<u8>,
}

impl ChildProcess {
    /// Starts `program play ROLE`; its messages go to a file in `directory`.
    ///
    /// # Errors
    ///
    /// Fails if the process or its log file cannot be created.
    pub fn play(
        program: &Path,
        job: &impl ChildJob,
        name: &'static str,
        directory: &Path,
    ) -> Result<ChildProcess, BenchError> {
        let argument = role_argument(job)?;
        ChildProcess::start(program, [PART, argument.as_str()], name, directory)
    }

    /// The same with additional environment variables.
    pub(crate) fn play_in(
        program: &Path,
        job: &impl ChildJob,
        name: &'static str,
        directory: &Path,
        environment: &[(&str, String)],
    ) -> Result<ChildProcess, BenchError> {
        let argument = role_argument(job)?;
        ChildProcess::start_in(program, [PART, argument.as_str()], name, directory, environment)
    }

    /// Starts `program` with `arguments`; its messages go to a file in `directory`.
    ///
    /// # Errors
    ///
    /// Fails if the process or its log file cannot be created.
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

    /// Path of the file with the process's messages so far.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until the child has printed a line that begins with `last`, and returns all lines up to it.
    /// Later lines are left for the next call.
    ///
    /// # Errors
    ///
    /// Fails if the child ends first, prints too much, or is not ready in time.
    pub fn ready(&mut self, last: &str) -> Result<Vec<String>, BenchError> {
        self.ready_within(last, READY_TIMEOUT)
    }

    /// The same with a time limit of `patience`.
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

    /// Reads from the child's standard output until `deadline`; zero bytes when the child has closed it.
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
        let mut polled = [PollFd::new(&*output, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut polled, Some(&timeout)));
        if ready.context("wait for a child")? == 0 {
            return Err(self.log_error("it was not ready in time"));
        }
        output.read(into).context("hear a child")
    }

    /// Exit status of the process. `None` if it still runs, even with its output closed.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut byte = [0];
        // A child whose output is closed is about to end.
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

    /// Stops the process so that it takes no processor time; [`ChildProcess::resume`] undoes that.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the signal.
    pub fn pause(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process run on.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the signal.
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

    /// The child is reaped only by its guard, so no other process can have its id.
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill(mut self) {
        self.end();
    }

    /// Asks the process to stop (SIGTERM) and waits; kills it if it does not.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be signalled, or ended with an error.
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

/// Takes lines from `said` up to the first that begins with `last`. `None` if there is none yet.
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

/// Addresses from the child's line `listening ADDRESS`.
///
/// # Errors
///
/// Fails if there is no such line, or an address is not valid.
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
    fn output_printed_at_once_is_read_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let words = ["-c", "printf 'a\\nfilled\\ndone 7\\nmore'"];
        let mut child = ChildProcess::start(Path::new("sh"), words, "sh", directory.path()).unwrap();
        // The child has printed everything and ended before its output is read.
        child.process.wait().unwrap();
        assert_eq!(child.ready("filled").unwrap(), ["a", "filled"]);
        assert_eq!(child.ready("done ").unwrap(), ["done 7"]);
        let refused = child.ready("more").unwrap_err().to_string();
        assert!(refused.contains("it ended before it was ready"), "{refused}");
    }
}
