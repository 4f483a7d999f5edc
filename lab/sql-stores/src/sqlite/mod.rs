//! OO7 in SQLite: a table a class, a statement a question.
//!
//! One connection, one transaction at a time. SQLite is its users' own, with what its documentation says is safe: a commit is synced.

mod schema;
mod work;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_oo7::{Store, StoreError};
use rusqlite::{Connection, OpenFlags};

use crate::{Manager, sys};

/// SQLite's own cache, in its unit of -1 KiB: more than a small database has. Its usual 2 MB are less, and every round would read.
const CACHE: &str = "pragma cache_size = -65536";
/// Statements that are kept ready: all that there are.
const STATEMENTS: usize = 128;

/// How SQLite makes a commit atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Journal {
    /// A write-ahead log: one sync a commit.
    #[default]
    Wal,
    /// A rollback journal, which is SQLite's default: a file made, synced, and removed with each commit.
    Rollback,
}

/// Whose files SQLite uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// The system's.
    #[default]
    System,
    /// netram's, of a database that `netram sqlite create` has taken.
    Netram,
}

/// An OO7 database in SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Mutex<Connection>,
}

/// A transaction of [`SqliteStore`].
#[derive(Debug)]
pub struct SqliteOpen<'s> {
    connection: MutexGuard<'s, Connection>,
    ended: bool,
}

pub(crate) fn below(error: rusqlite::Error) -> StoreError {
    StoreError::below(error)
}

impl SqliteStore {
    /// Makes an empty database at `path`, where there is none yet.
    pub fn create(path: &Path, journal: Journal, files: Files) -> Result<SqliteStore, StoreError> {
        let store = connect(path, journal, files)?;
        store.batch("begin exclusive")?;
        store.batch(schema::CREATE)?;
        store.batch("commit")?;
        Ok(store)
    }

    /// Opens one that was built whole.
    pub fn open(path: &Path, journal: Journal, files: Files) -> Result<SqliteStore, StoreError> {
        let store = connect(path, journal, files)?;
        let complete = "select value from state where name = 'complete'";
        let complete: u32 = store
            .lock()
            .query_row(complete, [], |row| row.get(0))
            .map_err(below)?;
        match complete {
            0 => Err(StoreError::Missing {
                why: "its building was cut off",
            }),
            _ => Ok(store),
        }
    }

    /// Has commits be safe from a crash of the machine, as they are at first, or not, for as long as a database is built.
    pub fn synced(&self, synced: bool) -> Result<(), StoreError> {
        self.batch(match synced {
            true => "pragma synchronous = full",
            false => "pragma synchronous = off",
        })
    }

    fn batch(&self, statements: &str) -> Result<(), StoreError> {
        self.lock().execute_batch(statements).map_err(below)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path, journal: Journal, files: Files) -> Result<SqliteStore, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match files {
        Files::System => Connection::open_with_flags(path, flags),
        Files::Netram => {
            sys::register_vfs().map_err(StoreError::below)?;
            Connection::open_with_flags_and_vfs(path, flags, netram_sqlite::NAME)
        }
    };
    let connection = connection.map_err(below)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let (wanted, mode) = match journal {
        Journal::Wal => ("wal", "pragma journal_mode = wal"),
        Journal::Rollback => ("delete", "pragma journal_mode = delete"),
    };
    let found: String = connection.query_row(mode, [], |row| row.get(0)).map_err(below)?;
    if found != wanted {
        return Err(StoreError::Missing {
            why: "SQLite keeps to another kind of journal",
        });
    }
    connection
        .execute_batch("pragma synchronous = full")
        .map_err(below)?;
    connection.execute_batch(CACHE).map_err(below)?;
    Ok(SqliteStore {
        connection: Mutex::new(connection),
    })
}

impl Store for SqliteStore {
    type Open<'s> = SqliteOpen<'s>;

    fn begin(&self) -> Result<SqliteOpen<'_>, StoreError> {
        let connection = self.lock();
        let mut open = SqliteOpen {
            connection,
            ended: true,
        };
        open.run("begin")?;
        open.ended = false;
        Ok(open)
    }
}

impl Manager for SqliteStore {
    fn note(open: &mut SqliteOpen<'_>) -> Result<(), StoreError> {
        open.run("update state set value = value + 1 where name = 'noted'")
    }

    fn noted(open: &mut SqliteOpen<'_>) -> Result<u32, StoreError> {
        let noted = open.ask("select value from state where name = 'noted'", [], |row| {
            row.get(0)
        })?;
        noted.ok_or(StoreError::Missing {
            why: "it has no count of what was noted",
        })
    }

    fn checkpoint(&self) -> Result<(), StoreError> {
        let asked = "pragma wal_checkpoint(truncate)";
        let connection = self.lock();
        // In the other mode it says that there is nothing to do.
        connection.query_row(asked, [], |_| Ok(())).map_err(below)
    }
}

impl Drop for SqliteOpen<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // SQLite has rolled it back by itself where this fails.
            let _ = self.connection.execute_batch("rollback");
        }
    }
}
