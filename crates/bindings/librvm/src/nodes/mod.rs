//! Nodes of shared regions, their transactions and readers, each by its handle.
//!
//! A transaction has a share of its node, so that a node leaves only when nothing of it is in use. No lock of the tables
//! is held while something waits, but for the slot of the very transaction or reader that waits.

mod heap;
mod record;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use netram_proto::port::Durability;
use netram_rvm::Mode;
use netram_shared::node::{CommitError, Gone};
use netram_shared::server::Span;
use netram_shared::{Node, Options, Reader, Txn};
use netram_shared_machine::message::Fate;
use netram_shared_machine::{Hold, LockId, NodeId, Number, Version};

pub(crate) use self::record::{
    Age, HeapRecord, Info, Join, Lock, NewRecord, ProgressRecord, SpanRecord, StraightRecord, StrayRecord,
};
use crate::abi::{ForkMark, blocked};
use crate::code::Code;
use crate::failure::Failure;
use crate::slots::{Ending, Handle, Slots};

/// This process's nodes.
pub(crate) static NODES: Nodes = Nodes::new();

/// Every node of a process, and what is open of them.
pub(crate) struct Nodes {
    fork: ForkMark,
    /// `None`: it is ending.
    nodes: Slots<Option<Arc<Node>>>,
    transactions: Slots<Open>,
    readers: Slots<Pinned>,
}

/// An open transaction.
struct Open {
    txn: Txn<'static>,
    node: Arc<Node>,
}

/// A pinned reader.
struct Pinned {
    reader: Reader<'static>,
    node: Arc<Node>,
}

impl Nodes {
    const fn new() -> Nodes {
        Nodes {
            fork: ForkMark::new(),
            nodes: Slots::new(),
            transactions: Slots::new(),
            readers: Slots::new(),
        }
    }

    /// Refuses calls in a child of `fork`, which has no threads, and in whose copy any lock may be held for ever.
    #[inline]
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        match self.fork.is_child() {
            false => Ok(()),
            true => Err(Failure::new(
                Code::NotInitialised,
                "this process is a child of one that has joined shared regions, and must leave its nodes alone; join \
                 after fork, or call exec",
            )),
        }
    }

    pub(crate) fn join(&self, options: Options) -> Result<Handle, Failure> {
        self.fork.set()?;
        let node = blocked(|| Node::join(options))?;
        Ok(self.nodes.insert(Some(Arc::new(node))))
    }

    /// A node, kept for the time of a call.
    pub(crate) fn node(&self, handle: Handle) -> Result<Arc<Node>, Failure> {
        let node = self.nodes.with(handle, |node| node.clone()).flatten();
        node.ok_or_else(|| ended("node", "rvm_node_join"))
    }

    /// Leaves, or ends the node as a crash would.
    pub(crate) fn end_node(&self, handle: Handle, leaves: bool) -> Result<(), Failure> {
        let alone = |node: &mut Option<Arc<Node>>| match node.take().map(Arc::try_unwrap) {
            Some(Ok(node)) => (Some(node), Ending::Ended),
            Some(Err(shared)) => {
                *node = Some(shared);
                (None, Ending::StaysOpen)
            }
            None => unreachable!("what was taken out has ended"),
        };
        let node = self.nodes.end(handle, alone);
        let (node, _) = node.ok_or_else(|| ended("node", "rvm_node_join"))?;
        let node = node.ok_or_else(|| {
            Failure::new(
                Code::Uncommitted,
                "transactions or readers of the node are open, or threads are in its calls; end them, then leave again",
            )
        })?;
        match leaves {
            true => Ok(node.leave()?),
            false => Ok(()),
        }
    }

    pub(crate) fn begin(&self, node: Handle, mode: Mode) -> Result<Handle, Failure> {
        let node = self.node(node)?;
        let txn = node.begin_owned(mode)?;
        Ok(self.transactions.insert(Open { txn, node }))
    }

    pub(crate) fn set_timeout(&self, handle: Handle, timeout: Duration) -> Result<(), Failure> {
        self.with(handle, |open| {
            open.txn.set_timeout(timeout);
            Ok(())
        })
    }

    pub(crate) fn acquire(&self, handle: Handle, lock: u32, hold: Hold) -> Result<(), Failure> {
        self.with(handle, |open| Ok(open.txn.acquire(LockId(lock), hold)?))
    }

    pub(crate) fn acquire_all(&self, handle: Handle, locks: &[(LockId, Hold)]) -> Result<(), Failure> {
        self.with(handle, |open| Ok(open.txn.acquire_all(locks)?))
    }

    /// Declares bytes by their address, then does `change` before anybody else has the transaction.
    pub(crate) fn declare(
        &self,
        handle: Handle,
        address: usize,
        length: usize,
        change: impl FnOnce(),
    ) -> Result<(), Failure> {
        self.with(handle, |open| {
            let offset = offset(&open.node, address, length)?;
            let declared = open.txn.set_range(offset, length);
            declared.map_err(|error| refusal::declared(&error, address))?;
            change();
            Ok(())
        })
    }

    /// Commits. The record is known after [`Code::Unknown`], too.
    pub(crate) fn commit(&self, handle: Handle) -> (Option<NewRecord>, Result<(), Failure>) {
        let Some(open) = self.transactions.take(handle) else {
            return (None, Err(ended("transaction", "rvm_txn_begin")));
        };
        match open.txn.commit(Durability::Remote) {
            Ok(commit) => (Some(NewRecord::of(commit.record)), Ok(())),
            Err(error) => {
                let record = match error {
                    CommitError::Unknown { node, number, .. } => Some(NewRecord::of(Some((node, number)))),
                    _ => None,
                };
                (record, Err(error.into()))
            }
        }
    }

    pub(crate) fn abort(&self, handle: Handle) -> Result<(), Failure> {
        let open = self.transactions.take(handle);
        // Its drop aborts it.
        open.map(drop)
            .ok_or_else(|| ended("transaction", "rvm_txn_begin"))
    }

    #[inline]
    fn with<R>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut Open) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let done = self.transactions.with(handle, act);
        done.unwrap_or_else(|| Err(ended("transaction", "rvm_txn_begin")))
    }

    pub(crate) fn begin_reading(&self, node: Handle) -> Result<Handle, Failure> {
        let node = self.node(node)?;
        let reader = node.reader_owned()?;
        Ok(self.readers.insert(Pinned { reader, node }))
    }

    pub(crate) fn check_reader(&self, handle: Handle) -> Result<(), Failure> {
        self.reading(handle, |pinned| match pinned.reader.is_expired() {
            false => Ok(()),
            true => Err(refusal::expired()),
        })
    }

    /// Calls `copy` while the bytes stand still.
    pub(crate) fn read(
        &self,
        handle: Handle,
        address: usize,
        length: usize,
        copy: impl FnOnce(),
    ) -> Result<(), Failure> {
        self.reading(handle, |pinned| {
            offset(&pinned.node, address, length)?;
            let guard = pinned.reader.read().map_err(|_| refusal::expired())?;
            copy();
            drop(guard);
            Ok(())
        })
    }

    pub(crate) fn accept(&self, handle: Handle) -> Result<(), Failure> {
        self.reading(handle, |pinned| Ok(pinned.reader.accept()?))
    }

    pub(crate) fn age(&self, handle: Handle) -> Result<Age, Failure> {
        self.reading(handle, |pinned| Ok(Age::of(pinned.reader.age())))
    }

    pub(crate) fn end_reading(&self, handle: Handle) -> Result<(), Failure> {
        let pinned = self.readers.take(handle);
        pinned
            .map(drop)
            .ok_or_else(|| ended("reader", "rvm_reader_begin"))
    }

    fn reading<R>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut Pinned) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let done = self.readers.with(handle, act);
        done.unwrap_or_else(|| Err(ended("reader", "rvm_reader_begin")))
    }
}

