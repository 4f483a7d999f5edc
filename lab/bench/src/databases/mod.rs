//! Common databases side by side: on the local disk, on `netram mount`, on a volume, SQLite through netram's
//! VFS, and with their own settings that wait for less.
//!
//! On each disk all storages of a database are ready at once, and their rounds alternate; results are
//! medians. At the end each database must have every acknowledged row.
//!
//! | module | does |
//! |---|---|
//! | [`kinds`] | databases, storages, disks and workloads, and possible losses |
//! | `placement` | the place of a database's files |
//! | [`postgres`], [`mariadb`] | one server |
//! | `servers` | both servers as compared |
//! | `embedded`, [`sqlite`] | engines inside a program |
//! | [`claims`] | expected results |
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
use crate::device;
use crate::error::BenchError;
use crate::histogram::median;
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

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct DatabaseSpec {
    /// The databases.
    pub databases: Vec<DatabaseKind>,
    /// The storages.
    pub storages: Vec<DatabaseStorage>,
    /// The disks.
    pub disks: Vec<DatabaseDisk>,
    /// Number of rounds; results are their medians.
    pub rounds: usize,
    /// Duration of each workload in a round.
    pub time: Duration,
    /// Wait policy of the lender.
    pub wait: WaitPolicy,
}

/// Results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseReport {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Wait policy of the lender.
    pub wait: String,
    /// Number of rounds.
    pub rounds: usize,
    /// The servers' versions.
    pub versions: Vec<(DatabaseKind, String)>,
    /// The measured rates.
    pub cells: Vec<DatabaseCell>,
    /// Expected results, and whether they are met.
    pub claims: Vec<DatabaseClaim>,
    /// Skipped measurements, each with its reason.
    pub skipped: Vec<String>,
}

/// Transactions per second of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DatabaseCell {
    /// The database.
    pub database: DatabaseKind,
    /// The workload.
    pub work: DatabaseWork,
    /// The storage.
    pub storage: DatabaseStorage,
    /// The disk.
    pub disk: DatabaseDisk,
    /// The median of the rounds.
    pub per_second: f64,
}

impl DatabaseReport {
    /// The rate of one cell; `None` if it was not measured.
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

    /// The rate over that of plain storage.
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

/// A database on one storage, running or ready to be started.
trait DatabaseSubject {
    /// Runs each workload for `time`; returns transactions per second.
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, f64)>, BenchError>;
    /// Fails unless everything acknowledged is there; then removes the database.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// A database as installed on this machine.
enum DatabaseInstall {
    Postgresql(PostgresTemplate),
    Mariadb(MariadbTemplate),
    Sqlite,
    Engine(EngineProgram),
}

impl DatabaseInstall {
    /// Finds the installation; the error names what is missing.
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

/// Runs the comparison that `spec` describes.
///
/// # Errors
///
/// Fails if no database can be measured, a database fails, or an acknowledged row is missing.
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

/// The storages possible on this machine. The others go to `skipped`, with the reason.
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

/// Measures all storages of a database on one disk.
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
