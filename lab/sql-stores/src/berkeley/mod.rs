//! OO7 in Berkeley DB: an object is a record found by its id; every other way to find it is another btree.
//!
//! One environment for this process, with a log and one transaction at a time, and therefore without locks. A
//! record that was read stays in the program until another record of its table is read, because an object
//! database keeps objects in the program, too.

mod record;
mod work;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_oo7::{Oo7Error, Oo7Store};

use self::record::{RecordKey, Table};
use crate::StorageManager;
use crate::sys::{BerkeleyEngine, BerkeleyError, BerkeleyShim};

/// Page size in bytes: Berkeley DB's default on most file systems.
const PAGE_BYTES: u32 = 4096;
/// Size of its cache in bytes: more than a small database needs.
const CACHE_BYTES: u32 = 64 << 20;
/// Row that marks the database as complete, and row that counts notes.
const COMPLETE: u32 = 0;
const NOTE_COUNT: u32 = 1;

/// An OO7 database in Berkeley DB.
#[derive(Debug)]
pub struct BerkeleyStore {
    inner: Mutex<BerkeleyState>,
}

#[derive(Debug)]
struct BerkeleyState {
    engine: BerkeleyEngine,
    synced: bool,
    /// The last record read from each table.
    cached: [CachedRecord; Table::COUNT],
}

#[derive(Debug, Default)]
struct CachedRecord {
    key: Option<RecordKey>,
    record: Vec<u8>,
}

/// A transaction of [`BerkeleyStore`].
#[derive(Debug)]
pub struct BerkeleyTransaction<'s> {
    inner: MutexGuard<'s, BerkeleyState>,
    ended: bool,
}

fn backend_error(error: BerkeleyError) -> Oo7Error {
    Oo7Error::backend(error)
}

impl BerkeleyStore {
    /// Creates an empty database in the empty directory `directory`.
    ///
    /// # Errors
    ///
    /// Fails if Berkeley DB does.
    pub fn create(shim: BerkeleyShim, directory: &Path) -> Result<BerkeleyStore, Oo7Error> {
        let store = connect(shim, directory)?;
        let mut open = store.begin()?;
        for row in [COMPLETE, NOTE_COUNT] {
            open.put(Table::State, row, &0_u32.to_le_bytes())?;
        }
        end(open)?;
        Ok(store)
    }

    /// Opens a completely built database, and recovers it.
    ///
    /// # Errors
    ///
    /// Fails if Berkeley DB does, or the database was never completed.
    pub fn open(shim: BerkeleyShim, directory: &Path) -> Result<BerkeleyStore, Oo7Error> {
        let store = connect(shim, directory)?;
        let mut open = store.begin()?;
        let complete = open.find(Table::State, COMPLETE)?.map(|record| record.word(0));
        end(open)?;
        match complete {
            Some(1) => Ok(store),
            Some(_) => Err(Oo7Error::Missing {
                why: "its building was cut off",
            }),
            None => Err(Oo7Error::Missing {
                why: "the environment has no such database",
            }),
        }
    }

    /// Sets whether commits survive a crash of the machine, as they do by default. It is switched off while a
    /// database is built.
    ///
    /// # Errors
    ///
    /// Fails if Berkeley DB does.
    pub fn set_synced(&self, synced: bool) -> Result<(), Oo7Error> {
        self.lock().synced = synced;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BerkeleyState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(shim: BerkeleyShim, directory: &Path) -> Result<BerkeleyStore, Oo7Error> {
    let names = Table::ALL.map(Table::file);
    let engine =
        BerkeleyEngine::open(shim, directory, &names, PAGE_BYTES, CACHE_BYTES).map_err(backend_error)?;
    Ok(BerkeleyStore {
        inner: Mutex::new(BerkeleyState {
            engine,
            synced: true,
            cached: Default::default(),
        }),
    })
}

fn end(mut open: BerkeleyTransaction<'_>) -> Result<(), Oo7Error> {
    let synced = open.inner.synced;
    open.ended = true;
    let committed = open.inner.engine.commit(synced);
    if committed.is_err() {
        open.inner.cached = Default::default();
    }
    committed.map_err(backend_error)
}

impl Oo7Store for BerkeleyStore {
    type Open<'s> = BerkeleyTransaction<'s>;

    fn begin(&self) -> Result<BerkeleyTransaction<'_>, Oo7Error> {
        let mut inner = self.lock();
        inner.engine.begin().map_err(backend_error)?;
        Ok(BerkeleyTransaction { inner, ended: false })
    }
}

impl StorageManager for BerkeleyStore {
    fn insert_note(open: &mut BerkeleyTransaction<'_>) -> Result<(), Oo7Error> {
        let noted = BerkeleyStore::note_count(open)?;
        open.put(Table::State, NOTE_COUNT, &(noted + 1).to_le_bytes())
    }

    fn note_count(open: &mut BerkeleyTransaction<'_>) -> Result<u32, Oo7Error> {
        Ok(open
            .record("a count of what was noted", Table::State, NOTE_COUNT)?
            .word(0))
    }

    fn checkpoint(&self) -> Result<(), Oo7Error> {
        self.lock().engine.checkpoint().map_err(backend_error)
    }
}

impl Drop for BerkeleyTransaction<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // An environment in which this fails refuses every later call.
            let _ = self.inner.engine.abort();
            // Cached records may have been changed by the transaction.
            self.inner.cached = Default::default();
        }
    }
}
