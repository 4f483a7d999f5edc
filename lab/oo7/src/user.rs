//! A user of the mix at a node of a shared region, where each module has its own heap and lock.
//!
//! | lock | covers |
//! |---|---|
//! | 0 | the indexes; also held exclusively to add or remove objects |
//! | 1 to *n* | the heap of each module: assemblies, composites, documents, parts |
//! | *n* + 1 to 2*n* | a marker of each module's user: how many transactions it has committed |
//!
//! Under lock 0, even if shared, everything but parts' values and documents stays unchanged. A user chooses
//! its next operations under it, and performs them in another transaction, under the locks of the modules
//! that the choice names.
//!
//! Each transaction of a user advances its marker. A process that takes over from a killed one therefore
//! knows how many transactions were committed, including those not reported. It repeats that many choices
//! without performing them, and continues.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared::node::{AcquireError, TxnCommitError};
use netram_shared_machine::{LockId, LockMode};
use serde::{Deserialize, Serialize};

use crate::error::Oo7Error;
use crate::graph::{
    BlockTransaction, CompositeAt, DateIndex, GraphTransaction, ObjectGraph, SharedHeapSpace,
    SharedHeapTransaction,
};
use crate::operation::mix::{MixClient, MixStep, OperationMix, perform};
use crate::size::Oo7Parameters;
use crate::store::Oo7Transaction;

/// The lock of everything common to all modules.
pub const COMMON: LockId = LockId(0);

/// Way in which a transaction of several steps acquires its locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockAcquisition {
    /// All at once, in order: no transaction dies.
    #[default]
    Together,
    /// Each step's locks when it is reached, as in a program that does not know them before. A transaction
    /// that dies because of a lock is retried with all locks together.
    AsMet,
}

/// Work of a user, and its waiting time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserProgress {
    /// Number of committed transactions.
    pub transactions: u64,
    /// Number of parts that they visited.
    pub parts: u64,
    /// Number of transactions that died because of a lock out of order.
    pub died: u64,
    /// Number of times that a lock did not come in time, or all were lost.
    pub lost: u64,
    /// Time spent acquiring locks.
    pub waited: Duration,
    /// Time that passed, with the waiting.
    pub time: Duration,
}

impl UserProgress {
    /// The progress made after `before`.
    pub fn since(&self, before: &UserProgress) -> UserProgress {
        UserProgress {
            transactions: self.transactions - before.transactions,
            parts: self.parts - before.parts,
            died: self.died - before.died,
            lost: self.lost - before.lost,
            waited: self.waited - before.waited,
            time: self.time - before.time,
        }
    }
}

/// One of several users.
pub struct MixUser<'n> {
    graph: ObjectGraph<SharedHeapSpace<'n>>,
    client: MixClient,
    manner: LockAcquisition,
    /// The next steps and the way to acquire their locks. Once chosen they are performed, with any number of
    /// retries.
    next: Option<(Vec<MixStep<CompositeAt>>, LockAcquisition)>,
    /// Offset, lock and value of its marker.
    marker: (u64, LockId, u64),
    done: UserProgress,
    began: Instant,
}

/// Number of locks that a database with this number of modules needs.
pub fn locks(modules: u32) -> u32 {
    1 + 2 * modules
}

fn module_locks(modules: u32) -> Vec<LockId> {
    (0..=modules).map(LockId).collect()
}

/// Creates the heaps of an empty database, and the database without objects.
///
/// # Errors
///
/// Fails if a lock cannot be acquired, or a span is too small.
pub fn create<'n>(
    node: &'n Node,
    parameters: &Oo7Parameters,
) -> Result<ObjectGraph<SharedHeapSpace<'n>>, Oo7Error> {
    let homes = module_locks(parameters.modules);
    for lock in &homes {
        SharedHeapSpace::format(node, *lock)?;
    }
    let space = SharedHeapSpace::open_all(node, &homes, Durability::Remote)?;
    ObjectGraph::create(space, parameters, DateIndex::All)
}

/// Opens the database for reading, with all locks shared.
///
/// # Errors
///
/// Fails if the database is missing or not complete.
pub fn open<'n>(
    node: &'n Node,
    parameters: &Oo7Parameters,
) -> Result<ObjectGraph<SharedHeapSpace<'n>>, Oo7Error> {
    let space = SharedHeapSpace::open_all(node, &module_locks(parameters.modules), Durability::Remote)?;
    ObjectGraph::open(space.reading())
}

/// Number of transactions that a module's user has ever committed.
///
/// # Errors
///
/// Fails if the marker cannot be read.
pub fn committed(node: &Node, parameters: &Oo7Parameters, module: u32) -> Result<u64, Oo7Error> {
    let (at, lock) = marker_of(node, parameters, module)?;
    let mut txn = node.begin(RestoreMode::Restore).map_err(Oo7Error::backend)?;
    txn.acquire(lock, LockMode::Shared).map_err(Oo7Error::backend)?;
    txn.get(at as usize).map_err(Oo7Error::backend)
}

