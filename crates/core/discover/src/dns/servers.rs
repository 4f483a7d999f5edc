//! The name servers of this machine: `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use crate::limit::NAME_SERVERS_MAX;

/// The file that names them.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

const PORT: u16 = 53;

/// The name servers that the content of `resolv.conf` names. Without one it is this machine's, as for the C
/// library. `zone` returns the index of an interface.
pub fn name_servers(text: &str, zone: &dyn Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        words.next().filter(|_| is_server)
    });
    let mut servers: Vec<SocketAddr> = named.filter_map(|word| server(word, zone)).collect();
    servers.truncate(NAME_SERVERS_MAX);
    if servers.is_empty() {
        servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
    }
    servers
}

fn server(word: &str, zone: &dyn Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    if let Some((ip, interface)) = word.split_once('%') {
        let ip = ip.parse().ok()?;
        return Some(SocketAddrV6::new(ip, PORT, 0, zone(interface)?).into());
    }
    let ip: IpAddr = word.parse().ok()?;
    Some(SocketAddr::new(ip, PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_those_of_the_lines_and_at_most_three() {
        let of = |text: &str| -> Vec<String> {
            let servers = name_servers(text, &|name| (name == "eth0").then_some(2));
            servers.iter().map(ToString::to_string).collect()
        };
        assert_eq!(of(""), ["127.0.0.1:53"]);
        assert_eq!(
            of("search a.b\n# nameserver 9.9.9.9\nnameserver nonsense\n"),
            ["127.0.0.1:53"]
        );
        assert_eq!(
            of("nameserver 10.0.0.1\nnameserver\t::1 \nnameserver fe80::1%eth0\nnameserver 10.0.0.4\n"),
            ["10.0.0.1:53", "[::1]:53", "[fe80::1%2]:53"]
        );
    }
}
