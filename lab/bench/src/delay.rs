//! A longer wire, or a narrower one: a process that forwards one address to another, holds every byte back
//! for a while, and lets no more through than it is told.
//!
//! This stands for a network with a longer round trip. It adds its own cost too (two more sockets), so a
//! floor to compare with goes through a process of the same kind; results are labelled with the round trip
//! asked for.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::child::{ChildProcess, ChildRole, listening_addresses};
use crate::error::{BenchError, ErrorContext};
use crate::machine;
use crate::socket::{RawListener, RawSocket};

/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces under way in one direction; more stay in the socket, as on a wire whose queue is full.
const PIECES_MAX: usize = 4096;
/// What is read at once arrives at once: where the wire is narrow, no more than it lets through in this time,
/// in µs.
const NARROW_US: u32 = 64;
/// How much may wait to go through a narrow wire: the queue of a switch, not one of seconds.
const QUEUE_TIME_MAX: Duration = Duration::from_millis(1);
/// How long the process polls after the last byte before it sleeps: longer than any delay it is asked for.
const POLL_TIME: Duration = Duration::from_millis(2);

/// The system chooses the port.
const ANY_PORT: &str = "tcp://127.0.0.1:0";

/// A delaying process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayProxy {
    /// Where to listen.
    pub listen: String,
    /// Where to forward to.
    pub target: String,
    /// Microseconds that a request and its answer lose together.
    pub round_trip_us: u32,
    /// Megabits a second, each way. `None`: as many as come.
    pub megabits: Option<u32>,
    /// The core to stay on.
    pub core: Option<usize>,
}

impl DelayProxy {
    /// Serves until killed; each connection has a thread.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let gate = RawListener::open(&self.listen.parse().context("read where to listen")?)?;
        let target: NetAddress = self.target.parse().context("read where to forward to")?;
        let nature = WireProfile {
            one_way: Duration::from_micros(self.round_trip_us.into()) / 2,
            megabits: self.megabits,
        };
        crate::say(&format!("listening {}", gate.address()?))?;
        serve(&gate, &target, nature)
    }

    /// Starts such a process between the caller and `target`; returns it with the address to go to instead.
    pub fn start(
        program: &Path,
        target: &NetAddress,
        round_trip_us: u32,
        core: Option<usize>,
        directory: &Path,
    ) -> Result<(ChildProcess, NetAddress), BenchError> {
        let delay = DelayProxy {
            listen: ANY_PORT.to_owned(),
            target: target.to_string(),
            round_trip_us,
            megabits: None,
            core,
        };
        delay.play(program, directory)
    }

    /// The same, but it lets no more through than so many megabits a second, and holds nothing back.
    pub(crate) fn narrow(
        program: &Path,
        target: &NetAddress,
        megabits: u32,
        directory: &Path,
    ) -> Result<(ChildProcess, NetAddress), BenchError> {
        let delay = DelayProxy {
            listen: ANY_PORT.to_owned(),
            target: target.to_string(),
            round_trip_us: 0,
            megabits: Some(megabits),
            core: None,
        };
        delay.play(program, directory)
    }

    fn play(self, program: &Path, directory: &Path) -> Result<(ChildProcess, NetAddress), BenchError> {
        let mut child = ChildProcess::play(program, &ChildRole::Delay(self), "delay", directory)?;
        let addresses = listening_addresses(&child.ready("listening ")?)?;
        let address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.log_error("it named no address"))?;
        Ok((child, address))
    }
}

/// What a wire does to bytes.
#[derive(Clone, Copy)]
struct WireProfile {
    one_way: Duration,
    megabits: Option<u32>,
}

impl WireProfile {
    fn piece_bytes(self) -> usize {
        self.megabits
            .map_or(PIECE_BYTES, |megabits| (megabits * NARROW_US / 8) as usize)
    }

