//! The server's side: what every server process does before and after it serves.
//!
//! The process's standard input is the socket for messages ([`crate::handover`]). Its standard output is a
//! pipe on which it writes lines for the supervisor: an offer, whose form the product decides, or `refused
//! REASON`.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};

use rustix::process::Signal;

use crate::handover::{HandoverMessage, try_send_message};
use crate::heartbeat::Heartbeat;
use crate::sys;

/// Start of the line that reports a refusal.
pub(crate) const REFUSAL: &str = "refused ";

const NOWHERE: &str = "/dev/null";

/// Signals with which terminals, sessions and shutdowns end processes. The server ignores them and ends with
/// its device or mount, because a program's last writes come after all processes were told to end.
const IGNORED: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

/// Nearly the lowest score, so that this process is killed last when memory is short: a file system waits for
/// it. Processes below -900 are never killed.
const OOM_SCORE: &str = "-900";

/// Prepares the process, before its other threads start and inherit the settings.
///
/// # Errors
///
/// The thread that sends heartbeats cannot be started.
pub fn prepare() -> io::Result<Heartbeat> {
    for signal in IGNORED {
        if let Err(error) = sys::ignore(signal) {
            tracing::warn!(%error, ?signal, "cannot ignore a signal: it would end the server even while programs use it");
        }
    }
    // The end of a terminal must not affect this process.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "this process already leads a process group");
    }
    // A server of an ordinary user is marked already, and has given up the right to be.
    if rustix::process::geteuid().is_root() {
        become_io_flusher();
    }
    match fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        Ok(()) => (),
        // Only root may lower it, or a service manager for its service.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::info!(%error, "when memory is short, this process may be killed like any other");
        }
        Err(error) => {
            tracing::warn!(%error, "cannot lower the OOM score; when memory is short, this process may be killed like any other");
        }
    }
    Heartbeat::start()
}

/// Marks this process, and those that it starts or becomes, as one for which memory reclaim does not wait to
/// write something. This takes CAP_SYS_RESOURCE.
pub fn become_io_flusher() {
    match rustix::process::configure_io_flusher_behavior(true) {
        Ok(()) => (),
        // Root in a container, too, may lack the right.
        Err(error) if error == rustix::io::Errno::PERM => {
            tracing::info!(%error, "this process is not marked as an I/O flusher; when memory is short, the kernel and this process may deadlock");
        }
        Err(error) => {
            tracing::warn!(%error, "cannot mark this process as an I/O flusher; when memory is short, the kernel and this process may deadlock")
        }
    }
}

/// Tells the supervisor, at whose socket this process became a server, that everything is closed.
pub fn say_closed() {
    // A supervisor that is gone does not miss it.
    let _ = try_send_message(io::stdin(), &HandoverMessage::Closed);
}

/// Writes a line for the supervisor.
///
/// # Errors
///
/// The supervisor is gone.
pub fn say_line(line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Tells the supervisor why this process does not serve.
pub fn say_refused(reason: &dyn fmt::Display) {
    let one_line = reason
        .to_string()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    // If this fails, the supervisor is gone.
    let _ = say_line(format_args!("{REFUSAL}{one_line}"));
}

/// Redirects the output to nowhere, because it is not read any more: output of a library must not fill the
/// pipe and block.
///
/// # Errors
///
/// /dev/null cannot be opened.
pub fn leave_output() -> io::Result<()> {
    let nowhere = File::options().write(true).open(NOWHERE)?;
    Ok(rustix::stdio::dup2_stdout(nowhere)?)
}
