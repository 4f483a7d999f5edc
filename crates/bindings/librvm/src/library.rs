//! The one library of a process: from `rvm_initialize` to `rvm_terminate`.
//!
//! Lock order: `setup`, the heap, a transaction's slot, `log`, the table of regions. A thread that waits for
//! a disk holds no lock that commits or ranges need, except for the slot of its own transaction.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{RestoreMode, RvmCommitError};

use crate::abi::ForkPageMark;
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::lock;
use crate::log::{LibraryLog, LibraryOptions};
use crate::record::Timeval;
use crate::regions::Regions;
use crate::registered_pages::RegisteredPages;
use crate::statistics::CallCounts;
use crate::transactions::{CallEnd, ObjectHandle, OpenTransaction, TransactionInfo, TransactionTable};

/// `RVM_COALESCE_TRANS`.
pub(crate) const COALESCE_TRANS: u64 = 2;
/// `RVM_ALL_OPTIMIZATIONS`.
pub(crate) const ALL_OPTIMIZATIONS: u64 = 3;

/// This process's library.
pub(crate) static LIBRARY: Library = Library::new();

const FRESH: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;

/// State of recoverable memory in a process.
pub(crate) struct Library {
    phase: AtomicU8,
    fork: ForkPageMark,
    /// Held during start, end, opening the log, mapping and unmapping.
    setup: Mutex<()>,
    choices: Mutex<LibraryOptions>,
    /// The flags in `choices`, copied for transactions that begin.
    flags: AtomicU64,
    log: RwLock<Option<LibraryLog>>,
    pub(crate) regions: Regions,
    pub(crate) registered_pages: RegisteredPages,
    pub(crate) transactions: TransactionTable,
    pub(crate) counts: CallCounts,
    /// Time in microseconds at which the newest transaction began.
    newest: AtomicU64,
}

/// Answer to a query.
pub(crate) struct QueryAnswer {
    pub(crate) choices: LibraryOptions,
    pub(crate) log_name: Option<String>,
    pub(crate) log_empty: bool,
    pub(crate) open: Vec<TransactionInfo>,
}

impl Library {
    const fn new() -> Library {
        Library {
            phase: AtomicU8::new(FRESH),
            fork: ForkPageMark::new(),
            setup: Mutex::new(()),
            choices: Mutex::new(LibraryOptions::new()),
            flags: AtomicU64::new(0),
            log: RwLock::new(None),
            regions: Regions::new(),
            registered_pages: RegisteredPages::new(),
            transactions: TransactionTable::new(),
            counts: CallCounts::new(),
            newest: AtomicU64::new(0),
        }
    }

