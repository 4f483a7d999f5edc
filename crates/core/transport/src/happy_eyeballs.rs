//! Connections to several addresses at once, of which the first that comes about counts: an address that does
//! not answer costs the others a fraction of a second, not their time.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::tcp;

/// Addresses tried for one name: a name with more is misconfigured.
const ADDRESSES_MAX: usize = 16;
/// One that has not answered for so long is given company (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Default)]
pub(crate) struct ConnectRace {
    seen: Vec<SocketAddr>,
    waiting: VecDeque<SocketAddr>,
    running: Vec<(SocketAddr, Socket)>,
    /// The next is not to wait longer.
    due: Option<Instant>,
    failure: Option<io::Error>,
}

/// What came about: a socket that does not block.
pub(crate) type ConnectedSocket = (OwnedFd, SocketAddr);

impl ConnectRace {
    /// An address more.
    pub(crate) fn add(&mut self, address: SocketAddr) {
        if self.seen.len() < ADDRESSES_MAX && !self.seen.contains(&address) {
            self.seen.push(address);
            self.waiting.push_back(address);
        }
    }

    /// Whether there is nothing to try.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Why the last that failed did.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Tries what is due, and waits for what comes of it, at most until then.
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
