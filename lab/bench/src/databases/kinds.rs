//! What is compared: databases, where their files are, on which disk, doing what.

use serde::{Serialize, Serializer};

/// Microseconds that the modelled disk adds to every sync.
pub const MODELLED_SYNC_US: u32 = 1_000;

/// A database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
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
pub enum Storage {
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
pub enum Disk {
    /// As it is.
    Local,
    /// With [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
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

impl Database {
    /// All of them.
    pub const ALL: [Database; 6] = [
        Database::Postgresql,
        Database::Mariadb,
        Database::Sqlite,
        Database::Rocksdb,
        Database::BerkeleyDb,
        Database::Lmdb,
    ];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            Database::Postgresql => "postgresql",
            Database::Mariadb => "mariadb",
            Database::Sqlite => "sqlite",
            Database::Rocksdb => "rocksdb",
            Database::BerkeleyDb => "berkeley-db",
            Database::Lmdb => "lmdb",
        }
    }

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Database::Postgresql => "PostgreSQL",
            Database::Mariadb => "MariaDB",
            Database::Sqlite => "SQLite",
            Database::Rocksdb => "RocksDB",
            Database::BerkeleyDb => "Berkeley DB",
            Database::Lmdb => "LMDB",
        }
    }

    /// Whether it can be there.
    pub fn has(self, storage: Storage) -> bool {
        match storage {
            Storage::Plain | Storage::Mount | Storage::Disk | Storage::Off => true,
            Storage::Vfs => self == Database::Sqlite,
            Storage::RemoteWrite => self == Database::Postgresql,
        }
    }

    /// What is done with it.
    pub fn works(self) -> &'static [Work] {
        match self {
            Database::Postgresql => &[Work::Insert, Work::TpcB, Work::TpcBEight],
            Database::Mariadb => &[Work::Insert, Work::Create, Work::Drop],
            _ => &[Work::Insert],
        }
    }

    /// The setting behind [`Storage::Off`].
    pub fn off(self) -> &'static str {
        match self {
            Database::Postgresql => "synchronous_commit=off",
            Database::Mariadb => "flush_log_at_trx_commit=2",
            Database::Sqlite => "synchronous=NORMAL",
            Database::Rocksdb => "sync=false",
            Database::BerkeleyDb => "DB_TXN_WRITE_NOSYNC",
            Database::Lmdb => "MDB_NOSYNC",
        }
    }
}

impl Storage {
    /// All of them, as they are shown.
    pub const ALL: [Storage; 6] = [
        Storage::Plain,
        Storage::Mount,
        Storage::Disk,
        Storage::Vfs,
        Storage::RemoteWrite,
        Storage::Off,
    ];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            Storage::Plain => "plain",
            Storage::Mount => "mount",
            Storage::Disk => "disk",
            Storage::Vfs => "vfs",
            Storage::RemoteWrite => "remote_write",
            Storage::Off => "off",
        }
    }

    /// Its name, of a database.
    pub fn label(self, database: Database) -> &'static str {
        match self {
            Storage::Plain => "plain",
            Storage::Mount => "netram mount",
            Storage::Disk => "netram disk",
            Storage::Vfs => "netram VFS",
            Storage::RemoteWrite => "remote_write, a standby",
            Storage::Off => database.off(),
        }
    }
}

impl Disk {
    /// Both.
    pub const ALL: [Disk; 2] = [Disk::Local, Disk::Modelled];

    /// Its name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            Disk::Local => "local",
            Disk::Modelled => "modelled",
        }
    }

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Disk::Local => "local disk",
            Disk::Modelled => "MODELLED disk, 1 ms a sync more",
        }
    }

    /// What is added to a sync, in microseconds.
    pub fn slower_us(self) -> u32 {
        match self {
            Disk::Local => 0,
            Disk::Modelled => MODELLED_SYNC_US,
        }
    }
}

impl Work {
    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Work::Insert => "insert",
            Work::TpcB => "TPC-B",
            Work::TpcBEight => "TPC-B, 8 clients",
            Work::Create => "create table",
            Work::Drop => "drop table",
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

by_id!(Database, Storage, Disk);

impl Serialize for Work {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.label())
    }
}

/// What may be lost of what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// When the database's machine crashes and comes back.
    pub crash: &'static str,
    /// When the lender, or the standby's machine, is lost at the same moment.
    pub both: &'static str,
    /// When the machine's disk is lost.
    pub disk: &'static str,
}

const NOTHING: &str = "nothing";
const ALL_OF_IT: &str = "all of it";

impl Losses {
    /// What a database on a storage may lose. A database that is killed alone loses nothing in any row.
    pub fn of(database: Database, storage: Storage) -> Losses {
        match storage {
            Storage::Plain => Losses {
                crash: NOTHING,
                both: NOTHING,
                disk: ALL_OF_IT,
            },
            Storage::Mount | Storage::Disk | Storage::Vfs => Losses {
                crash: NOTHING,
                both: "what the disk lagged behind, ms; it is told",
                disk: match storage {
                    Storage::Disk => "all of it; with a data lender nothing",
                    _ => ALL_OF_IT,
                },
            },
            Storage::RemoteWrite => Losses {
                crash: NOTHING,
                both: NOTHING,
                disk: "nothing, while the standby stands",
            },
            Storage::Off => {
                let lost = match database {
                    Database::Postgresql => "up to 0.6 s, silently",
                    Database::Mariadb => "up to 1 s, silently",
                    Database::Sqlite => "since the last checkpoint, silently",
                    Database::Rocksdb | Database::BerkeleyDb => "up to 30 s, silently",
                    Database::Lmdb => "the whole database may be damaged",
                };
                Losses {
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
        for database in Database::ALL {
            let storages = || Storage::ALL.into_iter().filter(|storage| database.has(*storage));
            let names: BTreeSet<&str> = storages().map(|storage| storage.label(database)).collect();
            assert_eq!(names.len(), storages().count());
            for storage in storages() {
                let losses = Losses::of(database, storage);
                assert_eq!(losses.crash == NOTHING, storage != Storage::Off);
            }
        }
    }
}
