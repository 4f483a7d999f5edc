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
//! | `services`, `nats` | servers with one directory, and their clients |
//! | [`power`] | losses by power cuts |
//! | [`claims`] | expected results |
//! | [`output`] | files for programs and people |

pub mod claims;
pub(crate) mod embedded;
pub mod kinds;
pub mod mariadb;
mod nats;
pub mod output;
mod placement;
mod plot;
pub mod postgres;
pub mod power;
pub(crate) mod servers;
mod services;
pub mod sqlite;

use std::time::Duration;

use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::bench_mount;
use crate::device;
use crate::error::BenchError;
use crate::histogram::{LatencySummary, median};
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use claims::DatabaseClaim;
use embedded::EngineProgram;
pub use kinds::{DatabaseDisk, DatabaseKind, DatabaseStorage, DatabaseWork, PossibleLosses};
use mariadb::MariadbTemplate;
use placement::{DatabasePlacement, DatabaseTestbed};
use postgres::PostgresTemplate;
use power::PowerCuts;
use servers::{MariadbSubject, PostgresSubject};
use services::{ServiceProgram, ServiceSubject};
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
    /// Number of power cuts of each service on each storage.
    pub cuts: usize,
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
    /// Losses by power cuts.
    pub cuts: Vec<PowerCuts>,
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
    /// Medians of the rounds' latencies, median and 99th percentile in microseconds, where commits are timed
    /// one by one.
    pub latency_us: Option<[f64; 2]>,
}

/// A workload's rate in a round.
#[derive(Clone, Copy, Debug)]
struct WorkRate {
    per_second: f64,
    latency: Option<LatencySummary>,
}

impl From<f64> for WorkRate {
    fn from(per_second: f64) -> WorkRate {
        WorkRate {
            per_second,
            latency: None,
        }
    }
}

impl From<LatencySummary> for WorkRate {
    fn from(latency: LatencySummary) -> WorkRate {
        WorkRate {
            per_second: latency.per_second,
            latency: Some(latency),
        }
    }
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

    /// Losses of a service on a storage, if power was cut.
    pub fn cuts(&self, database: DatabaseKind, storage: DatabaseStorage) -> Option<&PowerCuts> {
        let of = |cuts: &&PowerCuts| (cuts.database, cuts.storage) == (database, storage);
        self.cuts.iter().find(of)
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
    /// Runs each workload for `time`.
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError>;
    /// Fails unless everything acknowledged is there; then removes the database.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// A database as installed on this machine.
enum DatabaseInstall {
    Postgresql(PostgresTemplate),
    Mariadb(MariadbTemplate),
    Sqlite,
    Engine(EngineProgram),
    Service(ServiceProgram),
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
            DatabaseKind::Redis | DatabaseKind::Etcd | DatabaseKind::Kine | DatabaseKind::Jetstream => {
                DatabaseInstall::Service(ServiceProgram::find(database)?)
            }
        })
    }

    fn version(&self) -> Option<String> {
        match self {
            DatabaseInstall::Postgresql(postgres) => Some(postgres.version().to_owned()),
            DatabaseInstall::Mariadb(mariadb) => Some(mariadb.version().to_owned()),
            DatabaseInstall::Sqlite => Some(rusqlite::version().to_owned()),
            DatabaseInstall::Engine(_) => None,
            DatabaseInstall::Service(service) => Some(service.version().to_owned()),
        }
    }

    fn start(
        &self,
        world: &DatabaseTestbed<'_>,
        database: DatabaseKind,
        storage: DatabaseStorage,
        disk: DatabaseDisk,
    ) -> Result<Box<dyn DatabaseSubject + '_>, BenchError> {
        let ground = DatabasePlacement::new(world, database, storage, disk)?;
        Ok(match self {
            DatabaseInstall::Postgresql(postgres) => {
                Box::new(PostgresSubject::start(postgres, world, ground, storage)?)
            }
            DatabaseInstall::Mariadb(mariadb) => {
                Box::new(MariadbSubject::start(mariadb, world, ground, storage)?)
            }
            DatabaseInstall::Sqlite => Box::new(SqliteSubject::start(world, ground, storage)?),
            DatabaseInstall::Engine(engine) => Box::new(engine.start(ground, storage)),
            DatabaseInstall::Service(service) => {
                Box::new(ServiceSubject::start(service, world, ground, storage)?)
            }
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
        cuts: Vec::new(),
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
        let no_device = match &installed {
            DatabaseInstall::Service(_) => device::possible().err(),
            _ => None,
        };
        if let Some(why) = &no_device {
            report.skipped.push(format!(
                "{} on devices, and its power cuts: {why}",
                database.label()
            ));
        }
        for &disk in &spec.disks {
            if no_device.is_some() && disk == DatabaseDisk::Modelled {
                continue;
            }
            let cells = on_disk(&world, spec, &storages, database, &installed, disk, tell)?;
            report.cells.extend(cells);
        }
        if let DatabaseInstall::Service(service) = &installed {
            report
                .cuts
                .extend(power_cuts(&world, spec, &storages, service, tell)?);
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

/// Cuts the power of a service on each of its storages.
fn power_cuts(
    world: &DatabaseTestbed<'_>,
    spec: &DatabaseSpec,
    storages: &[DatabaseStorage],
    service: &ServiceProgram,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<Vec<PowerCuts>, BenchError> {
    let is_cut = |storage: &&DatabaseStorage| spec.cuts > 0 && power::is_cut(**storage);
    let cut = |&storage: &DatabaseStorage| {
        let database = service.database();
        let what = format!(
            "cutting the power of {}, {}",
            database.label(),
            storage.label(database)
        );
        tell(ProgressEvent::Next(&what));
        power::cut(world, service, storage, spec.cuts, spec.time)
    };
    storages.iter().filter(is_cut).map(cut).collect()
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
        subjects.push((
            storage,
            installed.start(world, database, storage, disk)?,
            Vec::new(),
        ));
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
            let of = || {
                rates
                    .iter()
                    .filter(|(what, _)| *what == work)
                    .map(|(_, rate)| rate)
            };
            let latencies: Vec<LatencySummary> = of().filter_map(|rate| rate.latency).collect();
            let latency = LatencySummary::median(&latencies);
            cells.push(DatabaseCell {
                database,
                work,
                storage,
                disk,
                per_second: median(of().map(|rate| rate.per_second).collect()),
                latency_us: (!latencies.is_empty()).then_some([latency.p50_us, latency.p99_us]),
            });
        }
    }
    Ok(cells)
}
