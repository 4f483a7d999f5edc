//! The server's disk: a directory with the region's segment, the [table](crate::server::table), and one log
//! for both.
//!
//! Everything changes by transactions of recoverable memory. A merged record, the versions that it made, its
//! number and its position are *one* record of the log, so that a crash leaves all or none of them. No change
//! waits for the disk: it returns the end of its record, and is durable when [`RegionStore::durable`] has
//! reached that. Many changes share a sync. A callback given at opening reports progress.
//!
//! One thread owns the store. `netram_shared_machine` decides what is stored in which order; the store
//! refuses what does not fit.
//!
//! | in the directory | contents |
//! |---|---|
//! | `log`, `view`, `data.key`, `lock`, `segments`, `netram.toml` | the server's own store (`netram_store`) |
//! | `region`, `table` | the two segments |
//! | `nodes.toml` | settings of the nodes' lenders |

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
use netram_process::files::{self, FileRefusal};
use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, RecordLog, WaitError};
use netram_proto::wire::ChainPoint;
use netram_rvm::{MapError, RvmCommitError};
use netram_shared_machine::limit::SETTINGS_BYTES_MAX;
use netram_shared_machine::{NodeId, Position, RecordNumber};
use netram_store::{JournaledRvm, Region, RestoreMode, SettingsError, Store, StoreError, StoreSettings};

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
/// Default window of the server's log. It is twice a node's default, so that any such node's record and the
/// table's changes fit half of it.
const WINDOW_BYTES: u64 = 16 << 20;

/// The open region of a server.
pub struct RegionStore {
    // Fields are dropped in this order: no thread may use the memory after the syncer has ended.
    log_syncer: LogSyncer,
    region: Region,
    words: Region,
    memory: Arc<JournaledRvm>,
    table: RegionTable,
    /// Merged records whose durability has not been reported, in order.
    pending: VecDeque<(Lsn, DurableRecord)>,
    recent: Vec<RecentRecord>,
    window_bytes: u64,
    root: PathBuf,
    /// Whether a change failed in a way that leaves log and memory different.
    failed: bool,
}

/// Result of merging a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeReceipt {
    /// Position of the record in the server's order.
    pub position: Position,
    /// LSN up to which the log must be durable for the record to be durable.
    pub end: Lsn,
}

/// A record that is durable here, so that its node's members may drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableRecord {
    /// Node that wrote it.
    pub node: NodeId,
    /// Number of the record; all earlier ones are durable, too.
    pub number: RecordNumber,
    /// Place from which the node's journal is to be read: the record's end, if that is known.
    pub end: ChainPoint,
    /// Position in the server's order.
    pub position: Position,
}

/// Failure to open a region. The attempt has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The directory contains no region.
    #[error("{0} contains no shared region; name a directory that `netram shared create` made")]
    Nothing(PathBuf),
    /// The server's store, its log or its settings cannot be opened.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A segment cannot be mapped.
    #[error("{0}")]
    Map(#[from] MapError),
    /// The table is invalid.
    #[error("{path}: {cause}")]
    Table {
        /// The table's file.
        path: PathBuf,
        /// The defect.
        cause: RegionTableError,
    },
    /// The table contradicts itself or the region.
    #[error(
        "{path} contradicts itself: {fault}; restore the directory from a backup, or rescue the region from a living node's copy (`netram shared rescue`)"
    )]
    Fault {
        /// The table's file.
        path: PathBuf,
        /// The contradiction.
        fault: TableFault,
    },
    /// The region's file does not have the length in the table.
    #[error("{path} has {found} bytes, but the table says {expected}; restore the directory from a backup")]
    Length {
        /// The region's file.
        path: PathBuf,
        /// Length of the file in bytes.
        found: u64,
        /// Length according to the table in bytes.
        expected: u64,
    },
    /// The settings for nodes are invalid.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The path is not UTF-8.
    #[error("{0:?} is not UTF-8; move the region to another directory")]
    Name(PathBuf),
    /// The system has no threads left, or a call failed.
    #[error("cannot open the region: {0}")]
    System(#[from] std::io::Error),
}

impl RegionStoreError {
    /// Whether the same change can succeed later: the log is full, and the system refused writing to the
    /// segments (rule 17). The caller tries again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, RegionStoreError::Log(RvmCommitError::Full { .. }))
    }
}

