//! Expected results of the comparison.

use serde::Serialize;

use super::{DatabaseDisk, DatabaseKind, DatabaseReport, DatabaseStorage, DatabaseWork};

/// Minimum ratio on the local disk: small commits on a mount over those on the disk.
const LOCAL_LEAST: f64 = 2.0;
/// The same minimum on the modelled disk.
const MODELLED_LEAST: f64 = 10.0;

/// An expectation and its measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DatabaseClaim {
    /// The expectation in words.
    pub what: String,
    /// The measured ratio.
    pub ratio: f64,
    /// Minimum of the ratio.
    pub least: f64,
    /// Whether the minimum is met.
    pub met: bool,
}

impl DatabaseClaim {
    fn new(what: String, ratio: f64, least: f64) -> DatabaseClaim {
        DatabaseClaim {
            what,
            ratio,
            least,
            met: ratio >= least,
        }
    }
}

/// All claims that a report allows to judge.
pub fn all(report: &DatabaseReport) -> Vec<DatabaseClaim> {
    let mut claims = Vec::new();
    for (disk, least) in [
        (DatabaseDisk::Local, LOCAL_LEAST),
        (DatabaseDisk::Modelled, MODELLED_LEAST),
    ] {
        // Services have claims of their own kind: what they lose.
        for database in DatabaseKind::ALL
            .into_iter()
            .filter(|database| !database.is_service())
        {
            let storage = match database {
                DatabaseKind::Sqlite => DatabaseStorage::Vfs,
                _ => DatabaseStorage::Mount,
            };
            let ratio = report.times_plain(database, DatabaseWork::Insert, storage, disk);
            claims.extend(ratio.map(|ratio| {
                let what = format!(
                    "{}: small commits of one client, {} over plain, {}",
                    database.label(),
                    storage.label(database),
                    disk.label()
                );
                DatabaseClaim::new(what, ratio, least)
            }));
        }
        claims.extend(remote_write(report, disk));
    }
    claims
}

/// PostgreSQL over netram beside its own `remote_write`, which also waits for another machine's memory.
fn remote_write(report: &DatabaseReport, disk: DatabaseDisk) -> impl Iterator<Item = DatabaseClaim> {
    let of = move |work: DatabaseWork| {
        let rate = |storage| report.rate(DatabaseKind::Postgresql, work, storage, disk);
        let ratio = rate(DatabaseStorage::Mount)? / rate(DatabaseStorage::RemoteWrite)?;
        let what = format!(
            "PostgreSQL: {}, netram mount over remote_write, {}",
            work.label(),
            disk.label()
        );
        Some(DatabaseClaim::new(what, ratio, 1.0))
    };
    DatabaseKind::Postgresql
        .works()
        .iter()
        .filter_map(move |work| of(*work))
}
