//! Raw sockets for the floors, without frames or encryption.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, ErrorContext};

/// Time for which a socket is polled before the thread sleeps. It is far above a round trip, so a measured
/// exchange never sleeps, and the process is idle while something else is measured.
const SPIN: Duration = Duration::from_millis(2);

/// Pause of a thread between two polls that find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PollPause {
    /// No pause: the core is its own.
    Spin,
    /// The core is yielded, because another process of the measurement needs it too.
    Yield,
}

/// A connected stream socket, TCP (without delay) or Unix.
#[derive(Debug)]
pub(crate) struct RawSocket(OwnedFd);

/// A listening socket.
pub(crate) enum RawListener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl RawListener {
    /// Listens; with port 0 the system chooses the port.
    pub(crate) fn open(address: &NetAddress) -> Result<RawListener, BenchError> {
        let what = format_args!("listen on {address}");
        match address {
            NetAddress::Tcp { host, port } => Ok(RawListener::Tcp(
                TcpListener::bind((host.to_string().as_str(), *port)).context(what)?,
            )),
            NetAddress::Unix(path) => Ok(RawListener::Unix(
                UnixListener::bind(path).context(what)?,
                path.clone(),
            )),
        }
    }

    /// Address on which it listens.
    pub(crate) fn address(&self) -> Result<NetAddress, BenchError> {
        let text = match self {
            RawListener::Tcp(listener) => {
                format!("tcp://{}", listener.local_addr().context("ask for the port")?)
            }
            RawListener::Unix(_, path) => format!("unix:{}", path.display()),
        };
        text.parse().context("name a listening socket")
    }

    /// Accepts the next connection.
    pub(crate) fn accept(&self) -> Result<RawSocket, BenchError> {
        match self {
            RawListener::Tcp(listener) => {
                let (stream, _) = listener.accept().context("accept a connection")?;
                RawSocket::tcp(stream)
            }
            RawListener::Unix(listener, _) => Ok(RawSocket(
                listener.accept().context("accept a connection")?.0.into(),
            )),
        }
    }
}

impl RawSocket {
    fn tcp(stream: TcpStream) -> Result<RawSocket, BenchError> {
        stream.set_nodelay(true).context("send without delay")?;
        Ok(RawSocket(stream.into()))
    }

    pub(crate) fn connect(address: &NetAddress) -> Result<RawSocket, BenchError> {
        let what = format_args!("connect to {address}");
        match address {
            NetAddress::Tcp { host, port } => {
                RawSocket::tcp(TcpStream::connect((host.to_string().as_str(), *port)).context(what)?)
            }
            NetAddress::Unix(path) => Ok(RawSocket(UnixStream::connect(path).context(what)?.into())),
        }
    }

    /// Sends all of `bytes`. They are few, so the socket takes them at once unless there is backpressure.
    pub(crate) fn send_all(&self, mut bytes: &[u8]) -> Result<(), BenchError> {
        while !bytes.is_empty() {
            match send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => (),
                Err(error) => return Err(error).context("send"),
            }
        }
        Ok(())
    }

    /// Closes the sending direction. The peer's bytes still arrive.
    pub(crate) fn end(&self) -> Result<(), BenchError> {
        shutdown(&self.0, Shutdown::Write).context("end a connection")
    }

    /// Bytes that have arrived: `None` if there are none, zero if the peer has closed.
    pub(crate) fn try_receive(&self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        match recv(&self.0, into, RecvFlags::DONTWAIT) {
            Ok((_, received)) => Ok(Some(received)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::CONNRESET) => Ok(Some(0)),
            Err(error) => Err(error).context("receive"),
        }
    }

    /// Fills `into`, polling; `false` when the peer has closed instead.
    pub(crate) fn receive_all(&self, into: &mut [u8], pause: PollPause) -> Result<bool, BenchError> {
        let mut filled = 0;
        // The clock is read only after many empty polls, because it costs a tenth of one.
        let mut polls = 0_u32;
        let mut since = None;
        while filled < into.len() {
            match self.try_receive(&mut into[filled..])? {
                Some(0) => return Ok(false),
                Some(received) => {
                    filled += received;
                    since = None;
                }
                None => {
                    polls = polls.wrapping_add(1);
                    match pause {
                        PollPause::Spin => std::hint::spin_loop(),
                        PollPause::Yield => std::thread::yield_now(),
                    }
                    if polls.is_multiple_of(64) && since.get_or_insert_with(Instant::now).elapsed() > SPIN {
                        self.sleep()?;
                        since = None;
                    }
                }
            }
        }
        Ok(true)
    }

    fn sleep(&self) -> Result<(), BenchError> {
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("wait for bytes"),
        }
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
