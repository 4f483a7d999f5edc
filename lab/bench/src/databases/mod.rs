//! Databases that people run, side by side: on the disk as it is, on `netram mount`, on a volume, SQLite
//! through netram's VFS, and with the settings of their own that wait for less.
//!
//! On each disk all ways of a database stand ready at once, and their rounds alternate; what is shown is the
//! median. In the end each must have every row that it acknowledged.
//!
//! | module | does |
//! |---|---|
//! | [`kinds`] | what is compared, and what each may lose |
//! | `ground` | where a database is put |
//! | [`postgres`], [`mariadb`] | a server |
//! | `servers` | both, as they are compared |
//! | `embedded`, [`sqlite`] | engines inside of a program |
//! | [`claims`] | what is expected of the comparison |
//! | [`output`] | files for programs and people |

pub mod claims;
mod embedded;
pub mod kinds;
pub mod mariadb;
pub mod output;
mod placement;
mod plot;
pub mod postgres;
mod servers;
pub mod sqlite;

use std::time::Duration;

use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::bench_mount;
use crate::error::BenchError;
use crate::histogram::median;
use crate::lnd::device;
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use claims::DatabaseClaim;
use embedded::EngineProgram;
pub use kinds::{DatabaseDisk, DatabaseKind, DatabaseStorage, DatabaseWork, PossibleLosses};
use mariadb::MariadbTemplate;
use placement::{DatabasePlacement, DatabaseTestbed};
use postgres::PostgresTemplate;
use servers::{MariadbSubject, PostgresSubject};
use sqlite::SqliteSubject;

/// What to compare.
#[derive(Clone, Debug)]
pub struct DatabaseSpec {
    /// The databases.
    pub databases: Vec<DatabaseKind>,
    /// Where they are.
    pub storages: Vec<DatabaseStorage>,
    /// On which disk.
    pub disks: Vec<DatabaseDisk>,
    /// Rounds; what is shown is their median.
    pub rounds: usize,
    /// How long each kind of work is done in a round.
    pub time: Duration,
    /// How the lender waits.
    pub wait: WaitPolicy,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseReport {
    /// Where.
    pub machine: MachineInfo,
    /// How the lender waited.
    pub wait: String,
    /// Rounds.
    pub rounds: usize,
    /// The servers' versions.
    pub versions: Vec<(DatabaseKind, String)>,
    /// The figures.
    pub cells: Vec<DatabaseCell>,
    /// What is expected of them.
    pub claims: Vec<DatabaseClaim>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

/// How many transactions a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DatabaseCell {
    /// Of which database.
    pub database: DatabaseKind,
    /// What it did.
    pub work: DatabaseWork,
    /// Where it was.
    pub storage: DatabaseStorage,
    /// On which disk.
    pub disk: DatabaseDisk,
    /// The median of the rounds.
    pub per_second: f64,
}

impl DatabaseReport {
    /// A figure.
    pub fn rate(
        &self,
        database: DatabaseKind,
        work: DatabaseWork,
        storage: DatabaseStorage,
        disk: DatabaseDisk,
    ) -> Option<f64> {
        let wanted = (database, work, storage, disk);
        let of = |cell: &&DatabaseCell| (cell.database, cell.work, cell.storage, cell.disk) == wanted;
        self.cells.iter().find(of).map(|cell| cell.per_second)
    }

    /// How many times as many as plain.
    pub fn times_plain(
        &self,
        database: DatabaseKind,
        work: DatabaseWork,
        storage: DatabaseStorage,
        disk: DatabaseDisk,
    ) -> Option<f64> {
        let plain = self.rate(database, work, DatabaseStorage::Plain, disk)?;
        Some(self.rate(database, work, storage, disk)? / plain)
    }
}

/// A database somewhere, which runs or can be started.
trait DatabaseSubject {
    /// Does each kind of its work for so long: how many transactions a second.
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, f64)>, BenchError>;
    /// Fails unless everything that was acknowledged is there; takes all of it away.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// A database as it is installed here.
enum DatabaseInstall {
    Postgresql(PostgresTemplate),
    Mariadb(MariadbTemplate),
    Sqlite,
    Engine(EngineProgram),
}

impl DatabaseInstall {
    /// `Err`: what is missing here.
    fn find(site: &Testbed, database: DatabaseKind) -> Result<DatabaseInstall, BenchError> {
        Ok(match database {
            DatabaseKind::Postgresql => DatabaseInstall::Postgresql(PostgresTemplate::prepare(site)?),
            DatabaseKind::Mariadb => DatabaseInstall::Mariadb(MariadbTemplate::prepare(site)?),
            DatabaseKind::Sqlite => DatabaseInstall::Sqlite,
            DatabaseKind::Rocksdb | DatabaseKind::BerkeleyDb | DatabaseKind::Lmdb => {
                DatabaseInstall::Engine(EngineProgram::compile(site, database)?)
            }
        })
    }

