//! A small NBD client over a Unix socket: fixed newstyle, simple replies, any number of writes in flight. It
//! sleeps in the kernel while it waits, like other clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_nbd::wire::request::{NbdRequest, command, flag};
use netram_nbd::wire::{GREETING_MAGIC, OPTION_MAGIC, SIMPLE_REPLY_MAGIC};

use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary};

/// Longest wait for a reply, longer than a server takes that has lost its lenders; an endless wait would
/// report nothing.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_BYTES: usize = 16;
/// `FIXED_NEWSTYLE` and `NO_ZEROES`.
const CLIENT_FLAGS: u32 = 3;
const EXPORT_NAME: u32 = 1;

/// A connection to an export.
#[derive(Debug)]
pub struct NbdClient {
    stream: UnixStream,
    bytes: u64,
    cookie: u64,
    out: Vec<u8>,
}

/// Result of a stream of writes, all of them answered.
#[derive(Clone, Copy, Debug)]
pub struct StreamResult {
    /// Bytes written.
    pub bytes: u64,
    /// Duration of the stream.
    pub took: Duration,
}

impl StreamResult {
    /// Bytes per second.
    pub fn per_second(self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }
}

impl NbdClient {
    /// Connects to the server's first export.
    ///
    /// # Errors
    ///
    /// Fails if the server is not there, or does not speak the protocol.
    pub fn connect(path: &Path) -> Result<NbdClient, BenchError> {
        let what = format_args!("connect to the NBD server at {}", path.display());
        let stream = UnixStream::connect(path).context(what)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).context(what)?;
        let mut client = NbdClient {
            stream,
            bytes: 0,
            cookie: 0,
            out: Vec::new(),
        };
        let mut greeting = [0; 18];
        client.stream.read_exact(&mut greeting).context(what)?;
        if greeting[..8] != GREETING_MAGIC.to_be_bytes() || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
            return Err(BenchError::InvalidRequest(
                "the server does not speak NBD's newstyle".to_owned(),
            ));
        }
        let mut choice = CLIENT_FLAGS.to_be_bytes().to_vec();
        choice.extend(OPTION_MAGIC.to_be_bytes());
        choice.extend(EXPORT_NAME.to_be_bytes());
        choice.extend(0_u32.to_be_bytes());
        client.stream.write_all(&choice).context(what)?;
        let (mut size, mut flags) = ([0; 8], [0; 2]);
        client.stream.read_exact(&mut size).context(what)?;
        client.stream.read_exact(&mut flags).context(what)?;
        client.bytes = u64::from_be_bytes(size);
        Ok(client)
    }

    /// Size of the export in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes and waits for the answer. With `forced` (FUA) the data is then on the server's disk.
    ///
    /// # Errors
    ///
    /// Fails if the server reports an error, or does not answer in time.
    pub fn write(&mut self, offset: u64, data: &[u8], forced: bool) -> Result<(), BenchError> {
        self.send_write(offset, data, forced)?;
        self.read_reply()
    }

    /// Writes blocks of `bytes` over `span`, one after the other, for `time`.
    ///
    /// # Errors
    ///
    /// Fails if the server reports an error, or does not answer in time.
    pub fn write_for(
        &mut self,
        time: Duration,
        bytes: usize,
        span: u64,
        forced: bool,
    ) -> Result<LatencySummary, BenchError> {
        let data = vec![0x5a; bytes];
        let mut recorder = LatencyRecorder::start(&[]);
        let (mut at, end) = (0, Instant::now() + time);
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(recorder.finish());
            }
            self.write(at, &data, forced)?;
            recorder.record(began.elapsed());
            at = (at + bytes as u64) % span;
        }
    }

    /// Reads and waits.
    ///
    /// # Errors
    ///
    /// Fails if the server reports an error, or does not answer in time.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BenchError> {
        self.send(command::READ, 0, offset, into.len(), &[])?;
        self.read_reply()?;
        self.stream
            .read_exact(into)
            .context("read what an NBD server sends")
    }

    /// Writes consecutive blocks of `block` bytes over `span` bytes for `time`, with `depth` in flight.
    ///
    /// # Errors
    ///
    /// Fails if the server reports an error, or does not answer in time.
    pub fn stream_writes(
        &mut self,
        block: usize,
        span: u64,
        depth: usize,
        time: Duration,
    ) -> Result<StreamResult, BenchError> {
        let data: Vec<u8> = (0..block).map(|index| (index % 251) as u8).collect();
        let (mut sent, mut answered) = (0_u64, 0_u64);
        let blocks = span / block as u64;
        let began = Instant::now();
        while began.elapsed() < time {
            if sent - answered == depth as u64 {
                self.read_reply()?;
                answered += 1;
            }
            self.send_write(sent % blocks * block as u64, &data, false)?;
            sent += 1;
        }
        while answered < sent {
            self.read_reply()?;
            answered += 1;
        }
        Ok(StreamResult {
            bytes: sent * block as u64,
            took: began.elapsed(),
        })
    }

    fn send_write(&mut self, offset: u64, data: &[u8], forced: bool) -> Result<(), BenchError> {
        let flags = if forced { flag::FUA } else { 0 };
        self.send(command::WRITE, flags, offset, data.len(), data)
    }

    fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: usize,
        data: &[u8],
    ) -> Result<(), BenchError> {
        self.cookie += 1;
        let request = NbdRequest {
            flags,
            command,
            cookie: self.cookie,
            offset,
            length: length as u64,
        };
        self.out.clear();
        self.out.extend(request.encode());
        self.out.extend_from_slice(data);
        self.stream.write_all(&self.out).context("ask an NBD server")
    }

    /// Receives one answer.
    fn read_reply(&mut self) -> Result<(), BenchError> {
        let mut reply = [0; REPLY_BYTES];
        self.stream.read_exact(&mut reply).context("hear an NBD server")?;
        if reply[..4] != SIMPLE_REPLY_MAGIC.to_be_bytes() {
            return Err(BenchError::InvalidRequest(
                "the NBD server sent something other than a reply".to_owned(),
            ));
        }
        match reply[4..8] {
            [0, 0, 0, 0] => Ok(()),
            [_, _, _, error] => Err(BenchError::InvalidRequest(format!(
                "the NBD server answered with the unexpected error {error}"
            ))),
            _ => unreachable!("four bytes are four bytes"),
        }
    }
}
