//! Encoding of the table, as drawn in the parent module.

use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, SLOT_BYTES};
use netram_proto::wire::{ByteReader, ChainPoint, ShortInputError, crc32c};
use netram_shared_machine::limit::{NODE_NAME_BYTES_MAX, REGION_LOCKS_MAX};
use netram_shared_machine::{GrantNumber, LockId, LockVersion, NodeId, Position, RecordNumber, RegionId};

use netram_proto::id::{JournalId, Lsn};

use super::{
    COUNTERS_AT, GONE_BYTES, GONE_MAX, GoneEntry, KEY_AT, NAME_AT, NODES_MAX, NodeEntry, NodeEntryState,
    RegionCounters, RegionTable, RegionTableError, SPAN_BYTES, TableLayout, VIEW_AT, VersionList,
};
use crate::server::spans::{Span, Spans};

const MAGIC: [u8; 8] = *b"NETRAMSR";
const FORMAT: u32 = 1;
const SUPERBLOCK_BYTES: usize = 64;
const LIVE: u64 = 1;
const FENCING: u64 = 2;
const RETIRED: u64 = 3;
/// The node is being fenced, and a loss was accepted.
const LOSSY: u64 = 4;
/// Bit in the number of a gone node's last record: a loss was accepted.
const LOSS_BIT: u64 = 1 << 63;

/// Encodes the superblock.
pub(crate) fn superblock(table: &RegionTable) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[16..32].copy_from_slice(&table.region.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&table.bytes.to_le_bytes());
    bytes[40..48].copy_from_slice(&table.address.to_le_bytes());
    bytes[48..56].copy_from_slice(&(table.spans.len() as u64).to_le_bytes());
    let crc = crc32c(&bytes[..56]);
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Encodes the counters.
pub(crate) fn counters(counters: &RegionCounters) -> [u8; 48] {
    let words = [
        counters.position.0,
        counters.last_node.0,
        counters.ceiling.0,
        counters.gone,
        counters.forgotten,
        counters.record_bytes_max,
    ];
    let mut bytes = [0; 48];
    for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
        target.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Encodes one span.
pub(crate) fn span_bytes(span: &Span) -> [u8; SPAN_BYTES as usize] {
    let mut bytes = [0; SPAN_BYTES as usize];
    bytes[..4].copy_from_slice(&span.lock.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&span.offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&span.length.to_le_bytes());
    bytes
}

/// Encodes one gone node.
pub(crate) fn gone_bytes(gone: &GoneEntry) -> [u8; GONE_BYTES as usize] {
    let mut bytes = [0; GONE_BYTES as usize];
    bytes[..8].copy_from_slice(&gone.id.0.to_le_bytes());
    assert!(gone.last.0 < LOSS_BIT, "a count of records stays below 2^63");
    let loss = if gone.loss_accepted { LOSS_BIT } else { 0 };
    bytes[8..16].copy_from_slice(&(gone.last.0 | loss).to_le_bytes());
    bytes[16..].copy_from_slice(&gone.journal.0.to_le_bytes());
    bytes
}

/// Encodes a node's numbers, and the end of its last marked record.
pub(crate) fn merged_words(merged: RecordNumber, marked: RecordNumber, end: ChainPoint) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&merged.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&marked.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&end.lsn.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&end.chain.to_le_bytes());
    bytes
}

/// Encodes the fixed part of a node's entry.
pub(crate) fn head(node: &NodeEntry, view_bytes: usize) -> [u8; 60] {
    let standing = match node.state {
        NodeEntryState::Live => LIVE,
        NodeEntryState::Fencing if node.loss_accepted => LOSSY,
        NodeEntryState::Fencing => FENCING,
        NodeEntryState::Retired => RETIRED,
    };
    let mut bytes = [0; 60];
    bytes[..8].copy_from_slice(&node.id.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&standing.to_le_bytes());
    bytes[16..48].copy_from_slice(&merged_words(node.merged, node.marked, node.end));
    for (target, length) in bytes[48..]
        .chunks_exact_mut(4)
        .zip([node.key.len(), node.name.len(), view_bytes])
    {
        // Each length fits its field, since the field's data are a page or less.
        target.copy_from_slice(&(length as u32).to_le_bytes());
    }
    bytes
}

/// Encodes a view. It fits its field as it fits a slot.
pub(crate) fn view_bytes(view: &View) -> Vec<u8> {
    let bytes = view.encode();
    assert!(bytes.len() <= SLOT_BYTES);
    bytes
}

impl RegionTable {
    /// Reads a whole table. [`RegionTable::faults`] finds contradictions in it.
    ///
    /// # Errors
    ///
    /// [`RegionTableError`] if the bytes are no table, or a damaged one.
    pub fn read(bytes: &[u8]) -> Result<RegionTable, RegionTableError> {
        let expected_least = TableLayout::of(1).bytes();
        let length = |expected| RegionTableError::Length {
            found: bytes.len() as u64,
            expected,
        };
        if (bytes.len() as u64) < expected_least {
            return Err(length(expected_least));
        }
        let (mut table, locks) =
            read_superblock(bytes).map_err(|error| error.unwrap_or_else(|| length(expected_least)))?;
        let places = TableLayout::of(locks);
        if bytes.len() as u64 != places.bytes() {
            return Err(length(places.bytes()));
        }
        let cut = |ShortInputError| length(places.bytes());
        table.spans =
            read_spans(&bytes[places.spans()..], locks, table.bytes).map_err(|error| match error {
                Ok(error) => RegionTableError::Spans(error),
                Err(short) => cut(short),
            })?;
        let mut versions = ByteReader::new(&bytes[places.version(0)..]);
        let versions: Result<Vec<LockVersion>, ShortInputError> =
            (0..locks).map(|_| versions.u64().map(LockVersion)).collect();
        table.versions = VersionList::new(versions.map_err(cut)?);
        for slot in 0..NODES_MAX {
            let place = &bytes[places.node(slot)..places.node(slot + 1)];
            if let Some(node) = read_node(place, slot)? {
                match node.state {
                    NodeEntryState::Live | NodeEntryState::Fencing => table.nodes.push(node),
                    NodeEntryState::Retired => table.retired.push(node),
                }
            }
        }
        let gone = table.counters.gone;
        for turn in gone.saturating_sub(GONE_MAX as u64)..gone {
            let mut cursor = ByteReader::new(&bytes[places.gone(turn)..]);
            let (id, last) = (cursor.u64().map_err(cut)?, cursor.u64().map_err(cut)?);
            table.gone.push(GoneEntry {
                id: NodeId(id),
                last: RecordNumber(last & !LOSS_BIT),
                journal: JournalId(cursor.u128().map_err(cut)?),
                loss_accepted: last & LOSS_BIT != 0,
            });
        }
        Ok(table)
    }
}

