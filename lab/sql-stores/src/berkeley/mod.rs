//! OO7 in Berkeley DB: an object is a record, found by its id; what else finds it is a btree of its own.
//!
//! One environment of a process's own, with a log, one transaction at a time, and so without locks. A record that was just read stays in the program until another
//! one of its table is: an object database has objects in the program, too.

mod record;
mod work;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_oo7::{Store, StoreError};

use self::record::{Key, Table};
use crate::Manager;
use crate::sys::{Engine, EngineError, Shim};

/// Bytes of a page: what Berkeley DB itself takes on most file systems.
const PAGE_BYTES: u32 = 4096;
/// Bytes of its cache: more than a small database has.
const CACHE_BYTES: u32 = 64 << 20;
/// The row that says that the database is whole, and the one that counts what was noted.
const COMPLETE: u32 = 0;
const NOTED: u32 = 1;

/// An OO7 database in Berkeley DB.
#[derive(Debug)]
pub struct BerkeleyStore {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    synced: bool,
    /// The record of each table that was read last.
    read: [Read; Table::COUNT],
}

#[derive(Debug, Default)]
struct Read {
    key: Option<Key>,
    record: Vec<u8>,
}

/// A transaction of [`BerkeleyStore`].
#[derive(Debug)]
pub struct BerkeleyOpen<'s> {
    inner: MutexGuard<'s, Inner>,
    ended: bool,
}

fn below(error: EngineError) -> StoreError {
    StoreError::below(error)
}

impl BerkeleyStore {
    /// Makes an empty database in `folder`, which is empty.
    pub fn create(shim: Shim, folder: &Path) -> Result<BerkeleyStore, StoreError> {
        let store = connect(shim, folder)?;
        let mut open = store.begin()?;
        for row in [COMPLETE, NOTED] {
            open.put(Table::State, row, &0_u32.to_le_bytes())?;
        }
        end(open)?;
        Ok(store)
    }

    /// Opens one that was built whole, and recovers it.
    pub fn open(shim: Shim, folder: &Path) -> Result<BerkeleyStore, StoreError> {
        let store = connect(shim, folder)?;
        let mut open = store.begin()?;
        let complete = open.find(Table::State, COMPLETE)?.map(|record| record.word(0));
        end(open)?;
        match complete {
            Some(1) => Ok(store),
            Some(_) => Err(StoreError::Missing {
                why: "its building was cut off",
            }),
            None => Err(StoreError::Missing {
                why: "the environment has no such database",
            }),
        }
    }

    /// Has commits be safe from a crash of the machine, as they are at first, or not, for as long as a database is built.
    pub fn synced(&self, synced: bool) -> Result<(), StoreError> {
        self.lock().synced = synced;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(shim: Shim, folder: &Path) -> Result<BerkeleyStore, StoreError> {
    let names = Table::ALL.map(Table::file);
    let engine = Engine::open(shim, folder, &names, PAGE_BYTES, CACHE_BYTES).map_err(below)?;
    Ok(BerkeleyStore {
        inner: Mutex::new(Inner {
            engine,
            synced: true,
            read: Default::default(),
        }),
    })
}

fn end(mut open: BerkeleyOpen<'_>) -> Result<(), StoreError> {
    let synced = open.inner.synced;
    open.ended = true;
    let committed = open.inner.engine.commit(synced);
    if committed.is_err() {
        open.inner.read = Default::default();
    }
    committed.map_err(below)
}

impl Store for BerkeleyStore {
    type Open<'s> = BerkeleyOpen<'s>;

    fn begin(&self) -> Result<BerkeleyOpen<'_>, StoreError> {
        let mut inner = self.lock();
        inner.engine.begin().map_err(below)?;
        Ok(BerkeleyOpen { inner, ended: false })
    }
}

impl Manager for BerkeleyStore {
    fn note(open: &mut BerkeleyOpen<'_>) -> Result<(), StoreError> {
        let noted = BerkeleyStore::noted(open)?;
        open.put(Table::State, NOTED, &(noted + 1).to_le_bytes())
    }

    fn noted(open: &mut BerkeleyOpen<'_>) -> Result<u32, StoreError> {
        Ok(open
            .record("a count of what was noted", Table::State, NOTED)?
            .word(0))
    }

    fn checkpoint(&self) -> Result<(), StoreError> {
        self.lock().engine.checkpoint().map_err(below)
    }
}

impl Drop for BerkeleyOpen<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // An environment in which this fails refuses whatever follows.
            let _ = self.inner.engine.abort();
            // What was read may be what was changed.
            self.inner.read = Default::default();
        }
    }
}
