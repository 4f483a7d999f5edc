//! What is compared: databases, where their files are, on which disk, doing what.

use serde::{Serialize, Serializer};

/// Microseconds that the modelled disk adds to every sync.
pub const MODELLED_SYNC_US: u32 = 1_000;

/// A database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    /// A PostgreSQL server.
    Postgresql,
    /// A MariaDB server, InnoDB.
    Mariadb,
    /// SQLite, in WAL mode.
    Sqlite,
    /// RocksDB.
    Rocksdb,
    /// Berkeley DB.
    BerkeleyDb,
    /// LMDB.
    Lmdb,
}

/// What a database's commits wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseStorage {
    /// The disk.
    Plain,
    /// Its log, or all of it, on `netram mount`.
    Mount,
    /// All of it on a volume, `netram disk attach`.
    Disk,
    /// netram's VFS of SQLite.
    Vfs,
    /// PostgreSQL's `synchronous_commit=remote_write`: its own disk, and a standby's memory.
    RemoteWrite,
    /// Nothing: the database's own setting for those who bear a loss.
    Off,
}

/// The disk beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseDisk {
    /// As it is.
    Local,
    /// With [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseWork {
    /// One row, or one record, a transaction.
    Insert,
    /// pgbench's own, TPC-B in form, from one client.
    TpcB,
    /// The same from eight.
    TpcBEight,
    /// Tables made.
    Create,
    /// Tables dropped.
    Drop,
}

impl DatabaseKind {
    /// All of them.
    pub const ALL: [DatabaseKind; 6] = [
        DatabaseKind::Postgresql,
        DatabaseKind::Mariadb,
        DatabaseKind::Sqlite,
        DatabaseKind::Rocksdb,
        DatabaseKind::BerkeleyDb,
        DatabaseKind::Lmdb,
    ];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "postgresql",
            DatabaseKind::Mariadb => "mariadb",
            DatabaseKind::Sqlite => "sqlite",
            DatabaseKind::Rocksdb => "rocksdb",
            DatabaseKind::BerkeleyDb => "berkeley-db",
            DatabaseKind::Lmdb => "lmdb",
        }
    }

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "PostgreSQL",
            DatabaseKind::Mariadb => "MariaDB",
            DatabaseKind::Sqlite => "SQLite",
            DatabaseKind::Rocksdb => "RocksDB",
            DatabaseKind::BerkeleyDb => "Berkeley DB",
            DatabaseKind::Lmdb => "LMDB",
        }
    }

    /// Whether it can be there.
    pub fn has(self, storage: DatabaseStorage) -> bool {
        match storage {
            DatabaseStorage::Plain
            | DatabaseStorage::Mount
            | DatabaseStorage::Disk
            | DatabaseStorage::Off => true,
            DatabaseStorage::Vfs => self == DatabaseKind::Sqlite,
            DatabaseStorage::RemoteWrite => self == DatabaseKind::Postgresql,
        }
    }

    /// What is done with it.
    pub fn works(self) -> &'static [DatabaseWork] {
        match self {
            DatabaseKind::Postgresql => &[DatabaseWork::Insert, DatabaseWork::TpcB, DatabaseWork::TpcBEight],
            DatabaseKind::Mariadb => &[DatabaseWork::Insert, DatabaseWork::Create, DatabaseWork::Drop],
            _ => &[DatabaseWork::Insert],
        }
    }

    /// The setting behind [`DatabaseStorage::Off`].
    pub fn off(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "synchronous_commit=off",
            DatabaseKind::Mariadb => "flush_log_at_trx_commit=2",
            DatabaseKind::Sqlite => "synchronous=NORMAL",
            DatabaseKind::Rocksdb => "sync=false",
            DatabaseKind::BerkeleyDb => "DB_TXN_WRITE_NOSYNC",
            DatabaseKind::Lmdb => "MDB_NOSYNC",
        }
    }
}

