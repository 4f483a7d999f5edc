//! OO7 in SQLite and Berkeley DB, like TR-190's figure 12 with EXODUS: by themselves, and with their files on
//! remote memory.
//!
//! The database is built once for each store and copied to all places. A round runs each operation once in
//! each place, in its own process; places alternate. The measured time is that of an operation with its
//! commit, with everything in memory. At the end all places must have the same contents.

mod job;
mod testbed;
mod times;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use netram_oo7::{Oo7Parameters, Operation};
use netram_sql_stores::SqliteJournalMode;
use serde::{Deserialize, Serialize};

pub use self::job::SqlStoreJob;
use self::job::{DIGEST_LINE, DONE_LINE, TIME_LINE};
use self::testbed::{PlacedStore, SqlStoreTestbed};
use self::times::StepTimes;
use crate::child::ChildProcess;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::{SocketKind, Testbed};
use crate::tool::wait_until;

/// Time within which a process must run all operations.
const JOB_TIMEOUT: Duration = Duration::from_secs(600);
/// Read-only operations that are also measured with a logged write, because EXODUS logs each transaction.
const LOGGED_OPERATIONS: [Operation; 1] = [Operation::T6];

/// A storage manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SqlStoreEngine {
    /// SQLite with a write-ahead log.
    Sqlite,
    /// SQLite with a rollback journal, which is its default.
    SqliteRollback,
    /// Berkeley DB.
    BerkeleyDb,
}

impl SqlStoreEngine {
    /// All storage managers.
    pub const ALL: [SqlStoreEngine; 3] = [
        SqlStoreEngine::Sqlite,
        SqlStoreEngine::SqliteRollback,
        SqlStoreEngine::BerkeleyDb,
    ];

    /// SQLite's journal mode; `None` if it is not SQLite.
    fn journal(self) -> Option<SqliteJournalMode> {
        match self {
            SqlStoreEngine::Sqlite => Some(SqliteJournalMode::Wal),
            SqlStoreEngine::SqliteRollback => Some(SqliteJournalMode::Rollback),
            SqlStoreEngine::BerkeleyDb => None,
        }
    }
}

impl fmt::Display for SqlStoreEngine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SqlStoreEngine::Sqlite => "sqlite",
            SqlStoreEngine::SqliteRollback => "sqlite-rollback",
            SqlStoreEngine::BerkeleyDb => "berkeley-db",
        })
    }
}

impl FromStr for SqlStoreEngine {
    type Err = String;

    fn from_str(text: &str) -> Result<SqlStoreEngine, String> {
        let found = SqlStoreEngine::ALL
            .into_iter()
            .find(|engine| engine.to_string() == text);
        found.ok_or_else(|| {
            let names = SqlStoreEngine::ALL.map(|engine| engine.to_string());
            format!("`{text}` is no store; there are {}", names.join(", "))
        })
    }
}

/// The disk under an unmodified database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SqlStoreDisk {
    /// The local disk.
    Local,
    /// The local disk with 8 ms added to each sync, as TR-190's disks took.
    Modelled,
    /// The modelled disk with a limited write rate, [`HARD_DISK_MB_PER_S`], like a hard disk of today.
    /// TR-190's disks had less than a tenth of it.
    Hard,
}

impl SqlStoreDisk {
    /// All disks.
    pub const ALL: [SqlStoreDisk; 3] = [SqlStoreDisk::Local, SqlStoreDisk::Modelled, SqlStoreDisk::Hard];
}

/// Sequential write rate of a hard disk, in MB per second.
pub const HARD_DISK_MB_PER_S: u32 = 150;

impl fmt::Display for SqlStoreDisk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SqlStoreDisk::Local => "local",
            SqlStoreDisk::Modelled => "modelled",
            SqlStoreDisk::Hard => "hard",
        })
    }
}

/// Place of a database. Places on netram are measured once, since they do not wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SqlStoreBacking {
    /// A plain directory.
    Plain(SqlStoreDisk),
    /// A `netram mount` with one lender.
    Mount(SocketKind),
    /// netram's VFS for SQLite, with one lender.
    Vfs(SocketKind),
}