    fn version(&self) -> Option<String> {
        match self {
            DatabaseInstall::Postgresql(postgres) => Some(postgres.version().to_owned()),
            DatabaseInstall::Mariadb(mariadb) => Some(mariadb.version().to_owned()),
            DatabaseInstall::Sqlite => Some(rusqlite::version().to_owned()),
            DatabaseInstall::Engine(_) => None,
        }
    }

    fn start(
        &self,
        world: &DatabaseTestbed<'_>,
        storage: DatabaseStorage,
        disk: DatabaseDisk,
    ) -> Result<Box<dyn DatabaseSubject + '_>, BenchError> {
        let ground = DatabasePlacement::new(world, storage, disk)?;
        Ok(match self {
            DatabaseInstall::Postgresql(postgres) => {
                Box::new(PostgresSubject::start(postgres, world, ground, storage)?)
            }
            DatabaseInstall::Mariadb(mariadb) => {
                Box::new(MariadbSubject::start(mariadb, world, ground, storage)?)
            }
            DatabaseInstall::Sqlite => Box::new(SqliteSubject::start(world, ground, storage)?),
            DatabaseInstall::Engine(engine) => Box::new(engine.start(ground, storage)),
        })
    }
}

/// Compares what `spec` asks for.
pub fn compare(
    site: &Testbed,
    spec: &DatabaseSpec,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<DatabaseReport, BenchError> {
    let mut report = DatabaseReport {
        machine: MachineInfo::probe(),
        wait: spec.wait.to_string(),
        rounds: spec.rounds,
        versions: Vec::new(),
        cells: Vec::new(),
        claims: Vec::new(),
        skipped: Vec::new(),
    };
    let storages = possible(&spec.storages, &mut report.skipped);
    let world = DatabaseTestbed::new(site, spec.wait, spec.disks.contains(&DatabaseDisk::Modelled))?;
    for &database in &spec.databases {
        let installed = match DatabaseInstall::find(site, database) {
            Ok(installed) => installed,
            Err(missing) => {
                report.skipped.push(format!("{}: {missing}", database.label()));
                continue;
            }
        };
        report
            .versions
            .extend(installed.version().map(|version| (database, version)));
        for &disk in &spec.disks {
            let cells = on_disk(&world, spec, &storages, database, &installed, disk, tell)?;
            report.cells.extend(cells);
        }
    }
    report.claims = claims::all(&report);
    for reason in &report.skipped {
        tell(ProgressEvent::Skipped(reason));
    }
    Ok(report)
}

/// Where databases can be put here; `skipped` is told of the rest.
fn possible(wanted: &[DatabaseStorage], skipped: &mut Vec<String>) -> Vec<DatabaseStorage> {
    let mut missing = |storage: DatabaseStorage, found: Result<(), String>| {
        found
            .map_err(|why| skipped.push(format!("{}: {why}", storage.id())))
            .is_ok()
    };
    let can = |storage: &&DatabaseStorage| match **storage {
        DatabaseStorage::Mount => missing(DatabaseStorage::Mount, bench_mount::possible()),
        DatabaseStorage::Disk => missing(DatabaseStorage::Disk, device::possible()),
        DatabaseStorage::Plain
        | DatabaseStorage::Vfs
        | DatabaseStorage::RemoteWrite
        | DatabaseStorage::Off => true,
    };
    wanted.iter().filter(can).copied().collect()
}

/// All ways of a database on one disk.
fn on_disk(
    world: &DatabaseTestbed<'_>,
    spec: &DatabaseSpec,
    storages: &[DatabaseStorage],
    database: DatabaseKind,
    installed: &DatabaseInstall,
    disk: DatabaseDisk,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<Vec<DatabaseCell>, BenchError> {
    let mut subjects = Vec::new();
    for &storage in storages.iter().filter(|storage| database.has(**storage)) {
        let (name, on) = (database.label(), disk.label());
        let what = format!("starting {name}, {}, {on}", storage.label(database));
        tell(ProgressEvent::Next(&what));
        subjects.push((storage, installed.start(world, storage, disk)?, Vec::new()));
    }
    for round in 0..spec.rounds {
        let what = format!(
            "measuring {}, {}, round {} of {}",
            database.label(),
            disk.label(),
            round + 1,
            spec.rounds
        );
        tell(ProgressEvent::Next(&what));
        for (_, subject, rates) in &mut subjects {
            rates.extend(subject.round(spec.time)?);
        }
    }
    let mut cells = Vec::new();
    for (storage, subject, rates) in subjects {
        subject.end()?;
        for &work in database.works() {
            let of = rates.iter().filter(|(what, _)| *what == work);
            cells.push(DatabaseCell {
                database,
                work,
                storage,
                disk,
                per_second: median(of.map(|(_, rate)| *rate).collect()),
            });
        }
    }
    Ok(cells)
}
