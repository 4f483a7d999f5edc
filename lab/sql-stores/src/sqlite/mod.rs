//! OO7 in SQLite: one table for each class, one statement for each query.
//!
//! One connection, one transaction at a time. SQLite is configured as its documentation recommends for
//! safety: a commit is synced.

mod schema;
mod work;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_oo7::{Oo7Error, Oo7Store};
use rusqlite::{Connection, OpenFlags};

use crate::{StorageManager, sys};

/// SQLite's cache size in its unit of -1 KiB: more than a small database needs. The default of 2 MB is less,
/// so every round would read.
const CACHE: &str = "pragma cache_size = -65536";
/// Number of prepared statements that are cached: all of them.
const STATEMENTS: usize = 128;

/// How SQLite makes a commit atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SqliteJournalMode {
    /// A write-ahead log: one sync for each commit.
    #[default]
    Wal,
    /// A rollback journal, SQLite's default: a file is created, synced and removed for each commit.
    Rollback,
}

/// The VFS that SQLite uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SqliteVfs {
    /// The operating system's.
    #[default]
    System,
    /// netram's, for a database created by `netram sqlite create`.
    Netram,
}

/// An OO7 database in SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Mutex<Connection>,
}

/// A transaction of [`SqliteStore`].
#[derive(Debug)]
pub struct SqliteTransaction<'s> {
    connection: MutexGuard<'s, Connection>,
    ended: bool,
}

pub(crate) fn backend_error(error: rusqlite::Error) -> Oo7Error {
    Oo7Error::backend(error)
}

impl SqliteStore {
    /// Creates an empty database at `path`, which must not exist.
    ///
    /// # Errors
    ///
    /// Fails if SQLite does.
    pub fn create(
        path: &Path,
        journal: SqliteJournalMode,
        files: SqliteVfs,
    ) -> Result<SqliteStore, Oo7Error> {
        let store = connect(path, journal, files)?;
        store.batch("begin exclusive")?;
        store.batch(schema::CREATE)?;
        store.batch("commit")?;
        Ok(store)
    }

    /// Opens a completely built database.
    ///
    /// # Errors
    ///
    /// Fails if SQLite does, or the database was never completed.
    pub fn open(path: &Path, journal: SqliteJournalMode, files: SqliteVfs) -> Result<SqliteStore, Oo7Error> {
        let store = connect(path, journal, files)?;
        let complete = "select value from state where name = 'complete'";
        let complete: u32 = store
            .lock()
            .query_row(complete, [], |row| row.get(0))
            .map_err(backend_error)?;
        match complete {
            0 => Err(Oo7Error::Missing {
                why: "its building was cut off",
            }),
            _ => Ok(store),
        }
    }

    /// Sets whether commits survive a crash of the machine, as they do by default. It is switched off while a
    /// database is built.
    ///
    /// # Errors
    ///
    /// Fails if SQLite does.
    pub fn set_synced(&self, synced: bool) -> Result<(), Oo7Error> {
        self.batch(match synced {
            true => "pragma synchronous = full",
            false => "pragma synchronous = off",
        })
    }

    fn batch(&self, statements: &str) -> Result<(), Oo7Error> {
        self.lock().execute_batch(statements).map_err(backend_error)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path, journal: SqliteJournalMode, files: SqliteVfs) -> Result<SqliteStore, Oo7Error> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match files {
        SqliteVfs::System => Connection::open_with_flags(path, flags),
        SqliteVfs::Netram => {
            sys::register_vfs().map_err(Oo7Error::backend)?;
            Connection::open_with_flags_and_vfs(path, flags, netram_sqlite::VFS_NAME)
        }
    };
    let connection = connection.map_err(backend_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let (wanted, mode) = match journal {
        SqliteJournalMode::Wal => ("wal", "pragma journal_mode = wal"),
        SqliteJournalMode::Rollback => ("delete", "pragma journal_mode = delete"),
    };
    let found: String = connection
        .query_row(mode, [], |row| row.get(0))
        .map_err(backend_error)?;
    if found != wanted {
        return Err(Oo7Error::Missing {
            why: "SQLite keeps to another kind of journal",
        });
    }
    connection
        .execute_batch("pragma synchronous = full")
        .map_err(backend_error)?;
    connection.execute_batch(CACHE).map_err(backend_error)?;
    Ok(SqliteStore {
        connection: Mutex::new(connection),
    })
}

impl Oo7Store for SqliteStore {
    type Open<'s> = SqliteTransaction<'s>;

    fn begin(&self) -> Result<SqliteTransaction<'_>, Oo7Error> {
        let connection = self.lock();
        let mut open = SqliteTransaction {
            connection,
            ended: true,
        };
        open.run("begin")?;
        open.ended = false;
        Ok(open)
    }
}

impl StorageManager for SqliteStore {
    fn insert_note(open: &mut SqliteTransaction<'_>) -> Result<(), Oo7Error> {
        open.run("update state set value = value + 1 where name = 'noted'")
    }

    fn note_count(open: &mut SqliteTransaction<'_>) -> Result<u32, Oo7Error> {
        let noted = open.ask("select value from state where name = 'noted'", [], |row| {
            row.get(0)
        })?;
        noted.ok_or(Oo7Error::Missing {
            why: "it has no count of what was noted",
        })
    }

    fn checkpoint(&self) -> Result<(), Oo7Error> {
        let asked = "pragma wal_checkpoint(truncate)";
        let connection = self.lock();
        // In the other journal mode SQLite answers that there is nothing to do.
        connection.query_row(asked, [], |_| Ok(())).map_err(backend_error)
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // If this fails, SQLite has rolled back by itself.
            let _ = self.connection.execute_batch("rollback");
        }
    }
}
