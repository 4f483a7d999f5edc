//! OO7 in SQLite and Berkeley DB, as TR-190's figure 12 has it over EXODUS: on their own, and with their files on remote memory.
//!
//! The database is built once for each store, and copied to all places. A round does each operation once in each place, in a process of
//! its own; places alternate. What is measured is an operation with its commit, everything being in memory. In the end all places
//! must hold the same.

mod job;
mod place;
mod times;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use netram_oo7::{Operation, Parameters};
use netram_sql_stores::Journal;
use serde::{Deserialize, Serialize};

pub use self::job::Job;
use self::job::{AUDITED, DONE, TOOK};
use self::place::{Placed, World};
use self::times::Times;
use crate::child::{Child, Role};
use crate::error::{BenchError, Context};
use crate::site::{Site, Wire};
use crate::tool::until;

/// How long a process may take for all operations.
const PATIENCE: Duration = Duration::from_secs(600);
/// Operations that change nothing and are measured logged, too, as EXODUS logs each transaction.
const LOGGED: [Operation; 1] = [Operation::T6];

/// A storage manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// SQLite with a write-ahead log.
    Sqlite,
    /// SQLite with a rollback journal, which is its default.
    SqliteRollback,
    /// Berkeley DB.
    BerkeleyDb,
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 3] = [Engine::Sqlite, Engine::SqliteRollback, Engine::BerkeleyDb];

    /// SQLite's journal; `None`: it is not SQLite.
    fn journal(self) -> Option<Journal> {
        match self {
            Engine::Sqlite => Some(Journal::Wal),
            Engine::SqliteRollback => Some(Journal::Rollback),
            Engine::BerkeleyDb => None,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Engine::Sqlite => "sqlite",
            Engine::SqliteRollback => "sqlite-rollback",
            Engine::BerkeleyDb => "berkeley-db",
        })
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        let found = Engine::ALL.into_iter().find(|engine| engine.to_string() == text);
        found.ok_or_else(|| {
            let names = Engine::ALL.map(|engine| engine.to_string());
            format!("`{text}` is no store; there are {}", names.join(", "))
        })
    }
}

/// The disk beneath an unmodified database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disk {
    /// The local one.
    Local,
    /// The local one with 8 ms added to each sync: what TR-190's disks took.
    Modelled,
    /// That one, and its bytes take time, too: [`HARD_DISK_MB_PER_S`], as those of a hard disk of today. Disks of TR-190's time had less than a tenth of it.
    Hard,
}

impl Disk {
    /// All of them.
    pub const ALL: [Disk; 3] = [Disk::Local, Disk::Modelled, Disk::Hard];
}

/// What a hard disk takes a second, one byte behind the other.
pub const HARD_DISK_MB_PER_S: u32 = 150;

impl fmt::Display for Disk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Disk::Local => "local",
            Disk::Modelled => "modelled",
            Disk::Hard => "hard",
        })
    }
}

/// Where a database is. What is netram's is measured once: it does not wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// In a plain folder.
    Plain(Disk),
    /// On a `netram mount` with one lender.
    Mount(Wire),
    /// Where netram's VFS of SQLite has it, with one lender.
    Vfs(Wire),
}

/// An operation in a transaction of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    #[serde(with = "by_name")]
    operation: Operation,
    logged: bool,
}

/// Operations by their names.
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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The database.
    pub database: Parameters,
    /// The stores, one after the other.
    pub engines: Vec<Engine>,
    /// The operations.
    pub operations: Vec<Operation>,
    /// How often each is done in each place.
    pub rounds: usize,
}

/// All stores.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was not measured, and why.
    pub skipped: Vec<String>,
    /// What the database is called.
    pub database: String,
    /// Rounds, of whose times medians are shown.
    pub rounds: usize,
    /// One for each store.
    pub stores: Vec<Measured>,
}

/// A store.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Which.
    pub store: Engine,
    /// Where it was measured: the order of [`Row::times_us`].
    pub places: Vec<Way>,
    /// One for each operation.
    pub rows: Vec<Row>,
}

/// An operation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// Its transaction wrote a row that says that it was.
    pub logged: bool,
    /// What it counted in the first round. Dates move in each, so queries of dates count otherwise in the next.
    pub count: u64,
    /// The median of each place, with the commit.
    pub times_us: Vec<f64>,
}