    /// Refuses calls before initialise, after terminate, and in a child of `fork`.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), CallFailure> {
        match self.phase.load(Ordering::Acquire) {
            RUNNING if !self.fork.is_child() => Ok(()),
            phase => Err(not_ready(phase)),
        }
    }

    /// Refuses calls in a child of `fork`.
    pub(crate) fn refuse_child(&self) -> Result<(), CallFailure> {
        match self.fork.is_child() {
            true => Err(not_ready(RUNNING)),
            false => Ok(()),
        }
    }

    /// Starts the library. Does nothing if it is already running.
    pub(crate) fn initialize(&self, choices: Option<LibraryOptions>) -> Result<(), CallFailure> {
        if self.phase.load(Ordering::Acquire) == RUNNING {
            return self.ready();
        }
        let _setup = lock(&self.setup);
        match self.phase.load(Ordering::Acquire) {
            RUNNING => return Ok(()),
            ENDED => return Err(not_ready(ENDED)),
            _ => (),
        }
        self.fork.set()?;
        if let Some(choices) = choices {
            let made = match &choices.create {
                Some(wanted) => Some(crate::log::create(choices.log.as_deref(), wanted)?),
                None => None,
            };
            if let Err(failure) = self.choose(choices) {
                if let Some(store) = made {
                    // The library did not start: the next attempt will create the log again.
                    store.discard();
                }
                return Err(failure);
            }
        }
        self.phase.store(RUNNING, Ordering::Release);
        Ok(())
    }

    /// Flushes and closes everything. Regions stay readable.
    pub(crate) fn terminate(&self) -> Result<(), CallFailure> {
        if self.phase.load(Ordering::Acquire) == ENDED {
            return Ok(());
        }
        self.ready()?;
        let _setup = lock(&self.setup);
        // Transactions begin under this lock, shared; none can begin while it is held exclusively.
        let mut log = self.log.write().unwrap_or_else(PoisonError::into_inner);
        let open = self.transactions.open();
        if open > 0 {
            return Err(CallFailure::new(
                ReturnCode::Uncommitted,
                format!("{open} transactions are open; commit or abort them, then terminate again"),
            ));
        }
        let closed = match log.take() {
            Some(open) => open.close().map_err(|(failure, reopened)| {
                *log = reopened.map(|open| *open);
                failure
            }),
            None => Ok(()),
        };
        let ended = log.is_none();
        if ended {
            self.phase.store(ENDED, Ordering::Release);
        }
        // A call that holds the heap, and so its region, may be waiting for this lock before it can fail.
        drop(log);
        if ended {
            crate::rds::forget();
            for mapped in self.regions.take_all() {
                crate::mapping::keep_readable(mapped);
            }
        }
        closed
    }

    /// `rvm_set_options`.
    pub(crate) fn set_options(&self, choices: LibraryOptions) -> Result<(), CallFailure> {
        let _setup = self.setup()?;
        self.choose(choices)
    }

    /// Applies options, and opens the log that they name if none is open. The caller holds `setup`.
    pub(crate) fn choose(&self, choices: LibraryOptions) -> Result<(), CallFailure> {
        if !self.choose_for_open_log(&choices)?
            && let Some(path) = &choices.log
        {
            // No other thread can open a log now. Recovery is finished before other threads have to wait.
            let opened = LibraryLog::open(path)?;
            opened.choose(&choices);
            if opened.memory.recovery().transactions > 0 {
                self.counts.recovered();
            }
            *self.log.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        }
        self.flags.store(choices.flags, Ordering::Release);
        *lock(&self.choices) = choices;
        Ok(())
    }

    /// Locks the log shared: waiting for an exclusive lock would delay transactions that begin. Returns
    /// `false` if no log is open.
    fn choose_for_open_log(&self, choices: &LibraryOptions) -> Result<bool, CallFailure> {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &*log else { return Ok(false) };
        if let Some(path) = &choices.log {
            open.must_be(path)?;
        }
        open.choose(choices);
        Ok(true)
    }

    /// Waits for its turn to end, map or unmap, and fails if the library has ended meanwhile; a late call
    /// would open the log again.
    pub(crate) fn setup(&self) -> Result<MutexGuard<'_, ()>, CallFailure> {
        self.ready()?;
        let turn = self.turn();
        self.ready().map(|()| turn)
    }

    /// Waits while other threads start, end, map or unmap; also before the start and after the end.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.setup)
    }

    /// Calls `act` with the open log.
    pub(crate) fn with_log<R>(
        &self,
        act: impl FnOnce(&LibraryLog) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        match &*log {
            Some(open) => act(open),
            None => {
                // The library may have ended while the call waited.
                self.ready()?;
                Err(CallFailure::new(
                    ReturnCode::Log,
                    "no log is open; pass one in `log_dev` to rvm_initialize, rvm_set_options or rvm_map",
                ))
            }
        }
    }

    /// `rvm_query`. `region` is an address and a length.
    pub(crate) fn query(&self, region: Option<(usize, usize)>) -> Result<QueryAnswer, CallFailure> {
        self.ready()?;
        let region = match region {
            Some((address, length)) => Some(
                self.regions
                    .find(address, length)
                    .ok_or_else(|| no_region(address, length))?
                    .start,
            ),
            None => None,
        };
        let choices = lock(&self.choices).clone();
        let (mut log_name, mut log_empty) = (None, true);
        if let Some(open) = &*self.log.read().unwrap_or_else(PoisonError::into_inner) {
            log_name = Some(open.name.clone());
            log_empty = open.is_empty();
        }
        // Without the log's lock, because slots are locked before it.
        let open = self.transactions.list(region);
        Ok(QueryAnswer {
            choices,
            log_name,
            log_empty,
            open,
        })
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self, mode: RestoreMode) -> Result<(ObjectHandle, Timeval), CallFailure> {
        self.ready()?;
        let uname = self.unique_time();
        let flags = self.flags.load(Ordering::Acquire);
        let handle = self.with_log(|log| {
            let transaction = log.memory.begin(mode);
            Ok(self
                .transactions
                .insert(OpenTransaction::new(transaction, flags, uname)))
        })?;
        Ok((handle, uname))
    }

    /// `rvm_set_range`. A valid handle proves that the library was started; the caller has checked that it
    /// still runs.
    #[inline]
    pub(crate) fn set_range(
        &self,
        handle: ObjectHandle,
        address: usize,
        length: usize,
    ) -> Result<(), CallFailure> {
        self.transactions
            .with(handle, |open| open.set_range(&self.regions, address, length))
    }

    /// Commits. After an error the transaction may still be open.
    pub(crate) fn end(
        &self,
        handle: ObjectHandle,
        durability: Durability,
    ) -> Result<(), (CallFailure, CallEnd)> {
        let refuse = |failure| (failure, CallEnd::StaysOpen);
        let waits = durability != Durability::Lazy;
        let began = waits.then(Instant::now);
        let ended = self.transactions.end(handle, |open| {
            let flush_all = waits && open.flags & ALL_OPTIMIZATIONS == 0 && open.transaction.ranges() == 0;
            match open.transaction.try_commit(durability) {
                Ok(_) => (Ok(flush_all), CallEnd::Ended),
                Err(error @ (RvmCommitError::Unknown { .. } | RvmCommitError::Ended)) => {
                    (Err(error.into()), CallEnd::Ended)
                }
                Err(error) => (Err(CallFailure::from(error)), CallEnd::StaysOpen),
            }
        });
        let flush_all = match ended.map_err(refuse)? {
            (Ok(flush_all), _) => flush_all,
            (Err(failure), ending) => return Err((failure, ending)),
        };
        if flush_all {
            // Without optimisations an empty transaction is flushed like any other, together with all earlier
            // ones.
            self.with_log(|log| log.flush())
                .map_err(|failure| (failure, CallEnd::Ended))?;
        }
        if let Some(began) = began {
            self.counts.flushed(began.elapsed());
        }
        Ok(())
    }

    /// Aborts a transaction.
    pub(crate) fn abort(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        // The slot drops the transaction, which aborts it.
        self.transactions.end(handle, |_| ((), CallEnd::Ended)).map(drop)
    }

    /// `rvm_flush`.
    pub(crate) fn flush(&self) -> Result<(), CallFailure> {
        self.ready()?;
        let began = Instant::now();
        self.with_log(|log| log.flush())?;
        self.counts.called_flush(began.elapsed());
        Ok(())
    }

    /// `rvm_truncate`.
    pub(crate) fn truncate(&self) -> Result<(), CallFailure> {
        self.ready()?;
        let began = Instant::now();
        self.with_log(|log| {
            log.memory.truncate()?;
            self.counts.truncated(began.elapsed(), log);
            Ok(())
        })
    }

    /// The time, later than that of every earlier transaction.
    fn unique_time(&self) -> Timeval {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2);
        let later = |newest: u64| Some(now.max(newest + 1));
        let before = self
            .newest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later)
            .unwrap_or_default();
        let micros = now.max(before + 1);
        Timeval {
            seconds: (micros / 1_000_000) as i64,
            microseconds: (micros % 1_000_000) as i64,
        }
    }
}

