//! MariaDB and PostgreSQL, each with a replica that a commit waits for. Small clients of their protocols send
//! one insertion after the other over the primary's Unix socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{COMMIT_BYTES, PeerKind, PeerSubject, free_ports, must_have, timed};
use crate::databases::mariadb::{MariadbServer, MariadbSetup, MariadbTemplate};
use crate::databases::postgres::{PostgresServer, PostgresSetup, PostgresTemplate};
use crate::databases::servers::standby;
use crate::device::is_here;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;
use crate::tool::wait_until;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const TABLE: &str =
    "create table commits (n bigint primary key auto_increment, v varchar(128)) engine=innodb";
/// The bench's database on MariaDB.
const DATABASE: &str = "bench";

fn insertion(table: &str) -> String {
    format!("insert into {table} (v) values ('{}')", "x".repeat(COMMIT_BYTES))
}

fn connect(socket: &Path) -> Result<UnixStream, BenchError> {
    let what = format_args!("connect to {}", socket.display());
    let stream = UnixStream::connect(socket).context(what)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(what)?;
    Ok(stream)
}

struct MariadbSubject {
    peer: PeerKind,
    client: MariadbClient,
    primary: MariadbServer,
    replica: MariadbServer,
    acknowledged: u64,
    site: Testbed,
}

/// Starts a primary that waits for its replica's relay log, and flushes its own logs if `flush`.
pub(super) fn mariadb(site: &Testbed, flush: bool) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let template = MariadbTemplate::prepare(&site)?;
    let [port] = free_ports()?;
    let flushes = match flush {
        true => ["--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"],
        false => ["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2"],
    };
    let begin = |name: &str, id: u32, more: &[&str]| {
        let data = site.directory().join(name);
        template.copy_to(&data)?;
        let common = ["--skip-grant-tables=0", "--skip-slave-start", "--log-bin=log"];
        let words = common.iter().chain(&flushes).chain(more);
        let mut options: Vec<String> = words.map(|word| (*word).to_owned()).collect();
        options.push(format!("--server-id={id}"));
        let setup = MariadbSetup {
            options,
            environment: Vec::new(),
        };
        let server = template.start(&site, &data, &setup)?;
        server.statements(&["use bench", TABLE])?;
        Ok(server)
    };
    let listen = format!("--port={port}");
    let primary = begin(
        "primary",
        1,
        &[
            "--skip-networking=0",
            "--bind-address=127.0.0.1",
            &listen,
            "--rpl-semi-sync-master-timeout=60000",
            "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        ],
    )?;
    primary.statements(&[
        "create user peer@'127.0.0.1'",
        "grant replication slave on *.* to peer@'127.0.0.1'",
        "create user peer@localhost",
        "grant replication slave on *.* to peer@localhost",
        // From now on: earlier, a statement would wait for a replica that is not there.
        "set global rpl_semi_sync_master_enabled=1",
    ])?;
    let replica = begin("replica", 2, &["--rpl-semi-sync-slave-enabled=1"])?;
    follow(&primary, &replica, port)?;
    Ok(Box::new(MariadbSubject {
        peer: if flush {
            PeerKind::MariadbSync
        } else {
            PeerKind::MariadbNoSync
        },
        client: MariadbClient::connect(primary.socket())?,
        site,
        primary,
        replica,
        acknowledged: 0,
    }))
}

/// Lets `replica` follow `primary` from its present position.
fn follow(primary: &MariadbServer, replica: &MariadbServer, port: u16) -> Result<(), BenchError> {
    let status = primary.statements(&["show master status"])?;
    let mut words = status.split_whitespace();
    let (Some(file), Some(position)) = (words.next(), words.next()) else {
        let what = format!("MariaDB told no position: {status}");
        return Err(BenchError::InvalidRequest(what));
    };
    let source = format!(
        "change master to master_host='127.0.0.1', master_port={port}, master_user='peer', \
         master_log_file='{file}', master_log_pos={position}"
    );
    replica.statements(&[&source, "start slave"])?;
    wait_until("MariaDB's replica follows", || {
        let said = primary.statements(&["show status like 'Rpl_semi_sync_master_clients'"])?;
        Ok(said.trim().ends_with("\t1"))
    })
}

