//! The compared databases, their storage, disks and workloads.

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
    /// Redis with its append-only file.
    Redis,
    /// etcd, one node.
    Etcd,
    /// kine on SQLite, as k3s has it.
    Kine,
    /// NATS JetStream, a stream in files.
    Jetstream,
}

/// Storage that a database's commits wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseStorage {
    /// The disk without netram.
    Plain,
    /// A `netram mount` with the log, or with the whole database.
    Mount,
    /// A volume with the whole database, `netram volume attach`.
    Disk,
    /// netram's VFS for SQLite.
    Vfs,
    /// PostgreSQL's `synchronous_commit=remote_write`: its own disk and a standby's memory.
    RemoteWrite,
    /// No wait: the database's own setting for users who accept a loss.
    Off,
}

/// The local disk under the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseDisk {
    /// The local disk as it is.
    Local,
    /// The local disk with [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseWork {
    /// Transactions that insert one row or record.
    Insert,
    /// The same from four clients.
    InsertFour,
    /// pgbench's built-in TPC-B-like load, from one client.
    TpcB,
    /// The same load from eight clients.
    TpcBEight,
    /// Creation of tables.
    Create,
    /// Removal of tables.
    Drop,
}

impl DatabaseKind {
    /// All databases.
    pub const ALL: [DatabaseKind; 10] = [
        DatabaseKind::Postgresql,
        DatabaseKind::Mariadb,
        DatabaseKind::Sqlite,
        DatabaseKind::Rocksdb,
        DatabaseKind::BerkeleyDb,
        DatabaseKind::Lmdb,
        DatabaseKind::Redis,
        DatabaseKind::Etcd,
        DatabaseKind::Kine,
        DatabaseKind::Jetstream,
    ];

    /// Name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "postgresql",
            DatabaseKind::Mariadb => "mariadb",
            DatabaseKind::Sqlite => "sqlite",
            DatabaseKind::Rocksdb => "rocksdb",
            DatabaseKind::BerkeleyDb => "berkeley-db",
            DatabaseKind::Lmdb => "lmdb",
            DatabaseKind::Redis => "redis",
            DatabaseKind::Etcd => "etcd",
            DatabaseKind::Kine => "kine",
            DatabaseKind::Jetstream => "jetstream",
        }
    }

    /// Name in tables.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "PostgreSQL",
            DatabaseKind::Mariadb => "MariaDB",
            DatabaseKind::Sqlite => "SQLite",
            DatabaseKind::Rocksdb => "RocksDB",
            DatabaseKind::BerkeleyDb => "Berkeley DB",
            DatabaseKind::Lmdb => "LMDB",
            DatabaseKind::Redis => "Redis",
            DatabaseKind::Etcd => "etcd",
            DatabaseKind::Kine => "kine",
            DatabaseKind::Jetstream => "JetStream",
        }
    }

    /// Whether this database can be measured on `storage`.
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

    /// Workloads measured with this database.
    pub fn works(self) -> &'static [DatabaseWork] {
        match self {
            DatabaseKind::Postgresql => &[DatabaseWork::Insert, DatabaseWork::TpcB, DatabaseWork::TpcBEight],
            DatabaseKind::Mariadb => &[DatabaseWork::Insert, DatabaseWork::Create, DatabaseWork::Drop],
            _ if self.is_service() => &[DatabaseWork::Insert, DatabaseWork::InsertFour],
            _ => &[DatabaseWork::Insert],
        }
    }

    /// Whether this is a server with one directory, which clients write to over TCP.
    pub fn is_service(self) -> bool {
        matches!(
            self,
            DatabaseKind::Redis | DatabaseKind::Etcd | DatabaseKind::Kine | DatabaseKind::Jetstream
        )
    }

    /// The database's setting that [`DatabaseStorage::Off`] stands for.
    pub fn off(self) -> &'static str {
        match self {
            DatabaseKind::Postgresql => "synchronous_commit=off",
            DatabaseKind::Mariadb => "flush_log_at_trx_commit=2",
            DatabaseKind::Sqlite => "synchronous=NORMAL",
            DatabaseKind::Rocksdb => "sync=false",
            DatabaseKind::BerkeleyDb => "DB_TXN_WRITE_NOSYNC",
            DatabaseKind::Lmdb => "MDB_NOSYNC",
            DatabaseKind::Redis => "appendfsync everysec",
            DatabaseKind::Etcd => "--unsafe-no-fsync",
            DatabaseKind::Kine => "its default, synchronous=NORMAL",
            DatabaseKind::Jetstream => "its default, sync_interval 2m",
        }
    }
}

impl DatabaseStorage {
    /// All storages, in the order of the tables.
    pub const ALL: [DatabaseStorage; 6] = [
        DatabaseStorage::Plain,
        DatabaseStorage::Mount,
        DatabaseStorage::Disk,
        DatabaseStorage::Vfs,
        DatabaseStorage::RemoteWrite,
        DatabaseStorage::Off,
    ];

    /// Name on the command line and in files.
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

    /// Name in tables, for this database.
    pub fn label(self, database: DatabaseKind) -> &'static str {
        match self {
            DatabaseStorage::Plain => "plain",
            DatabaseStorage::Mount => "netram mount",
            DatabaseStorage::Disk => "netram volume",
            DatabaseStorage::Vfs => "netram VFS",
            DatabaseStorage::RemoteWrite => "remote_write, a standby",
            DatabaseStorage::Off => database.off(),
        }
    }
}

impl DatabaseDisk {
    /// Both disks.
    pub const ALL: [DatabaseDisk; 2] = [DatabaseDisk::Local, DatabaseDisk::Modelled];

    /// Name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            DatabaseDisk::Local => "local",
            DatabaseDisk::Modelled => "modelled",
        }
    }

    /// Name in tables.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseDisk::Local => "local disk",
            DatabaseDisk::Modelled => "MODELLED disk, 1 ms a sync more",
        }
    }

    /// Microseconds added to each sync.
    pub fn slower_us(self) -> u32 {
        match self {
            DatabaseDisk::Local => 0,
            DatabaseDisk::Modelled => MODELLED_SYNC_US,
        }
    }
}

impl DatabaseWork {
    /// Name in tables.
    pub fn label(self) -> &'static str {
        match self {
            DatabaseWork::Insert => "insert",
            DatabaseWork::InsertFour => "insert, 4 clients",
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

/// Acknowledged data that a failure may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PossibleLosses {
    /// Loss when the database's machine crashes and restarts.
    pub crash: &'static str,
    /// Loss when the lender, or the standby's machine, is lost at the same moment.
    pub both: &'static str,
    /// Loss when the machine's disk is lost.
    pub disk: &'static str,
}

const NOTHING: &str = "nothing";
const ALL_OF_IT: &str = "all of it";

impl PossibleLosses {
    /// Possible losses of a database on a storage. If only the database is killed, no row loses anything.
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
                    DatabaseKind::Lmdb | DatabaseKind::Etcd => "the whole database may be damaged",
                    DatabaseKind::Redis => "up to 2 s, silently",
                    DatabaseKind::Kine => "since the last checkpoint, silently",
                    DatabaseKind::Jetstream => "up to 2 min, silently",
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
    fn rows_have_distinct_names_and_only_off_loses_in_a_crash() {
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
