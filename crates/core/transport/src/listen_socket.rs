//! A listening socket without a protocol, as every server needs one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::address::{NetAddress, NetHost};
use crate::error::ListenError;
use crate::tcp;
use crate::unix::{self, SocketFile};

/// Maximum aborted connections skipped in one [`ListenSocket::accept`].
const ABORTED_MAX: usize = 64;

/// The processes that may connect to a [`ListenSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenScope {
    /// Whether other machines may connect. Otherwise only loopback addresses and Unix sockets are bound.
    pub other_machines: bool,
    /// Whether other users of this machine may connect, as far as the permissions of a Unix socket's
    /// directory allow.
    pub other_users: bool,
}

/// A bound, listening, non-blocking socket. Wait until it is readable, then call [`accept`](Self::accept)
/// until it returns `None`.
pub struct ListenSocket {
    socket: OwnedFd,
    address: NetAddress,
    /// Removes the socket's file on drop.
    _file: Option<SocketFile>,
}

impl ListenSocket {
    /// Listens at `address`. A Unix socket file left by a dead process is replaced.
    ///
    /// # Errors
    /// `InsecureRefused` for an address outside `reach`, `InUse` if another process listens there, `Failed`
    /// otherwise.
    pub fn bind(address: &NetAddress, reach: ListenScope) -> Result<ListenSocket, ListenError> {
        let refused = || ListenError::InsecureRefused {
            address: address.clone(),
        };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse {
                address: address.clone(),
            },
            _ => ListenError::Failed {
                address: address.clone(),
                source,
            },
        };
        if !reach.other_machines && !address.is_local() {
            return Err(refused());
        }
        match address {
            NetAddress::Tcp { host, port } => {
                let resolved = tcp::resolve(host, *port).map_err(failed)?;
                if !reach.other_machines && !tcp::all_loopback(&resolved) {
                    return Err(refused());
                }
                let (socket, bound) = tcp::listen(resolved[0]).map_err(failed)?;
                Ok(ListenSocket {
                    socket,
                    address: NetAddress::Tcp {
                        host: match host {
                            // A link-local address is unreachable without its interface.
                            NetHost::Zoned(..) => host.clone(),
                            _ => NetHost::Ip(bound.ip()),
                        },
                        port: bound.port(),
                    },
                    _file: None,
                })
            }
            NetAddress::Unix(path) => {
                let (socket, file) = unix::listen(path, !reach.other_users).map_err(failed)?;
                Ok(ListenSocket {
                    socket,
                    address: address.clone(),
                    _file: Some(file),
                })
            }
        }
    }

    /// The bound address, with names resolved and with the port that the system chose if zero was requested.
    pub fn address(&self) -> &NetAddress {
        &self.address
    }

    /// The next connection, as a non-blocking socket, with its peer's address; `None` if none waits.
    ///
    /// # Errors
    /// This process lacks a resource such as file descriptors. The condition passes; wait before the next
    /// call.
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, String)>> {
        for _ in 0..ABORTED_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                // The client disconnected before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno.into()),
            };
            match &self.address {
                NetAddress::Unix(_) => return Ok(Some((socket, self.address.to_string()))),
                NetAddress::Tcp { .. } => match tcp::prepare_accepted(&socket) {
                    Ok(peer) => return Ok(Some((socket, format!("tcp://{peer}")))),
                    // The client has disconnected; others may wait behind it.
                    Err(_) => continue,
                },
            }
        }
        Ok(None)
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
