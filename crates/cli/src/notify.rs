//! Telling systemd that a service is ready.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::log;

/// Notifies systemd, if it started this process and asked for it. A process that does this is a service.
pub(crate) fn notify(what: &str) {
    log::serve();
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(what.as_bytes(), &address?));
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd could not be notified of {what}");
    }
}