    /// How long so many bytes take to go through.
    fn transmit_time(self, bytes: usize) -> Duration {
        let nanos = |megabits| bytes as u64 * 8000 / u64::from(megabits);
        self.megabits
            .map_or(Duration::ZERO, |megabits| Duration::from_nanos(nanos(megabits)))
    }
}

/// Bytes under way in one direction.
#[derive(Default)]
struct DelayLine {
    /// When all that has been taken is through.
    transmitted_at: Option<Instant>,
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// The sender has closed. What it sent before arrives all the same, as it does on a wire; then its end
    /// does.
    closed: bool,
    /// All has arrived, the end too.
    ended: bool,
}

impl DelayLine {
    /// Takes what has arrived and hands over what is due. Whether something is under way; `None`: the
    /// connection broke.
    fn pump(
        &mut self,
        from: &RawSocket,
        to: &RawSocket,
        nature: WireProfile,
        buffer: &mut [u8],
    ) -> Option<bool> {
        if self.ended {
            return Some(false);
        }
        let mut moved = false;
        let now = Instant::now();
        let through = self.transmitted_at.map_or(now, |through| through.max(now));
        if self.pieces.len() < PIECES_MAX && through - now < QUEUE_TIME_MAX && !self.closed {
            match from.try_receive(buffer).ok()? {
                Some(0) => self.closed = true,
                Some(received) => {
                    let through = through + nature.transmit_time(received);
                    self.transmitted_at = Some(through);
                    self.pieces
                        .push_back((through + nature.one_way, buffer[..received].to_vec()));
                    moved = true;
                }
                None => (),
            }
        }
        while self.pieces.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let (_, piece) = self.pieces.pop_front()?;
            to.send_all(&piece).ok()?;
            moved = true;
        }
        if self.closed && self.pieces.is_empty() {
            to.end().ok()?;
            self.ended = true;
        }
        Some(moved || !self.pieces.is_empty())
    }
}

/// Forwards every connection to `target`, each in a thread. Returns when the system gives no more
/// connections.
fn serve(gate: &RawListener, target: &NetAddress, nature: WireProfile) -> Result<(), BenchError> {
    loop {
        let near = gate.accept()?;
        let target = target.clone();
        // An error ends the connection, which both sides then see; the next connection finds a process in
        // order.
        std::thread::spawn(move || relay(&near, &target, nature));
    }
}

/// Forwards a connection to `target`. If nobody listens there it is closed.
fn relay(near: &RawSocket, target: &NetAddress, nature: WireProfile) {
    if let Ok(far) = RawSocket::connect(target) {
        forward(near, &far, nature);
    }
}

/// Forwards until both sides have closed and everything has arrived, or until nothing can arrive any more.
fn forward(near: &RawSocket, far: &RawSocket, nature: WireProfile) {
    let (mut there, mut back) = (DelayLine::default(), DelayLine::default());
    let mut buffer = vec![0; nature.piece_bytes()];
    let mut busy = Instant::now();
    while !(there.ended && back.ended) {
        let moved = there.pump(near, far, nature, &mut buffer);
        let moved_back = back.pump(far, near, nature, &mut buffer);
        match (moved, moved_back) {
            (Some(false), Some(false)) => (),
            (Some(_), Some(_)) => busy = Instant::now(),
            // Nobody hears the answers any more, but what was asked before is on its way; and the other way
            // round.
            (Some(true), None) | (None, Some(true)) => busy = Instant::now(),
            _ => return,
        }
        if busy.elapsed() > POLL_TIME {
            sleep(&[(near, &there), (far, &back)]);
            busy = Instant::now();
        }
        std::thread::yield_now();
    }
}

