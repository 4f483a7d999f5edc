//! What the server must know after a crash, beside the region's bytes: a segment of its own, changed by the
//! same transactions.
//!
//! ```text
//! page 0    superblock: magic, format, region id, bytes, address, locks, CRC32C; never changed
//!           from 512 on, counters: position, last node id, ceiling, node ids gone, records of those forgotten, bytes of a node's
//!           longest record
//! then      spans, ascending by lock: lock u32, zero u32, offset u64, length u64; never changed
//! page      versions, u64 each, in the spans' order
//! page      nodes: places of 8 KiB each
//! then      node ids gone: id u64, last record's number u64 (the highest bit: a loss was accepted), journal u128; the oldest is replaced
//! ```
//!
//! Offsets in a node's place: 0 id (0: vacant), 8 standing, 16 number, 24 number of the record that ends at
//! 32 LSN and 40 chain, 48 bytes of the key, 52 bytes of the name, 56 bytes of the view, 64 key, 128 name,
//! 1024 view. Little endian.

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

/// Nodes at one time, with those that are being fenced, and those that are buried.
pub const NODES_MAX: usize = 256;
/// Node ids that are gone and not forgotten.
pub const GONE_MAX: usize = REGION_NODES_MAX - NODES_MAX;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const COUNTERS_AT: usize = 512;
const SPANS_AT: u64 = PAGE;
pub(crate) const SPAN_BYTES: u64 = 24;
const NODE_BYTES: u64 = 8192;
/// Where a node's numbers and the end stand in its place.
pub(crate) const MERGED_AT: usize = 16;
pub(crate) const KEY_AT: usize = 64;
pub(crate) const NAME_AT: usize = 128;
pub(crate) const VIEW_AT: usize = 1024;
pub(crate) const GONE_BYTES: u64 = 32;

const _: () = assert!(KEY_AT + DATA_KEY_BYTES_MAX <= NAME_AT);
const _: () = assert!(NAME_AT + NODE_NAME_BYTES_MAX <= VIEW_AT);
const _: () = assert!(VIEW_AT + SLOT_BYTES <= NODE_BYTES as usize);

/// Where things are in the table of a region with so many locks.
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

    /// Bytes of the whole table.
    pub(crate) fn bytes(&self) -> u64 {
        (self.node(NODES_MAX) as u64 + GONE_MAX as u64 * GONE_BYTES).next_multiple_of(PAGE)
    }
}

/// Whether a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEntryState {
    /// It does.
    Live,
    /// Its journal is being sealed and read: nothing of it is taken from itself any more.
    Fencing,
    /// It is gone, and not all of its lenders have been told that they may forget it.
    Retired,
}

/// One node that is not gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Who.
    pub id: NodeId,
    /// Whether it takes part.
    pub state: NodeEntryState,
    /// Whoever looks after the region has accepted that acknowledged records of it may be missing.
    pub loss_accepted: bool,
    /// What it calls itself.
    pub name: String,
    /// The key that seals its journal's records; empty: none.
    pub key: Vec<u8>,
    /// The newest view of its journal.
    pub view: View,
    /// Its last record that was merged.
    pub merged: RecordNumber,
    /// The last record whose end in its journal is known: of a record that was read there, or offered, it is
    /// not.
    pub marked: RecordNumber,
    /// Where that ends. Its journal is to be read from here.
    pub end: ChainPoint,
    /// Its place in the table.
    pub(crate) slot: usize,
}

impl NodeEntry {
    /// The addresses of its journal's members.
    pub fn lenders(&self) -> impl Iterator<Item = &str> {
        self.view.members.iter().map(|member| member.address.as_str())
    }
}

/// A node id that never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneEntry {
    /// Who.
    pub id: NodeId,
    /// Its last record. There was none after it.
    pub last: RecordNumber,
    /// Its journal.
    pub journal: JournalId,
    /// There may have been some after it: that was accepted.
    pub loss_accepted: bool,
}

/// What is counted for the whole region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionCounters {
    /// The newest record's place in the server's order.
    pub position: Position,
    /// No node id above this was given.
    pub last_node: NodeId,
    /// No grant above this was given, of any lock.
    pub ceiling: GrantNumber,
    /// How many nodes have gone.
    pub gone: u64,
    /// Records of those of them who are forgotten.
    pub forgotten: u64,
    /// No node was told that its records may be longer; 0: that was not written down yet.
    pub record_bytes_max: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionTable {
    /// Which region.
    pub region: RegionId,
    /// Its bytes.
    pub bytes: u64,
    /// The address that all nodes map it at; 0: each where it likes.
    pub address: u64,
    /// What each lock covers.
    pub spans: Spans,
    pub(crate) versions: VersionList,
    /// What is counted.
    pub counters: RegionCounters,
    /// Those who are not gone.
    pub nodes: Vec<NodeEntry>,
    /// Those who are, and whose lenders are still to be told so. They are among `gone` too.
    pub retired: Vec<NodeEntry>,
    /// Those who are, the oldest first, as far as they are remembered.
    pub gone: Vec<GoneEntry>,
}

/// Why bytes are no region's table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionTableError {
    /// All zeros where the superblock should be.
    #[error(
        "the region was never completed: `netram shared create` was cut short; remove the directory and make it again"
    )]
    Unfinished,
    /// Another kind of file.
    #[error("this is no table of a shared region")]
    NotATable,
    /// Of another version.
    #[error("the table has format {0}, this version reads 1; use the version that wrote it")]
    Format(u32),
    /// The superblock's checksum is wrong.
    #[error("the table's superblock is damaged; restore the directory from a copy")]
    Checksum,
    /// Not as long as its locks need.
    #[error("the table has {found} bytes, {expected} are needed; restore the directory from a copy")]
    Length {
        /// Bytes that there are.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// Its spans are none.
    #[error("the table's spans are damaged: {0}")]
    Spans(#[from] SpanError),
    /// A node's place makes no sense.
    #[error("the table's place {slot} for a node is damaged: {what}")]
    Node {
        /// Which place.
        slot: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl RegionTable {
    /// The table of a region that nobody has written to.
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

    /// The lock's version. `None`: there is no such lock.
    pub fn version(&self, lock: LockId) -> Option<LockVersion> {
        Some(self.versions.at(self.spans.find(lock)?))
    }

    /// The versions of the locks that were written under, ascending by lock.
    pub fn versions(&self) -> impl Iterator<Item = (LockId, LockVersion)> {
        let all = self.spans.iter().zip(self.versions.iter());
        all.filter(|(_, version)| version.0 > 0)
            .map(|(span, version)| (span.lock, version))
    }

    /// How many locks were written under.
    pub fn locks_written(&self) -> usize {
        self.versions.written()
    }

    /// The last merged record of everybody who is remembered.
    pub fn numbers(&self) -> impl Iterator<Item = (NodeId, RecordNumber)> {
        let gone = self.gone.iter().map(|gone| (gone.id, gone.last));
        gone.chain(self.nodes.iter().map(|node| (node.id, node.merged)))
    }

    /// A place that no node has.
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
