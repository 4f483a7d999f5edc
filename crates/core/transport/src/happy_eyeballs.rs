//! Concurrent connection attempts to several addresses (RFC 8305); the first that succeeds wins. An address
//! that does not answer delays the others by a fraction of a second only.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::tcp;

/// Maximum addresses tried for one name; a name with more is misconfigured.
const ADDRESSES_MAX: usize = 16;
/// Delay after which the next address is tried while the last has not answered (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The attempts under way and the addresses still to be tried.
#[derive(Default)]
pub(crate) struct ConnectRace {
    seen: Vec<SocketAddr>,
    waiting: VecDeque<SocketAddr>,
    running: Vec<(SocketAddr, Socket)>,
    /// When the next attempt may begin.
    due: Option<Instant>,
    failure: Option<io::Error>,
}

/// A connected, non-blocking socket and the address that it leads to.
pub(crate) type ConnectedSocket = (OwnedFd, SocketAddr);

impl ConnectRace {
    /// Adds an address to be tried, unless it was added before.
    pub(crate) fn add(&mut self, address: SocketAddr) {
        if self.seen.len() < ADDRESSES_MAX && !self.seen.contains(&address) {
            self.seen.push(address);
            self.waiting.push_back(address);
        }
    }

    /// Whether no attempt is under way or waiting.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes the error of the last failed attempt.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Starts the attempts that are due and waits for a result, at most until `until`.
    pub(crate) fn run(&mut self, until: Instant) -> io::Result<Option<ConnectedSocket>> {
        let now = Instant::now();
        while let Some(address) = self.waiting.front()
            && (self.running.is_empty() || self.due.is_none_or(|due| due <= now))
        {
            match begin(*address) {
                Ok(socket) => {
                    self.running.push((*address, socket));
                    self.due = Some(now + ATTEMPT_DELAY);
                }
                Err(error) => self.failure = Some(error),
            }
            self.waiting.pop_front();
        }
        let until = match (self.due, self.waiting.is_empty()) {
            (Some(due), false) => until.min(due),
            _ => until,
        };
        if self.running.is_empty() {
            return Ok(None);
        }
        self.wait(until.saturating_duration_since(now))
    }

    fn wait(&mut self, longest: Duration) -> io::Result<Option<ConnectedSocket>> {
        let sockets = self.running.iter();
        let mut polled: Vec<PollFd<'_>> = sockets
            .map(|(_, socket)| PollFd::new(socket, PollFlags::OUT))
            .collect();
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => (),
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        for at in (0..ready.len()).rev().filter(|at| ready[*at]) {
            let (address, socket) = self.running.swap_remove(at);
            match socket.take_error() {
                Ok(None) => {
                    tcp::prepare(&socket)?;
                    return Ok(Some((socket.into(), address)));
                }
                Ok(Some(error)) | Err(error) => self.failure = Some(error),
            }
        }
        Ok(None)
    }
}

fn begin(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
