//! Errors of a node: one type per operation, one variant per reaction.

use std::path::PathBuf;

use netram_journal::{JournalCreateError, JournalOpenError};
use netram_proto::port::{CommitVotes, IoError, WaitError};
use netram_rvm::{
    MapError, RangeError, RvmCommitError as Uncommitted, RvmOpenError as MemoryError, SegmentError,
};
use netram_shared_machine::limit::NODE_NAME_BYTES_MAX;
use netram_shared_machine::node::{NodeEnd, ServerViolation};
use netram_shared_machine::{LockId, NodeId, RecordNumber};
use netram_store::SettingsError;

use crate::channel::{AcceptorError, ChannelOpenError as LinkError};
use crate::server::SpanError;

/// Reason why a node has ended. Drop it and join again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeGone {
    /// The node left, was fenced or refused, or its server violated the protocol.
    #[error("{0}")]
    Ended(NodeEnd),
    /// The node fell behind the records that the server keeps for it, or the program kept records from being
    /// applied for too long.
    #[error("the node has fallen behind the region: join again")]
    Behind,
    /// The node's journal cannot be written, or its commits are no longer acknowledged.
    #[error(
        "the node's journal failed: {0}; join again, and ask for the outcome of commits that did not return"
    )]
    Journal(WaitError),
    /// A transaction that cannot be undone was not committed. The node's copy has its stores, which no other
    /// node has.
    #[error(
        "a transaction that cannot be undone was not committed, so the node's copy of the region is invalid: join again"
    )]
    CopyInvalid,
    /// The server claims to have a record that does not end there in this node's journal.
    #[error(
        "the server's record {0} of this node does not end where the node's journal says: the journal is damaged or belongs to another node"
    )]
    NoSuchEnd(RecordNumber),
    /// A record of another node cannot be applied.
    #[error("record {number} of node {node} cannot be applied: {cause}")]
    Record {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The cause.
        cause: String,
    },
}

/// Failure to join a region. Journals created on the way are offered to the server at the next join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The directory cannot be used.
    #[error("{path}: {cause}")]
    Directory {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The directory is in use by another node, in this process or another one.
    #[error("{0} is in use by another running node: give each node a directory of its own")]
    InUse(PathBuf),
    /// The node's name is longer than [`NODE_NAME_BYTES_MAX`].
    #[error(
        "the node's name has {0} bytes, but at most {NODE_NAME_BYTES_MAX} are allowed: choose a shorter one"
    )]
    LongName(usize),
    /// The directory's path is not UTF-8.
    #[error("{0:?} is not UTF-8; choose another directory")]
    Name(PathBuf),
    /// The journal cannot be created.
    #[error("{0}")]
    Create(#[from] JournalCreateError),
    /// The journal cannot be opened.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// The settings of lenders that the server sent are invalid.
    #[error("the server sent invalid settings of lenders: {0}")]
    Settings(#[from] SettingsError),
    /// The server cannot be reached, or refused the node.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The link broke before the whole region had come. Try again.
    #[error("the link to the server broke before the whole region had come: {0}; try again")]
    Broken(String),
    /// The server did not send the region in time. Try again.
    #[error("the server did not send the whole region in time; try again")]
    TimedOut,
    /// The node ended before it had the whole region.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The spans that the server sent are invalid.
    #[error("the server sent invalid spans: {0}")]
    Spans(#[from] SpanError),
    /// The region does not fit this process's address space.
    #[error("a region of {bytes} bytes at address {address:#x} does not fit this machine's address space")]
    Region {
        /// Size of the region in bytes.
        bytes: u64,
        /// Address of the region.
        address: u64,
    },
    /// The files beside the journal cannot be read or written.
    #[error("cannot create the files of the region's copy: {0}")]
    Files(#[from] IoError),
    /// The segment of the copy cannot be created.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Recoverable memory cannot be opened over the journal.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The region cannot be mapped. Its address may be occupied.
    #[error("{0}")]
    Map(#[from] MapError),
    /// The capture mode of the options is not available.
    #[error("{0}")]
    Capture(#[from] netram_rvm::CaptureError),
    /// The node cannot listen for other nodes.
    #[error("cannot listen for other nodes: {0}")]
    Listen(#[source] AcceptorError),
    /// The system has no threads or descriptors left.
    #[error("cannot join: {0}")]
    System(#[from] std::io::Error),
}

/// Reason why a transaction does not get a lock. It keeps its other locks until it ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The lock is out of order, and another transaction uses it. End this transaction, and start again with
    /// this lock or with `acquire_all`.
    #[error(
        "lock {0} is in use and was requested out of order: end the transaction, and acquire this lock first"
    )]
    Died(LockId),
    /// The lock did not come in time.
    #[error(
        "lock {0} was not granted in time: another transaction holds it for long, or the server cannot be reached"
    )]
    TimedOut(LockId),
    /// The lock is out of order, and the transaction cannot be undone. Acquire it earlier, or with
    /// `acquire_all`.
    #[error(
        "lock {0} was requested out of order, and the transaction cannot be undone: acquire locks in ascending order"
    )]
    OutOfOrder(LockId),
    /// The transaction has the maximum number of locks.
    #[error("a transaction may have at most {0} locks: split it")]
    TooMany(usize),
    /// The region does not have this lock.
    #[error("the region has no lock {0}")]
    NoLock(LockId),
    /// Stores are captured by page, and another transaction of this node may store to the region. This one
    /// has locks already, so it cannot wait: end it, and start with exclusive locks.
    #[error(
        "stores are captured by page, so only one transaction of this node at a time may hold exclusive locks: end this transaction, and acquire its exclusive locks first"
    )]
    Captured,
    /// The node has lost all its locks. End the transaction.
    #[error("the node has lost its locks: end the transaction")]
    Lost,
    /// The node has ended.
    #[error("{0}")]
    Gone(#[from] NodeGone),
}

