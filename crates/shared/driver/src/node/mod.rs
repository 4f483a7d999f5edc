//! A process that has the region in its memory.
//!
//! ```no_run
//! use netram_proto::port::Durability;
//! use netram_shared_machine::{Hold, LockId};
//! use netram_rvm::Mode;
//! use netram_shared::{Node, Options};
//! use netram_transport::{ClusterKey, Security};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let security = Security::Key(ClusterKey::load("cluster.key".as_ref())?);
//! let options = Options::new("tcp://server:7422".parse()?, security, "node-1".into());
//! let node = Node::join(options)?;
//!
//! let mut transfer = node.begin(Mode::Restore)?;
//! transfer.acquire_all(&[(LockId(3), Hold::Exclusive), (LockId(7), Hold::Exclusive)])?;
//! let (from, to): (u64, u64) = (transfer.get(3 * 4096)?, transfer.get(7 * 4096)?);
//! transfer.set(3 * 4096, &(from - 10))?;
//! transfer.set(7 * 4096, &(to + 10))?;
//! transfer.commit(Durability::Remote)?;
//! node.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! What decides is [`netram_shared_machine::Node`]; this module has the journal, the memory, the link and the
//! threads.
//!
//! | file | does |
//! |---|---|
//! | `join.rs` | from nothing to the whole region |
//! | `making.rs` | the region's copy, while that lasts |
//! | `txn/` | transactions: locks, ranges, commit |
//! | `reader.rs` | pinned readers |
//! | `grip.rs` | the node, borrowed or shared |
//! | `core.rs` | the machine under the node's lock, and how its deeds are carried out |
//! | `shared.rs` | what the threads share, and how one tells the machine something |
//! | `tails.rs` | the journal, as the memory sees it: keeps each record until the machine was told |
//! | `payload.rs` | a record's bytes |
//! | `hands.rs` | others' records, applied in order |
//! | `heaps.rs` | persistent heaps in the region |
//! | `link.rs` | the thread that has the link |
//! | `house.rs` | ticks, views, trimming |
//! | `old.rs` | what earlier processes left: offered |
//! | `peers` | records straight from and to other nodes |
//! | `copy.rs` | saving the copy, when the server is lost |
//! | `mark.rs` | whose a journal is: a file |
//! | `watch.rs`, `news.rs` | waiting until another node's write is visible here |
//! | `alone.rs` | one process has the directory |
//!
//! **Threads.** One has the link; one applies what nobody waits for; one keeps time, and never waits for a
//! disk, since the lease hangs on it; one trims the log; while there are journals of earlier processes, one
//! offers them. Transactions run in the program's: any number at once, and none is handed to another thread.

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

/// A node of a shared region: one joining. When it is [gone](Node::gone) for any reason, drop it and join
/// again.
///
/// Dropping it without [leaving](Node::leave) is as good as a crash: the server reads what it left when the
/// lease is over, and the next joining with the same directory offers it.
pub struct Node {
    shared: Arc<NodeInner>,
    threads: Vec<JoinHandle<()>>,
    root: PathBuf,
    lock_timeout: Duration,
    server_timeout: Duration,
    /// Held until the journal of a node that has left is removed.
    directory_lock: Option<DirectoryLock>,
}

/// How far the records of a node have come: the last of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordProgress {
    /// In its journal.
    pub appended: RecordNumber,
    /// Safe, whatever dies: held as its journal's rule says, or durable at the server.
    pub acked: RecordNumber,
    /// Durable at the server.
    pub durable: RecordNumber,
}