impl SqlStoreBacking {
    /// A name for files.
    pub fn id(self) -> String {
        match self {
            SqlStoreBacking::Plain(disk) => format!("unmodified-{disk}"),
            SqlStoreBacking::Mount(wire) => format!("mount-{}", wire_names(wire).0),
            SqlStoreBacking::Vfs(wire) => format!("vfs-{}", wire_names(wire).0),
        }
    }

    /// A name for people.
    pub fn label(self) -> String {
        match self {
            SqlStoreBacking::Plain(SqlStoreDisk::Local) => "unmodified, local disk".to_owned(),
            SqlStoreBacking::Plain(SqlStoreDisk::Modelled) => "unmodified, MODELLED disk".to_owned(),
            SqlStoreBacking::Plain(SqlStoreDisk::Hard) => "unmodified, MODELLED hard disk".to_owned(),
            SqlStoreBacking::Mount(wire) => format!("mount, {}", wire_names(wire).1),
            SqlStoreBacking::Vfs(wire) => format!("VFS, {}", wire_names(wire).1),
        }
    }
}

fn wire_names(wire: SocketKind) -> (&'static str, &'static str) {
    match wire {
        SocketKind::Unix => ("unix", "Unix"),
        SocketKind::Tcp => ("tcp", "TCP"),
    }
}

/// An operation in its own transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SqlStoreStep {
    #[serde(with = "by_name")]
    operation: Operation,
    logged: bool,
}

