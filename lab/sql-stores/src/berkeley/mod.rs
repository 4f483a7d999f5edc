//! OO7 in Berkeley DB: an object is a record, found by its id; what else finds it is a btree of its own.
//!
//! One environment of a process's own, with a log, one transaction at a time, and so without locks. A record
//! that was just read stays in the program until another one of its table is: an object database has objects
//! in the program, too.

mod record;
mod work;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_oo7::{Oo7Error, Oo7Store};

use self::record::{RecordKey, Table};
use crate::StorageManager;
use crate::sys::{BerkeleyEngine, BerkeleyError, BerkeleyShim};

/// Bytes of a page: what Berkeley DB itself takes on most file systems.
const PAGE_BYTES: u32 = 4096;
/// Bytes of its cache: more than a small database has.
const CACHE_BYTES: u32 = 64 << 20;
/// The row that says that the database is whole, and the one that counts what was noted.
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
    /// The record of each table that was read last.
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
    /// Makes an empty database in `directory`, which is empty.
    pub fn create(shim: BerkeleyShim, directory: &Path) -> Result<BerkeleyStore, Oo7Error> {
        let store = connect(shim, directory)?;
        let mut open = store.begin()?;
        for row in [COMPLETE, NOTE_COUNT] {
            open.put(Table::State, row, &0_u32.to_le_bytes())?;
        }
        end(open)?;
        Ok(store)
    }

    /// Opens one that was built whole, and recovers it.
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

    /// Has commits be safe from a crash of the machine, as they are at first, or not, for as long as a
    /// database is built.
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
            // An environment in which this fails refuses whatever follows.
            let _ = self.inner.engine.abort();
            // What was read may be what was changed.
            self.inner.cached = Default::default();
        }
    }
}
