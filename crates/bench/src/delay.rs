//! A longer wire: a process that forwards one address to another and holds every byte back for a while.
//!
//! This stands for a network with a longer round trip. It adds its own cost too (two more sockets), so a floor to
//! compare with goes through a process of the same kind; results are labelled with the round trip asked for.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_transport::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::child::{Child, Role, listening};
use crate::error::{BenchError, Context};
use crate::machine;
use crate::socket::{Gate, Socket};

/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces under way in one direction; more stay in the socket, as on a wire whose queue is full.
const PIECES_MAX: usize = 4096;
/// How long the process polls after the last byte before it sleeps: longer than any delay it is asked for.
const AWAKE: Duration = Duration::from_millis(2);

/// A delaying process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delay {
    /// Where to listen.
    pub listen: String,
    /// Where to forward to.
    pub target: String,
    /// Microseconds that a request and its answer lose together.
    pub round_trip_us: u32,
    /// The core to stay on.
    pub core: Option<usize>,
}

impl Delay {
    /// Serves until killed; each connection has a thread.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let gate = Gate::open(&self.listen.parse().context("read where to listen")?)?;
        let target: Address = self.target.parse().context("read where to forward to")?;
        let one_way = Duration::from_micros(self.round_trip_us.into()) / 2;
        crate::say(&format!("listening {}", gate.address()?))?;
        loop {
            let near = gate.accept()?;
            let far = Socket::connect(&target)?;
            // An error ends the connection, which both sides then see; the next connection finds a process in order.
            std::thread::spawn(move || forward(&near, &far, one_way));
        }
    }

    /// Starts such a process between the caller and `target`; returns it with the address to go to instead.
    pub fn start(
        program: &Path,
        target: &Address,
        round_trip_us: u32,
        core: Option<usize>,
        folder: &Path,
    ) -> Result<(Child, Address), BenchError> {
        let listen = "tcp://127.0.0.1:0".to_owned();
        let delay = Delay {
            listen,
            target: target.to_string(),
            round_trip_us,
            core,
        };
        let mut child = Child::play(program, &Role::Delay(delay), "delay", folder)?;
        let addresses = listening(&child.ready("listening ")?)?;
        let address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.failed("it named no address"))?;
        Ok((child, address))
    }
}

/// Bytes under way in one direction.
#[derive(Default)]
struct Wire {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// The sender has closed. What it sent before arrives all the same, as it does on a wire.
    closed: bool,
}

impl Wire {
    /// Takes what has arrived and hands over what is due. `None`: the sender has closed, and all is delivered.
    fn turn(&mut self, from: &Socket, to: &Socket, one_way: Duration, buffer: &mut [u8]) -> Option<bool> {
        let mut moved = false;
        if self.pieces.len() < PIECES_MAX && !self.closed {
            match from.try_receive(buffer).ok()? {
                Some(0) => self.closed = true,
                Some(received) => {
                    self.pieces
                        .push_back((Instant::now() + one_way, buffer[..received].to_vec()));
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
            return None;
        }
        Some(moved || !self.pieces.is_empty())
    }
}

fn forward(near: &Socket, far: &Socket, one_way: Duration) {
    let (mut there, mut back) = (Wire::default(), Wire::default());
    let mut buffer = vec![0; PIECE_BYTES];
    let mut busy = Instant::now();
    loop {
        let Some(moved) = there.turn(near, far, one_way, &mut buffer) else {
            return;
        };
        let moved_back = match back.turn(far, near, one_way, &mut buffer) {
            Some(moved) => moved,
            // Nobody hears the answers any more, but what was asked before is on its way.
            None if !there.pieces.is_empty() => true,
            None => return,
        };
        if moved || moved_back {
            busy = Instant::now();
        } else if busy.elapsed() > AWAKE {
            let timeout = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            // Woken by bytes, by the other side's end, or for nothing: the loop finds out.
            let _ = poll(
                &mut [PollFd::new(near, PollFlags::IN), PollFd::new(far, PollFlags::IN)],
                Some(&timeout),
            );
            busy = Instant::now();
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Pause;

    #[test]
    fn bytes_arrive_unchanged_and_not_before_their_time() {
        let gate = Gate::open(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let inner = Gate::open(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let (outer_address, inner_address) = (gate.address().unwrap(), inner.address().unwrap());
        let proxy = std::thread::spawn(move || {
            let near = gate.accept().unwrap();
            forward(
                &near,
                &Socket::connect(&inner_address).unwrap(),
                Duration::from_millis(2),
            );
        });
        let client = Socket::connect(&outer_address).unwrap();
        let server = inner.accept().unwrap();
        let began = Instant::now();
        client.send_all(b"there").unwrap();
        let mut heard = [0; 5];
        assert!(server.receive_all(&mut heard, Pause::Yield).unwrap());
        server.send_all(&heard).unwrap();
        assert!(client.receive_all(&mut heard, Pause::Yield).unwrap());
        assert_eq!(&heard, b"there");
        assert!(began.elapsed() >= Duration::from_millis(4));
        client.send_all(b"leave").unwrap();
        drop(client);
        assert!(server.receive_all(&mut heard, Pause::Yield).unwrap());
        assert_eq!(&heard, b"leave", "what was sent before the end arrives");
        drop(server);
        proxy.join().unwrap();
    }
}