/// Serialization of operations by name.
mod by_name {
    use netram_oo7::Operation;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(operation: &Operation, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(operation.name())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Operation, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
    }
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct SqlStoreSpec {
    /// The database.
    pub database: Oo7Parameters,
    /// The stores, measured one after the other.
    pub engines: Vec<SqlStoreEngine>,
    /// The operations.
    pub operations: Vec<Operation>,
    /// Number of rounds in each place.
    pub rounds: usize,
}

/// Results of all stores.
#[derive(Clone, Debug, Serialize)]
pub struct SqlStoreReport {
    /// Skipped measurements, each with its reason.
    pub skipped: Vec<String>,
    /// Name of the database.
    pub database: String,
    /// Number of rounds; times are their medians.
    pub rounds: usize,
    /// One result for each store.
    pub stores: Vec<SqlStoreResult>,
}

/// Result of one store.
#[derive(Clone, Debug, Serialize)]
pub struct SqlStoreResult {
    /// The storage manager.
    pub store: SqlStoreEngine,
    /// The measured places, in the order of [`SqlStoreRow::times_us`].
    pub places: Vec<SqlStoreBacking>,
    /// One row for each operation.
    pub rows: Vec<SqlStoreRow>,
}

/// Result of one operation.
#[derive(Clone, Debug, Serialize)]
pub struct SqlStoreRow {
    /// The operation.
    pub operation: Operation,
    /// Whether its transaction also wrote a row, so that it was logged.
    pub logged: bool,
    /// Its count in the first round. Each round moves dates, so queries by date count differently in the
    /// next.
    pub count: u64,
    /// Median time in each place, with the commit, in microseconds.
    pub times_us: Vec<f64>,
}

/// Measures all stores.
///
/// # Errors
///
/// Fails if no store can be measured, a process fails, or places differ in the end.
pub fn measure(
    site: &Testbed,
    spec: &SqlStoreSpec,
    tick: &mut dyn FnMut(SqlStoreEngine, &str),
) -> Result<SqlStoreReport, BenchError> {
    let world = SqlStoreTestbed::make(site, spec)?;
    let mut stores = Vec::new();
    for engine in spec.engines.iter().filter(|engine| world.supports(**engine)) {
        tick(*engine, "building the database");
        stores.push(store(site, &world, spec, *engine, tick)?);
    }
    Ok(SqlStoreReport {
        skipped: world.end()?,
        database: spec.database.to_string(),
        rounds: spec.rounds,
        stores,
    })
}

fn steps(operations: &[Operation]) -> Vec<SqlStoreStep> {
    let both = |operation: &Operation| {
        let step = |logged| SqlStoreStep {
            operation: *operation,
            logged,
        };
        let also = LOGGED_OPERATIONS.contains(operation).then(|| step(true));
        [step(false)].into_iter().chain(also)
    };
    operations.iter().flat_map(both).collect()
}

fn store(
    site: &Testbed,
    world: &SqlStoreTestbed<'_>,
    spec: &SqlStoreSpec,
    engine: SqlStoreEngine,
    tick: &mut dyn FnMut(SqlStoreEngine, &str),
) -> Result<SqlStoreResult, BenchError> {
    let places = world.placements(engine)?;
    let mut job = SqlStoreJob {
        engine,
        place: places[0].path.clone(),
        vfs: false,
        shim: world.shim(),
        database: spec.database,
        steps: steps(&spec.operations),
    };
    let mut times = StepTimes::of(job.steps.len(), places.len());
    for round in 1..=spec.rounds {
        tick(engine, &format!("round {round} of {}", spec.rounds));
        times.round();
        for (at, placed) in places.iter().enumerate() {
            for (step, took_us, count) in job_output(site, &mut job, placed)?
                .iter()
                .filter_map(|line| parse(line))
            {
                times
                    .record(step, at, took_us, count)
                    .map_err(|other| BenchError::WrongData {
                        place: placed.path.clone(),
                        why: format!(
                            "{} counted {count}, but {other} elsewhere",
                            job.steps[step].operation
                        ),
                    })?;
            }
        }
    }
    let rows = job.steps.iter().zip(times.rows());
    let rows = rows.map(|(step, (count, times_us))| SqlStoreRow {
        operation: step.operation,
        logged: step.logged,
        count,
        times_us,
    });
    let rows = rows.collect();
    tick(engine, "auditing the databases");
    check_same_database(site, &mut job, &places)?;
    Ok(SqlStoreResult {
        store: engine,
        places: places.iter().map(|placed| placed.backing).collect(),
        rows,
    })
}

/// Output of a process that runs the job in a place.
fn job_output(
    site: &Testbed,
    job: &mut SqlStoreJob,
    placed: &PlacedStore,
) -> Result<Vec<String>, BenchError> {
    job.place = placed.path.clone();
    job.vfs = matches!(placed.backing, SqlStoreBacking::Vfs(_));
    let mut child = ChildProcess::play_in(
        site.program(),
        job,
        "database",
        site.directory(),
        &placed.environment,
    )?;
    let lines = child.ready_within(DONE_LINE, JOB_TIMEOUT)?;
    let mut ended = None;
    wait_until("a database's process has ended", || {
        ended = child.exit_status()?;
        Ok(ended.is_some())
    })?;
    match ended {
        Some(status) if status.success() => Ok(lines),
        _ => Err(child.log_error("it did not end well")),
    }
}

/// Index of the step, its time in µs, and its count.
fn parse(line: &str) -> Option<(usize, f64, u64)> {
    let mut words = line.strip_prefix(TIME_LINE)?.split_whitespace();
    let step = words.next()?.parse().ok()?;
    let nanos: f64 = words.next()?.parse().ok()?;
    Some((step, nanos / 1e3, words.next()?.parse().ok()?))
}

/// Checks that all places, which ran the same operations, have the same contents.
fn check_same_database(
    site: &Testbed,
    job: &mut SqlStoreJob,
    places: &[PlacedStore],
) -> Result<(), BenchError> {
    job.steps.clear();
    let mut first = None;
    for placed in places {
        let lines = job_output(site, job, placed)?;
        let digest = lines.iter().find_map(|line| line.strip_prefix(DIGEST_LINE));
        let digest =
            digest.ok_or_else(|| BenchError::InvalidRequest("a database was not audited".to_owned()))?;
        let digest: u64 = digest.trim().parse().context("read a digest")?;
        if *first.get_or_insert(digest) != digest {
            return Err(BenchError::WrongData {
                place: placed.path.clone(),
                why: "its contents differ from those of another place with the same operations".to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_operations_are_also_measured_logged() {
        let steps = steps(&[Operation::T6, Operation::T12a]);
        let told = steps.iter().map(|step| (step.operation, step.logged));
        let expected = [
            (Operation::T6, false),
            (Operation::T6, true),
            (Operation::T12a, false),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn stores_are_found_by_their_names() {
        for engine in SqlStoreEngine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        assert!(
            "exodus"
                .parse::<SqlStoreEngine>()
                .unwrap_err()
                .contains("berkeley-db")
        );
    }

    #[test]
    fn a_time_line_is_parsed() {
        assert_eq!(parse("took 3 1500 2187"), Some((3, 1.5, 2187)));
        assert_eq!(parse("done"), None);
    }
}
