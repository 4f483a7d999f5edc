//! A proxy process that stands for a longer or narrower wire. It forwards one address to another, delays
//! every byte, and limits the throughput.
//!
//! It stands for a network with a longer round trip, and adds a cost of its own (two more sockets). The floor
//! to compare with therefore goes through a process of the same kind. Results are labelled with the requested
//! round trip.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess, listening_addresses};
use crate::error::{BenchError, ErrorContext};
use crate::machine;
use crate::socket::{RawListener, RawSocket};

/// Maximum bytes of one read.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum number of pieces in transit in one direction. Further bytes stay in the socket, as on a wire whose
/// queue is full.
const PIECES_MAX: usize = 4096;
/// Bytes read at once arrive at once. On a narrow wire one read therefore takes at most the bytes of this
/// time, in µs.
const NARROW_US: u32 = 64;
/// Maximum queueing time before a narrow wire: a switch's queue, not one of seconds.
const QUEUE_TIME_MAX: Duration = Duration::from_millis(1);
/// Time for which the process polls after the last byte before it sleeps, longer than any requested delay.
const POLL_TIME: Duration = Duration::from_millis(2);

/// With port 0 the system chooses the port.
const ANY_PORT: &str = "tcp://127.0.0.1:0";

/// A delaying proxy process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayProxy {
    /// Address to listen on.
    pub listen: String,
    /// Address to forward to.
    pub target: String,
    /// Delay of a request and its answer together, in microseconds.
    pub round_trip_us: u32,
    /// Throughput limit in each direction, in megabits per second; `None` for no limit.
    pub megabits: Option<u32>,
    /// Core to stay on.
    pub core: Option<usize>,
}

impl DelayProxy {
    /// Starts such a process between the caller and `target`. Returns it with the address to connect to
    /// instead.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started.
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

    /// The same with a throughput limit in megabits per second, and without delay.
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
        let mut child = ChildProcess::play(program, &self, "delay", directory)?;
        let addresses = listening_addresses(&child.ready("listening ")?)?;
        let address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.log_error("it named no address"))?;
        Ok((child, address))
    }
}

impl ChildJob for DelayProxy {
    const ROLE: &'static str = "Delay";

    // Serves until killed; each connection has a thread.
    fn run(&self) -> Result<(), BenchError> {
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
}

/// Delay and throughput of a wire.
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

    /// Time that `bytes` bytes take to be transmitted.
    fn transmit_time(self, bytes: usize) -> Duration {
        let nanos = |megabits| bytes as u64 * 8000 / u64::from(megabits);
        self.megabits
            .map_or(Duration::ZERO, |megabits| Duration::from_nanos(nanos(megabits)))
    }
}

/// Bytes in transit in one direction.
#[derive(Default)]
struct DelayLine {
    /// Time at which all bytes taken so far are transmitted.
    transmitted_at: Option<Instant>,
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// Whether the sender has closed. Its earlier bytes still arrive, as on a wire, and then the end of the
    /// stream.
    closed: bool,
    /// Whether everything has arrived, including the end of the stream.
    ended: bool,
}

impl DelayLine {
    /// Takes arrived bytes and hands over those that are due. Returns whether bytes are in transit; `None` if
    /// the connection broke.
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

/// Forwards every connection to `target`, each in a thread. Returns when no more connections can be accepted.
fn serve(gate: &RawListener, target: &NetAddress, nature: WireProfile) -> Result<(), BenchError> {
    loop {
        let near = gate.accept()?;
        let target = target.clone();
        // An error ends this connection, and both sides see that. Later connections are not affected.
        std::thread::spawn(move || relay(&near, &target, nature));
    }
}

/// Forwards a connection to `target`; closes it if no process listens there.
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
            // The answers have no reader any more, but earlier requests are still in transit; and the other
            // way round.
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

/// Sleeps until a side that has not closed sends or closes. It may also wake for nothing, which the loop
/// finds out. A closed side is left out, because it would end every sleep at once.
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

    /// One connection through a wire: the client's end, the server's end, and the wire's thread.
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
    fn a_narrow_wire_keeps_its_throughput_limit() {
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
    fn bytes_sent_before_the_end_arrive_before_it() {
        let (client, server, wire) = connected(LONG);
        client.send_all(b"leave").unwrap();
        drop(client);
        hears(&server, b"leave");
        hears_the_end(&server);
        drop(server);
        wire.join().unwrap();
    }

    /// The proxy closed the connection after the client's last request, and lost the answers in transit.
    #[test]
    fn answers_arrive_after_the_client_has_closed() {
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

    /// A missing target ended the proxy process, and with it every other connection.
    #[test]
    fn a_refused_connection_ends_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let target: NetAddress = format!("unix:{}/target", directory.path().display())
            .parse()
            .unwrap();
        let gate = anywhere();
        let address = gate.address().unwrap();
        let aim = target.clone();
        // The thread ends with this process.
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
