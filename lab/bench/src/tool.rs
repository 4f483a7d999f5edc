//! Other people's programs, run to their end.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{BenchError, ErrorContext};

/// How long something may take that is not measured: the machine may be slow and busy.
pub(crate) const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs a tool: what it printed, or why it failed.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    finish(Command::new(program).args(arguments))
}

/// Runs a command to its end: what it printed, or what it complained of.
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
                "waited {TOOL_TIMEOUT:?} in vain until {what}"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
