//! Databases that people run, side by side: on the disk as it is, on `netram mount`, on a volume, SQLite through netram's VFS,
//! and with the settings of their own that wait for less.
//!
//! On each disk all ways of a database stand ready at once, and their rounds alternate; what is shown is the median. In the end each
//! must have every row that it acknowledged.
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
mod ground;
pub mod kinds;
pub mod mariadb;
pub mod output;
mod plot;
pub mod postgres;
mod servers;
pub mod sqlite;

use std::time::Duration;

use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::error::BenchError;
use crate::histogram::median;
use crate::lnd::device;
use crate::machine::Machine;
use crate::mounted;
use crate::site::Site;
use crate::step::Step;
use claims::Claim;
use embedded::Engine;
use ground::{Ground, World};
pub use kinds::{Database, Disk, Losses, Storage, Work};
use mariadb::Mariadb;
use postgres::Postgres;
use servers::{OnMariadb, OnPostgres};
use sqlite::OnSqlite;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The databases.
    pub databases: Vec<Database>,
    /// Where they are.
    pub storages: Vec<Storage>,
    /// On which disk.
    pub disks: Vec<Disk>,
    /// Rounds; what is shown is their median.
    pub rounds: usize,
    /// How long each kind of work is done in a round.
    pub time: Duration,
    /// How the lender waits.
    pub wait: WaitPolicy,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// How the lender waited.
    pub wait: String,
    /// Rounds.
    pub rounds: usize,
    /// The servers' versions.
    pub versions: Vec<(Database, String)>,
    /// The figures.
    pub cells: Vec<Cell>,
    /// What is expected of them.
    pub claims: Vec<Claim>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

/// How many transactions a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Of which database.
    pub database: Database,
    /// What it did.
    pub work: Work,
    /// Where it was.
    pub storage: Storage,
    /// On which disk.
    pub disk: Disk,
    /// The median of the rounds.
    pub per_second: f64,
}

impl Report {
    /// A figure.
    pub fn rate(&self, database: Database, work: Work, storage: Storage, disk: Disk) -> Option<f64> {
        let wanted = (database, work, storage, disk);
        let of = |cell: &&Cell| (cell.database, cell.work, cell.storage, cell.disk) == wanted;
        self.cells.iter().find(of).map(|cell| cell.per_second)
    }

    /// How many times as many as plain.
    pub fn times_plain(&self, database: Database, work: Work, storage: Storage, disk: Disk) -> Option<f64> {
        let plain = self.rate(database, work, Storage::Plain, disk)?;
        Some(self.rate(database, work, storage, disk)? / plain)
    }
}

/// A database somewhere, which runs or can be started.
trait Subject {
    /// Does each kind of its work for so long: how many transactions a second.
    fn round(&mut self, time: Duration) -> Result<Vec<(Work, f64)>, BenchError>;
    /// Fails unless everything that was acknowledged is there; takes all of it away.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// A database as it is installed here.
enum Installed {
    Postgresql(Postgres),
    Mariadb(Mariadb),
    Sqlite,
    Engine(Engine),
}

impl Installed {
    /// `Err`: what is missing here.
    fn found(site: &Site, database: Database) -> Result<Installed, BenchError> {
        Ok(match database {
            Database::Postgresql => Installed::Postgresql(Postgres::found(site)?),
            Database::Mariadb => Installed::Mariadb(Mariadb::found(site)?),
            Database::Sqlite => Installed::Sqlite,
            Database::Rocksdb | Database::BerkeleyDb | Database::Lmdb => {
                Installed::Engine(Engine::found(site, database)?)
            }
        })
    }

    fn version(&self) -> Option<String> {
        match self {
            Installed::Postgresql(postgres) => Some(postgres.version().to_owned()),
            Installed::Mariadb(mariadb) => Some(mariadb.version().to_owned()),
            Installed::Sqlite => Some(rusqlite::version().to_owned()),
            Installed::Engine(_) => None,
        }
    }

    fn start(
        &self,
        world: &World<'_>,
        storage: Storage,
        disk: Disk,
    ) -> Result<Box<dyn Subject + '_>, BenchError> {
        let ground = Ground::new(world, storage, disk)?;
        Ok(match self {
            Installed::Postgresql(postgres) => Box::new(OnPostgres::start(postgres, world, ground, storage)?),
            Installed::Mariadb(mariadb) => Box::new(OnMariadb::start(mariadb, world, ground, storage)?),
            Installed::Sqlite => Box::new(OnSqlite::start(world, ground, storage)?),
            Installed::Engine(engine) => Box::new(engine.start(ground, storage)),
        })
    }
}

/// Compares what `spec` asks for.
pub fn compare(site: &Site, spec: &Spec, tell: &mut dyn FnMut(Step<'_>)) -> Result<Report, BenchError> {
    let mut report = Report {
        machine: Machine::look(),
        wait: spec.wait.to_string(),
        rounds: spec.rounds,
        versions: Vec::new(),
        cells: Vec::new(),
        claims: Vec::new(),
        skipped: Vec::new(),
    };
    let storages = possible(&spec.storages, &mut report.skipped);
    let world = World::new(site, spec.wait, spec.disks.contains(&Disk::Modelled))?;
    for &database in &spec.databases {
        let installed = match Installed::found(site, database) {
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
        tell(Step::Skipped(reason));
    }
    Ok(report)
}

/// Where databases can be put here; `skipped` is told of the rest.
fn possible(wanted: &[Storage], skipped: &mut Vec<String>) -> Vec<Storage> {
    let mut missing = |storage: Storage, found: Result<(), String>| {
        found
            .map_err(|why| skipped.push(format!("{}: {why}", storage.id())))
            .is_ok()
    };
    let can = |storage: &&Storage| match **storage {
        Storage::Mount => missing(Storage::Mount, mounted::possible()),
        Storage::Disk => missing(Storage::Disk, device::possible()),
        Storage::Plain | Storage::Vfs | Storage::RemoteWrite | Storage::Off => true,
    };
    wanted.iter().filter(can).copied().collect()
}

/// All ways of a database on one disk.
fn on_disk(
    world: &World<'_>,
    spec: &Spec,
    storages: &[Storage],
    database: Database,
    installed: &Installed,
    disk: Disk,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Vec<Cell>, BenchError> {
    let mut subjects = Vec::new();
    for &storage in storages.iter().filter(|storage| database.has(**storage)) {
        let (name, on) = (database.label(), disk.label());
        let what = format!("starting {name}, {}, {on}", storage.label(database));
        tell(Step::Next(&what));
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
        tell(Step::Next(&what));
        for (_, subject, rates) in &mut subjects {
            rates.extend(subject.round(spec.time)?);
        }
    }
    let mut cells = Vec::new();
    for (storage, subject, rates) in subjects {
        subject.end()?;
        for &work in database.works() {
            let of = rates.iter().filter(|(what, _)| *what == work);
            cells.push(Cell {
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
