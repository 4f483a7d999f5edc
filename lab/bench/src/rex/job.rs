//! A process with a database in it: does each operation once and says what it took.
//!
//! A process a round, so that the library that slows syncs can be loaded with it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_oo7::{Operation, Parameters, Work, audit};
use netram_sql_stores::{BerkeleyStore, Files, Manager, Shim, SqliteStore};
use serde::{Deserialize, Serialize};

use super::{Engine, Step};
use crate::error::{BenchError, Context};
use crate::oo7::{Around, SEED};
use crate::say;

/// What is said when all is done.
pub(super) const DONE: &str = "done";
/// Before the place of a step, nanoseconds and its count.
pub(super) const TOOK: &str = "took";
/// Before the digest of the database.
pub(super) const AUDITED: &str = "audited";
/// Commits before the first that is timed: lenders have joined by then.
const WARM_UP: Duration = Duration::from_millis(300);

/// A database, and what to do in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub(super) engine: Engine,
    /// SQLite's file, or Berkeley DB's folder.
    pub(super) place: PathBuf,
    /// SQLite uses netram's VFS.
    pub(super) vfs: bool,
    /// Berkeley DB, compiled.
    pub(super) shim: Option<PathBuf>,
    pub(super) database: Parameters,
    pub(super) steps: Vec<Step>,
}

impl Job {
    /// Does everything, or audits the database if there is nothing to do.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        const OPEN: &str = "open the database";
        match self.engine.journal() {
            Some(journal) => {
                let files = if self.vfs { Files::Netram } else { Files::System };
                self.with(&SqliteStore::open(&self.place, journal, files).context(OPEN)?)?;
            }
            None => {
                let shim = self.shim.as_deref();
                let shim = shim.ok_or(BenchError::Asked("there is no Berkeley DB here".to_owned()))?;
                let shim = Shim::load(shim).context("load Berkeley DB")?;
                self.with(&BerkeleyStore::open(shim, &self.place).context(OPEN)?)?;
            }
        }
        // The database is closed by now, and nobody else has it open.
        say(DONE)
    }

    fn with<M: Manager>(&self, store: &M) -> Result<(), BenchError> {
        if self.steps.is_empty() {
            let mut open = store.begin().context("begin a transaction")?;
            let found = audit(&mut open, &self.database, true).context("audit the database")?;
            return say(&format!("{AUDITED} {}", found.digest));
        }
        // All of it is in memory afterwards: what is measured is no reading.
        for operation in [Operation::T1, Operation::T4] {
            self.done(store, operation)?;
        }
        let until = Instant::now() + WARM_UP;
        while Instant::now() < until {
            self.noted(store)?;
        }
        for (at, step) in self.steps.iter().enumerate() {
            let around = Around::of(step.operation);
            if let Some(before) = around.before {
                self.done(store, before)?;
            }
            // Each finds a log that has begun, and is nearly empty.
            store.checkpoint().context("make a checkpoint")?;
            self.noted(store)?;
            let began = Instant::now();
            let count = self.transact(store, *step)?;
            let took = began.elapsed();
            say(&format!("{TOOK} {at} {} {count}", took.as_nanos()))?;
            if let Some(after) = around.after {
                self.done(store, after)?;
            }
        }
        Ok(())
    }

    fn transact<M: Manager>(&self, store: &M, step: Step) -> Result<u64, BenchError> {
        let mut open = store.begin().context("begin a transaction")?;
        let count = step.operation.run(&mut open, &self.database, SEED);
        let count = count.context(format_args!("do {}", step.operation))?;
        if step.logged {
            M::note(&mut open).context("note a transaction")?;
        }
        open.commit().context("commit")?;
        Ok(count)
    }

    fn done<M: Manager>(&self, store: &M, operation: Operation) -> Result<(), BenchError> {
        let step = Step {
            operation,
            logged: false,
        };
        self.transact(store, step).map(drop)
    }

    fn noted<M: Manager>(&self, store: &M) -> Result<(), BenchError> {
        let mut open = store.begin().context("begin a transaction")?;
        M::note(&mut open).context("note a transaction")?;
        open.commit().context("commit")
    }
}
