//! The server's durable state besides the region's bytes: a segment of its own, changed by the same
//! transactions.
//!
//! ```text
//! page 0    superblock: magic, format, region id, bytes, address, locks, CRC32C; never changed
//!           from 512 on, counters: position, last node id, ceiling, number of gone nodes, records of the
//!           forgotten ones, bytes of a node's longest record
//! then      spans, ascending by lock: lock u32, zero u32, offset u64, length u64; never changed
//! page      versions, u64 each, in the spans' order
//! page      nodes: entries of 8 KiB each
//! then      gone nodes: id u64, last record's number u64 (highest bit: a loss was accepted), journal u128;
//!           the oldest entry is replaced
//! ```
//!
//! Offsets in a node's entry: 0 id (0: vacant), 8 state, 16 number, 24 number of the record that ends at 32
//! LSN and 40 chain, 48 bytes of the key, 52 bytes of the name, 56 bytes of the view, 64 key, 128 name, 1024
//! view. Little endian.

mod check;
mod codec;
mod versions;

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, SLOT_BYTES};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::limit::{NODE_NAME_BYTES_MAX, REGION_NODES_MAX};
use netram_shared_machine::{GrantNumber, LockId, LockVersion, NodeId, Position, RecordNumber, RegionId};

pub use check::TableFault;
pub(crate) use codec::{counters, gone_bytes, head, merged_words, span_bytes, superblock, view_bytes};

use super::spans::{SpanError, Spans};
use versions::VersionList;

/// Maximum number of nodes at one time, including fenced and retired ones.
pub const NODES_MAX: usize = 256;
/// Maximum number of remembered ids of gone nodes.
pub const GONE_MAX: usize = REGION_NODES_MAX - NODES_MAX;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const COUNTERS_AT: usize = 512;
const SPANS_AT: u64 = PAGE;
pub(crate) const SPAN_BYTES: u64 = 24;
const NODE_BYTES: u64 = 8192;
/// Offset of a node's numbers and end in its entry.
pub(crate) const MERGED_AT: usize = 16;
pub(crate) const KEY_AT: usize = 64;
pub(crate) const NAME_AT: usize = 128;
pub(crate) const VIEW_AT: usize = 1024;
pub(crate) const GONE_BYTES: u64 = 32;

const _: () = assert!(KEY_AT + DATA_KEY_BYTES_MAX <= NAME_AT);
const _: () = assert!(NAME_AT + NODE_NAME_BYTES_MAX <= VIEW_AT);
const _: () = assert!(VIEW_AT + SLOT_BYTES <= NODE_BYTES as usize);

/// Offsets in the table of a region with this number of locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableLayout {
    locks: u64,
}

impl TableLayout {
    pub(crate) fn of(locks: usize) -> TableLayout {
        TableLayout { locks: locks as u64 }
    }

    pub(crate) fn spans(&self) -> usize {
        SPANS_AT as usize
    }

    pub(crate) fn version(&self, place: usize) -> usize {
        let versions = (SPANS_AT + self.locks * SPAN_BYTES).next_multiple_of(PAGE);
        versions as usize + place * 8
    }

    pub(crate) fn node(&self, slot: usize) -> usize {
        let nodes = (self.version(0) as u64 + self.locks * 8).next_multiple_of(PAGE);
        (nodes + slot as u64 * NODE_BYTES) as usize
    }

    pub(crate) fn gone(&self, turn: u64) -> usize {
        self.node(NODES_MAX) + ((turn % GONE_MAX as u64) * GONE_BYTES) as usize
    }

    /// Size of the whole table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.node(NODES_MAX) as u64 + GONE_MAX as u64 * GONE_BYTES).next_multiple_of(PAGE)
    }
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEntryState {
    /// The node is a member of the region.
    Live,
    /// Its journal is being fenced and read; the node itself is not listened to.
    Fencing,
    /// The node is gone, and not all of its lenders know that they may free its windows.
    Retired,
}

/// A node in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Id of the node.
    pub id: NodeId,
    /// State of the node.
    pub state: NodeEntryState,
    /// Whether the operator accepted that acknowledged records of the node may be missing.
    pub loss_accepted: bool,
    /// Name that the node gave itself.
    pub name: String,
    /// Key that seals its journal's records; empty: they are not sealed. Of a retired node: the seed of its
    /// journal's owner, which opens no record.
    pub key: Vec<u8>,
    /// Newest view of its journal.
    pub view: View,
    /// Last merged record.
    pub merged: RecordNumber,
    /// Last record whose end in the journal is known. It is not known for records that were read from the
    /// journal, or offered.
    pub marked: RecordNumber,
    /// Where that record ends. The journal is read on from here.
    pub end: ChainPoint,
    /// Index of its entry in the table.
    pub(crate) slot: usize,
}

