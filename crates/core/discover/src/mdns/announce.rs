//! A lender's announcement of itself.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use netram_transport::{NetAddress, NetHost};

use super::{END_PATIENCE, MdnsError, SERVICE, end};

/// What a lender says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderNotice {
    /// Its name.
    pub name: String,
    /// The label of its power supply.
    pub domain: String,
    /// Its release.
    pub version: String,
    /// The ports that it listens at, with the addresses of each.
    pub ports: BTreeMap<u16, AnnouncedIps>,
}

/// The addresses of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncedIps {
    /// All that the machine has.
    All,
    /// These, as the listeners were given them.
    These(Vec<IpAddr>),
}

/// Why a lender has nothing to announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this lender listens only where no other machine can reach it, so there is nothing to announce: listen at an address \
     of a network (--listen tcp://0.0.0.0:7420), or leave --announce out"
)]
pub struct AnnounceError;

/// Returns the ports to announce for the addresses that a lender listens at. An address that only this
/// machine can reach is not announced, and neither is a link-local one, which counts on one interface only.
///
/// # Errors
///
/// [`AnnounceError`] if nothing is left.
pub fn what_to_announce(listen: &[NetAddress]) -> Result<BTreeMap<u16, AnnouncedIps>, AnnounceError> {
    let mut ports = BTreeMap::new();
    for address in listen.iter().filter(|address| !address.is_local()) {
        let NetAddress::Tcp { host, port } = address else {
            continue;
        };
        let given = match host {
            NetHost::Ip(ip) if ip.is_unspecified() => AnnouncedIps::All,
            NetHost::Ip(ip) => AnnouncedIps::These(vec![*ip]),
            // The listener resolved the name when it was bound; the machine's own addresses include it.
            NetHost::Name(_) => AnnouncedIps::All,
            NetHost::Zoned(..) => continue,
        };
        let known = ports
            .entry(*port)
            .or_insert_with(|| AnnouncedIps::These(Vec::new()));
        match (known, given) {
            (AnnouncedIps::These(known), AnnouncedIps::These(given)) => known.extend(given),
            (known, given @ AnnouncedIps::All) => *known = given,
            (AnnouncedIps::All, _) => (),
        }
    }
    match ports.is_empty() {
        true => Err(AnnounceError),
        false => Ok(ports),
    }
}

/// An announcement that is made until it is dropped. Its end is announced, too.
pub struct Announcement {
    daemon: ServiceDaemon,
    names: Vec<String>,
}

impl Announcement {
    /// Announces a lender, on the interfaces of its addresses and no others.
    ///
    /// # Errors
    ///
    /// [`MdnsError`] if the system refuses a thread or a socket.
    pub fn begin(notice: &LenderNotice) -> Result<Announcement, MdnsError> {
        let mut announcement = Announcement {
            daemon: ServiceDaemon::new()?,
            names: Vec::new(),
        };
        announcement.register(notice)?;
        Ok(announcement)
    }

    fn register(&mut self, notice: &LenderNotice) -> Result<(), MdnsError> {
        self.daemon
            .disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        let texts = [
            ("name", notice.name.as_str()),
            ("domain", notice.domain.as_str()),
            ("version", notice.version.as_str()),
        ];
        for (number, (port, ips)) in notice.ports.iter().enumerate() {
            let instance = match number {
                0 => notice.name.clone(),
                _ => format!("{} port {port}", notice.name),
            };
            let host = format!("{}-{port}.local.", host_label(&notice.name));
            let service = match ips {
                AnnouncedIps::All => {
                    ServiceInfo::new(SERVICE, &instance, &host, "", *port, &texts[..])?.enable_addr_auto()
                }
                AnnouncedIps::These(ips) => {
                    let mut service =
                        ServiceInfo::new(SERVICE, &instance, &host, &ips[..], *port, &texts[..])?;
                    service.set_interfaces(ips.iter().map(|ip| IfKind::Addr(*ip)).collect());
                    service
                }
            };
            self.names.push(service.get_fullname().to_owned());
            self.daemon.register(service)?;
        }
        Ok(())
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        for name in &self.names {
            // Others forget the lender sooner; without this they do when its records expire.
            if let Ok(told) = self.daemon.unregister(name) {
                let _ = told.recv_timeout(END_PATIENCE);
            }
        }
        end(&self.daemon);
    }
}

/// A host's label from a lender's name, which may have any letters.
fn host_label(name: &str) -> String {
    let letters = name.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter.to_ascii_lowercase(),
        _ => '-',
    });
    let label: String = letters.take(40).collect();
    format!("netram-{}", label.trim_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(listen: &[&str]) -> Result<Vec<String>, AnnounceError> {
        let listen: Vec<NetAddress> = listen.iter().map(|text| text.parse().unwrap()).collect();
        let ports = what_to_announce(&listen)?;
        let shown = ports.into_iter().map(|(port, ips)| match ips {
            AnnouncedIps::All => format!("{port} all"),
            AnnouncedIps::These(ips) => format!("{port} {ips:?}"),
        });
        Ok(shown.collect())
    }

    #[test]
    fn a_lender_announces_the_addresses_that_others_can_reach() {
        assert_eq!(of(&["tcp://0.0.0.0:7420"]).unwrap(), ["7420 all"]);
        assert_eq!(
            of(&[
                "tcp://10.0.0.2:7420",
                "tcp://127.0.0.1:7420",
                "tcp://10.0.1.2:7420"
            ])
            .unwrap(),
            ["7420 [10.0.0.2, 10.0.1.2]"]
        );
        assert_eq!(
            of(&["tcp://10.0.0.2:1", "tcp://[::]:1", "tcp://10.0.0.2:2"]).unwrap(),
            ["1 all", "2 [10.0.0.2]"]
        );
        assert_eq!(
            of(&["unix:/run/a", "tcp://127.0.0.1:7420", "tcp://localhost:1"]),
            Err(AnnounceError)
        );
    }

    #[test]
    fn any_name_has_a_host_label() {
        assert_eq!(host_label("RAM_1 ü"), "netram-ram-1");
        assert_eq!(host_label(""), "netram-");
        assert!(host_label(&"x".repeat(200)).len() < 63);
    }
}