/// Reason why bytes were not declared. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// The transaction does not hold the lock that covers a byte exclusively.
    #[error(
        "the byte at {offset} (address {address:#x}) is under lock {lock}, which this transaction has not acquired exclusively"
    )]
    NotHeld {
        /// Offset of the first such byte in the region.
        offset: usize,
        /// Its address in this process.
        address: usize,
        /// Lock to acquire.
        lock: LockId,
    },
    /// No lock covers a byte, so no transaction can ever write there.
    #[error("the byte at {offset} (address {address:#x}) is covered by no lock and cannot be written")]
    NoLock {
        /// Offset of the first such byte in the region.
        offset: usize,
        /// Its address in this process.
        address: usize,
    },
    /// The range is invalid.
    #[error("{0}")]
    Range(#[from] RangeError),
}

/// Reason why bytes were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The transaction does not hold the lock that covers a byte: other transactions may be writing there.
    #[error(
        "the byte at {offset} (address {address:#x}) is under lock {lock}, which this transaction has not acquired"
    )]
    NotHeld {
        /// Offset of the first such byte in the region.
        offset: usize,
        /// Its address in this process.
        address: usize,
        /// Lock to acquire.
        lock: LockId,
    },
    /// No lock covers a byte, so no transaction can write there. [`Node::region`](crate::Node::region) reads
    /// it.
    #[error("the byte at {offset} (address {address:#x}) is covered by no lock; read it with `Node::region`")]
    NoLock {
        /// Offset of the first such byte in the region.
        offset: usize,
        /// Its address in this process.
        address: usize,
    },
    /// The range is invalid.
    #[error("{0}")]
    Range(#[from] RangeError),
}

/// Reason why a commit did not return success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxnCommitError {
    /// The wait was interrupted: the transaction may be committed or not. Join again, and ask for the
    /// [outcome](crate::Node::outcome).
    #[error("the outcome of record {number} of node {node} is unknown ({cause}): join again, and ask for it")]
    Unknown {
        /// Node id of the commit.
        node: NodeId,
        /// Number of its record.
        number: RecordNumber,
        /// Cause of the interruption.
        cause: WaitError,
    },
    /// The node's locks were lost before a record was logged. The transaction is aborted.
    #[error("the node lost its locks before the commit: the transaction is aborted")]
    Lost,
    /// The node has ended. The transaction is aborted.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The transaction stored to bytes that it may not write. It is aborted, and the bytes are restored.
    #[error("{0}")]
    Stray(StrayStores),
    /// No record was logged. The transaction is aborted.
    #[error("{0}")]
    Refused(#[from] Uncommitted),
}

/// Stores that a transaction may not make, with the first run of such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayStores {
    /// Offset of the first run in the region.
    pub offset: usize,
    /// Its address in this process.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
    /// Number of such runs.
    pub count: usize,
    /// Lock that covers the first byte, if any does.
    pub lock: Option<LockId>,
    /// Whether the transaction held that lock exclusively, so that the bytes only were not declared.
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
            "the transaction stored to {length} bytes at {offset} (address {address:#x}) "
        )?;
        match self.lock {
            Some(_) if self.held => write!(out, "without declaring them")?,
            Some(lock) => write!(out, "without holding lock {lock}, which covers them")?,
            None => write!(out, "that no lock covers")?,
        }
        write!(
            out,
            "; in all {count} such ranges were restored, and the transaction is aborted"
        )
    }
}

/// A commit that is in the region for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnCommit {
    /// The record, with which [`Node::outcome`](crate::Node::outcome) can be asked; `None`: the transaction
    /// wrote nothing.
    pub record: Option<(NodeId, RecordNumber)>,
    /// Where the record was known to be held.
    pub votes: CommitVotes,
}

/// Too many records were held back for a pinned reader, so it sees newer data now.
/// [`accept`](crate::RegionReader::accept) continues with that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many records were held back for this reader, so it no longer sees its old data: call accept to continue"
)]
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
