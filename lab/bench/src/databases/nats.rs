//! A client of NATS JetStream, as little of its text protocol as one stream takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const SUBJECT: &str = "records";
const CREATE: &str = "$JS.API.STREAM.CREATE.RECORDS";
const INFO: &str = "$JS.API.STREAM.INFO.RECORDS";
const CONFIG: &str =
    r#"{"name":"RECORDS","subjects":["records"],"storage":"file","retention":"limits","num_replicas":1}"#;

/// A connection with one subscription, to its own answers.
pub(super) struct NatsClient {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    /// Subject of its answers.
    inbox: String,
}

/// An answer of JetStream, as far as it is read.
#[derive(Deserialize)]
struct Answer {
    /// Number of the published message in the stream.
    seq: Option<u64>,
    state: Option<StreamState>,
}

/// Contents of a stream.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct StreamState {
    /// Number of messages.
    pub(super) messages: u64,
    /// Number of the last one.
    pub(super) last_seq: u64,
}

impl NatsClient {
    /// Greets a server over a new connection. The stream exists afterwards.
    pub(super) fn new(stream: TcpStream) -> Result<NatsClient, BenchError> {
        let what = "greet NATS";
        stream.set_nodelay(true).context(what)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(what)?;
        let inbox = format!("_INBOX.{}", stream.local_addr().context(what)?.port());
        let mut client = NatsClient {
            request: format!("CONNECT {{\"verbose\":false}}\r\nSUB {inbox} 1\r\n").into(),
            stream: BufReader::new(stream),
            inbox,
        };
        // One that exists with the same settings stays as it is.
        client.ask(CREATE, CONFIG.as_bytes())?;
        Ok(client)
    }

    /// Publishes a message, and waits for JetStream's acknowledgement.
    pub(super) fn publish(&mut self, message: &[u8]) -> Result<(), BenchError> {
        match self.ask(SUBJECT, message)?.seq {
            Some(_) => Ok(()),
            None => Err(refused("a message")),
        }
    }

    /// Counts the stream's messages.
    pub(super) fn state(&mut self) -> Result<StreamState, BenchError> {
        self.ask(INFO, b"")?
            .state
            .ok_or_else(|| refused("to describe its stream"))
    }

    fn ask(&mut self, subject: &str, message: &[u8]) -> Result<Answer, BenchError> {
        let head = format!("PUB {subject} {} {}\r\n", self.inbox, message.len());
        self.request.extend(head.as_bytes());
        self.request.extend_from_slice(message);
        self.request.extend(b"\r\n");
        self.send()?;
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.stream.read_line(&mut line).context("hear NATS")?;
            match line.split_whitespace().next() {
                _ if read == 0 => return Err(refused("the connection")),
                Some("MSG") => break,
                Some("PING") => {
                    self.request.extend(b"PONG\r\n");
                    self.send()?;
                }
                Some("-ERR") => return Err(refused(line.trim())),
                _ => (),
            }
        }
        let length = line.split_whitespace().last().and_then(|word| word.parse().ok());
        let length: usize = length
            .filter(|length| *length <= ANSWER_BYTES_MAX)
            .ok_or_else(|| refused(line.trim()))?;
        let mut answer = vec![0; length + 2];
        self.stream.read_exact(&mut answer).context("hear NATS")?;
        serde_json::from_slice(&answer).context("read JetStream's answer")
    }

    fn send(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.get_mut().write_all(&self.request).context("ask NATS");
        self.request.clear();
        sent
    }
}

fn refused(what: &str) -> BenchError {
    BenchError::InvalidRequest(format!("NATS refused {what}"))
}
