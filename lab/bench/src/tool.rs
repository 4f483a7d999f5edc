//! Runs of external programs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{BenchError, ErrorContext};

/// Time limit of unmeasured steps; the machine may be slow and busy.
pub(crate) const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs a tool; returns its output, or its error.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    finish(Command::new(program).args(arguments))
}

/// Runs the `ip` command.
pub(crate) fn ip(arguments: &[&str]) -> Result<(), BenchError> {
    tool("ip", arguments).map(drop)
}

/// Runs a command to its end; returns its output, or its error output.
pub(crate) fn finish(command: &mut Command) -> Result<String, BenchError> {
    let what = format!("run {command:?}");
    let output = command.stdin(Stdio::null()).output().context(&what)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Err(BenchError::InvalidRequest(format!("cannot {what}: {said}")))
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(
    what: &str,
    mut condition: impl FnMut() -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + TOOL_TIMEOUT;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(BenchError::InvalidRequest(format!(
                "timed out after {TOOL_TIMEOUT:?} while waiting until {what}"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
