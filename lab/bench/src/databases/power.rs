//! Power cuts: what each service has lost of what it acknowledged, on a disk that keeps only what was synced.
//!
//! A client writes until the power fails: the server dies, with the mount's processes if there are any, and
//! the disk forgets what was not synced. The lender lives. Then all is started again, and the records are
//! counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::kinds::{DatabaseKind, DatabaseStorage};
use super::placement::DatabaseTestbed;
use super::services::{FoundRecords, ServiceClient, ServiceProgram, ServiceServer};
use crate::bench_mount::BenchMount;
use crate::client_disk::ClientDisk;
use crate::error::BenchError;
use crate::tool::{tool, wait_until};

/// Losses of a service on one storage by power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PowerCuts {
    /// The service.
    pub database: DatabaseKind,
    /// Its storage.
    pub storage: DatabaseStorage,
    /// Number of cuts.
    pub cuts: usize,
    /// Records acknowledged before a cut.
    pub acknowledged: u64,
    /// Records of these that were missing afterwards.
    pub lost: u64,
    /// Cuts after which the server did not start; all records count as lost.
    pub unusable: usize,
}

impl PowerCuts {
    /// The losses in words.
    pub fn told(&self) -> String {
        let lost = match self.lost {
            0 => format!("0 of {}", self.acknowledged),
            lost => format!("{lost} of {}, in {} cuts", self.acknowledged, self.cuts),
        };
        match self.unusable {
            0 => lost,
            unusable => format!("{lost}; {unusable} × it did not start"),
        }
    }

    /// Fails if a mount has lost what was acknowledged.
    fn judge(self) -> Result<PowerCuts, BenchError> {
        if self.storage != DatabaseStorage::Mount || self.lost == 0 {
            return Ok(self);
        }
        Err(BenchError::WrongData {
            place: "a mount after power cuts".into(),
            why: format!("{} has lost {}", self.database.label(), self.told()),
        })
    }
}

/// Whether power cuts are tried on a storage.
pub(super) fn is_cut(storage: DatabaseStorage) -> bool {
    matches!(
        storage,
        DatabaseStorage::Plain | DatabaseStorage::Mount | DatabaseStorage::Off
    )
}

/// Cuts the power `cuts` times, each after writes for about `time`.
pub(super) fn cut(
    world: &DatabaseTestbed<'_>,
    program: &ServiceProgram,
    storage: DatabaseStorage,
    cuts: usize,
    time: Duration,
) -> Result<PowerCuts, BenchError> {
    let mut sum = PowerCuts {
        database: program.database(),
        storage,
        cuts,
        acknowledged: 0,
        lost: 0,
        unusable: 0,
    };
    for number in 1..=cuts {
        // Later cuts come later, so that each finds the server at another place of its work.
        let time = time.mul_f64(0.5 + number as f64 / cuts as f64);
        let (acknowledged, found) = one_cut(world, program, storage, time)?;
        sum.acknowledged += acknowledged;
        sum.lost += lost(acknowledged, found);
        sum.unusable += usize::from(found.is_none());
    }
    sum.judge()
}

/// How many acknowledged records are missing among those found, if any could be looked for.
fn lost(acknowledged: u64, found: Option<FoundRecords>) -> u64 {
    let Some(found) = found else {
        return acknowledged;
    };
    // The record after the acknowledged ones may be there, and must not stand for a lost one.
    (acknowledged + u64::from(found.has_next)).saturating_sub(found.count)
}

/// One cut: the number of acknowledged records, and those found, if the server started again.
fn one_cut(
    world: &DatabaseTestbed<'_>,
    program: &ServiceProgram,
    storage: DatabaseStorage,
    time: Duration,
) -> Result<(u64, Option<FoundRecords>), BenchError> {
    let site = world.site;
    let disk = ClientDisk::new(site.directory(), site.number())?;
    let mut mount = match storage {
        DatabaseStorage::Mount => {
            let journal = disk.root().join("journal");
            Some(BenchMount::begin_on(site, journal, world.lender.address())?)
        }
        _ => None,
    };
    let data = mount.as_ref().map_or(disk.root(), BenchMount::dir).join("data");
    let (server, client) = program.serve(site, &data, storage)?;
    // What was made at the start is there after any cut: it is about records.
    tool("sync", &["-f", &disk.root().to_string_lossy()])?;
    let acknowledged = write_until_cut(client, server, &disk, mount.as_mut(), time)?;
    disk.power_on()?;
    if let Some(mount) = &mut mount {
        mount.recover()?;
    }
    let found = match program.serve(site, &data, storage) {
        Ok((server, mut client)) => {
            let found = client.find(acknowledged);
            server.kill();
            Some(found?)
        }
        // An unsynced log may be one that it refuses.
        Err(_) if storage == DatabaseStorage::Off => None,
        Err(error) => return Err(error),
    };
    mount.map_or(Ok(()), BenchMount::end)?;
    Ok((acknowledged, found))
}

/// Writes until the power fails; returns the number of records acknowledged before.
fn write_until_cut(
    mut client: ServiceClient,
    server: ServiceServer,
    disk: &ClientDisk,
    mount: Option<&mut BenchMount>,
    time: Duration,
) -> Result<u64, BenchError> {
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It ends with the server.
            while client.write(acknowledged.load(Ordering::Relaxed)).is_ok() {
                acknowledged.fetch_add(1, Ordering::Release);
            }
        });
        std::thread::sleep(time);
        let first = wait_until("a record is acknowledged", || {
            Ok(acknowledged.load(Ordering::Acquire) > 0)
        });
        let before = acknowledged.load(Ordering::Acquire);
        // The mount first: in a moment more it would send what nobody has synced.
        if let Some(mount) = mount {
            mount.crash();
        }
        server.kill();
        first.and(disk.cut()).map(|()| before)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unacknowledged_record_does_not_stand_for_a_lost_one() {
        let found = |count, has_next| Some(FoundRecords { count, has_next });
        assert_eq!(lost(10, found(10, false)), 0);
        assert_eq!(lost(10, found(11, true)), 0);
        assert_eq!(lost(10, found(10, true)), 1);
        assert_eq!(lost(10, found(7, false)), 3);
        assert_eq!(lost(10, None), 10);
    }

    #[test]
    fn only_a_mount_must_not_lose() {
        let cuts = |storage, lost| PowerCuts {
            database: DatabaseKind::Redis,
            storage,
            cuts: 3,
            acknowledged: 100,
            lost,
            unusable: 0,
        };
        assert!(cuts(DatabaseStorage::Off, 4).judge().is_ok());
        assert!(cuts(DatabaseStorage::Mount, 0).judge().is_ok());
        let error = cuts(DatabaseStorage::Mount, 1).judge().unwrap_err().to_string();
        assert!(error.contains("Redis has lost 1 of 100, in 3 cuts"), "{error}");
    }
}
