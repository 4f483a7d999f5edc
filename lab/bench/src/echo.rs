//! The network's floor: bare requests and answers of the sizes that a commit has on the wire.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_proto::limit::{FRAME_HEADER_BYTES, SEAL_TAG_BYTES};
use netram_proto::wire::record_bytes;
use netram_transport::NetAddress;
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess, listening_addresses};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::machine;
use crate::socket::{PollPause, RawListener, RawSocket};

/// Bytes of a packet's length field, and of the tag behind an encrypted packet.
const PACKET_LENGTH_BYTES: usize = 2;
const PACKET_TAG_BYTES: usize = 16;

/// The sizes of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeSizes {
    /// Size of the request in bytes.
    pub request: usize,
    /// Size of the reply in bytes.
    pub reply: usize,
}

impl ExchangeSizes {
    /// Sizes on the wire of the commit of one record of `payload` bytes, and of its acknowledgement.
    pub fn of_commit(payload: usize, secure: bool) -> ExchangeSizes {
        let seal = if secure { PACKET_TAG_BYTES } else { 0 };
        let around = PACKET_LENGTH_BYTES + FRAME_HEADER_BYTES + seal;
        ExchangeSizes {
            request: around + record_bytes(payload, secure),
            reply: around,
        }
    }
}

const _: () = assert!(SEAL_TAG_BYTES == PACKET_TAG_BYTES, "both are AES-GCM's");

/// An echo process: answers every request of the exchange's size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoServer {
    /// Address to listen on.
    pub listen: String,
    /// Sizes of the exchange.
    pub exchange: ExchangeSizes,
    /// Core to stay on.
    pub core: Option<usize>,
    /// Pause between two polls.
    pub pause: PollPause,
    /// Address of another echo process, with which it exchanges before it answers.
    pub asks: Option<String>,
}

impl EchoServer {
    fn serve(&self, socket: &RawSocket) -> Result<(), BenchError> {
        let mut request = vec![0; self.exchange.request];
        let mut reply = vec![0; self.exchange.reply];
        let asked = match &self.asks {
            Some(address) => Some(RawSocket::connect(&address.parse().context("read whom to ask")?)?),
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

impl ChildJob for EchoServer {
    const ROLE: &'static str = "Echo";

    // Serves all connections, each in a thread, until killed.
    fn run(&self) -> Result<(), BenchError> {
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let gate = RawListener::open(&self.listen.parse().context("read where to listen")?)?;
        crate::say(&format!("listening {}", gate.address()?))?;
        std::thread::scope(|scope| {
            loop {
                let socket = gate.accept()?;
                // A failed thread loses only its own connection.
                scope.spawn(move || self.serve(&socket));
            }
        })
    }
}

/// A running echo process and a connection to it.
pub struct EchoClient {
    child: ChildProcess,
    address: NetAddress,
    socket: RawSocket,
    exchange: ExchangeSizes,
    pause: PollPause,
}

impl EchoClient {
    /// Starts the process and connects; `through` may put a proxy in between.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started or reached.
    pub fn start(
        program: &Path,
        echo: EchoServer,
        directory: &Path,
        through: impl FnOnce(NetAddress) -> Result<NetAddress, BenchError>,
    ) -> Result<EchoClient, BenchError> {
        let (exchange, pause) = (echo.exchange, echo.pause);
        let mut child = ChildProcess::play(program, &echo, "echo", directory)?;
        let addresses = listening_addresses(&child.ready("listening ")?)?;
        let address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.log_error("it named no address"))?;
        let address = through(address)?;
        let socket = RawSocket::connect(&address)?;
        Ok(EchoClient {
            child,
            address,
            socket,
            exchange,
            pause,
        })
    }

    /// Address of the process.
    pub fn address(&self) -> &NetAddress {
        &self.address
    }

    fn receive(&self, reply: &mut [u8], pause: PollPause) -> Result<(), BenchError> {
        match self.socket.receive_all(reply, pause)? {
            true => Ok(()),
            false => Err(self.child.log_error("it closed the connection")),
        }
    }
}

/// Exchanges with all of `pingers` at once for a while, spinning: requests to all, then answers from all.
///
/// # Errors
///
/// Fails if a process is gone.
pub fn round(pingers: &[EchoClient], time: Duration) -> Result<LatencySummary, BenchError> {
    rounds(pingers, time, Duration::ZERO, exchange)
}

/// The same with a rest after each exchange, which is not measured.
///
/// # Errors
///
/// Fails if a process is gone.
pub fn rested_round(
    pingers: &[EchoClient],
    time: Duration,
    rest: Duration,
) -> Result<LatencySummary, BenchError> {
    rounds(pingers, time, rest, exchange)
}

/// Exchanges with one process after the other for a while, with their wait policy and a rest after all of
/// them. One time covers all of them.
///
/// # Errors
///
/// Fails if a process is gone.
pub fn chain(pingers: &[EchoClient], time: Duration, rest: Duration) -> Result<LatencySummary, BenchError> {
    rounds(pingers, time, rest, |pingers, request, reply| {
        pingers.iter().try_for_each(|pinger| {
            pinger.socket.send_all(request)?;
            pinger.receive(reply, pinger.pause)
        })
    })
}

fn rounds(
    pingers: &[EchoClient],
    time: Duration,
    rest: Duration,
    exchange: impl Fn(&[EchoClient], &[u8], &mut [u8]) -> Result<(), BenchError>,
) -> Result<LatencySummary, BenchError> {
    let Some(first) = pingers.first() else {
        return Err(BenchError::InvalidRequest(
            "there is no echo process to exchange with".to_owned(),
        ));
    };
    let request = vec![0; first.exchange.request];
    let mut reply = vec![0; first.exchange.reply];
    // The echo processes may be asleep, so the first exchange is not timed.
    exchange(pingers, &request, &mut reply)?;
    let children: Vec<u32> = pingers.iter().map(|pinger| pinger.child.id()).collect();
    let mut recorder = LatencyRecorder::start(&children);
    let end = Instant::now() + time;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(recorder.finish());
        }
        exchange(pingers, &request, &mut reply)?;
        recorder.record(began.elapsed());
        // Without a rest no system call is made.
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

fn exchange(pingers: &[EchoClient], request: &[u8], reply: &mut [u8]) -> Result<(), BenchError> {
    for pinger in pingers {
        pinger.socket.send_all(request)?;
    }
    pingers
        .iter()
        .try_for_each(|pinger| pinger.receive(reply, PollPause::Spin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_carries_the_bytes_of_a_commit() {
        let clear = ExchangeSizes::of_commit(128, false);
        assert_eq!(
            clear,
            ExchangeSizes {
                request: 2 + 40 + 40 + 128,
                reply: 2 + 40
            }
        );
        let sealed = ExchangeSizes::of_commit(128, true);
        // The packet's tag, the record's tag and its salt.
        assert_eq!(sealed.request - clear.request, 16 + 16 + 16);
        assert_eq!(sealed.reply - clear.reply, 16);
    }
}
