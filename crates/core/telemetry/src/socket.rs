//! The sockets of the page, over TCP and in the file system.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::address::MetricsAddress;

/// A socket that accepts readers. One in the file system is removed with it.
#[derive(Debug)]
pub(crate) enum PageListener {
    Tcp(TcpListener),
    Unix(UnixListener, MetricsAddress),
}

/// The connection of a reader. Neither reading nor writing blocks.
#[derive(Debug)]
pub(crate) enum PageStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl PageListener {
    pub(crate) fn bind(address: &MetricsAddress) -> io::Result<PageListener> {
        let listener = match address {
            MetricsAddress::Tcp(address) => PageListener::Tcp(TcpListener::bind(address)?),
            MetricsAddress::Unix(path) => PageListener::Unix(bind_unix(path)?, address.clone()),
        };
        match &listener {
            PageListener::Tcp(listener) => listener.set_nonblocking(true)?,
            PageListener::Unix(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    /// The address, with the port that the system chose.
    pub(crate) fn address(&self) -> io::Result<MetricsAddress> {
        match self {
            PageListener::Tcp(listener) => listener.local_addr().map(MetricsAddress::Tcp),
            PageListener::Unix(_, address) => Ok(address.clone()),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<PageStream> {
        let stream = match self {
            PageListener::Tcp(listener) => PageStream::Tcp(listener.accept()?.0),
            PageListener::Unix(listener, _) => PageStream::Unix(listener.accept()?.0),
        };
        match &stream {
            PageStream::Tcp(stream) => stream.set_nonblocking(true)?,
            PageStream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(stream)
    }
}

/// Binds a socket in the file system. One that nobody listens at was left by a killed process.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path) {
            Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            _ => Err(error),
        },
        bound => bound,
    }
}

impl Drop for PageListener {
    fn drop(&mut self) {
        if let PageListener::Unix(_, MetricsAddress::Unix(path)) = self {
            // It may have been removed by hand.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for PageListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PageListener::Tcp(listener) => listener.as_fd(),
            PageListener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl PageStream {
    /// The address of the other side, of a connection over TCP.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            PageStream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            PageStream::Unix(_) => None,
        }
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            PageStream::Tcp(stream) => stream.read(into),
            PageStream::Unix(stream) => stream.read(into),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PageStream::Tcp(stream) => stream.write(bytes),
            PageStream::Unix(stream) => stream.write(bytes),
        }
    }

    pub(crate) fn end_writing(&self) -> io::Result<()> {
        match self {
            PageStream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            PageStream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsFd for PageStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PageStream::Tcp(stream) => stream.as_fd(),
            PageStream::Unix(stream) => stream.as_fd(),
        }
    }
}
