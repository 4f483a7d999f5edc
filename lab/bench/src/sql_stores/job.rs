//! A process with a database in it: does each operation once and says what it took.
//!
//! A process a round, so that the library that slows syncs can be loaded with it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_oo7::{Oo7Parameters, Oo7Transaction, Operation, audit};
use netram_sql_stores::{BerkeleyShim, BerkeleyStore, SqliteStore, SqliteVfs, StorageManager};
use serde::{Deserialize, Serialize};

use super::{SqlStoreEngine, SqlStoreStep};
use crate::error::{BenchError, ErrorContext};
use crate::oo7::{OperationFixture, SEED};
use crate::say;

/// What is said when all is done.
pub(super) const DONE_LINE: &str = "done";
/// Before the place of a step, nanoseconds and its count.
pub(super) const TIME_LINE: &str = "took";
/// Before the digest of the database.
pub(super) const DIGEST_LINE: &str = "audited";
/// Commits before the first that is timed: lenders have joined by then.
const WARM_UP: Duration = Duration::from_millis(300);

/// A database, and what to do in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SqlStoreJob {
    pub(super) engine: SqlStoreEngine,
    /// SQLite's file, or Berkeley DB's directory.
    pub(super) place: PathBuf,
    /// SQLite uses netram's VFS.
    pub(super) vfs: bool,
    /// Berkeley DB, compiled.
    pub(super) shim: Option<PathBuf>,
    pub(super) database: Oo7Parameters,
    pub(super) steps: Vec<SqlStoreStep>,
}

impl SqlStoreJob {
    /// Does everything, or audits the database if there is nothing to do.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        const OPEN: &str = "open the database";
        match self.engine.journal() {
            Some(journal) => {
                let files = if self.vfs {
                    SqliteVfs::Netram
                } else {
                    SqliteVfs::System
                };
                self.with(&SqliteStore::open(&self.place, journal, files).context(OPEN)?)?;
            }
            None => {
                let shim = self.shim.as_deref();
                let shim = shim.ok_or(BenchError::InvalidRequest(
                    "there is no Berkeley DB here".to_owned(),
                ))?;
                let shim = BerkeleyShim::load(shim).context("load Berkeley DB")?;
                self.with(&BerkeleyStore::open(shim, &self.place).context(OPEN)?)?;
            }
        }
        // The database is closed by now, and nobody else has it open.
        say(DONE_LINE)
    }

    fn with<M: StorageManager>(&self, store: &M) -> Result<(), BenchError> {
        if self.steps.is_empty() {
            let mut open = store.begin().context("begin a transaction")?;
            let found = audit(&mut open, &self.database, true).context("audit the database")?;
            return say(&format!("{DIGEST_LINE} {}", found.digest));
        }
        // All of it is in memory afterwards: what is measured is no reading.
        for operation in [Operation::T1, Operation::T4] {
            self.run_operation(store, operation)?;
        }
        let until = Instant::now() + WARM_UP;
        while Instant::now() < until {
            self.check_note_count(store)?;
        }
        for (at, step) in self.steps.iter().enumerate() {
            let around = OperationFixture::of(step.operation);
            if let Some(before) = around.before {
                self.run_operation(store, before)?;
            }
            // Each finds a log that has begun, and is nearly empty.
            store.checkpoint().context("make a checkpoint")?;
            self.check_note_count(store)?;
            let began = Instant::now();
            let count = self.transact(store, *step)?;
            let took = began.elapsed();
            say(&format!("{TIME_LINE} {at} {} {count}", took.as_nanos()))?;
            if let Some(after) = around.after {
                self.run_operation(store, after)?;
            }
        }
        Ok(())
    }

    fn transact<M: StorageManager>(&self, store: &M, step: SqlStoreStep) -> Result<u64, BenchError> {
        let mut open = store.begin().context("begin a transaction")?;
        let count = step.operation.run(&mut open, &self.database, SEED);
        let count = count.context(format_args!("do {}", step.operation))?;
        if step.logged {
            M::insert_note(&mut open).context("note a transaction")?;
        }
        open.commit().context("commit")?;
        Ok(count)
    }

    fn run_operation<M: StorageManager>(&self, store: &M, operation: Operation) -> Result<(), BenchError> {
        let step = SqlStoreStep {
            operation,
            logged: false,
        };
        self.transact(store, step).map(drop)
    }

    fn check_note_count<M: StorageManager>(&self, store: &M) -> Result<(), BenchError> {
        let mut open = store.begin().context("begin a transaction")?;
        M::insert_note(&mut open).context("note a transaction")?;
        open.commit().context("commit")
    }
}
