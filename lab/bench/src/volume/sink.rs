//! Throughput of a link: bytes sent over a bare TCP connection to a process that discards them.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use netram_transport::NetAddress;
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess, PART, listening_addresses, role_argument};
use crate::error::{BenchError, ErrorContext};
use crate::machine;
use crate::namespaces::NamespacePair;
use crate::testbed::Testbed;

/// Size of one send in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Job of a receiving process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SinkServer {
    /// The address to listen on, with port 0.
    pub host: String,
    /// Core to stay on.
    pub core: Option<usize>,
}

impl SinkServer {
    /// Starts one, in `network`'s other half if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started.
    pub fn start(
        site: &Testbed,
        network: Option<&NamespacePair>,
        core: Option<usize>,
    ) -> Result<(ChildProcess, NetAddress), BenchError> {
        let host = match network.map(NamespacePair::listen) {
            Some(NetAddress::Tcp { host, .. }) => host.to_string(),
            _ => "127.0.0.1".to_owned(),
        };
        let role = role_argument(&SinkServer { host, core })?;
        let program = site.program().to_string_lossy();
        let before = network.map(NamespacePair::on_lender);
        let mut words = before
            .iter()
            .flatten()
            .map(String::as_str)
            .chain([&*program, PART, &role]);
        let first = words.next().unwrap_or_default();
        let mut child = ChildProcess::start(Path::new(first), words, "sink", site.directory())?;
        let address = listening_addresses(&child.ready("listening ")?)?
            .into_iter()
            .next();
        let address = address.ok_or_else(|| child.log_error("it named no address"))?;
        Ok((child, address))
    }
}

impl ChildJob for SinkServer {
    const ROLE: &'static str = "Sink";

    // Receives one connection after the other until killed, and closes each after its sender.
    fn run(&self) -> Result<(), BenchError> {
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let listener = TcpListener::bind((self.host.as_str(), 0)).context("listen")?;
        let address = listener.local_addr().context("ask for the port")?;
        crate::say(&format!("listening tcp://{address}"))?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let (mut stream, _) = listener.accept().context("accept a connection")?;
            while stream.read(&mut piece).is_ok_and(|count| count > 0) {}
        }
    }
}

/// Sends to a sink for `time`; returns bytes per second up to the last one received.
///
/// # Errors
///
/// Fails if the connection does.
pub fn stream(address: &NetAddress, time: Duration) -> Result<f64, BenchError> {
    use std::io::Write;
    let NetAddress::Tcp { host, port } = address else {
        return Err(BenchError::InvalidRequest("a sink is reached by TCP".to_owned()));
    };
    let mut stream = TcpStream::connect((host.to_string().as_str(), *port)).context("connect to a sink")?;
    let piece = vec![0x5a; PIECE_BYTES];
    let (mut sent, began) = (0, Instant::now());
    while began.elapsed() < time {
        stream.write_all(&piece).context("send to a sink")?;
        sent += piece.len();
    }
    stream
        .shutdown(std::net::Shutdown::Write)
        .context("end a stream")?;
    // The sink closes after the last byte.
    let _ = stream.read(&mut [0]).context("wait for a sink")?;
    Ok(sent as f64 / began.elapsed().as_secs_f64())
}
