//! The server's disk: a directory with the region's segment, the [table](crate::server::table), and one log
//! for both.
//!
//! Everything changes through transactions of recoverable memory: a merged record, the versions that it made,
//! its number and its position are *one* record of the log, so that a crash finds them of the same moment.
//! Nothing waits for the disk: a change returns where its record ends, and is durable when [`Store::durable`]
//! has reached that; many share a sync. Whoever must know at once gives a callback at the opening.
//!
//! One thread has the store. What it is told in which order is `netram_shared_machine`'s affair: the store
//! refuses what does not fit.
//!
//! | in the directory | what |
//! |---|---|
//! | `log`, `view`, `data.key`, `lock`, `segments`, `netram.toml` | the server's own home (`netram_store`) |
//! | `region`, `table` | the two segments |
//! | `nodes.toml` | the lenders that nodes are told to have, as settings are written |

mod create;
mod facts;
mod history;
mod log_syncer;
mod merge;
mod nodes;
mod pages;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netram_journal::JournalRecovery;
use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, RecordLog, WaitError};
use netram_proto::wire::ChainPoint;
use netram_rvm::{MapError, RvmCommitError};
use netram_shared_machine::{NodeId, Position, RecordNumber};
use netram_store::{JournaledRvm, Region, RestoreMode, Store, StoreError, StoreSettings, StoreSettingsError};

pub use create::{LOG_BYTES_DEFAULT, RegionCreateError, RegionPlan};
pub use history::RecentRecord;
pub use merge::{MergeError, PayloadError, VerifiedRecord};
pub use nodes::{NewNode, RecordLimitError};
pub use pages::{PAGE_BYTES, PageRun};

use super::table::{RegionTable, RegionTableError, TableFault};
use history::LogHistory;
use log_syncer::LogSyncer;

const REGION: &str = "region";
const TABLE: &str = "table";
const NODES: &str = "nodes.toml";
/// The server's ring, unless its settings say otherwise: twice the usual, so that any record of a node with
/// the usual one fits its half together with the table's words.
const WINDOW_BYTES: u64 = 16 << 20;

/// The region of a server, open.
pub struct RegionStore {
    // The fields are dropped in this order: nothing may use the memory after the keeper has ended.
    log_syncer: LogSyncer,
    region: Region,
    words: Region,
    memory: Arc<JournaledRvm>,
    table: RegionTable,
    /// Merged records whose durability has not been told, in order.
    pending: VecDeque<(Lsn, DurableRecord)>,
    recent: Vec<RecentRecord>,
    window_bytes: u64,
    root: PathBuf,
    /// A change failed in a way that leaves log and memory apart.
    failed: bool,
}

/// A record that was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeReceipt {
    /// Its place in the server's order.
    pub position: Position,
    /// It is durable when the log is, up to here.
    pub end: Lsn,
}

/// A record that is durable here: its node's members may forget it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableRecord {
    /// Whose.
    pub node: NodeId,
    /// Which, and so all before it.
    pub number: RecordNumber,
    /// Where the node's journal is to be read from: its end, if that is known.
    pub end: ChainPoint,
    /// Its place in the server's order.
    pub position: Position,
}

