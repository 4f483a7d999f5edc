//! Latency of a commit of 128 bytes at a lender, compared with a bare TCP ping-pong of the same byte counts.
//!
//! ```text
//! cargo run --release -p netram-lender --example echo_commit
//! ```
//!
//! Uses one connection over TCP loopback; both sides spin, each pinned to its own processor. With fewer than
//! two idle processors the figures are meaningless.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use netram_lender::{Lender, LenderConfig};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::limit::{FRAME_HEADER_BYTES, RECORD_HEADER_BYTES};
use netram_proto::port::RecordKind;
use netram_proto::wire::{self, Frame, FrameHeader, FrameKind, RecordHeader, finish_record, record_bytes};
use netram_transport::{ClusterKey, Link, Security, WaitPolicy, connect};
use rustix::thread::{CpuSet, sched_setaffinity};

const PAYLOAD: usize = 128;
const WARM: usize = 2_000;
const ROUNDS: usize = 50_000;
/// Both directions carry a two-byte length before the packet.
const LENGTH_BYTES: usize = 2;
const JOURNAL: JournalId = JournalId(0xEC40);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let there = LENGTH_BYTES + FRAME_HEADER_BYTES + record_bytes(PAYLOAD, false);
    let back = LENGTH_BYTES + FRAME_HEADER_BYTES;
    pin(0);
    let floor = ping_pong(there, back)?;
    println!("raw TCP ping-pong, {there} bytes there, {back} back: {floor}");
    let key = Security::Key(ClusterKey::generate());
    for (what, security) in [("in the clear", Security::Insecure), ("encrypted", key)] {
        let commit = commits(security)?;
        let ratio = commit.p50.as_secs_f64() / floor.p50.as_secs_f64();
        println!("append and acknowledgement, {what}: {commit}  ({ratio:.2} x)");
    }
    Ok(())
}

/// Percentiles of a run.
struct Figures {
    p50: Duration,
    p99: Duration,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        write!(out, "p50 {:.2} us, p99 {:.2} us", us(self.p50), us(self.p99))
    }
}

/// Times `round` repeatedly and sorts the results.
fn measure(mut round: impl FnMut() -> Result<(), Failure>) -> Result<Figures, Failure> {
    for _ in 0..WARM {
        round()?;
    }
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(Figures {
        p50: times[ROUNDS / 2],
        p99: times[ROUNDS * 99 / 100],
    })
}

fn ping_pong(there: usize, back: usize) -> Result<Figures, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        pin(1);
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (mut request, answer) = (vec![0; there], vec![1; back]);
        while spin_read(&mut stream, &mut request)? {
            stream.write_all(&answer)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (request, mut answer) = (vec![1; there], vec![0; back]);
    let figures = measure(|| {
        stream.write_all(&request)?;
        spin_read(&mut stream, &mut answer)?;
        Ok(())
    })?;
    drop(stream);
    echo.join().map_err(|_| "the echoing thread failed")??;
    Ok(figures)
}

/// Fills `buffer`, spinning. `false` if the other side has closed.
fn spin_read(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn commits(security: Security) -> Result<Figures, Failure> {
    let lender = Lender::start(LenderConfig {
        name: format!("echo-{}", std::process::id()),
        listen: vec!["tcp://127.0.0.1:0".parse()?],
        security: security.clone(),
        memory: 16 << 20,
        shards: 1,
        wait: WaitPolicy::Spin,
        pin: vec![1],
        ..LenderConfig::default()
    })?;
    let mut link = connect(&lender.addresses()[0], &security, Duration::from_secs(5))?;
    let header = |kind| FrameHeader {
        epoch: Epoch(1),
        sender: 1,
        ..FrameHeader::new(kind)
    };
    ask(&mut link, header(FrameKind::Bind), &JOURNAL.0.to_le_bytes())?;
    ask(&mut link, header(FrameKind::Fence), &[])?;
    let join = FrameHeader {
        stable: Lsn(1),
        ..header(FrameKind::Join)
    };
    ask(&mut link, join, &(4_u64 << 20).to_le_bytes())?;
    let mut at = wire::ChainPoint::default();
    let mut record = vec![7; record_bytes(PAYLOAD, false)];
    let figures = measure(|| {
        let append = FrameHeader {
            lsn: at.lsn,
            mark: at.chain,
            stable: at.lsn,
            ..header(FrameKind::Append)
        };
        let fixed = RecordHeader::new(at, Epoch(1), at.lsn, RecordKind(16), false, PAYLOAD);
        fixed.write(&mut record);
        record[RECORD_HEADER_BYTES] = at.lsn.0 as u8;
        at = wire::ChainPoint {
            lsn: fixed.next(),
            chain: finish_record(&mut record, JOURNAL.into()),
        };
        let ack = ask(&mut link, append, &record)?;
        if (ack.kind, ack.lsn) != (FrameKind::Ack, at.lsn) {
            return Err(format!("not acknowledged: {ack:?}").into());
        }
        Ok(())
    });
    lender.stop_and_forget(Duration::ZERO);
    figures
}

/// Sends one frame and spins until its answer arrives.
fn ask(link: &mut Link, header: FrameHeader, body: &[u8]) -> Result<FrameHeader, Failure> {
    link.send(&[&header.encode(body.len()), body])?;
    loop {
        if let Some(packet) = link.receive()? {
            return Ok(Frame::parse(packet)?.header);
        }
        std::hint::spin_loop();
    }
}

fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // On a machine with one processor the run still works, slowly.
    let _ = sched_setaffinity(None, &set);
}