impl PeerSubject for MariadbSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let (statement, client) = (insertion(&format!("{DATABASE}.commits")), &mut self.client);
        timed(time, &mut self.acknowledged, |_| client.run(&statement))
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let alone = self
            .primary
            .statements(&["show status like 'Rpl_semi_sync_master_no_tx'"])?;
        if !alone.trim().ends_with("\t0") {
            let what = format!(
                "commits of MariaDB did not wait for the replica: {}",
                alone.trim()
            );
            return Err(BenchError::InvalidRequest(what));
        }
        let count = ["select count(*) from bench.commits"];
        let wanted = self.acknowledged;
        let found = |server: &MariadbServer| -> Result<u64, BenchError> {
            let said = server.statements(&count)?;
            said.trim().parse().context("count MariaDB's rows")
        };
        wait_until("MariaDB's replica has everything", || {
            Ok(found(&self.replica)? == wanted)
        })?;
        must_have(self.peer, &self.site, found(&self.primary)?, wanted)
    }
}

/// A connection by MariaDB's protocol.
struct MariadbClient {
    stream: UnixStream,
}

impl MariadbClient {
    fn connect(socket: &Path) -> Result<MariadbClient, BenchError> {
        /// Protocol 4.1, long passwords, secure connection, named plugin.
        const CAPABILITIES: u32 = 0x0200 | 0x0001 | 0x8000 | 0x0008_0000;
        const PACKET_BYTES_MAX: u32 = 1 << 24;
        const UTF8: u8 = 33;
        let mut client = MariadbClient {
            stream: connect(socket)?,
        };
        client.packet()?;
        let mut greeting = CAPABILITIES.to_le_bytes().to_vec();
        greeting.extend(PACKET_BYTES_MAX.to_le_bytes());
        greeting.push(UTF8);
        greeting.extend([0; 23]);
        // A user without a password.
        greeting.extend(b"root\0\0mysql_native_password\0");
        client.send(1, &greeting)?;
        client.must_be_done()?;
        Ok(client)
    }

    fn run(&mut self, statement: &str) -> Result<(), BenchError> {
        const QUERY: u8 = 3;
        let mut packet = vec![QUERY];
        packet.extend(statement.as_bytes());
        self.send(0, &packet)?;
        self.must_be_done()
    }

    fn send(&mut self, number: u8, payload: &[u8]) -> Result<(), BenchError> {
        let mut packet = (payload.len() as u32).to_le_bytes()[..3].to_vec();
        packet.push(number);
        packet.extend_from_slice(payload);
        self.stream.write_all(&packet).context("ask MariaDB")
    }

    fn packet(&mut self) -> Result<Vec<u8>, BenchError> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).context("hear MariaDB")?;
        let [a, b, c, _] = header;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, 0]) as usize];
        self.stream.read_exact(&mut payload).context("hear MariaDB")?;
        Ok(payload)
    }

    /// Fails unless the answer is `OK`.
    fn must_be_done(&mut self) -> Result<(), BenchError> {
        const OK: u8 = 0;
        let answer = self.packet()?;
        match answer.first() {
            Some(&OK) => Ok(()),
            _ => Err(BenchError::InvalidRequest(format!(
                "MariaDB refused: {}",
                String::from_utf8_lossy(&answer)
            ))),
        }
    }
}

/// The missing part for PostgreSQL.
pub(super) fn postgres_missing() -> Option<String> {
    let is_there = Path::new("/usr/lib/postgresql").exists() && is_here("setpriv");
    if !is_there {
        return Some("there is no PostgreSQL (package postgresql)".to_owned());
    }
    (!rustix::process::geteuid().is_root()).then(|| "its server needs another user, and that root".to_owned())
}

struct PostgresSubject {
    client: PostgresClient,
    /// Leaked: its servers borrow it, and a measurement has one.
    primary: PostgresServer<'static>,
    standby: PostgresServer<'static>,
    acknowledged: u64,
    site: Testbed,
}

