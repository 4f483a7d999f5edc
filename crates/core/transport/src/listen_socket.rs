//! A listening socket that speaks no protocol yet: what every server begins with.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::address::{NetAddress, NetHost};
use crate::error::ListenError;
use crate::tcp;
use crate::unix::{self, SocketFile};

/// Strangers that left before they were let in, passed over in one [`ListenSocket::accept`].
const ABORTED_MAX: usize = 64;

/// Who may reach a [`ListenSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenScope {
    /// Other machines. Without, only loopback addresses and Unix sockets are bound.
    pub other_machines: bool,
    /// Other users of this machine, as far as the permissions of a Unix socket's directory let them.
    pub other_users: bool,
}

/// A bound, listening, non-blocking socket. Wait for it to be readable, then [`accept`](Self::accept) until
/// `None`.
pub struct ListenSocket {
    socket: OwnedFd,
    address: NetAddress,
    /// Held for its drop.
    _file: Option<SocketFile>,
}

impl ListenSocket {
    /// Listens at `address`. A Unix socket file left by a dead process is replaced.
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
                            // Without its interface it is reached by nobody.
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

    /// Where this listens: names resolved, and the port that the system chose if zero was asked for.
    pub fn address(&self) -> &NetAddress {
        &self.address
    }

    /// The next connection and who it is, or `None` when nobody waits. The socket is non-blocking. Errors
    /// concern this process (no more file descriptors) and pass; wait a little before the next call.
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, String)>> {
        for _ in 0..ABORTED_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                // The stranger left before it was let in.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno.into()),
            };
            match &self.address {
                NetAddress::Unix(_) => return Ok(Some((socket, self.address.to_string()))),
                NetAddress::Tcp { .. } => match tcp::prepare_accepted(&socket) {
                    Ok(peer) => return Ok(Some((socket, format!("tcp://{peer}")))),
                    // Gone already; there may be others behind it.
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
