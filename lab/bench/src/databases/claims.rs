//! What is expected of the comparison.

use serde::Serialize;

use super::{Database, Disk, Report, Storage, Work};

/// On the local disk, a small commit on a mount over one on the disk.
const LOCAL_LEAST: f64 = 2.0;
/// The same on the modelled disk.
const MODELLED_LEAST: f64 = 10.0;

/// An expectation, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// In words.
    pub what: String,
    /// The ratio.
    pub ratio: f64,
    /// What it should be at least.
    pub least: f64,
    /// Whether it is.
    pub met: bool,
}

impl Claim {
    fn new(what: String, ratio: f64, least: f64) -> Claim {
        Claim {
            what,
            ratio,
            least,
            met: ratio >= least,
        }
    }
}

/// All that can be said of a report.
pub fn all(report: &Report) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (disk, least) in [(Disk::Local, LOCAL_LEAST), (Disk::Modelled, MODELLED_LEAST)] {
        for database in Database::ALL {
            let storage = match database {
                Database::Sqlite => Storage::Vfs,
                _ => Storage::Mount,
            };
            let ratio = report.times_plain(database, Work::Insert, storage, disk);
            claims.extend(ratio.map(|ratio| {
                let what = format!(
                    "{}: small commits of one client, {} over plain, {}",
                    database.label(),
                    storage.label(database),
                    disk.label()
                );
                Claim::new(what, ratio, least)
            }));
        }
        claims.extend(remote_write(report, disk));
    }
    claims
}

/// PostgreSQL over netram beside its own way to another machine's memory.
fn remote_write(report: &Report, disk: Disk) -> impl Iterator<Item = Claim> {
    let of = move |work: Work| {
        let rate = |storage| report.rate(Database::Postgresql, work, storage, disk);
        let ratio = rate(Storage::Mount)? / rate(Storage::RemoteWrite)?;
        let what = format!(
            "PostgreSQL: {}, netram mount over remote_write, {}",
            work.label(),
            disk.label()
        );
        Some(Claim::new(what, ratio, 1.0))
    };
    Database::Postgresql
        .works()
        .iter()
        .filter_map(move |work| of(*work))
}
