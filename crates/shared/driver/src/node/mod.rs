//! A process that has the region in its memory.
//!
//! ```no_run
//! use netram_proto::port::Durability;
//! use netram_shared_machine::{LockId, LockMode};
//! use netram_rvm::RestoreMode;
//! use netram_shared::{Node, NodeOptions};
//! use netram_transport::{ClusterKey, Security};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let security = Security::Key(ClusterKey::load("cluster.key".as_ref())?);
//! let options = NodeOptions::new("tcp://server:7440".parse()?, security, "node-1".into());
//! let node = Node::join(options)?;
//!
//! let mut transfer = node.begin(RestoreMode::Restore)?;
//! transfer.acquire_all(&[(LockId(3), LockMode::Exclusive), (LockId(7), LockMode::Exclusive)])?;
//! // The region was made with `--span-size 4KiB`: lock n covers the n-th 4096 bytes.
//! let (from, to): (u64, u64) = (transfer.get(3 * 4096)?, transfer.get(7 * 4096)?);
//! transfer.set(3 * 4096, &(from - 10))?;
//! transfer.set(7 * 4096, &(to + 10))?;
//! transfer.commit(Durability::Remote)?;
//! node.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! The protocol is in [`netram_shared_machine::RegionNode`]; this module has the journal, the memory, the
//! link and the threads.
//!
//! | file | contents |
//! |---|---|
//! | `join.rs` | joining, until the region is complete |
//! | `initial_copy.rs` | building the region's copy |
//! | `txn/` | transactions: locks, ranges, commit |
//! | `reader.rs` | pinned readers |
//! | `node_ref.rs` | the node of a transaction or reader, borrowed or owned |
//! | `core.rs` | the machine under the node's lock, and how its actions are carried out |
//! | `inner.rs` | the state that the threads share |
//! | `node_log.rs` | the journal as recoverable memory sees it; it keeps records until the machine knows them
//! |
//! | `payload.rs` | a record's bytes |
//! | `apply.rs` | applying other nodes' records in order |
//! | `heaps.rs` | persistent heaps in the region |
//! | `link.rs` | the thread of the link to the server |
//! | `maintenance.rs` | ticks, views, trimming |
//! | `orphans.rs` | offering journals of earlier processes |
//! | `peers/` | records sent directly between nodes |
//! | `copy.rs` | saving the copy when the server is lost |
//! | `metrics.rs` | times and state, for Prometheus |
//! | `mark.rs` | the file that names a journal's owner |
//! | `clock.rs` | the clock of the lease |
//! | `watch.rs`, `event_count.rs` | waiting until another node's write is visible here |
//! | `directory_lock.rs` | the lock by which one process has the directory |
//!
//! **Threads.** One serves the link. One applies records that no transaction waits for. One keeps time, and
//! never waits for a disk, since the lease depends on it. One trims the log. One offers journals of earlier
//! processes, while there are any. Transactions run in the program's threads: any number at once, none handed
//! to another thread.

mod apply;
mod clock;
mod copy;
mod core;
mod directory_lock;
pub mod error;
mod event_count;
mod heaps;
mod initial_copy;
mod inner;
mod join;
mod link;
mod maintenance;
mod mark;
pub mod metrics;
mod node_log;
mod node_ref;
mod options;
mod orphans;
mod payload;
mod peers;
mod reader;
mod txn;
mod watch;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_journal::QuorumError;
use netram_proto::port::WaitError;
use netram_rvm::{Region, RestoreMode};
use netram_shared_machine::limit::NODE_NAME_BYTES_MAX;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::NodeEnd;
use netram_shared_machine::{LockVersion, NodeId, RecordNumber};
use netram_telemetry::{MetricsRegistration, MetricsRegistry};

use crate::channel::SessionAcceptor;
use crate::server::{Span, Spans};
pub use copy::SaveError;
use directory_lock::DirectoryLock;
pub use error::{
    AcquireError, DeclareError, JoinError, NodeGone, ReadError, ReaderExpired, StrayStores, TxnCommit,
    TxnCommitError,
};
pub use heaps::HeapError;
use inner::NodeInner;
use node_ref::NodeRef;
pub use options::NodeOptions;
pub use orphans::OrphanStatus;
pub(crate) use orphans::orphans_in;
pub use peers::DirectCounts;
pub use reader::RegionReader;
pub use txn::{Txn, TxnEdit};

/// A node of a shared region, from joining until it ends. When it is [gone](Node::gone) for any reason, drop
/// it and join again.
///
/// Dropping it without [leaving](Node::leave) has the effect of a crash. The server reads its journal when
/// the lease is over, and the next join with the same directory offers it.
pub struct Node {
    /// The node's metrics. Nobody can read them any more once the node can be taken apart.
    _metrics: MetricsRegistration<NodeInner>,
    shared: Arc<NodeInner>,
    threads: Vec<JoinHandle<()>>,
    root: PathBuf,
    lock_timeout: Duration,
    server_timeout: Duration,
    /// Held until the journal of a node that has left is removed.
    directory_lock: Option<DirectoryLock>,
}

