//! One error an operation, one variant a reaction.

use std::path::PathBuf;

use netram_journal::{JournalCreateError, JournalOpenError};
use netram_proto::port::{CommitVotes, IoError, WaitError};
use netram_rvm::{
    MapError, RangeError, RvmCommitError as Uncommitted, RvmOpenError as MemoryError, SegmentError,
};
use netram_shared_machine::limit::NODE_NAME_BYTES_MAX;
use netram_shared_machine::node::{NodeEnd, ServerViolation};
use netram_shared_machine::{LockId, NodeId, RecordNumber};
use netram_store::StoreSettingsError;

use crate::channel::{AcceptorError, ChannelOpenError as LinkError};
use crate::server::SpanError;

/// Why a node is none any more. Drop it, and join again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeGone {
    /// It left, was fenced or refused, or its server sent what cannot be.
    #[error("{0}")]
    Ended(NodeEnd),
    /// It fell behind what the server keeps for it, or the program has kept records from being applied for
    /// too long.
    #[error("the node has fallen behind: join again")]
    Behind,
    /// Its journal takes nothing more, or answers no more.
    #[error("the node's journal: {0}; join again, and ask for the outcome")]
    Journal(WaitError),
    /// A transaction that cannot be undone was not committed: the node's copy has stores that nobody else
    /// has.
    #[error(
        "a transaction that cannot be undone was not committed, and has spoilt the node's copy: join again"
    )]
    CopyInvalid,
    /// The server says that it keeps a record where this node's journal has none.
    #[error(
        "the server keeps record {0}, which does not end there in this node's journal: it is another's, or damaged"
    )]
    NoSuchEnd(RecordNumber),
    /// A record of another node's cannot be applied.
    #[error("record {number} of node {node} cannot be applied: {cause}")]
    Record {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
        /// Why.
        cause: String,
    },
}

