//! Nodes of shared regions, their transactions and readers, each with a handle.
//!
//! A transaction keeps its node alive, so a node can only leave when it is not in use. No lock of the tables
//! is held during a wait, except for the slot of the waiting transaction or reader.

mod heap;
mod record;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::node::{NodeGone, TxnCommitError};
use netram_shared::server::Span;
use netram_shared::{Node, NodeOptions, RegionReader, Txn};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{LockId, LockMode, LockVersion, NodeId, RecordNumber};

pub(crate) use self::record::{
    AgeRecord, HeapRecord, JoinRecord, LockRecord, NewRecord, NodeInfoRecord, ProgressRecord, SpanRecord,
    StraightRecord, StrayRecord,
};
use crate::abi::{ForkPageMark, blocked};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::slots::{CallEnd, ObjectHandle, ObjectTable};

/// This process's nodes.
pub(crate) static NODES: Nodes = Nodes::new();

/// All nodes of a process, with their open transactions and readers.
pub(crate) struct Nodes {
    fork: ForkPageMark,
    /// `None` while a node is ending.
    nodes: ObjectTable<Option<Arc<Node>>>,
    transactions: ObjectTable<OpenTxn>,
    readers: ObjectTable<OpenReader>,
}

/// An open transaction.
struct OpenTxn {
    txn: Txn<'static>,
    node: Arc<Node>,
}

/// A pinned reader.
struct OpenReader {
    reader: RegionReader<'static>,
    node: Arc<Node>,
}

impl Nodes {
    const fn new() -> Nodes {
        Nodes {
            fork: ForkPageMark::new(),
            nodes: ObjectTable::new(),
            transactions: ObjectTable::new(),
            readers: ObjectTable::new(),
        }
    }

