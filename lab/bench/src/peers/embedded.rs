//! Stores inside a program: SQLite in this one, the others in a small C program each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::{COMMIT_BYTES, PeerKind, PeerSubject, free_ports, must_have, server, timed};
use crate::child::ChildProcess;
use crate::databases::embedded::{EngineNeeds, EngineProgram};
use crate::databases::sqlite;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;
use crate::tool::{finish, tool, wait_until};

/// Defines the size of a record in a C program.
const RECORD_BYTES: &str = "-DRECORD_BYTES=128";
const _: () = assert!(COMMIT_BYTES == 128, "the definition above says so too");
/// Time that a program may take for an answer, beyond that of the measurement.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

const PMEMOBJ: EngineNeeds = EngineNeeds {
    source: include_str!("programs/pmemobj.c"),
    header: "libpmemobj.h",
    package: "libpmemobj-dev",
    library: "pmemobj",
};
const BERKELEY_DB: EngineNeeds = EngineNeeds {
    source: include_str!("programs/berkeley-db-rep.c"),
    header: "db.h",
    package: "libdb5.3-dev",
    library: "db",
};

/// SQLite, linked into this program.
struct SqliteSubject {
    connection: Connection,
    acknowledged: u64,
    site: Testbed,
}

pub(super) fn sqlite(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    Ok(Box::new(SqliteSubject {
        connection: sqlite::open(&site.directory().join("peers.db"), false, "full")?,
        site,
        acknowledged: 0,
    }))
}

impl PeerSubject for SqliteSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let mut statement = { self.connection.prepare("insert into t (filler) values (?)") }
            .context("prepare a statement")?;
        let text = "x".repeat(COMMIT_BYTES);
        timed(time, &mut self.acknowledged, |_| {
            statement.execute(params![text]).context("insert a row").map(drop)
        })
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let count = { self.connection }.query_row("select count(*) from t", [], |row| row.get::<_, i64>(0));
        let found = count.context("count the rows")? as u64;
        must_have(PeerKind::Sqlite, &self.site, found, self.acknowledged)
    }
}

/// An engine whose program runs once for each round.
struct EngineSubject {
    peer: PeerKind,
    engine: EngineProgram,
    acknowledged: u64,
    site: Testbed,
}

pub(super) fn lmdb(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    engine(site, PeerKind::Lmdb, &EngineNeeds::LMDB)
}

pub(super) fn pmemobj(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    engine(site, PeerKind::Pmemobj, &PMEMOBJ)
}

fn engine(site: &Testbed, peer: PeerKind, needs: &EngineNeeds) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    Ok(Box::new(EngineSubject {
        peer,
        engine: EngineProgram::build(&site, peer.id(), needs, &[RECORD_BYTES])?,
        site,
        acknowledged: 0,
    }))
}

impl EngineSubject {
    fn run(&self, before: &[&str], after: &[&str]) -> Result<String, BenchError> {
        let mut command = Command::new(self.engine.path());
        finish(command.args(before).arg(self.site.directory()).args(after))
    }
}

impl PeerSubject for EngineSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let (seconds, first) = (time.as_secs_f64().to_string(), self.acknowledged.to_string());
        let summary = parse_summary(&self.run(&["put"], &["sync", &seconds, &first])?)?;
        self.acknowledged += summary.count;
        Ok(summary)
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let said = self.run(&["count"], &[])?;
        let found = said.parse().context(format_args!("read the count {said}"))?;
        must_have(self.peer, &self.site, found, self.acknowledged)
    }
}

/// Output of an engine's program: commits, seconds, median and 99th percentile in microseconds.
pub(super) fn parse_summary(said: &str) -> Result<LatencySummary, BenchError> {
    let numbers: Vec<f64> = { said.split_whitespace() }
        .filter_map(|word| word.parse().ok())
        .collect();
    match numbers[..] {
        [count, seconds, p50_us, p99_us] if seconds > 0.0 => Ok(LatencySummary {
            count: count as u64,
            p50_us,
            p99_us,
            per_second: count / seconds,
            ..LatencySummary::default()
        }),
        _ => Err(BenchError::InvalidRequest(format!(
            "an engine printed no figures: {said}"
        ))),
    }
}

