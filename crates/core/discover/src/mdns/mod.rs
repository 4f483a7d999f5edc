//! Lenders on the local networks: DNS-SD over multicast DNS (RFC 6762 and 6763).
//!
//! A lender announces the service `_netram._tcp.local.`; the TXT record has its name, domain and release.
//! Anybody on the network can announce anything, so what is found here is only asked, and counts once it has
//! proven to hold the cluster key.

mod announce;
mod browse;

use std::net::IpAddr;
use std::time::Duration;

use mdns_sd::{DaemonStatus, ServiceDaemon};
use netram_transport::{NetAddress, NetHost};

pub use announce::{AnnounceError, AnnouncedIps, Announcement, LenderNotice, what_to_announce};
pub use browse::{AnnouncedLender, browse};

/// The service's type.
const SERVICE: &str = "_netram._tcp.local.";

/// How long the daemon's thread may take to end.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Why mDNS is not available.
#[derive(Debug, thiserror::Error)]
#[error("mDNS is not available: {0}")]
pub struct MdnsError(String);

impl From<mdns_sd::Error> for MdnsError {
    fn from(error: mdns_sd::Error) -> MdnsError {
        MdnsError(error.to_string())
    }
}

/// Ends the daemon's thread.
fn end(daemon: &ServiceDaemon) {
    // A queue that is full for a moment takes the order later; a daemon that has ended needs none.
    for _ in 0..10 {
        match daemon.shutdown() {
            Ok(ended) => {
                if !matches!(ended.recv_timeout(END_PATIENCE), Ok(DaemonStatus::Shutdown)) {
                    tracing::debug!("the thread of mDNS is slow to end");
                }
                return;
            }
            Err(mdns_sd::Error::Again) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => return,
        }
    }
}

fn at(ip: IpAddr, port: u16) -> NetAddress {
    NetAddress::Tcp {
        host: NetHost::Ip(ip),
        port,
    }
}