/// Progress of a node's records: the last record of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordProgress {
    /// Last record in the node's journal.
    pub appended: RecordNumber,
    /// Last record that is safe: held as the journal's rule demands, or durable at the server.
    pub acked: RecordNumber,
    /// Last record that is durable at the server.
    pub durable: RecordNumber,
}

/// Failure to leave in order. Committed transactions are safe all the same; the next join offers their
/// records.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// The server did not confirm in time that it has all records.
    #[error("the server did not confirm in time that it has all of this node's records")]
    TimedOut,
    /// The node had ended before.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The journal could not be closed.
    #[error("cannot close the node's journal: {0}")]
    Journal(WaitError),
    /// Recoverable memory over the journal could not be closed.
    #[error("cannot close the node's memory: {0}")]
    Memory(netram_rvm::RvmCloseError),
    /// The journal, which is not needed any more, could not be removed.
    #[error("{path}: {cause}")]
    Directory {
        /// Directory of the journal.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}

impl Node {
    /// Joins a region: fetches all of it into this process's memory. Waits for a server that cannot be
    /// reached yet.
    ///
    /// Journals of earlier processes in the directory are offered to the server in the background. They are
    /// removed when the server has everything in them: see [`Node::orphans`].
    ///
    /// # Errors
    ///
    /// [`JoinError`] if the directory, the journal, the server or the region's memory cannot be used, or the
    /// region does not come within `server_timeout`.
    pub fn join(options: NodeOptions) -> Result<Node, JoinError> {
        if options.name.len() > NODE_NAME_BYTES_MAX {
            return Err(JoinError::LongName(options.name.len()));
        }
        let directory = |cause| JoinError::Directory {
            path: options.directory.clone(),
            cause,
        };
        fs::create_dir_all(&options.directory).map_err(directory)?;
        let alone = DirectoryLock::take(&options.directory)?;
        let (old, root) = orphans::journals_in(&options.directory).map_err(directory)?;
        let arrived = join::join(&options, root.clone())?;
        let shared = Arc::new(arrived.shared);
        let mut node = Node {
            _metrics: MetricsRegistry::of_process().add(&shared),
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            root,
            lock_timeout: options.lock_timeout,
            server_timeout: options.server_timeout,
            directory_lock: Some(alone),
        };
        // Done before the first tick, so that commits already wait for the server if they must.
        maintenance::tick(&shared);
        // First the thread that keeps the lease.
        let (server, session) = (arrived.server, arrived.session);
        node.spawn("netram-link", move |shared: &NodeInner| {
            link::run(shared, &server, session)
        })?;
        node.spawn("netram-node", maintenance::run)?;
        node.spawn("netram-apply", maintenance::apply)?;
        node.spawn("netram-trim", maintenance::trim)?;
        if options.direct && !options.lazy {
            let (peers, door) = peers::Peers::open(&shared, &options)?;
            node.spawn_peers(peers, door)?;
        }
        if !old.is_empty() {
            shared.set_orphans(old);
            let config = arrived.config;
            node.spawn("netram-rescue", move |shared: &NodeInner| {
                orphans::run(shared, &config)
            })?;
        }
        Ok(node)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&NodeInner) + Send + 'static) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || run(&shared))?);
        Ok(())
    }

    fn spawn_peers(&mut self, peers: peers::Peers, door: Option<SessionAcceptor>) -> std::io::Result<()> {
        let first = self.shared.peers.set(peers).is_ok();
        assert!(first, "a node's peers are set once, when its threads start");
        self.spawn("netram-peers", move |shared: &NodeInner| peers::run(shared, door))?;
        self.spawn("netram-dial", peers::meet)
    }

    /// Begins a transaction. One of [`RestoreMode::NoRestore`] must acquire its locks in order and commit:
    /// aborting it makes the node's copy invalid.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn begin(&self, mode: RestoreMode) -> Result<Txn<'_>, NodeGone> {
        Txn::begin(NodeRef::Borrowed(&self.shared), mode, self.lock_timeout)
    }

    /// Begins a transaction like [`begin`](Node::begin), for callers that cannot borrow. The transaction
    /// shares ownership of the node, which can neither leave nor end before it.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn begin_owned(self: &Arc<Node>, mode: RestoreMode) -> Result<Txn<'static>, NodeGone> {
        Txn::begin(NodeRef::Owned(Arc::clone(self)), mode, self.lock_timeout)
    }

    /// Pins the copy as it is, to be read without locks.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn reader(&self) -> Result<RegionReader<'_>, NodeGone> {
        RegionReader::begin(NodeRef::Borrowed(&self.shared))
    }

    /// Pins the copy like [`reader`](Node::reader), for callers that cannot borrow.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn reader_owned(self: &Arc<Node>) -> Result<RegionReader<'static>, NodeGone> {
        RegionReader::begin(NodeRef::Owned(Arc::clone(self)))
    }

    /// The region's memory. Data read there is current as long as a lock that covers it is held.
    ///
    /// Hold no guard of it while acquiring a lock or committing: records may have to be applied first.
    pub fn region(&self) -> &Region {
        &self.shared.region
    }

    /// The bytes that each lock covers.
    pub fn spans(&self) -> &Spans {
        &self.shared.spans
    }

    /// The span that contains this byte; `None`: no lock covers it.
    pub fn span_at(&self, offset: u64) -> Option<&Span> {
        self.shared.span_at(offset).filter(|span| span.offset <= offset)
    }

    /// The node's id, new in each join.
    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    /// The reason why the node has ended; `None`: it has not.
    pub fn gone(&self) -> Option<NodeGone> {
        self.shared.core().gone.clone()
    }

    /// Version of a lock in this node's copy, or on its way there.
    pub fn version(&self, lock: netram_shared_machine::LockId) -> LockVersion {
        self.shared.core().machine.version(lock)
    }

    /// Waits until the region's memory has this version of a lock, whichever node wrote it. Records that are
    /// held back for a pinned reader do not count. Returns `false` if it did not come in time. The caller
    /// must hold no guard of the region.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn wait_version(
        &self,
        lock: netram_shared_machine::LockId,
        version: LockVersion,
        timeout: Duration,
    ) -> Result<bool, NodeGone> {
        self.shared.wait_version(lock, version, timeout)
    }

    /// Progress of the node's own records.
    pub fn progress(&self) -> RecordProgress {
        self.shared.core().ends.progress()
    }

    /// Outcome of a record that [`TxnCommitError::Unknown`] has named, of any node id.
    /// [`RecordOutcome::Open`]: it was not known in time. [`RecordOutcome::Forgotten`]: the server does not
    /// remember, since too many nodes have come and gone.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn outcome(
        &self,
        node: NodeId,
        number: RecordNumber,
        timeout: Duration,
    ) -> Result<RecordOutcome, NodeGone> {
        self.shared.outcome(node, number, Instant::now() + timeout)
    }

    /// Reason why the node's commits wait for the server's disk, and why each lender does not count; `None`:
    /// lenders acknowledge the commits.
    pub fn uncounted(&self) -> Option<QuorumError> {
        self.shared.rvm.log().journal().status().quorum_error()
    }

    /// Counts of records that were sent directly between this node and its peers.
    pub fn direct_counts(&self) -> DirectCounts {
        let (taken, forgotten) = self.shared.core().machine.hints();
        let counts = self.shared.peers.get().map(peers::Peers::counts);
        DirectCounts {
            applied: taken,
            ignored: forgotten,
            ..counts.unwrap_or_default()
        }
    }

    /// Asks the server for all records, for a lazy node.
    pub fn pull(&self) {
        self.shared.with(|core, _| core.machine.pull());
    }

    /// Journals of earlier processes in this directory that the server has not retired yet. A thread offers
    /// them while this node is alive; the next node offers the rest.
    pub fn orphans(&self) -> Vec<OrphanStatus> {
        self.shared.orphans().clone()
    }

    /// Leaves the region. On success every commit is durable at the server, and the node's journal, which is
    /// not needed any more, is removed.
    ///
    /// # Errors
    ///
    /// [`LeaveError`] if the node had ended, the server did not confirm in time, or the journal could not be
    /// closed or removed.
    pub fn leave(mut self) -> Result<(), LeaveError> {
        self.shared.with(|core, _| core.machine.leave());
        let until = Instant::now() + self.server_timeout;
        let gone = self.shared.wait_reply(until, |core| core.gone.clone());
        match gone.ok_or(LeaveError::TimedOut)? {
            NodeGone::Ended(NodeEnd::Left) => {}
            other => return Err(other.into()),
        }
        let (shared, path) = (Arc::clone(&self.shared), self.root.clone());
        let _alone = self.directory_lock.take();
        drop(self);
        let Some(shared) = Arc::into_inner(shared) else {
            unreachable!("the node's threads have ended, and transactions borrow the node")
        };
        let (region, rvm) = (shared.region, shared.rvm);
        drop(region);
        let tails = rvm.close().map_err(|(error, _)| LeaveError::Memory(error))?;
        tails.into_journal().leave().map_err(LeaveError::Journal)?;
        fs::remove_dir_all(&path).map_err(|cause| LeaveError::Directory { path, cause })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Node")
            .field("id", &self.shared.id)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