impl DatabaseStorage {
    /// All of them, as they are shown.
    pub const ALL: [DatabaseStorage; 6] = [
        DatabaseStorage::Plain,
        DatabaseStorage::Mount,
        DatabaseStorage::Disk,
        DatabaseStorage::Vfs,
        DatabaseStorage::RemoteWrite,
        DatabaseStorage::Off,
    ];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            DatabaseStorage::Plain => "plain",
            DatabaseStorage::Mount => "mount",
            DatabaseStorage::Disk => "disk",
            DatabaseStorage::Vfs => "vfs",
            DatabaseStorage::RemoteWrite => "remote_write",
            DatabaseStorage::Off => "off",
        }
    }

    /// Its name, of a database.
    pub fn label(self, database: DatabaseKind) -> &'static str {
        match self {
            DatabaseStorage::Plain => "plain",
            DatabaseStorage::Mount => "netram mount",
            DatabaseStorage::Disk => "netram disk",
            DatabaseStorage::Vfs => "netram VFS",
            DatabaseStorage::RemoteWrite => "remote_write, a standby",
            DatabaseStorage::Off => database.off(),
        }
    }
}

impl DatabaseDisk {
    /// Both.
    pub const ALL: [DatabaseDisk; 2] = [DatabaseDisk::Local, DatabaseDisk::Modelled];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            DatabaseDisk::Local => "local",
            DatabaseDisk::Modelled => "modelled",
        }
    }

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseDisk::Local => "local disk",
            DatabaseDisk::Modelled => "MODELLED disk, 1 ms a sync more",
        }
    }

    /// What is added to a sync, in microseconds.
    pub fn slower_us(self) -> u32 {
        match self {
            DatabaseDisk::Local => 0,
            DatabaseDisk::Modelled => MODELLED_SYNC_US,
        }
    }
}

impl DatabaseWork {
    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseWork::Insert => "insert",
            DatabaseWork::TpcB => "TPC-B",
            DatabaseWork::TpcBEight => "TPC-B, 8 clients",
            DatabaseWork::Create => "create table",
            DatabaseWork::Drop => "drop table",
        }
    }
}

macro_rules! by_id {
    ($($kind:ty),*) => {
        $(impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(self.id())
            }
        })*
    };
}

by_id!(DatabaseKind, DatabaseStorage, DatabaseDisk);

impl Serialize for DatabaseWork {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.label())
    }
}

/// What may be lost of what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PossibleLosses {
    /// When the database's machine crashes and comes back.
    pub crash: &'static str,
    /// When the lender, or the standby's machine, is lost at the same moment.
    pub both: &'static str,
    /// When the machine's disk is lost.
    pub disk: &'static str,
}

const NOTHING: &str = "nothing";
const ALL_OF_IT: &str = "all of it";

impl PossibleLosses {
    /// What a database on a storage may lose. A database that is killed alone loses nothing in any row.
    pub fn of(database: DatabaseKind, storage: DatabaseStorage) -> PossibleLosses {
        match storage {
            DatabaseStorage::Plain => PossibleLosses {
                crash: NOTHING,
                both: NOTHING,
                disk: ALL_OF_IT,
            },
            DatabaseStorage::Mount | DatabaseStorage::Disk | DatabaseStorage::Vfs => PossibleLosses {
                crash: NOTHING,
                both: "what the disk lagged behind, ms; it is told",
                disk: match storage {
                    DatabaseStorage::Disk => "all of it; with a data lender nothing",
                    _ => ALL_OF_IT,
                },
            },
            DatabaseStorage::RemoteWrite => PossibleLosses {
                crash: NOTHING,
                both: NOTHING,
                disk: "nothing, while the standby stands",
            },
            DatabaseStorage::Off => {
                let lost = match database {
                    DatabaseKind::Postgresql => "up to 0.6 s, silently",
                    DatabaseKind::Mariadb => "up to 1 s, silently",
                    DatabaseKind::Sqlite => "since the last checkpoint, silently",
                    DatabaseKind::Rocksdb | DatabaseKind::BerkeleyDb => "up to 30 s, silently",
                    DatabaseKind::Lmdb => "the whole database may be damaged",
                };
                PossibleLosses {
                    crash: lost,
                    both: lost,
                    disk: ALL_OF_IT,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_rows_of_a_database_have_one_name_and_only_what_waits_for_nothing_loses_in_a_crash() {
        for database in DatabaseKind::ALL {
            let storages = || {
                DatabaseStorage::ALL
                    .into_iter()
                    .filter(|storage| database.has(*storage))
            };
            let names: BTreeSet<&str> = storages().map(|storage| storage.label(database)).collect();
            assert_eq!(names.len(), storages().count());
            for storage in storages() {
                let losses = PossibleLosses::of(database, storage);
                assert_eq!(losses.crash == NOTHING, storage != DatabaseStorage::Off);
            }
        }
    }
}
