//! The service manager's socket.
//!
//! This module is our own, because the crate sd-notify connects to no abstract address, which managers of
//! containers use, and waits for a manager that does not read.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
/// Variables by which a manager is found. They are not for programs that this one starts.
pub(crate) const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG, WATCHDOG_PROCESS];

/// Whether the failure to reach the manager was logged.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether a service manager wants to be told of this process.
pub(super) fn is_wanted() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Returns the time after which the manager takes this process for wedged.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let process = number(WATCHDOG_PROCESS);
    let limit = number(WATCHDOG).filter(|limit| *limit > 0)?;
    let is_ours = process.is_none_or(|process| process == u64::from(std::process::id()));
    is_ours.then_some(Duration::from_micros(limit))
}

/// Sends lines to the manager, if there is one. Never waits for it.
pub(super) fn send(lines: &str) {
    let Ok(path) = std::env::var(SOCKET) else {
        return;
    };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to_addr(lines.as_bytes(), &address?)
    });
    if let Err(error) = sent
        && !FAILED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(%error, "systemd could not be told {lines:?}, and perhaps will not be told more");
    }
}

/// Returns the time by which a manager orders messages of a reload.
pub(super) fn monotonic_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000
}