/// Reads the superblock, the counters and the number of locks. `Err(None)`: the bytes are too short.
fn read_superblock(bytes: &[u8]) -> Result<(RegionTable, usize), Option<RegionTableError>> {
    let fixed = &bytes[..SUPERBLOCK_BYTES];
    if fixed.iter().all(|byte| *byte == 0) {
        return Err(Some(RegionTableError::Unfinished));
    }
    if fixed[..8] != MAGIC {
        return Err(Some(RegionTableError::NotATable));
    }
    let mut cursor = ByteReader::new(&fixed[8..]);
    let short = |ShortInputError| None;
    let format = cursor.u32().map_err(short)?;
    if format != FORMAT {
        return Err(Some(RegionTableError::Format(format)));
    }
    cursor.u32().map_err(short)?;
    let region = RegionId(cursor.u128().map_err(short)?);
    let length = cursor.u64().map_err(short)?;
    let address = cursor.u64().map_err(short)?;
    let locks = cursor.u64().map_err(short)?;
    if cursor.u32().map_err(short)? != crc32c(&fixed[..56]) {
        return Err(Some(RegionTableError::Checksum));
    }
    let locks = usize::try_from(locks)
        .ok()
        .filter(|locks| *locks <= REGION_LOCKS_MAX);
    let locks = locks.ok_or(Some(RegionTableError::Checksum))?;
    let mut table = RegionTable::new(region, length, address, Spans::default());
    let mut words = ByteReader::new(&bytes[COUNTERS_AT..]);
    table.counters = RegionCounters {
        position: Position(words.u64().map_err(short)?),
        last_node: NodeId(words.u64().map_err(short)?),
        ceiling: GrantNumber(words.u64().map_err(short)?),
        gone: words.u64().map_err(short)?,
        forgotten: words.u64().map_err(short)?,
        record_bytes_max: words.u64().map_err(short)?,
    };
    Ok((table, locks))
}

fn read_spans(
    bytes: &[u8],
    locks: usize,
    region_bytes: u64,
) -> Result<Spans, Result<crate::server::spans::SpanError, ShortInputError>> {
    let mut cursor = ByteReader::new(bytes);
    let mut all = Vec::with_capacity(locks);
    for _ in 0..locks {
        let lock = LockId(cursor.u32().map_err(Err)?);
        cursor.u32().map_err(Err)?;
        all.push(Span {
            lock,
            offset: cursor.u64().map_err(Err)?,
            length: cursor.u64().map_err(Err)?,
        });
    }
    Spans::new(region_bytes, all).map_err(Ok)
}

fn read_node(place: &[u8], slot: usize) -> Result<Option<NodeEntry>, RegionTableError> {
    let damaged = |what| RegionTableError::Node { slot, what };
    let cut = |ShortInputError| damaged("it is too short");
    let mut cursor = ByteReader::new(place);
    let id = NodeId(cursor.u64().map_err(cut)?);
    if id.0 == 0 {
        return Ok(None);
    }
    let standing = cursor.u64().map_err(cut)?;
    let loss_accepted = standing == LOSSY;
    let standing = match standing {
        LIVE => NodeEntryState::Live,
        FENCING | LOSSY => NodeEntryState::Fencing,
        RETIRED => NodeEntryState::Retired,
        _ => return Err(damaged("unknown state")),
    };
    let merged = RecordNumber(cursor.u64().map_err(cut)?);
    let marked = RecordNumber(cursor.u64().map_err(cut)?);
    let end = ChainPoint {
        lsn: Lsn(cursor.u64().map_err(cut)?),
        chain: cursor.u32().map_err(cut)?,
    };
    cursor.u32().map_err(cut)?;
    let mut part = |at: usize, most: usize, what| {
        let length = cursor.u32().map_err(cut)? as usize;
        match length <= most {
            true => Ok(&place[at..at + length]),
            false => Err(damaged(what)),
        }
    };
    let key = part(KEY_AT, DATA_KEY_BYTES_MAX, "invalid length of the key")?.to_vec();
    let name = part(NAME_AT, NODE_NAME_BYTES_MAX, "invalid length of the name")?;
    let view = part(VIEW_AT, SLOT_BYTES, "invalid length of the view")?;
    let name = std::str::from_utf8(name).map_err(|_| damaged("the name is not UTF-8"))?;
    Ok(Some(NodeEntry {
        id,
        state: standing,
        loss_accepted,
        name: name.to_owned(),
        key,
        view: View::decode(view).map_err(|_| damaged("invalid view"))?,
        merged,
        marked,
        end,
        slot,
    }))
}