/// Why nobody joined. What was made on the way is offered to the server at the next joining.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The directory cannot be used.
    #[error("{path}: {cause}")]
    Directory {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Another node has the directory, in this process or another one.
    #[error("{0} is the directory of another node, which is running: give each its own")]
    InUse(PathBuf),
    /// The node's name is too long.
    #[error(
        "the node's name has {0} bytes; at most {NODE_NAME_BYTES_MAX} are possible: choose a shorter one"
    )]
    LongName(usize),
    /// A path is no UTF-8.
    #[error("{0:?} is not UTF-8; choose another directory")]
    Name(PathBuf),
    /// The journal cannot be made.
    #[error("{0}")]
    Create(#[from] JournalCreateError),
    /// The journal cannot be opened.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// The lenders that the server names cannot be used.
    #[error("the lenders that the server names: {0}")]
    Settings(#[from] StoreSettingsError),
    /// No link to the server.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The link broke before the region was whole. Try again.
    #[error("the link to the server broke before the region was whole: {0}")]
    Broken(String),
    /// The server did not give the region in time. Try again.
    #[error("the server did not give the region in time")]
    TimedOut,
    /// The server does not have this node, or sent what cannot be.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The spans that the server names are none.
    #[error("the server's spans: {0}")]
    Spans(#[from] SpanError),
    /// A region that this process cannot have.
    #[error("a region of {bytes} bytes at {address:#x} cannot be had here")]
    Region {
        /// Its bytes.
        bytes: u64,
        /// Its address.
        address: u64,
    },
    /// The files beside the journal.
    #[error("the files of the region's copy: {0}")]
    Files(#[from] IoError),
    /// The copy's segment.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Recoverable memory over the journal.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The region's memory. Something else may be at its address.
    #[error("{0}")]
    Map(#[from] MapError),
    /// Stores cannot be found in the way that the options ask for.
    #[error("{0}")]
    Capture(#[from] netram_rvm::CaptureError),
    /// Nobody can come in where other nodes are to.
    #[error("letting other nodes in: {0}")]
    Listen(#[source] AcceptorError),
    /// The system has no threads or descriptors left.
    #[error("joining: {0}")]
    System(#[from] std::io::Error),
}

/// Why a transaction does not have a lock. Those that it has it keeps until it ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Out of order, and another transaction uses it. End this one, and begin again with this lock, or with
    /// `acquire_all`.
    #[error("lock {0} is in use, and out of order: begin again, with it first")]
    Died(LockId),
    /// It did not come in time.
    #[error("lock {0} did not come in time: somebody holds it for long, or the server is away")]
    TimedOut(LockId),
    /// Out of order, and the transaction cannot be undone: acquire it earlier, or with `acquire_all`.
    #[error("lock {0} is out of order, and the transaction cannot be undone: acquire it earlier")]
    OutOfOrder(LockId),
    /// More locks than a transaction may have.
    #[error("a transaction has no more than {0} locks: commit it in parts")]
    TooMany(usize),
    /// The region has no such lock.
    #[error("the region has no lock {0}")]
    NoLock(LockId),
    /// Stores are found by page, another transaction of the node may store to the region, and this one has
    /// locks already: end it, and begin by acquiring exclusively.
    #[error(
        "another transaction of this node has the region, whose stores are found by page: end this one, or wait before it has locks"
    )]
    Captured,
    /// All locks of the node are lost. End the transaction.
    #[error("the node has lost its locks: end the transaction")]
    Lost,
    /// There is no node any more.
    #[error("{0}")]
    Gone(#[from] NodeGone),
}

/// Why bytes were not declared. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// The transaction has not acquired the lock that covers a byte, or only to read.
    #[error(
        "the byte at {offset} (address {address:#x}) is under lock {lock}, which this transaction has not acquired exclusively"
    )]
    NotHeld {
        /// The first such byte.
        offset: usize,
        /// Where it is in this process.
        address: usize,
        /// The lock to acquire.
        lock: LockId,
    },
    /// No lock covers a byte: nobody can ever write there.
    #[error("the byte at {offset} (address {address:#x}) is under no lock, and cannot be written")]
    NoLock {
        /// The first such byte.
        offset: usize,
        /// Where it is in this process.
        address: usize,
    },
    /// The range itself.
    #[error("{0}")]
    Range(#[from] RangeError),
}

/// Why bytes were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The transaction has not acquired the lock that covers a byte: others may be writing there.
    #[error(
        "the byte at {offset} (address {address:#x}) is under lock {lock}, which this transaction has not acquired"
    )]
    NotHeld {
        /// The first such byte.
        offset: usize,
        /// Where it is in this process.
        address: usize,
        /// The lock to acquire.
        lock: LockId,
    },
    /// No lock covers a byte: nobody can ever write there, and
    /// [`NodeEntry::region`](crate::NodeEntry::region) reads it.
    #[error("the byte at {offset} (address {address:#x}) is under no lock: nobody writes there")]
    NoLock {
        /// The first such byte.
        offset: usize,
        /// Where it is in this process.
        address: usize,
    },
    /// The range itself.
    #[error("{0}")]
    Range(#[from] RangeError),
}

/// Why a commit did not return success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxnCommitError {
    /// Done or not done: the wait was cut off. Join again, and ask for the
    /// [outcome](crate::NodeEntry::outcome).
    #[error("the outcome of record {number} of node {node} is unknown ({cause}): join again, and ask for it")]
    Unknown {
        /// The node id that committed.
        node: NodeId,
        /// Its record.
        number: RecordNumber,
        /// What cut it off.
        cause: WaitError,
    },
    /// The node's locks were lost before anything was logged. Aborted.
    #[error("the node lost its locks before the commit: the transaction is aborted")]
    Lost,
    /// There is no node any more. Aborted.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// Stores were found that the transaction may not make. Aborted, and put back.
    #[error("{0}")]
    Stray(StrayStores),
    /// Nothing was logged. Aborted.
    #[error("{0}")]
    Refused(#[from] Uncommitted),
}

/// Stores that a transaction may not make: the first run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayStores {
    /// Where in the region it begins.
    pub offset: usize,
    /// Where in this process.
    pub address: usize,
    /// Its bytes.
    pub length: usize,
    /// How many such runs there are.
    pub count: usize,
    /// The lock that covers its first byte, if any does.
    pub lock: Option<LockId>,
    /// The transaction had that exclusively, so that the bytes were stored to without having been declared.
    pub held: bool,
}

impl std::fmt::Display for StrayStores {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StrayStores {
            offset,
            address,
            length,
            count,
            ..
        } = self;
        write!(
            out,
            "{length} bytes at {offset} (address {address:#x}) were stored to "
        )?;
        match self.lock {
            Some(_) if self.held => write!(out, "without having been declared")?,
            Some(lock) => write!(out, "without lock {lock}, which covers them")?,
            None => write!(out, "though no lock covers them")?,
        }
        write!(out, "; {count} such places, put back: the transaction is aborted")
    }
}

/// A commit that counts, everywhere and for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnCommit {
    /// The record, by which the node's [outcome](crate::NodeEntry::outcome) is asked; `None`: nothing was
    /// written.
    pub record: Option<(NodeId, RecordNumber)>,
    /// What was known to hold it.
    pub votes: CommitVotes,
}

/// What a pinned reader had is past: what was held back for it became too much.
/// [`accept`](crate::RegionReader::accept) goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much was held back for this reader: what it had seen is past")]
pub struct ReaderExpired;

impl From<NodeEnd> for NodeGone {
    fn from(over: NodeEnd) -> NodeGone {
        NodeGone::Ended(over)
    }
}

impl From<ServerViolation> for NodeGone {
    fn from(misled: ServerViolation) -> NodeGone {
        NodeGone::Ended(NodeEnd::Violation(misled))
    }
}