impl<'n> MixUser<'n> {
    /// The user of a module, numbered from 1, or its successor.
    ///
    /// # Errors
    ///
    /// Fails if the database or the marker cannot be read.
    pub fn new(
        node: &'n Node,
        parameters: &Oo7Parameters,
        mix: OperationMix,
        module: u32,
        seed: u64,
        manner: LockAcquisition,
    ) -> Result<MixUser<'n>, Oo7Error> {
        let (at, lock) = marker_of(node, parameters, module)?;
        let committed = committed(node, parameters, module)?;
        let mut user = MixUser {
            graph: open(node, parameters)?,
            client: MixClient::new(mix, parameters, module, seed),
            manner,
            next: None,
            marker: (at, lock, committed),
            done: UserProgress::default(),
            began: Instant::now(),
        };
        for _ in 0..committed {
            user.choose()?;
        }
        Ok(user)
    }

    /// Number of transactions that this module's user has ever committed.
    pub fn committed(&self) -> u64 {
        self.marker.2
    }

    /// Work since this user began.
    pub fn done(&self) -> UserProgress {
        UserProgress {
            time: self.began.elapsed(),
            ..self.done
        }
    }

    /// Runs one transaction, with retries until it is committed. After an error, drop the user and inspect
    /// the node.
    ///
    /// # Errors
    ///
    /// Fails if a transaction does for a reason that a retry cannot mend.
    pub fn transact(&mut self) -> Result<(), Oo7Error> {
        while !self.attempt()? {}
        Ok(())
    }

    /// Tries a transaction once; returns whether it was committed. If not, the next attempt repeats it.
    ///
    /// # Errors
    ///
    /// Fails if the transaction does for a reason that a retry cannot mend.
    pub fn attempt(&mut self) -> Result<bool, Oo7Error> {
        let (steps, manner) = match self.next.take() {
            Some(next) => next,
            None => (self.choose()?, self.manner),
        };
        match self.perform(&steps, manner) {
            Ok(parts) => {
                self.marker.2 += 1;
                self.done.transactions += 1;
                self.done.parts += parts;
                Ok(true)
            }
            Err(error) => {
                count_retry(&mut self.done, error)?;
                // With all locks in order it waits for the transaction that it died for.
                self.next = Some((steps, LockAcquisition::Together));
                Ok(false)
            }
        }
    }

    fn choose(&mut self) -> Result<Vec<MixStep<CompositeAt>>, Oo7Error> {
        loop {
            let began = Instant::now();
            let ground = self.graph.space().begin_with(&[(COMMON, LockMode::Shared)]);
            self.done.waited += began.elapsed();
            match ground {
                Ok(ground) => return self.client.choose(&mut self.graph.with_transaction(ground)),
                Err(error) => count_retry(&mut self.done, error)?,
            }
        }
    }

    /// Performs the steps in one transaction. Returns the number of visited parts.
    fn perform(&mut self, steps: &[MixStep<CompositeAt>], manner: LockAcquisition) -> Result<u64, Oo7Error> {
        let (at, mark, committed) = self.marker;
        let mut first = vec![(COMMON, LockMode::Shared)];
        if manner == LockAcquisition::Together {
            first.extend(needs(steps));
            first.push((mark, LockMode::Exclusive));
        }
        let began = Instant::now();
        let ground = self.graph.space().begin_with(&first);
        self.done.waited += began.elapsed();
        let mut open = self.graph.with_transaction(ground?);
        let mut parts = 0;
        for step in steps {
            if manner == LockAcquisition::AsMet {
                acquire(&mut self.done, &mut open, needs(std::slice::from_ref(step)))?;
            }
            parts += perform(&mut open, step)?;
        }
        if manner == LockAcquisition::AsMet {
            acquire(&mut self.done, &mut open, [(mark, LockMode::Exclusive)])?;
        }
        open.transaction_mut().write(at, &(committed + 1).to_le_bytes())?;
        open.commit()?;
        Ok(parts)
    }
}

/// The locks of the modules that steps name, each once.
fn needs(steps: &[MixStep<CompositeAt>]) -> BTreeMap<LockId, LockMode> {
    let mut locks = BTreeMap::new();
    for step in steps {
        let hold = if step.writes {
            LockMode::Exclusive
        } else {
            LockMode::Shared
        };
        for module in &step.modules {
            let held = locks.entry(LockId(*module)).or_insert(hold);
            *held = hold.max(*held);
        }
    }
    locks
}

fn acquire(
    done: &mut UserProgress,
    open: &mut GraphTransaction<SharedHeapTransaction<'_>>,
    locks: impl IntoIterator<Item = (LockId, LockMode)>,
) -> Result<(), Oo7Error> {
    let began = Instant::now();
    let mut locks = locks.into_iter();
    let acquired = locks.try_for_each(|(lock, hold)| open.transaction_mut().acquire(lock, hold));
    done.waited += began.elapsed();
    acquired
}

/// Counts the failure of a transaction that can be retried.
fn count_retry(done: &mut UserProgress, error: Oo7Error) -> Result<(), Oo7Error> {
    let Oo7Error::Backend(below) = &error else {
        return Err(error);
    };
    match below.downcast_ref::<AcquireError>() {
        Some(AcquireError::Died(_)) => {
            done.died += 1;
            return Ok(());
        }
        Some(AcquireError::TimedOut(_) | AcquireError::Lost) => {
            done.lost += 1;
            return Ok(());
        }
        _ => (),
    }
    match below.downcast_ref::<TxnCommitError>() {
        Some(TxnCommitError::Lost) => {
            done.lost += 1;
            Ok(())
        }
        _ => Err(error),
    }
}

/// Offset of a user's marker, and its lock.
fn marker_of(node: &Node, parameters: &Oo7Parameters, module: u32) -> Result<(u64, LockId), Oo7Error> {
    let lock = LockId(parameters.modules + module);
    let place = node.spans().find(lock).ok_or(Oo7Error::Missing {
        why: "the region has too few locks for the database's modules",
    })?;
    Ok((node.spans().at(place).offset, lock))
}
