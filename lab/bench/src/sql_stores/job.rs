//! A process with one database, which runs each operation once and prints its time.
//!
//! Each round has its own process, so that the library that slows syncs can be preloaded.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_oo7::{Oo7Parameters, Oo7Transaction, Operation, audit};
use netram_sql_stores::{BerkeleyShim, BerkeleyStore, SqliteStore, SqliteVfs, StorageManager};
use serde::{Deserialize, Serialize};

use super::{SqlStoreEngine, SqlStoreStep};
use crate::child::ChildJob;
use crate::error::{BenchError, ErrorContext};
use crate::oo7::{OperationFixture, SEED};
use crate::say;

/// Line that is printed at the end.
pub(super) const DONE_LINE: &str = "done";
/// Prefix of a line with a step's index, nanoseconds and count.
pub(super) const TIME_LINE: &str = "took";
/// Prefix of the line with the database's digest.
pub(super) const DIGEST_LINE: &str = "audited";
/// Duration of commits before the first timed one, in which lenders join.
const WARM_UP: Duration = Duration::from_millis(300);

/// Job of such a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SqlStoreJob {
    pub(super) engine: SqlStoreEngine,
    /// SQLite's file, or Berkeley DB's directory.
    pub(super) place: PathBuf,
    /// Whether SQLite uses netram's VFS.
    pub(super) vfs: bool,
    /// The compiled shim of Berkeley DB.
    pub(super) shim: Option<PathBuf>,
    pub(super) database: Oo7Parameters,
    pub(super) steps: Vec<SqlStoreStep>,
}

impl SqlStoreJob {
    fn with<M: StorageManager>(&self, store: &M) -> Result<(), BenchError> {
        if self.steps.is_empty() {
            let mut open = store.begin().context("begin a transaction")?;
            let found = audit(&mut open, &self.database, true).context("audit the database")?;
            return say(&format!("{DIGEST_LINE} {}", found.digest));
        }
        // Everything is in memory afterwards, so no reading is measured.
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
            // Each step finds a log that has begun and is nearly empty.
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

impl ChildJob for SqlStoreJob {
    const ROLE: &'static str = "Oo7";

    // Runs all steps, or audits the database if there are none.
    fn run(&self) -> Result<(), BenchError> {
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
                    "Berkeley DB is not installed".to_owned(),
                ))?;
                let shim = BerkeleyShim::load(shim).context("load Berkeley DB")?;
                self.with(&BerkeleyStore::open(shim, &self.place).context(OPEN)?)?;
            }
        }
        // The database is closed by now, and no other process has it open.
        say(DONE_LINE)
    }
}