pub(super) fn postgres(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    // Other users may pass through the directory, but not read its contents.
    let through = fs::Permissions::from_mode(0o711);
    fs::set_permissions(site.directory(), through).context("let PostgreSQL through to its directory")?;
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let template: &'static PostgresTemplate = Box::leak(Box::new(PostgresTemplate::prepare(&site)?));
    let data = site.directory().join("primary");
    template.copy_to(&data)?;
    let setup = PostgresSetup {
        settings: vec!["synchronous_standby_names=*".to_owned()],
        environment: Vec::new(),
    };
    let primary = template.start(&site, &data, &setup)?;
    let standby = standby(template, &site, site.directory(), &[], &primary)?;
    primary.run(
        "psql",
        &[
            "--command",
            "create table commits (n bigserial primary key, v text)",
        ],
    )?;
    Ok(Box::new(PostgresSubject {
        client: PostgresClient::connect(&primary.socket())?,
        site,
        primary,
        standby,
        acknowledged: 0,
    }))
}

impl PeerSubject for PostgresSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let client = &mut self.client;
        timed(time, &mut self.acknowledged, |_| client.insert())
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let found = self.primary.rows("commits")?;
        must_have(PeerKind::Postgresql, &self.site, found, self.acknowledged)?;
        let wanted = self.acknowledged;
        wait_until("PostgreSQL's standby has everything", || {
            Ok(self.standby.rows("commits")? == wanted)
        })?;
        drop(self.client);
        // The server that waits for the other's end stops first.
        self.primary.stop()?;
        self.standby.stop()
    }
}

/// A connection by PostgreSQL's protocol, with one prepared statement.
struct PostgresClient {
    stream: UnixStream,
    /// Messages that execute the statement.
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl PostgresClient {
    fn connect(socket: &Path) -> Result<PostgresClient, BenchError> {
        const PROTOCOL: u32 = 3 << 16;
        let mut client = PostgresClient {
            stream: connect(socket)?,
            request: Vec::new(),
            answer: Vec::new(),
        };
        let mut greeting = PROTOCOL.to_be_bytes().to_vec();
        greeting.extend(b"user\0postgres\0database\0postgres\0");
        greeting.extend(b"options\0-c synchronous_commit=remote_write\0\0");
        let mut first = (greeting.len() as u32 + 4).to_be_bytes().to_vec();
        first.extend(greeting);
        client.exchange(&first)?;
        let mut prepare = Vec::new();
        let text = format!("commit\0{}\0\0\0", insertion("commits"));
        add_message(&mut prepare, b'P', text.as_bytes());
        add_message(&mut prepare, b'S', &[]);
        client.exchange(&prepare)?;
        // Bind without parameters, execute without a limit of rows, sync.
        add_message(&mut client.request, b'B', b"\0commit\0\0\0\0\0\0\0");
        add_message(&mut client.request, b'E', b"\0\0\0\0\0");
        add_message(&mut client.request, b'S', &[]);
        Ok(client)
    }

    fn insert(&mut self) -> Result<(), BenchError> {
        let request = std::mem::take(&mut self.request);
        let done = self.exchange(&request);
        self.request = request;
        done
    }

    /// Sends messages, and reads answers until the server is ready for the next.
    fn exchange(&mut self, messages: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(messages).context("ask PostgreSQL")?;
        self.answer.clear();
        loop {
            while let Some((kind, length)) = self.whole_message() {
                match kind {
                    b'Z' => return Ok(()),
                    b'E' => {
                        let text = String::from_utf8_lossy(&self.answer[..length]).into_owned();
                        return Err(BenchError::InvalidRequest(format!("PostgreSQL refused: {text}")));
                    }
                    _ => drop(self.answer.drain(..length)),
                }
            }
            let mut piece = [0; 4096];
            let read = self.stream.read(&mut piece).context("hear PostgreSQL")?;
            if read == 0 {
                return Err(BenchError::InvalidRequest(
                    "PostgreSQL closed the connection".to_owned(),
                ));
            }
            self.answer.extend_from_slice(&piece[..read]);
        }
    }

    /// Kind and length of the first message, once all of it is there.
    fn whole_message(&self) -> Option<(u8, usize)> {
        let (kind, rest) = self.answer.split_first()?;
        let length = 1 + u32::from_be_bytes(*rest.first_chunk()?) as usize;
        (self.answer.len() >= length).then_some((*kind, length))
    }
}

fn add_message(to: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    to.push(kind);
    to.extend((payload.len() as u32 + 4).to_be_bytes());
    to.extend_from_slice(payload);
}