    /// Refuses calls in a child of `fork`, which has no threads and whose copies of locks may be held
    /// forever.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), CallFailure> {
        match self.fork.is_child() {
            false => Ok(()),
            true => Err(CallFailure::new(
                ReturnCode::NotInitialised,
                "this process is a child of one that has joined shared regions, and must leave its nodes alone; join \
                 after fork, or call exec",
            )),
        }
    }

    pub(crate) fn join(&self, options: NodeOptions) -> Result<ObjectHandle, CallFailure> {
        self.fork.set()?;
        let node = blocked(|| Node::join(options))?;
        Ok(self.nodes.insert(Some(Arc::new(node))))
    }

    /// A node, kept alive during a call.
    pub(crate) fn node(&self, handle: ObjectHandle) -> Result<Arc<Node>, CallFailure> {
        let node = self.nodes.with(handle, |node| node.clone()).flatten();
        node.ok_or_else(|| ended("node", "rvm_node_join"))
    }

    /// Leaves the region, or ends the node like a crash.
    pub(crate) fn end_node(&self, handle: ObjectHandle, leaves: bool) -> Result<(), CallFailure> {
        let alone = |node: &mut Option<Arc<Node>>| match node.take().map(Arc::try_unwrap) {
            Some(Ok(node)) => (Some(node), CallEnd::Ended),
            Some(Err(shared)) => {
                *node = Some(shared);
                (None, CallEnd::StaysOpen)
            }
            None => unreachable!("a node that was removed has ended"),
        };
        let node = self.nodes.end(handle, alone);
        let (node, _) = node.ok_or_else(|| ended("node", "rvm_node_join"))?;
        let node = node.ok_or_else(|| {
            CallFailure::new(
                ReturnCode::Uncommitted,
                "transactions or readers of the node are open, or threads are in its calls; end them, then leave again",
            )
        })?;
        match leaves {
            true => Ok(node.leave()?),
            false => Ok(()),
        }
    }

    pub(crate) fn begin(&self, node: ObjectHandle, mode: RestoreMode) -> Result<ObjectHandle, CallFailure> {
        let node = self.node(node)?;
        let txn = node.begin_owned(mode)?;
        Ok(self.transactions.insert(OpenTxn { txn, node }))
    }

    pub(crate) fn set_timeout(&self, handle: ObjectHandle, timeout: Duration) -> Result<(), CallFailure> {
        self.with(handle, |open| {
            open.txn.set_timeout(timeout);
            Ok(())
        })
    }

    pub(crate) fn acquire(&self, handle: ObjectHandle, lock: u32, hold: LockMode) -> Result<(), CallFailure> {
        self.with(handle, |open| Ok(open.txn.acquire(LockId(lock), hold)?))
    }

    pub(crate) fn acquire_all(
        &self,
        handle: ObjectHandle,
        locks: &[(LockId, LockMode)],
    ) -> Result<(), CallFailure> {
        self.with(handle, |open| Ok(open.txn.acquire_all(locks)?))
    }

    /// Declares bytes by their address, then calls `change` while no other thread can use the transaction.
    pub(crate) fn declare(
        &self,
        handle: ObjectHandle,
        address: usize,
        length: usize,
        change: impl FnOnce(),
    ) -> Result<(), CallFailure> {
        self.with(handle, |open| {
            let offset = offset(&open.node, address, length)?;
            let declared = open.txn.set_range(offset, length);
            declared.map_err(|error| refusal::declared(&error, address))?;
            change();
            Ok(())
        })
    }

    /// Commits. The record is known even after [`ReturnCode::Unknown`].
    pub(crate) fn commit(&self, handle: ObjectHandle) -> (Option<NewRecord>, Result<(), CallFailure>) {
        let Some(open) = self.transactions.take(handle) else {
            return (None, Err(ended("transaction", "rvm_txn_begin")));
        };
        match open.txn.commit(Durability::Remote) {
            Ok(commit) => (Some(NewRecord::of(commit.record)), Ok(())),
            Err(error) => {
                let record = match error {
                    TxnCommitError::Unknown { node, number, .. } => Some(NewRecord::of(Some((node, number)))),
                    _ => None,
                };
                (record, Err(error.into()))
            }
        }
    }

    pub(crate) fn abort(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        let open = self.transactions.take(handle);
        // Dropping the transaction aborts it.
        open.map(drop)
            .ok_or_else(|| ended("transaction", "rvm_txn_begin"))
    }

    #[inline]
    fn with<R>(
        &self,
        handle: ObjectHandle,
        act: impl FnOnce(&mut OpenTxn) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        let done = self.transactions.with(handle, act);
        done.unwrap_or_else(|| Err(ended("transaction", "rvm_txn_begin")))
    }

    pub(crate) fn begin_reading(&self, node: ObjectHandle) -> Result<ObjectHandle, CallFailure> {
        let node = self.node(node)?;
        let reader = node.reader_owned()?;
        Ok(self.readers.insert(OpenReader { reader, node }))
    }

    pub(crate) fn check_reader(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        self.reading(handle, |pinned| match pinned.reader.is_expired() {
            false => Ok(()),
            true => Err(refusal::expired()),
        })
    }

    /// Calls `copy` while the bytes do not change.
    pub(crate) fn read(
        &self,
        handle: ObjectHandle,
        address: usize,
        length: usize,
        copy: impl FnOnce(),
    ) -> Result<(), CallFailure> {
        self.reading(handle, |pinned| {
            offset(&pinned.node, address, length)?;
            let guard = pinned.reader.read().map_err(|_| refusal::expired())?;
            copy();
            drop(guard);
            Ok(())
        })
    }

    pub(crate) fn accept(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        self.reading(handle, |pinned| Ok(pinned.reader.accept()?))
    }

    pub(crate) fn age(&self, handle: ObjectHandle) -> Result<AgeRecord, CallFailure> {
        self.reading(handle, |pinned| Ok(AgeRecord::of(pinned.reader.age())))
    }

    pub(crate) fn end_reading(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        let pinned = self.readers.take(handle);
        pinned
            .map(drop)
            .ok_or_else(|| ended("reader", "rvm_reader_begin"))
    }

    fn reading<R>(
        &self,
        handle: ObjectHandle,
        act: impl FnOnce(&mut OpenReader) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        let done = self.readers.with(handle, act);
        done.unwrap_or_else(|| Err(ended("reader", "rvm_reader_begin")))
    }
}

