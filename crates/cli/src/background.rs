//! Processes that this program starts in the background, and waits for until they are ready.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{log, notify};

/// The running program. Not `current_exe`: an upgraded program has another file there.
pub(crate) const SELF: &str = "/proc/self/exe";
/// The line on standard output by which a process says that it is ready.
const READY: &str = "ready";
/// Prefix of the last line that a failed process writes to its log; the reason follows.
const REASON: &str = "netram: ";
/// Time between two looks into the log of a process that is not ready yet.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Starts `command` with `log` as its standard error, and waits until it is ready. New lines of the log are
/// shown meanwhile: it may wait for lenders. Returns the lines that it printed before it was ready.
///
/// # Errors
///
/// The process ended before it was ready; the error is the reason that it logged.
pub(crate) fn start(command: Command, log: &Path) -> Result<Vec<String>> {
    start_with(command, log, log::relay)
}

/// Starts `command` like [`start`], and shows nothing of its log.
///
/// # Errors
///
/// As [`start`].
pub(crate) fn start_unseen(command: Command, log: &Path) -> Result<Vec<String>> {
    start_with(command, log, |_| ())
}

fn start_with(mut command: Command, log: &Path, show: fn(&str)) -> Result<Vec<String>> {
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .with_context(|| format!("opening the log {}", log.display()))?;
    let before = file.seek(SeekFrom::End(0))?;
    // It is another process than the one whose service manager this is.
    for variable in notify::VARIABLES {
        command.env_remove(variable);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file.try_clone()?);
    let mut process = command
        .spawn()
        .context("starting the process in the background")?;
    let output = process.stdout.take().context("its output is a pipe")?;
    if let Some(lines) = wait_until_ready(output, log, before, show)? {
        return Ok(lines);
    }
    let status = process.wait()?;
    file.seek(SeekFrom::Start(before))?;
    let mut said = String::new();
    file.read_to_string(&mut said)?;
    let reason = said.lines().rev().find_map(|line| log::said_by(line, REASON));
    bail!(match reason {
        Some(reason) => reason,
        None => format!("the process ended ({status}); {} has more", log.display()),
    })
}

/// Leaves the terminal and the current directory, as a process in the background does.
pub(crate) fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("leaving the terminal")?;
    std::env::set_current_dir("/").context("leaving the directory")
}

/// Says that this process is ready to whoever started it by [`start`].
pub(crate) fn ready() -> Result<()> {
    crate::output::line(READY)
}

/// Waits for the line by which a process says that it is ready, and shows what it logs meanwhile. Returns the
/// lines before; `None` if it ended first.
fn wait_until_ready(
    output: ChildStdout,
    log: &Path,
    mut from: u64,
    show: fn(&str),
) -> Result<Option<Vec<String>>> {
    let (sender, receiver) = channel();
    // The thread ends with the process's output, at the latest.
    std::thread::spawn(move || {
        let (mut before, mut is_ready) = (Vec::new(), false);
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == READY {
                is_ready = true;
                break;
            }
            before.push(line);
        }
        // The receiver is gone if the log cannot be read.
        let _ = sender.send(is_ready.then_some(before));
    });
    loop {
        let ready = receiver.recv_timeout(LOG_POLL_INTERVAL);
        let mut said = Vec::new();
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut said)?;
        let whole = |line: &&[u8]| line.ends_with(b"\n");
        for line in said.split_inclusive(|byte| *byte == b'\n').filter(whole) {
            from += line.len() as u64;
            let line = String::from_utf8_lossy(line);
            if log::said_by(&line, REASON).is_none() {
                show(line.trim_end());
            }
        }
        match ready {
            Ok(ready) => return Ok(ready),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}