/// Why a node has not left in peace. What it committed is safe all the same; the next joining offers it.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// The server has not said in time that it has all.
    #[error("the server has not said in time that it has all of this node's records")]
    TimedOut,
    /// The node had ended before.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The journal could not be closed.
    #[error("closing the node's journal: {0}")]
    Journal(WaitError),
    /// Nor what is over it.
    #[error("closing the node's memory: {0}")]
    Memory(netram_rvm::RvmCloseError),
    /// What is of no use any more could not be removed.
    #[error("{path}: {cause}")]
    Directory {
        /// The journal.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Node {
    /// Joins a region: gets all of it into this process's memory. Waits for a server that is not there yet.
    ///
    /// What earlier processes left in the directory is offered to the server meanwhile, and removed when
    /// nothing of it can be missing there: see [`Node::orphans`].
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
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            root,
            lock_timeout: options.lock_timeout,
            server_timeout: options.server_timeout,
            directory_lock: Some(alone),
        };
        // Commits before the next tick wait for the server already, if they must.
        maintenance::tick(&shared);
        // First who keeps the lease.
        let (server, session) = (arrived.server, arrived.session);
        node.spawn("netram-link", move |shared: &NodeInner| {
            link::run(shared, &server, session)
        })?;
        node.spawn("netram-house", maintenance::run)?;
        node.spawn("netram-apply", maintenance::apply)?;
        node.spawn("netram-trim", maintenance::trim)?;
        if options.direct && !options.lazy {
            let (peers, door) = peers::Peers::open(&shared, &options)?;
            node.spawn_peers(peers, door)?;
        }
        if !old.is_empty() {
            shared.set_orphans(old);
            let config = arrived.config;
            node.spawn("netram-old", move |shared: &NodeInner| {
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
        assert!(first, "a node's peers are set where its threads begin");
        self.spawn("netram-peers", move |shared: &NodeInner| peers::run(shared, door))?;
        self.spawn("netram-meet", peers::meet)
    }

    /// Begins a transaction. One of [`Mode::NoRestore`] must acquire its locks in order, and commit: an abort
    /// spoils the node's copy.
    pub fn begin(&self, mode: RestoreMode) -> Result<Txn<'_>, NodeGone> {
        Txn::begin(NodeRef::Borrowed(&self.shared), mode, self.lock_timeout)
    }

    /// [`begin`](Node::begin) where nothing can be borrowed: the transaction has a share of the node, which
    /// can neither leave nor end before it.
    pub fn begin_owned(self: &Arc<Node>, mode: RestoreMode) -> Result<Txn<'static>, NodeGone> {
        Txn::begin(NodeRef::Owned(Arc::clone(self)), mode, self.lock_timeout)
    }

    /// Pins the copy as it is, to be read without locks.
    pub fn reader(&self) -> Result<RegionReader<'_>, NodeGone> {
        RegionReader::begin(NodeRef::Borrowed(&self.shared))
    }

    /// [`reader`](Node::reader) where nothing can be borrowed.
    pub fn reader_owned(self: &Arc<Node>) -> Result<RegionReader<'static>, NodeGone> {
        RegionReader::begin(NodeRef::Owned(Arc::clone(self)))
    }

    /// The region's memory. What is read there is current under a lock that covers it, and for as long as
    /// that is held.
    ///
    /// No guard of it may be held while a lock is acquired, or a transaction commits: what is waited for may
    /// have to be applied here.
    pub fn region(&self) -> &Region {
        &self.shared.region
    }

    /// Which lock covers which bytes.
    pub fn spans(&self) -> &Spans {
        &self.shared.spans
    }

    /// The span that has this byte; `None`: no lock covers it.
    pub fn span_at(&self, offset: u64) -> Option<&Span> {
        self.shared.span_at(offset).filter(|span| span.offset <= offset)
    }

    /// The node's id, in this joining.
    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    /// Why there is no node any more; `None`: there is.
    pub fn gone(&self) -> Option<NodeGone> {
        self.shared.core().gone.clone()
    }

    /// The version of a lock in this node's copy, or on its way there.
    pub fn version(&self, lock: netram_shared_machine::LockId) -> LockVersion {
        self.shared.core().machine.version(lock)
    }

    /// Waits until the region's memory has this version of a lock, whoever wrote it. What is held back for a
    /// pinned reader is not there yet. `false`: it did not come in time. No guard of the region may be held.
    pub fn wait_version(
        &self,
        lock: netram_shared_machine::LockId,
        version: LockVersion,
        timeout: Duration,
    ) -> Result<bool, NodeGone> {
        self.shared.wait_version(lock, version, timeout)
    }

    /// How far the node's own records have come.
    pub fn progress(&self) -> RecordProgress {
        self.shared.core().ends.progress()
    }

    /// What became of a record, of any node id, that [`TxnCommitError::Unknown`] has named. [`Fate::Open`]:
    /// it was not known in time.
    /// [`Fate::Forgotten`]: nobody knows any more, for so many nodes have come and gone since.
    pub fn outcome(
        &self,
        node: NodeId,
        number: RecordNumber,
        timeout: Duration,
    ) -> Result<RecordOutcome, NodeGone> {
        self.shared.outcome(node, number, Instant::now() + timeout)
    }

    /// Why the node's commits wait for the server's disk, and why each lender does not count. `None`: lenders
    /// acknowledge them.
    pub fn uncounted(&self) -> Option<QuorumError> {
        self.shared.rvm.log().journal().status().quorum_error()
    }

    /// What became of records that went, or came, straight from node to node.
    pub fn direct_counts(&self) -> DirectCounts {
        let (taken, forgotten) = self.shared.core().machine.hints();
        let counts = self.shared.peers.get().map(peers::Peers::counts);
        DirectCounts {
            applied: taken,
            ignored: forgotten,
            ..counts.unwrap_or_default()
        }
    }

    /// Asks a lazy node's server for what there is.
    pub fn pull(&self) {
        self.shared.with(|core, _| core.machine.pull());
    }

    /// Journals of earlier processes of this directory that the server has not buried yet. They are offered
    /// for as long as this node is one, by a thread of its own; what then is left, by the next.
    pub fn orphans(&self) -> Vec<OrphanStatus> {
        self.shared.orphans().clone()
    }

    /// Leaves: all that was committed is durable at the server, and nobody will ask for this node's journal,
    /// which is removed.
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
            // A panic of the thread has been reported by itself.
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
