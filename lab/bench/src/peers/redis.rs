//! Redis: a primary without files and one replica. Each `SET` is followed by `WAIT 1`, in one message.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{COMMIT_BYTES, PeerKind, PeerSubject, free_ports, must_have, server, timed};
use crate::child::ChildProcess;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;
use crate::tool::wait_until;

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

struct RedisSubject {
    primary: RedisClient,
    replica: RedisClient,
    acknowledged: u64,
    _servers: [ChildProcess; 2],
    site: Testbed,
}

/// A connection to a server.
pub(crate) struct RedisClient {
    stream: TcpStream,
    request: Vec<u8>,
}

/// Starts both servers, and waits until the replica follows.
pub(super) fn start(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let [one, other] = free_ports()?;
    let process = |port: u16, more: &[String]| {
        let mut words: Vec<String> = ["redis-server", "--save", "", "--appendonly", "no"]
            .map(str::to_owned)
            .into();
        words.extend(["--bind", "127.0.0.1", "--daemonize", "no"].map(str::to_owned));
        words.extend(["--port".to_owned(), port.to_string()]);
        words.extend(["--dir".to_owned(), site.directory().display().to_string()]);
        words.extend(["--logfile".to_owned(), format!("redis-{port}.log")]);
        words.extend_from_slice(more);
        server(&site, "redis", &[], &words)
    };
    let servers = [
        process(one, &[])?,
        process(other, &["--replicaof".to_owned(), format!("127.0.0.1 {one}")])?,
    ];
    let mut primary = RedisClient::connect(one)?;
    let replica = RedisClient::connect(other)?;
    wait_until("Redis's replica follows", || {
        let said = primary.bulk(&[b"INFO", b"replication"])?;
        Ok(said.contains("state=online"))
    })?;
    Ok(Box::new(RedisSubject {
        site,
        primary,
        replica,
        acknowledged: 0,
        _servers: servers,
    }))
}

impl PeerSubject for RedisSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let (value, client) = ([b'x'; COMMIT_BYTES], &mut self.primary);
        timed(time, &mut self.acknowledged, |number| {
            client.request.clear();
            client.add(&[b"SET", number.to_string().as_bytes(), &value]);
            client.add(&[b"WAIT", b"1", b"0"]);
            client.send()?;
            client.expect("+OK")?;
            client.expect(":1")
        })
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        for client in [&mut self.primary, &mut self.replica] {
            let found = client.integer(&[b"DBSIZE"])?;
            must_have(PeerKind::Redis, &self.site, found, self.acknowledged)?;
        }
        Ok(())
    }
}

impl RedisClient {
    fn connect(port: u16) -> Result<RedisClient, BenchError> {
        let mut found = None;
        wait_until("Redis listens", || {
            found = TcpStream::connect(("127.0.0.1", port)).ok();
            Ok(found.is_some())
        })?;
        RedisClient::new(found.expect("the condition above is that it was found"))
    }

    /// Speaks over a new connection.
    pub(crate) fn new(stream: TcpStream) -> Result<RedisClient, BenchError> {
        stream.set_nodelay(true).context("connect to Redis")?;
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .context("connect to Redis")?;
        Ok(RedisClient {
            stream,
            request: Vec::new(),
        })
    }

    /// Sets a key, and waits for the acknowledgement.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.request.clear();
        self.add(&[b"SET", key, value]);
        self.send()?;
        self.expect("+OK")
    }

    /// Adds a command to the next message.
    fn add(&mut self, words: &[&[u8]]) {
        self.request.extend(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.request.extend(format!("${}\r\n", word.len()).as_bytes());
            self.request.extend_from_slice(word);
            self.request.extend(b"\r\n");
        }
    }

    fn send(&mut self) -> Result<(), BenchError> {
        self.stream.write_all(&self.request).context("ask Redis")
    }

    /// A line of the answer. Byte by byte it would cost system calls, so an answer's lines are read at once.
    fn expect(&mut self, line: &str) -> Result<(), BenchError> {
        let mut answer = vec![0; line.len() + 2];
        self.stream.read_exact(&mut answer).context("hear Redis")?;
        match answer.strip_suffix(b"\r\n") == Some(line.as_bytes()) {
            true => Ok(()),
            false => Err(BenchError::InvalidRequest(format!(
                "Redis answered {:?}, not {line}",
                String::from_utf8_lossy(&answer)
            ))),
        }
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).context("hear Redis")?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Runs a command that answers with a number.
    pub(crate) fn integer(&mut self, words: &[&[u8]]) -> Result<u64, BenchError> {
        self.request.clear();
        self.add(words);
        self.send()?;
        let line = self.line()?;
        line.trim_start_matches(':')
            .parse()
            .context(format_args!("read Redis's answer {line}"))
    }

    fn bulk(&mut self, words: &[&[u8]]) -> Result<String, BenchError> {
        self.request.clear();
        self.add(words);
        self.send()?;
        let line = self.line()?;
        let length: usize = line
            .trim_start_matches('$')
            .parse()
            .context(format_args!("read Redis's answer {line}"))?;
        let mut text = vec![0; length + 2];
        self.stream.read_exact(&mut text).context("hear Redis")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