impl NodeEntry {
    /// Addresses of its journal's members.
    pub fn lenders(&self) -> impl Iterator<Item = &str> {
        self.view.members.iter().map(|member| member.address.as_str())
    }
}

/// A node id that is gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneEntry {
    /// Id of the node.
    pub id: NodeId,
    /// Last record of the node. No record follows it.
    pub last: RecordNumber,
    /// Identity of its journal.
    pub journal: JournalId,
    /// Whether later records may have existed, and their loss was accepted.
    pub loss_accepted: bool,
}

/// Counters of the whole region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionCounters {
    /// Position of the newest record in the server's order.
    pub position: Position,
    /// Highest node id that was assigned.
    pub last_node: NodeId,
    /// Highest grant number that may have been handed out, for any lock.
    pub ceiling: GrantNumber,
    /// Number of nodes that are gone.
    pub gone: u64,
    /// Number of records of those gone nodes that are forgotten.
    pub forgotten: u64,
    /// Maximum bytes of a record that nodes were given; 0: not recorded yet.
    pub record_bytes_max: u64,
}

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionTable {
    /// Identity of the region.
    pub region: RegionId,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Address at which all nodes map the region; 0: each node chooses.
    pub address: u64,
    /// The bytes that each lock covers.
    pub spans: Spans,
    pub(crate) versions: VersionList,
    /// Counters of the region.
    pub counters: RegionCounters,
    /// Nodes that are not gone.
    pub nodes: Vec<NodeEntry>,
    /// Gone nodes whose lenders are still to be told. They are in `gone`, too.
    pub retired: Vec<NodeEntry>,
    /// Remembered gone nodes, oldest first.
    pub gone: Vec<GoneEntry>,
}

/// Defect in a region's table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionTableError {
    /// The superblock is all zeros.
    #[error(
        "the region is incomplete, because `netram shared create` was interrupted; remove the directory and create it again"
    )]
    Unfinished,
    /// The file is not a table.
    #[error("the file is not the table of a shared region")]
    NotATable,
    /// The table has an unknown format.
    #[error(
        "the table has format {0}, but this version of netram reads format 1; use the version that wrote it"
    )]
    Format(u32),
    /// The superblock's checksum is wrong.
    #[error("the table's superblock is damaged; restore the directory from a backup")]
    Checksum,
    /// The table does not have the length that its locks need.
    #[error("the table has {found} bytes, but needs {expected}; restore the directory from a backup")]
    Length {
        /// Length in bytes.
        found: u64,
        /// Expected length in bytes.
        expected: u64,
    },
    /// The spans in the table are invalid.
    #[error("the table's spans are damaged: {0}")]
    Spans(#[from] SpanError),
    /// A node's entry is damaged.
    #[error("the table's entry {slot} of a node is damaged: {what}")]
    Node {
        /// Index of the entry.
        slot: usize,
        /// The defect.
        what: &'static str,
    },
}

impl RegionTable {
    /// Creates the table of a region that was never written to.
    pub(crate) fn new(region: RegionId, bytes: u64, address: u64, spans: Spans) -> RegionTable {
        RegionTable {
            region,
            bytes,
            address,
            versions: VersionList::new(vec![LockVersion(0); spans.len()]),
            spans,
            counters: RegionCounters {
                position: Position(0),
                last_node: NodeId(0),
                ceiling: GrantNumber(0),
                gone: 0,
                forgotten: 0,
                record_bytes_max: 0,
            },
            nodes: Vec::new(),
            retired: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub(crate) fn places(&self) -> TableLayout {
        TableLayout::of(self.spans.len())
    }

    /// The node, if it is not gone.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Version of a lock; `None`: the region does not have it.
    pub fn version(&self, lock: LockId) -> Option<LockVersion> {
        Some(self.versions.at(self.spans.find(lock)?))
    }

    /// Versions of the locks that were ever written under, ascending by lock.
    pub fn versions(&self) -> impl Iterator<Item = (LockId, LockVersion)> {
        let all = self.spans.iter().zip(self.versions.iter());
        all.filter(|(_, version)| version.0 > 0)
            .map(|(span, version)| (span.lock, version))
    }

    /// Number of locks that were ever written under.
    pub fn locks_written(&self) -> usize {
        self.versions.written()
    }

    /// Last merged record of every remembered node.
    pub fn numbers(&self) -> impl Iterator<Item = (NodeId, RecordNumber)> {
        let gone = self.gone.iter().map(|gone| (gone.id, gone.last));
        gone.chain(self.nodes.iter().map(|node| (node.id, node.merged)))
    }

    /// Index of a free entry.
    pub(crate) fn vacant(&self) -> Option<usize> {
        let taken = |slot: &usize| {
            self.nodes
                .iter()
                .chain(&self.retired)
                .any(|node| node.slot == *slot)
        };
        (0..NODES_MAX).find(|slot| !taken(slot))
    }
}