/// Measures them all.
pub fn measure(site: &Site, spec: &Spec, tick: &mut dyn FnMut(Engine, &str)) -> Result<Report, BenchError> {
    let world = World::make(site, spec)?;
    let mut stores = Vec::new();
    for engine in spec.engines.iter().filter(|engine| world.has(**engine)) {
        tick(*engine, "building the database");
        stores.push(store(site, &world, spec, *engine, tick)?);
    }
    Ok(Report {
        skipped: world.end()?,
        database: spec.database.to_string(),
        rounds: spec.rounds,
        stores,
    })
}

fn steps(operations: &[Operation]) -> Vec<Step> {
    let both = |operation: &Operation| {
        let step = |logged| Step {
            operation: *operation,
            logged,
        };
        let also = LOGGED.contains(operation).then(|| step(true));
        [step(false)].into_iter().chain(also)
    };
    operations.iter().flat_map(both).collect()
}

fn store(
    site: &Site,
    world: &World<'_>,
    spec: &Spec,
    engine: Engine,
    tick: &mut dyn FnMut(Engine, &str),
) -> Result<Measured, BenchError> {
    let places = world.places(engine)?;
    let mut job = Job {
        engine,
        place: places[0].place.clone(),
        vfs: false,
        shim: world.shim(),
        database: spec.database,
        steps: steps(&spec.operations),
    };
    let mut times = Times::of(job.steps.len(), places.len());
    for round in 1..=spec.rounds {
        tick(engine, &format!("round {round} of {}", spec.rounds));
        times.round();
        for (at, placed) in places.iter().enumerate() {
            for (step, took_us, count) in heard(site, &mut job, placed)?
                .iter()
                .filter_map(|line| parse(line))
            {
                times
                    .heard(step, at, took_us, count)
                    .map_err(|other| BenchError::Wrong {
                        place: placed.place.clone(),
                        why: format!(
                            "{} counted {count}, and elsewhere {other}",
                            job.steps[step].operation
                        ),
                    })?;
            }
        }
    }
    let rows = job.steps.iter().zip(times.rows());
    let rows = rows.map(|(step, (count, times_us))| Row {
        operation: step.operation,
        logged: step.logged,
        count,
        times_us,
    });
    let rows = rows.collect();
    tick(engine, "auditing the databases");
    same(site, &mut job, &places)?;
    Ok(Measured {
        store: engine,
        places: places.iter().map(|placed| placed.way).collect(),
        rows,
    })
}

/// What a process says that does the job in a place.
fn heard(site: &Site, job: &mut Job, placed: &Placed) -> Result<Vec<String>, BenchError> {
    job.place = placed.place.clone();
    job.vfs = matches!(placed.way, Way::Vfs(_));
    let role = Role::Oo7(job.clone());
    let mut child = Child::play_in(
        site.program(),
        &role,
        "database",
        site.folder(),
        &placed.environment,
    )?;
    let lines = child.ready_within(DONE, PATIENCE)?;
    let mut ended = None;
    until("a database's process has ended", || {
        ended = child.ended()?;
        Ok(ended.is_some())
    })?;
    match ended {
        Some(status) if status.success() => Ok(lines),
        _ => Err(child.failed("it did not end well")),
    }
}

/// Which step, what it took in µs, what it counted.
fn parse(line: &str) -> Option<(usize, f64, u64)> {
    let mut words = line.strip_prefix(TOOK)?.split_whitespace();
    let step = words.next()?.parse().ok()?;
    let nanos: f64 = words.next()?.parse().ok()?;
    Some((step, nanos / 1e3, words.next()?.parse().ok()?))
}

/// All places went through the same, and must hold the same.
fn same(site: &Site, job: &mut Job, places: &[Placed]) -> Result<(), BenchError> {
    job.steps.clear();
    let mut first = None;
    for placed in places {
        let lines = heard(site, job, placed)?;
        let digest = lines.iter().find_map(|line| line.strip_prefix(AUDITED));
        let digest = digest.ok_or_else(|| BenchError::Asked("a database was not audited".to_owned()))?;
        let digest: u64 = digest.trim().parse().context("read a digest")?;
        if *first.get_or_insert(digest) != digest {
            return Err(BenchError::Wrong {
                place: placed.place.clone(),
                why: "it holds something else than where the same was done".to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_only_is_measured_logged_too() {
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
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        assert!("exodus".parse::<Engine>().unwrap_err().contains("berkeley-db"));
    }

    #[test]
    fn a_time_is_read_as_it_was_said() {
        assert_eq!(parse("took 3 1500 2187"), Some((3, 1.5, 2187)));
        assert_eq!(parse("done"), None);
    }
}