/// Why a region could not be opened. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// There is none.
    #[error("{0} has no shared region; name the directory that `netram shared create` made")]
    Nothing(PathBuf),
    /// The home, its log or its settings.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A segment cannot be mapped.
    #[error("{0}")]
    Map(#[from] MapError),
    /// The table is none.
    #[error("{path}: {cause}")]
    Table {
        /// The table's file.
        path: PathBuf,
        /// Why.
        cause: RegionTableError,
    },
    /// The table contradicts itself, or the region.
    #[error(
        "{path} contradicts itself: {fault}; restore the directory from a copy, or make a new region of a living node"
    )]
    Fault {
        /// The table's file.
        path: PathBuf,
        /// How.
        fault: TableFault,
    },
    /// The region's file is not as long as the table says.
    #[error("{path} has {found} bytes, the table says {expected}; restore the directory from a copy")]
    Length {
        /// The region's file.
        path: PathBuf,
        /// Bytes that there are.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// The settings that nodes are told.
    #[error("{0}")]
    Settings(#[from] StoreSettingsError),
    /// The path is no UTF-8.
    #[error("{0:?} is not UTF-8; move the directory")]
    Name(PathBuf),
    /// The system refused.
    #[error("opening the region: {0}")]
    System(#[from] std::io::Error),
}

impl RegionStoreError {
    /// Whether the same change can succeed later: the log is full, and what brings it into the segments was
    /// refused by the system (rule 17). It is tried again without anybody's doing.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, RegionStoreError::Log(RvmCommitError::Full { .. }))
    }
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum RegionStoreError {
    /// The log did not take it. Stop; what is durable is there at the next start.
    #[error("the server's log does not take a change: {0}")]
    Log(#[from] RvmCommitError),
    /// An earlier change failed. Stop.
    #[error("the server's log has failed before; start it again")]
    Failed,
    /// As many nodes as there are places.
    #[error("the region has {0} nodes, which is all it can have; let some leave")]
    Full(usize),
    /// There is no such node, or it is gone.
    #[error("there is no node {0}")]
    NoNode(NodeId),
    /// An id that was given before.
    #[error("node id {0}, or a higher one, was given before")]
    OldId(NodeId),
    /// A field is longer than its place.
    #[error("the node's {0} is too long")]
    TooLong(&'static str),
}

impl RegionStore {
    /// Recovers the region in `root`. Afterwards region, versions and numbers are of one moment: that of the
    /// last durable change.
    ///
    /// `told` is called by another thread, whenever more has become durable or the log has failed.
    pub fn open(
        root: &Path,
        told: impl Fn() + Send + Sync + 'static,
    ) -> Result<(RegionStore, JournalRecovery), StoreOpenError> {
        RegionStore::open_recalling(root, 0, told)
    }

    /// The same, and remembers up to so many bytes of the newest records that the log has: see
    /// [`Store::take_recent`].
    pub fn open_recalling(
        root: &Path,
        recent_bytes: usize,
        told: impl Fn() + Send + Sync + 'static,
    ) -> Result<(RegionStore, JournalRecovery), StoreOpenError> {
        let home = Store::at(root);
        let path = root.join(TABLE);
        match (home.exists(), path.exists(), root.join(NODES).exists()) {
            (true, true, _) => (),
            (true, false, true) => {
                let cause = RegionTableError::Unfinished;
                return Err(StoreOpenError::Table { path, cause });
            }
            _ => return Err(StoreOpenError::Nothing(root.to_owned())),
        }
        let settings = server_settings(&home)?;
        let mut history = LogHistory::new(recent_bytes);
        let opened = home.open_after(&settings, |log| history.read(log))?;
        let map = |name: &str| -> Result<Region, StoreOpenError> {
            let path = root.join(name);
            let path = path.to_str().ok_or_else(|| StoreOpenError::Name(path.clone()))?;
            Ok(opened.memory.map(path, 0, 0)?)
        };
        let (region, words) = (map(REGION)?, map(TABLE)?);
        let table = RegionTable::read(&words.read()).map_err(|cause| StoreOpenError::Table {
            path: path.clone(),
            cause,
        })?;
        if let Some(fault) = table.faults().into_iter().next() {
            return Err(StoreOpenError::Fault { path, fault });
        }
        if region.len() as u64 != table.bytes {
            return Err(StoreOpenError::Length {
                path: root.join(REGION),
                found: region.len() as u64,
                expected: table.bytes,
            });
        }
        let recent = history.end(table.counters.position, region.segment_number());
        let capacity = opened.memory.log().state().capacity;
        let window_bytes = settings
            .window_bytes
            .map_or(capacity, |bytes| bytes.min(capacity));
        let memory = Arc::new(opened.memory);
        let keeper = LogSyncer::start(Arc::clone(&memory), Box::new(told))?;
        let store = RegionStore {
            log_syncer: keeper,
            region,
            words,
            memory,
            table,
            pending: VecDeque::new(),
            recent,
            window_bytes,
            root: root.to_owned(),
            failed: false,
        };
        Ok((store, opened.recovered))
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the server knows, as of the last change.
    pub fn table(&self) -> &RegionTable {
        &self.table
    }

    /// The region's number in records: every node's must have the same.
    pub fn segment(&self) -> u32 {
        self.region.segment_number()
    }

    /// The settings that nodes are told, as they are written.
    pub fn nodes_settings(&self) -> std::io::Result<Vec<u8>> {
        match std::fs::read(self.root.join(NODES)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read,
        }
    }

    /// The newest records up to the position at the opening, without a gap: as many as the log had.
    pub fn take_recent(&mut self) -> Vec<RecentRecord> {
        std::mem::take(&mut self.recent)
    }

    /// Bytes of the log that may be on their way to the disk: so much of what was merged nobody may have seen
    /// yet.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Everything before this is durable.
    pub fn durable(&self) -> Lsn {
        self.log_syncer.durable()
    }

    /// Why nothing more becomes durable, if that is so. Stop; what is durable is there at the next start.
    pub fn trouble(&self) -> Option<WaitError> {
        self.log_syncer.trouble()
    }

    /// The next record that has become durable and was not told yet, in the server's order.
    pub fn next_durable(&mut self) -> Option<DurableRecord> {
        let durable = self.log_syncer.durable();
        let (_, kept) = self.pending.pop_front_if(|(end, _)| *end <= durable)?;
        Some(kept)
    }

    /// Waits until a change is durable.
    pub fn wait(&self, end: Lsn) -> Result<(), WaitError> {
        let ticket = CommitTicket { lsn: end, end };
        self.memory.log().wait(ticket, Durability::Disk).map(drop)
    }

    /// Makes everything durable, and closes. The log keeps its newest records, for nodes that lack them when
    /// the server starts again; the region's files lie beside it, and move with it.
    pub fn close(self) -> Result<(), RegionStoreError> {
        let RegionStore {
            log_syncer: keeper,
            region,
            words,
            memory,
            ..
        } = self;
        drop((keeper, region, words));
        // The keeper's thread has ended: nobody else has it.
        let Some(memory) = Arc::into_inner(memory) else {
            return Ok(());
        };
        let closed = memory.close_unapplied().map_err(|(error, _)| error.to_string());
        let closed = closed.and_then(|journal| journal.close().map_err(|error| error.to_string()));
        closed.map_err(|error| {
            tracing::error!(error, "closing the region");
            RegionStoreError::Failed
        })
    }

    /// Changes the table's bytes: one record of the log. On an error nothing has changed.
    fn change(&mut self, pieces: &[(usize, &[u8])]) -> Result<Lsn, RegionStoreError> {
        if self.failed {
            return Err(RegionStoreError::Failed);
        }
        let mut transaction = self.memory.begin(RestoreMode::Restore);
        for (offset, bytes) in pieces {
            let written = transaction.write(&self.words, *offset, bytes);
            written.expect("the table's places are inside its segment");
        }
        let commit = transaction.commit(Durability::Lazy);
        let ticket = commit
            .inspect_err(|error| self.failed = !leaves_all_as_it_was(error))?
            .ticket;
        let ticket = ticket.expect("the server's home has no spool");
        self.log_syncer.request(ticket);
        Ok(ticket.end)
    }
}

/// Whether another change can follow one that failed so: nothing was logged, and memory is as before.
fn leaves_all_as_it_was(error: &RvmCommitError) -> bool {
    matches!(
        error,
        RvmCommitError::TooLarge { .. } | RvmCommitError::Full { .. }
    )
}

/// The home's settings, with what a server needs.
fn server_settings(home: &Store) -> Result<StoreSettings, StoreError> {
    let settings = home.settings()?;
    Ok(StoreSettings {
        window_bytes: Some(settings.window_bytes.unwrap_or(WINDOW_BYTES)),
        // What a spool holds back is durable at no known time.
        spool_bytes: None,
        ..settings
    })
}

impl std::fmt::Debug for RegionStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Store")
            .field("root", &self.root)
            .field("position", &self.table.counters.position)
            .finish_non_exhaustive()
    }
}