/// Failure of a change.
#[derive(Debug, thiserror::Error)]
pub enum RegionStoreError {
    /// The log did not take the change. Stop; durable changes are there at the next start.
    #[error("the server's log cannot take a change: {0}")]
    Log(#[from] RvmCommitError),
    /// An earlier change failed. Stop.
    #[error("the server's log has failed before; restart the server")]
    Failed,
    /// The table of nodes is full.
    #[error("the region has its maximum of {0} nodes; let some leave")]
    Full(usize),
    /// The node does not exist, or is gone.
    #[error("node {0} does not exist or is gone")]
    NoNode(NodeId),
    /// The node id was assigned before.
    #[error("node id {0} or a higher one was assigned before")]
    OldId(NodeId),
    /// The named field is longer than its entry allows.
    #[error("the node's {0} is too long")]
    TooLong(&'static str),
}

impl RegionStore {
    /// Recovers the region in `root` to the moment of the last durable change. Another thread calls `told`
    /// whenever more is durable or the log has failed.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] if there is no region, or it is damaged.
    pub fn open(
        root: &Path,
        told: impl Fn() + Send + Sync + 'static,
    ) -> Result<(RegionStore, JournalRecovery), StoreOpenError> {
        RegionStore::open_recalling(root, 0, told)
    }

    /// Recovers the region like [`RegionStore::open`]. It keeps up to `recent_bytes` of the newest records in
    /// the log for [`RegionStore::take_recent`].
    ///
    /// # Errors
    ///
    /// The same as for [`RegionStore::open`].
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

    /// Directory of the region.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The table, as of the last change.
    pub fn table(&self) -> &RegionTable {
        &self.table
    }

    /// The region's segment number in records, which must be the same at every node.
    pub fn segment(&self) -> u32 {
        self.region.segment_number()
    }

    /// Settings for nodes, in the settings' format.
    ///
    /// # Errors
    ///
    /// The system's error, if the file exists and cannot be read.
    pub fn nodes_settings(&self) -> std::io::Result<Vec<u8>> {
        match files::read(&self.root.join(NODES), SETTINGS_BYTES_MAX as u64) {
            Err(FileRefusal::System(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => Ok(read?),
        }
    }

    /// The newest records up to the position at opening, without a gap: as many as the log had.
    pub fn take_recent(&mut self) -> Vec<RecentRecord> {
        std::mem::take(&mut self.recent)
    }

    /// Bytes of the log that may be on their way to the disk, so that no node may have seen their records
    /// yet.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// LSN below which everything is durable.
    pub fn durable(&self) -> Lsn {
        self.log_syncer.durable()
    }

    /// Reason why nothing more becomes durable, if so. Stop; durable records are there at the next start.
    pub fn trouble(&self) -> Option<WaitError> {
        self.log_syncer.trouble()
    }

    /// Next record that has become durable, in the server's order.
    pub fn next_durable(&mut self) -> Option<DurableRecord> {
        let durable = self.log_syncer.durable();
        let (_, kept) = self.pending.pop_front_if(|(end, _)| *end <= durable)?;
        Some(kept)
    }

    /// Waits until a change is durable.
    ///
    /// # Errors
    ///
    /// [`WaitError`] if the log has failed.
    pub fn wait(&self, end: Lsn) -> Result<(), WaitError> {
        let ticket = CommitTicket { lsn: end, end };
        self.memory.log().wait(ticket, Durability::Disk).map(drop)
    }

    /// Makes everything durable and closes the store. The log keeps its newest records for the next start.
    /// The region's files lie beside it, and move with it.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError::Failed`] if the log or the memory could not be closed.
    pub fn close(self) -> Result<(), RegionStoreError> {
        let RegionStore {
            log_syncer: keeper,
            region,
            words,
            memory,
            ..
        } = self;
        drop((keeper, region, words));
        // The syncer's thread has ended, so this is the only owner.
        let Some(memory) = Arc::into_inner(memory) else {
            return Ok(());
        };
        let closed = memory.close_unapplied().map_err(|(error, _)| error.to_string());
        let closed = closed.and_then(|journal| journal.close().map_err(|error| error.to_string()));
        closed.map_err(|error| {
            tracing::error!(error, "cannot close the region");
            RegionStoreError::Failed
        })
    }

    /// Changes the table's bytes, as one record of the log. Nothing has changed after an error.
    fn change(&mut self, pieces: &[(usize, &[u8])]) -> Result<Lsn, RegionStoreError> {
        if self.failed {
            return Err(RegionStoreError::Failed);
        }
        let mut transaction = self.memory.begin(RestoreMode::Restore);
        for (offset, bytes) in pieces {
            let written = transaction.write(&self.words, *offset, bytes);
            written.expect("the table's entries are inside its segment");
        }
        let commit = transaction.commit(Durability::Lazy);
        let ticket = commit
            .inspect_err(|error| self.failed = !leaves_all_as_it_was(error))?
            .ticket;
        let ticket = ticket.expect("the server's store has no spool");
        self.log_syncer.request(ticket);
        Ok(ticket.end)
    }
}

/// Whether another change may follow such an error: nothing was logged, and memory is unchanged.
fn leaves_all_as_it_was(error: &RvmCommitError) -> bool {
    matches!(
        error,
        RvmCommitError::TooLarge { .. } | RvmCommitError::Full { .. }
    )
}

/// The store's settings, adapted to a region's server.
fn server_settings(home: &Store) -> Result<StoreSettings, StoreError> {
    let mut settings = home.settings()?;
    settings.window_bytes = Some(settings.window_bytes.unwrap_or(WINDOW_BYTES));
    // Changes in a spool would be durable at no known time.
    settings.spool_bytes = None;
    Ok(settings)
}

impl std::fmt::Debug for RegionStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Store")
            .field("root", &self.root)
            .field("position", &self.table.counters.position)
            .finish_non_exhaustive()
    }
}
