//! The network's floor: requests and answers of the sizes that a commit has on the wire, and nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_proto::limit::{FRAME_HEADER_BYTES, SEAL_TAG_BYTES};
use netram_proto::wire::record_bytes;
use netram_transport::Address;
use serde::{Deserialize, Serialize};

use crate::child::{Child, Role, listening};
use crate::error::{BenchError, Context};
use crate::histogram::{Recorder, Summary};
use crate::machine;
use crate::socket::{Gate, Pause, Socket};

/// Bytes of a packet's length on the wire, and of the tag behind a sealed packet.
const PACKET_LENGTH_BYTES: usize = 2;
const PACKET_TAG_BYTES: usize = 16;

/// The sizes of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Bytes there.
    pub request: usize,
    /// Bytes back.
    pub reply: usize,
}

impl Exchange {
    /// What the commit of one record of `payload` bytes puts on the wire, and its acknowledgement.
    pub fn of_commit(payload: usize, secure: bool) -> Exchange {
        let seal = if secure { PACKET_TAG_BYTES } else { 0 };
        let around = PACKET_LENGTH_BYTES + FRAME_HEADER_BYTES + seal;
        Exchange {
            request: around + record_bytes(payload, secure),
            reply: around,
        }
    }
}

const _: () = assert!(SEAL_TAG_BYTES == PACKET_TAG_BYTES, "both are AES-GCM's");

/// An echo process: answers every request of the exchange's size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Echo {
    /// Where to listen.
    pub listen: String,
    /// The sizes.
    pub exchange: Exchange,
    /// The core to stay on.
    pub core: Option<usize>,
    /// What it does between two polls.
    pub pause: Pause,
    /// Another echo process, which it exchanges with before it answers.
    pub asks: Option<String>,
}

impl Echo {
    /// Serves all who connect, each by a thread, until killed.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let gate = Gate::open(&self.listen.parse().context("read where to listen")?)?;
        crate::say(&format!("listening {}", gate.address()?))?;
        std::thread::scope(|scope| {
            loop {
                let socket = gate.accept()?;
                // One that fails has lost whoever it served.
                scope.spawn(move || self.serve(&socket));
            }
        })
    }

    fn serve(&self, socket: &Socket) -> Result<(), BenchError> {
        let mut request = vec![0; self.exchange.request];
        let mut reply = vec![0; self.exchange.reply];
        let asked = match &self.asks {
            Some(address) => Some(Socket::connect(&address.parse().context("read whom to ask")?)?),
            None => None,
        };
        while socket.receive_all(&mut request, self.pause)? {
            if let Some(asked) = &asked {
                asked.send_all(&request)?;
                if !asked.receive_all(&mut reply, self.pause)? {
                    return Ok(());
                }
            }
            socket.send_all(&reply)?;
        }
        Ok(())
    }
}

/// A running echo process and a connection to it.
pub struct Pinger {
    child: Child,
    address: Address,
    socket: Socket,
    exchange: Exchange,
    pause: Pause,
}

impl Pinger {
    /// Starts the process and connects; `through` may put something in between.
    pub fn start(
        program: &Path,
        echo: Echo,
        folder: &Path,
        through: impl FnOnce(Address) -> Result<Address, BenchError>,
    ) -> Result<Pinger, BenchError> {
        let (exchange, pause) = (echo.exchange, echo.pause);
        let mut child = Child::play(program, &Role::Echo(echo), "echo", folder)?;
        let addresses = listening(&child.ready("listening ")?)?;
        let address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.failed("it named no address"))?;
        let address = through(address)?;
        let socket = Socket::connect(&address)?;
        Ok(Pinger {
            child,
            address,
            socket,
            exchange,
            pause,
        })
    }

    /// Where it is reached.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn receive(&self, reply: &mut [u8], pause: Pause) -> Result<(), BenchError> {
        match self.socket.receive_all(reply, pause)? {
            true => Ok(()),
            false => Err(self.child.failed("it closed the connection")),
        }
    }
}

/// Exchanges with all of `pingers` at once for a while, spinning: requests to all, then answers from all.
pub fn round(pingers: &[Pinger], time: Duration) -> Result<Summary, BenchError> {
    rounds(pingers, time, Duration::ZERO, exchange)
}

/// The same with a rest behind each, which is not measured.
pub fn rested_round(pingers: &[Pinger], time: Duration, rest: Duration) -> Result<Summary, BenchError> {
    rounds(pingers, time, rest, exchange)
}

/// Exchanges with one after the other for a while, waiting as they do, and rests behind that. A time is that of all of them, one after the
/// other.
pub fn chain(pingers: &[Pinger], time: Duration, rest: Duration) -> Result<Summary, BenchError> {
    rounds(pingers, time, rest, |pingers, request, reply| {
        pingers.iter().try_for_each(|pinger| {
            pinger.socket.send_all(request)?;
            pinger.receive(reply, pinger.pause)
        })
    })
}

fn rounds(
    pingers: &[Pinger],
    time: Duration,
    rest: Duration,
    exchange: impl Fn(&[Pinger], &[u8], &mut [u8]) -> Result<(), BenchError>,
) -> Result<Summary, BenchError> {
    let Some(first) = pingers.first() else {
        return Err(BenchError::Asked("nobody to exchange with".to_owned()));
    };
    let request = vec![0; first.exchange.request];
    let mut reply = vec![0; first.exchange.reply];
    // The echo processes may be asleep.
    exchange(pingers, &request, &mut reply)?;
    let children: Vec<u32> = pingers.iter().map(|pinger| pinger.child.id()).collect();
    let mut recorder = Recorder::start(&children);
    let end = Instant::now() + time;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(recorder.finish());
        }
        exchange(pingers, &request, &mut reply)?;
        recorder.record(began.elapsed());
        // None is no call of the system.
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

fn exchange(pingers: &[Pinger], request: &[u8], reply: &mut [u8]) -> Result<(), BenchError> {
    for pinger in pingers {
        pinger.socket.send_all(request)?;
    }
    pingers
        .iter()
        .try_for_each(|pinger| pinger.receive(reply, Pause::Spin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_carries_the_bytes_of_a_commit() {
        let clear = Exchange::of_commit(128, false);
        assert_eq!(
            clear,
            Exchange {
                request: 2 + 40 + 40 + 128,
                reply: 2 + 40
            }
        );
        let sealed = Exchange::of_commit(128, true);
        assert_eq!(sealed.request - clear.request, 16 + 16);
        assert_eq!(sealed.reply - clear.reply, 16);
    }
}