/// Fails with the reason if the node has ended.
pub(crate) fn check_alive(node: &Node) -> Result<(), CallFailure> {
    node.gone().map_or(Ok(()), |gone: NodeGone| Err(gone.into()))
}

/// The span that a lock covers.
pub(crate) fn span_of(node: &Node, lock: u32) -> Result<&Span, CallFailure> {
    let index = node.spans().find(LockId(lock));
    index
        .map(|index| node.spans().at(index))
        .ok_or_else(|| refusal::no_lock(lock))
}

/// The span at an index in the order of addresses.
pub(crate) fn nth_span(node: &Node, index: u64) -> Result<&Span, CallFailure> {
    let spans = node.spans();
    let index = usize::try_from(index).ok().filter(|index| *index < spans.len());
    let span = index.and_then(|index| spans.iter().nth(index));
    span.ok_or_else(|| {
        CallFailure::new(
            ReturnCode::Range,
            format!("the region has {} spans, counted from 0", spans.len()),
        )
    })
}

/// Description of a journal that an earlier process left, and why it is still there.
pub(crate) fn left_behind(node: &Node, index: u64) -> Result<String, CallFailure> {
    let left = node.orphans();
    let index = usize::try_from(index).ok();
    let found = index.and_then(|index| left.get(index)).ok_or_else(|| {
        CallFailure::new(
            ReturnCode::Range,
            format!("{} journals are left behind, counted from 0", left.len()),
        )
    })?;
    let why = found
        .failed
        .as_deref()
        .unwrap_or("its records are being offered to the server");
    Ok(format!("{}: {why}", found.path.display()))
}

/// The span that contains the byte at an address.
pub(crate) fn span_at(node: &Node, address: usize) -> Result<&Span, CallFailure> {
    let at = offset(node, address, 1)?;
    node.span_at(at as u64).ok_or_else(|| {
        CallFailure::new(
            ReturnCode::Lock,
            format!("the byte at {address:#x} is not covered by a lock and cannot be written"),
        )
    })
}

/// Waits until the memory has this version of a lock.
pub(crate) fn wait_version(
    node: &Node,
    lock: u32,
    version: u64,
    timeout: Duration,
) -> Result<(), CallFailure> {
    span_of(node, lock)?;
    match node.wait_version(LockId(lock), LockVersion(version), timeout)? {
        true => Ok(()),
        false => Err(CallFailure {
            lock: Some(lock),
            ..CallFailure::new(
                ReturnCode::TimedOut,
                format!("version {version} of lock {lock} did not arrive in time"),
            )
        }),
    }
}

/// The outcome of a record.
pub(crate) fn outcome(
    node: &Node,
    record: NewRecord,
    timeout: Duration,
) -> Result<RecordOutcome, CallFailure> {
    Ok(node.outcome(NodeId(record.node), RecordNumber(record.number), timeout)?)
}

/// The offset in the region of the bytes at an address.
fn offset(node: &Node, address: usize, length: usize) -> Result<usize, CallFailure> {
    let region = node.region();
    let offset = address.checked_sub(region.as_ptr().addr());
    let inside = offset.filter(|offset| *offset <= region.len() && length <= region.len() - offset);
    inside.ok_or_else(|| {
        CallFailure::new(
            ReturnCode::NotMapped,
            format!("the {length} bytes at {address:#x} are not all in the shared region; rvm_node_info returns its address"),
        )
    })
}

fn ended(what: &str, maker: &str) -> CallFailure {
    CallFailure::new(
        ReturnCode::Handle,
        format!("the {what} does not exist: it has ended, or the handle is not from {maker}"),
    )
}