/// Berkeley DB's master and its replica.
struct BerkeleyDbSubject {
    master: EngineServer,
    replica: EngineServer,
    acknowledged: u64,
    site: Testbed,
}

/// A program that stays open, and is asked by a named pipe.
pub(super) struct EngineServer {
    child: ChildProcess,
    pipe: File,
}

pub(super) fn berkeley_db(site: &Testbed) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let engine = EngineProgram::build(&site, PeerKind::BerkeleyDb.id(), &BERKELEY_DB, &[RECORD_BYTES])?;
    let [one, other] = free_ports()?;
    Ok(Box::new(BerkeleyDbSubject {
        master: site_of(&site, &engine, "master", [one, other])?,
        replica: site_of(&site, &engine, "replica", [other, one])?,
        site,
        acknowledged: 0,
    }))
}

/// Starts Berkeley DB as `role`.
fn site_of(
    site: &Testbed,
    engine: &EngineProgram,
    role: &'static str,
    [own, other]: [u16; 2],
) -> Result<EngineServer, BenchError> {
    let data: PathBuf = site.directory().join(role);
    std::fs::create_dir(&data).context("make a directory for Berkeley DB")?;
    let environment = [
        ("PEER_ROLE", role.to_owned()),
        ("PEER_OWN", own.to_string()),
        ("PEER_OTHER", other.to_string()),
    ];
    let text = |path: &Path| path.display().to_string();
    let words = [
        text(engine.path()),
        "serve".to_owned(),
        text(&data),
        "sync".to_owned(),
    ];
    EngineServer::start(site, role, &environment, &words)
}

impl EngineServer {
    /// Starts a program with a named pipe as its last argument.
    pub(super) fn start(
        site: &Testbed,
        role: &'static str,
        environment: &[(&str, String)],
        words: &[String],
    ) -> Result<EngineServer, BenchError> {
        let pipe = site.directory().join(format!("{role}.pipe"));
        let path = pipe.to_string_lossy().into_owned();
        tool("mkfifo", &[&path])?;
        let mut child = server(site, role, environment, &[words, &[path]].concat())?;
        child.ready_within("ready", ANSWER_TIMEOUT)?;
        // Opened for reading too, it does not wait for a reader that may have died.
        let pipe = { OpenOptions::new().read(true).write(true).open(pipe) }.context("open a pipe")?;
        Ok(EngineServer { child, pipe })
    }

    /// The answer to a line, which may take `time`.
    pub(super) fn ask(&mut self, line: &str, time: Duration) -> Result<String, BenchError> {
        writeln!(self.pipe, "{line}").context("ask an engine")?;
        let lines = self.child.ready_within("answer ", time + ANSWER_TIMEOUT)?;
        let last = lines.last().map_or("", String::as_str);
        Ok(last.trim_start_matches("answer ").to_owned())
    }
}

impl PeerSubject for BerkeleyDbSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let asked = format!("put {}", time.as_secs_f64());
        let summary = parse_summary(&self.master.ask(&asked, time)?)?;
        self.acknowledged += summary.count;
        Ok(summary)
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        let wanted = self.acknowledged.to_string();
        let found = self.master.ask("count", Duration::ZERO)?;
        must_have(
            PeerKind::BerkeleyDb,
            &self.site,
            found.parse().unwrap_or(0),
            self.acknowledged,
        )?;
        // The replica has received everything, and may still be applying it.
        wait_until("Berkeley DB's replica has everything", || {
            Ok(self.replica.ask("count", Duration::ZERO)? == wanted)
        })
    }
}