/// Why there is no node any more, if so.
pub(crate) fn check_alive(node: &Node) -> Result<(), Failure> {
    node.gone().map_or(Ok(()), |gone: Gone| Err(gone.into()))
}

/// The span of a lock.
pub(crate) fn span_of(node: &Node, lock: u32) -> Result<&Span, Failure> {
    let place = node.spans().find(LockId(lock));
    place
        .map(|place| node.spans().at(place))
        .ok_or_else(|| refusal::no_lock(lock))
}

/// The span at a place in the order of addresses.
pub(crate) fn nth_span(node: &Node, place: u64) -> Result<&Span, Failure> {
    let spans = node.spans();
    let place = usize::try_from(place).ok().filter(|place| *place < spans.len());
    let span = place.and_then(|place| spans.iter().nth(place));
    span.ok_or_else(|| {
        Failure::new(
            Code::Range,
            format!("the region has {} spans, counted from 0", spans.len()),
        )
    })
}

/// What an earlier process left, and why it is there still.
pub(crate) fn left_behind(node: &Node, place: u64) -> Result<String, Failure> {
    let left = node.left_behind();
    let place = usize::try_from(place).ok();
    let found = place.and_then(|place| left.get(place)).ok_or_else(|| {
        Failure::new(
            Code::Range,
            format!("{} journals are left behind, counted from 0", left.len()),
        )
    })?;
    let why = found.failed.as_deref().unwrap_or("it is being offered");
    Ok(format!("{}: {why}", found.path.display()))
}

/// The span that has the byte at an address.
pub(crate) fn span_at(node: &Node, address: usize) -> Result<&Span, Failure> {
    let at = offset(node, address, 1)?;
    node.span_at(at as u64).ok_or_else(|| {
        Failure::new(
            Code::Lock,
            format!("the byte at {address:#x} is under no lock, and cannot be written"),
        )
    })
}

/// Waits until the memory has this version of a lock.
pub(crate) fn wait_version(node: &Node, lock: u32, version: u64, timeout: Duration) -> Result<(), Failure> {
    span_of(node, lock)?;
    match node.wait_version(LockId(lock), Version(version), timeout)? {
        true => Ok(()),
        false => Err(Failure {
            lock: Some(lock),
            ..Failure::new(
                Code::TimedOut,
                format!("version {version} of lock {lock} did not come in time"),
            )
        }),
    }
}

/// What became of a record.
pub(crate) fn outcome(node: &Node, record: NewRecord, timeout: Duration) -> Result<Fate, Failure> {
    Ok(node.outcome(NodeId(record.node), Number(record.number), timeout)?)
}

/// Where in the region the bytes at an address are.
fn offset(node: &Node, address: usize, length: usize) -> Result<usize, Failure> {
    let region = node.region();
    let offset = address.checked_sub(region.as_ptr().addr());
    let inside = offset.filter(|offset| *offset <= region.len() && length <= region.len() - offset);
    inside.ok_or_else(|| {
        Failure::new(
            Code::NotMapped,
            format!("the {length} bytes at {address:#x} are not all in the shared region; rvm_node_info tells where it is"),
        )
    })
}

fn ended(what: &str, maker: &str) -> Failure {
    Failure::new(
        Code::Handle,
        format!("there is no such {what}: it has ended, or {maker} did not give it"),
    )
}
