//! Collecting what lenders announce, for a bounded time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mdns_sd::{IfKind, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};
use netram_transport::{NetAddress, NetHost};

use super::{MdnsError, SERVICE, at, end};
use crate::limit::{ADDRESSES_TRIED_MAX, FOUND_MAX, LABEL_BYTES_MAX};

/// One announcement. Nothing of it is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedLender {
    /// Where the lender is said to listen; the nearest kind of address first.
    pub addresses: Vec<NetAddress>,
    /// The name that it is said to have.
    pub name: Option<String>,
    /// The label of the power supply that it is said to have.
    pub domain: Option<String>,
}

/// Collects announcements for `span`. The daemon's thread has ended when this returns.
///
/// # Errors
///
/// [`MdnsError`] if the system refuses a thread or a socket.
pub fn browse(span: Duration) -> Result<Vec<AnnouncedLender>, MdnsError> {
    let daemon = ServiceDaemon::new()?;
    let found = collect(&daemon, Instant::now() + span);
    end(&daemon);
    found
}

fn collect(daemon: &ServiceDaemon, until: Instant) -> Result<Vec<AnnouncedLender>, MdnsError> {
    // A lender on this machine announces itself on the networks that it listens at.
    daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    let events = daemon.browse(SERVICE)?;
    let mut found: BTreeMap<String, AnnouncedLender> = BTreeMap::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(ServiceEvent::ServiceResolved(service)) => {
                let room = found.len() < FOUND_MAX || found.contains_key(&service.fullname);
                if let Some(lender) = lender(&service).filter(|_| room) {
                    found.insert(service.fullname.clone(), lender);
                }
            }
            Ok(ServiceEvent::ServiceRemoved(_, fullname)) => {
                found.remove(&fullname);
            }
            Ok(_) => (),
            Err(_) => return Ok(found.into_values().collect()),
        }
    }
}

/// Returns what a service says; `None` if no address can be tried.
fn lender(service: &ResolvedService) -> Option<AnnouncedLender> {
    let port = service.port;
    let mut addresses: Vec<(u8, NetAddress)> = service
        .addresses
        .iter()
        .filter(|address| !address.is_loopback())
        .filter_map(|address| ranked(address, port))
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses.truncate(ADDRESSES_TRIED_MAX);
    let text = |key: &str| service.get_property_val_str(key).and_then(label);
    (port != 0 && !addresses.is_empty()).then(|| AnnouncedLender {
        addresses: addresses.into_iter().map(|(_, address)| address).collect(),
        name: text("name"),
        domain: text("domain"),
    })
}

/// Returns the address, and its rank: IPv4, IPv6, then addresses that count on one interface only, which a
/// settings file of another machine could not name.
fn ranked(address: &ScopedIp, port: u16) -> Option<(u8, NetAddress)> {
    match address {
        ScopedIp::V6(v6) if v6.addr().is_unicast_link_local() => {
            let host = NetHost::Zoned(*v6.addr(), v6.scope_id().name.clone());
            let address = NetAddress::Tcp { host, port };
            // A name that the system gave an interface may be one that an address cannot have.
            let is_written = address.to_string().parse().as_ref() == Ok(&address);
            is_written.then_some((2, address))
        }
        address => Some((u8::from(address.is_ipv6()), at(address.to_ip_addr(), port))),
    }
}

/// A label of the announcement, if it can be shown.
fn label(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use mdns_sd::ServiceInfo;

    use super::*;

    fn announced(ips: &str, port: u16, texts: &[(&str, &str)]) -> Option<AnnouncedLender> {
        let info = ServiceInfo::new(SERVICE, "one", "one.local.", ips, port, texts).unwrap();
        lender(&info.as_resolved_service())
    }

    #[test]
    fn an_announcement_becomes_addresses_that_can_be_tried() {
        let found = announced(
            "10.0.0.2,2001:db8::2,127.0.0.1",
            7420,
            &[("name", "ram-1"), ("domain", "ups-1")],
        )
        .unwrap();
        let addresses: Vec<String> = found.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["tcp://10.0.0.2:7420", "tcp://[2001:db8::2]:7420"]);
        assert_eq!(found.name.as_deref(), Some("ram-1"));
        assert_eq!(found.domain.as_deref(), Some("ups-1"));
    }

    #[test]
    fn what_cannot_be_tried_or_shown_is_left_out() {
        assert_eq!(announced("127.0.0.1", 7420, &[]), None, "every machine has it");
        assert_eq!(announced("10.0.0.2", 0, &[]), None);
        let found = announced(
            "10.0.0.2",
            1,
            &[("name", "a\x1b[2J"), ("domain", &"x".repeat(65))],
        )
        .unwrap();
        assert_eq!((found.name, found.domain), (None, None));
        let many: Vec<String> = (1..20).map(|last| format!("10.0.0.{last}")).collect();
        let found = announced(&many.join(","), 1, &[]).unwrap();
        assert_eq!(found.addresses.len(), ADDRESSES_TRIED_MAX);
    }
}