/// Sleeps until a side that has not closed says something or closes, or for nothing: the loop finds out. A
/// side that has closed would wake it at once and always.
fn sleep(sides: &[(&RawSocket, &DelayLine)]) {
    let timeout = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut open: Vec<_> = sides
        .iter()
        .filter(|(_, wire)| !wire.closed)
        .map(|(socket, _)| PollFd::new(*socket, PollFlags::IN))
        .collect();
    let _ = poll(&mut open, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::PollPause;

    const ONE_WAY: Duration = Duration::from_millis(2);
    const LONG: WireProfile = WireProfile {
        one_way: ONE_WAY,
        megabits: None,
    };

    fn anywhere() -> RawListener {
        RawListener::open(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// One connection through a wire: the client's end, the server's, and the wire's thread.
    fn connected(nature: WireProfile) -> (RawSocket, RawSocket, std::thread::JoinHandle<()>) {
        let (gate, inner) = (anywhere(), anywhere());
        let (outer_address, inner_address) = (gate.address().unwrap(), inner.address().unwrap());
        let wire = std::thread::spawn(move || relay(&gate.accept().unwrap(), &inner_address, nature));
        let client = RawSocket::connect(&outer_address).unwrap();
        (client, inner.accept().unwrap(), wire)
    }

    fn hears(socket: &RawSocket, wanted: &[u8]) {
        let mut heard = vec![0; wanted.len()];
        assert!(socket.receive_all(&mut heard, PollPause::Yield).unwrap());
        assert_eq!(heard, wanted);
    }

    fn hears_the_end(socket: &RawSocket) {
        assert!(!socket.receive_all(&mut [0], PollPause::Yield).unwrap());
    }

    #[test]
    fn bytes_arrive_unchanged_and_not_before_their_time() {
        let (client, server, wire) = connected(LONG);
        let began = Instant::now();
        client.send_all(b"there").unwrap();
        hears(&server, b"there");
        server.send_all(b"there").unwrap();
        hears(&client, b"there");
        assert!(began.elapsed() >= 2 * ONE_WAY);
        drop((client, server));
        wire.join().unwrap();
    }

    /// 400 kB take 100 ms at 32 Mbit/s.
    #[test]
    fn a_narrow_wire_lets_no_more_through_than_it_may() {
        let (client, server, wire) = connected(WireProfile {
            one_way: Duration::ZERO,
            megabits: Some(32),
        });
        let sent: Vec<u8> = (0..400_000_u32).map(|byte| byte as u8).collect();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| client.send_all(&sent).unwrap());
            hears(&server, &sent);
        });
        assert!(began.elapsed() >= Duration::from_millis(100));
        drop((client, server));
        wire.join().unwrap();
    }

    #[test]
    fn what_was_sent_before_the_end_arrives_before_it() {
        let (client, server, wire) = connected(LONG);
        client.send_all(b"leave").unwrap();
        drop(client);
        hears(&server, b"leave");
        hears_the_end(&server);
        drop(server);
        wire.join().unwrap();
    }

    /// The wire was cut when the side that asks had said its last, and the answers under way were lost.
    #[test]
    fn answers_arrive_after_the_last_question() {
        let (client, server, wire) = connected(LONG);
        client.send_all(b"ask").unwrap();
        client.end().unwrap();
        hears(&server, b"ask");
        hears_the_end(&server);
        server.send_all(b"answer").unwrap();
        drop(server);
        hears(&client, b"answer");
        hears_the_end(&client);
        wire.join().unwrap();
    }

    /// A target that was not there yet ended the process, and with it every other connection.
    #[test]
    fn a_refused_connection_ends_alone() {
        let directory = tempfile::tempdir().unwrap();
        let target: NetAddress = format!("unix:{}/target", directory.path().display())
            .parse()
            .unwrap();
        let gate = anywhere();
        let address = gate.address().unwrap();
        let aim = target.clone();
        // It ends with this process.
        std::thread::spawn(move || serve(&gate, &aim, LONG));
        for _ in 0..2 {
            hears_the_end(&RawSocket::connect(&address).unwrap());
        }
        let inner = RawListener::open(&target).unwrap();
        let client = RawSocket::connect(&address).unwrap();
        let server = inner.accept().unwrap();
        client.send_all(b"there").unwrap();
        hears(&server, b"there");
    }
}
