//! Round trips over a link compared with a bare socket: 128 bytes there, 40 back, two pinned threads that
//! spin.
//!
//! `cargo run --release -p netram-transport --example pingpong`
#![allow(clippy::print_stdout)]

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use netram_transport::{ClusterKey, HandshakeProgress, Link, Listener, NetAddress, Security, connect};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::thread::{CpuSet, sched_setaffinity};

const REQUEST_BYTES: usize = 128;
const REPLY_BYTES: usize = 40;
const EXCHANGES: usize = 5_000;
/// Number of rounds. Rounds alternate between the contestants, so that load on the machine affects all of
/// them.
const ROUNDS: usize = 15;

/// One end of an exchange of packets with known lengths.
trait End: Send {
    fn send(&mut self, packet: &[u8]);
    fn receive(&mut self, length: usize);
}

struct Raw(OwnedFd);

impl End for Raw {
    fn send(&mut self, packet: &[u8]) {
        assert_eq!(send(&self.0, packet, SendFlags::NOSIGNAL), Ok(packet.len()));
    }

    fn receive(&mut self, length: usize) {
        let (mut buffer, mut filled) = ([0; 256], 0);
        while filled < length {
            match recv(&self.0, &mut buffer[filled..], RecvFlags::DONTWAIT) {
                Ok((_, received)) => filled += received,
                Err(Errno::AGAIN) => (),
                Err(errno) => panic!("{errno}"),
            }
        }
    }
}

impl End for Link {
    fn send(&mut self, packet: &[u8]) {
        // Two parts, header and body, as the protocol sends them.
        Link::send(self, &[&packet[..REPLY_BYTES], &packet[REPLY_BYTES..]]).expect("the peer lives");
    }

    fn receive(&mut self, length: usize) {
        loop {
            if let Some(packet) = Link::receive(self).expect("the peer lives") {
                assert_eq!(packet.len(), length);
                return;
            }
        }
    }
}

type Ends = (Box<dyn End>, Box<dyn End>);

fn raw_tcp() -> io::Result<Ends> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (lender, _) = listener.accept()?;
    client.set_nodelay(true)?;
    lender.set_nodelay(true)?;
    Ok((Box::new(Raw(client.into())), Box::new(Raw(lender.into()))))
}

fn raw_unix() -> io::Result<Ends> {
    let (client, lender) = UnixStream::pair()?;
    Ok((Box::new(Raw(client.into())), Box::new(Raw(lender.into()))))
}

fn linked(address: &str, security: Security) -> io::Result<Ends> {
    let address: NetAddress = address.parse().map_err(io::Error::other)?;
    let listener = Listener::bind(&address, security.clone()).map_err(io::Error::other)?;
    let address = listener.address().clone();
    let client = thread::spawn(move || connect(&address, &security, Duration::from_secs(5)));
    let mut pending = loop {
        if let Some(pending) = listener.accept(Instant::now())? {
            break pending;
        }
    };
    let lender = loop {
        if let HandshakeProgress::Done(link) = pending.advance(Instant::now()).map_err(io::Error::other)? {
            break link;
        }
    };
    let client = client
        .join()
        .expect("connecting does not panic")
        .map_err(io::Error::other)?;
    Ok((Box::new(client), Box::new(lender)))
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    // Without a second core the figures are poor, but the program runs.
    let _ = sched_setaffinity(None, &cores);
}

/// The median exchange in nanoseconds.
fn round((mut client, mut lender): Ends) -> u64 {
    let echo = thread::spawn(move || {
        pin(1);
        for _ in 0..EXCHANGES {
            lender.receive(REQUEST_BYTES);
            lender.send(&[2; REPLY_BYTES]);
        }
    });
    pin(0);
    let mut taken: Vec<u64> = (0..EXCHANGES)
        .map(|_| {
            let start = Instant::now();
            client.send(&[1; REQUEST_BYTES]);
            client.receive(REPLY_BYTES);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    echo.join().expect("the other end does not panic");
    median(&mut taken)
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

fn main() -> io::Result<()> {
    let unix = format!(
        "unix:{}/netram-pingpong-{}",
        std::env::temp_dir().display(),
        std::process::id()
    );
    let key = Security::Key(ClusterKey::generate());
    let mut p50s: [Vec<u64>; 6] = Default::default();
    for _ in 0..ROUNDS {
        let contestants = [
            raw_tcp()?,
            linked("tcp://127.0.0.1:0", Security::Insecure)?,
            linked("tcp://127.0.0.1:0", key.clone())?,
            raw_unix()?,
            linked(&unix, Security::Insecure)?,
            linked(&unix, key.clone())?,
        ];
        for (p50s, ends) in p50s.iter_mut().zip(contestants) {
            p50s.push(round(ends));
        }
    }
    let names = [
        "tcp raw",
        "tcp link plain",
        "tcp link sealed",
        "unix raw",
        "unix link plain",
        "unix link sealed",
    ];
    let medians = p50s.each_mut().map(|p50s| median(p50s));
    for (at, name) in names.iter().enumerate() {
        let floor = medians[at / 3 * 3];
        println!(
            "{name:17} p50 {:6} ns  {:.2} x raw",
            medians[at],
            medians[at] as f64 / floor as f64
        );
    }
    Ok(())
}
