//! TCP ports for servers that a test starts again at the same address.

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// Address at which a server listens on a free port of loopback.
pub const ANY_PORT: &str = "tcp://127.0.0.1:0";

/// Sockets that reserve ports.
static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Reserves a port of loopback until the test's process ends, and returns its address for `--listen`.
///
/// A port that the kernel chose for a server becomes free when the server dies. Another test's server or
/// connection may then take it, and the server cannot start again there. The reservation is a socket that is
/// bound and never listens: servers, which set SO_REUSEADDR, may listen on its port, and the kernel gives it
/// to nobody who asks for any port.
pub fn reserve_port() -> String {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("a TCP socket has it");
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = getsockname(&socket).expect("it is bound");
    let address = SocketAddr::try_from(address).expect("it is of the internet");
    RESERVED.lock().expect("no holder panics").push(socket);
    format!("tcp://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_reserved_port_serves_again_and_again_and_is_nobody_elses() {
        let address = reserve_port();
        let address: SocketAddr = address.strip_prefix("tcp://").unwrap().parse().unwrap();
        for _ in 0..3 {
            let server = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            drop(server);
        }
        // As many as there are: neither a server nor a connection gets the reserved one.
        let servers: Vec<TcpListener> = (0..2000)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        assert!(
            servers
                .iter()
                .all(|server| server.local_addr().unwrap() != address)
        );
        for _ in 0..30_000 {
            TcpStream::connect(address).unwrap_err();
        }
    }
}
