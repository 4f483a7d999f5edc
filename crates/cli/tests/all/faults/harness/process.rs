//! Child processes that never outlive their test, and short-lived tools.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take that is not itself under test: the machine may be slow and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// A child process; killed when dropped.
#[derive(Debug)]
pub(crate) struct FaultsProcess {
    child: Child,
}

impl FaultsProcess {
    /// Starts `command`; what it logs goes to the end of the file `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> FaultsProcess {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file is made");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        FaultsProcess { child }
    }

    pub(crate) fn take_stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().expect("its output is a pipe")
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit code, or the signal that ended it, negative.
    pub(crate) fn wait(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        until("the process ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let status = status.expect("it has just been seen");
        status
            .code()
            .or_else(|| status.signal().map(|signal| -signal))
            .unwrap_or(-1)
    }
}

impl Drop for FaultsProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process of ours that has not been waited for.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended a moment ago.
        let _ = kill_process(pid, signal);
    }
}

/// Waits until `condition` holds; panics when it never does.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain until {what}"
        );
        std::thread::sleep(PAUSE);
    }
}

/// Runs a tool to its end: what it printed, or why it failed.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    let run = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = run.map_err(|error| format!("{program}: {error}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).trim().to_owned()),
        false => {
            let why = String::from_utf8_lossy(&stderr);
            Err(format!("{program} {}: {}", arguments.join(" "), why.trim()))
        }
    }
}

/// The `netram` program, run to its end: exit code and everything that it printed.
pub(crate) fn netram(arguments: &[&str]) -> (i32, String) {
    let run = Command::new(crate::common::program())
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = run.expect("netram starts");
    let text = [stdout, stderr].concat();
    (
        status.code().unwrap_or(-1),
        String::from_utf8_lossy(&text).into_owned(),
    )
}