fn no_region(address: usize, length: usize) -> CallFailure {
    CallFailure::new(
        ReturnCode::NotMapped,
        format!(
            "the {length} bytes at {address:#x} are not a mapped region; pass the record that rvm_map filled"
        ),
    )
}

fn not_ready(phase: u8) -> CallFailure {
    let text = match phase {
        FRESH => "the library is not initialised; call rvm_initialize first",
        ENDED => "the library was terminated; a process can use it only once",
        _ => {
            "this process is a child of the one that initialised the library, and must leave its log and memory alone; \
             initialise after fork, or call exec"
        }
    };
    CallFailure::new(ReturnCode::NotInitialised, text)
}

impl LibraryLog {
    /// Waits until every commit survives a crash.
    pub(crate) fn flush(&self) -> Result<(), CallFailure> {
        self.memory.flush(Durability::Remote)?;
        Ok(())
    }

    /// Whether every commit is in the segments.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.memory.log().state();
        state.head == state.tail && crate::statistics::spooled(&self.memory.statistics()) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a call that had waited for another thread's terminate opened the log again.
    #[test]
    fn a_call_that_waited_for_the_end_fails() {
        let library = Library::new();
        library.fork.set().expect("the kernel can mark a page");
        library.phase.store(RUNNING, Ordering::Release);
        assert!(library.setup().is_ok());
        let ending = library.turn();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| library.setup().map(drop));
            // Lets the thread reach the lock. Without this the result is the same, but the test shows less.
            std::thread::sleep(std::time::Duration::from_millis(20));
            library.phase.store(ENDED, Ordering::Release);
            drop(ending);
            let answer = waiting.join().expect("it ends");
            assert_eq!(
                answer.map_err(|failure| failure.code),
                Err(ReturnCode::NotInitialised)
            );
        });
        drop(library.turn());
    }
}
