//! The payload of one record, from merged ranges: order, length and bytes.

use super::locks::CommitLocks;
use super::regions::TouchedRegions;
use crate::limit::COPY_BYTES;
use crate::range::DeclaredRange;
use crate::record::{RangeCursor, RecordChanges, RecordEncoder, RecordScope, preamble_bytes};

/// A foreign record that becomes part of a commit: checked, and all of it in one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignRecord<'f> {
    pub(super) changes: RecordChanges<'f>,
    pub(super) segment: u32,
    /// End of its last range.
    end: u64,
    /// Its ranges as encoded in its payload.
    ranges: &'f [u8],
}

impl<'f> ForeignRecord<'f> {
    /// Returns `None` for a record that cannot be copied as encoded.
    pub(super) fn new(changes: RecordChanges<'f>) -> Option<ForeignRecord<'f>> {
        let RecordScope::Segment { segment, end, .. } = changes.scope() else {
            return None;
        };
        Some(ForeignRecord {
            changes,
            segment,
            end,
            ranges: changes.compact()?,
        })
    }
}

/// The merged ranges of one region.
#[derive(Clone, Copy, Debug)]
struct Group {
    segment: u32,
    /// Offset in the segment at which the region begins.
    base: u64,
    /// Index of the region in the transaction's list.
    region: u32,
    first: u32,
    end: u32,
}

/// The order of a record's ranges: by segment and offset, whereas merged ranges are in the order in which
/// regions were first used. Keeps its memory when cleared.
#[derive(Debug, Default)]
pub(crate) struct PayloadLayout {
    groups: Vec<Group>,
}

impl PayloadLayout {
    /// Determines the order. Returns the payload's length. Costs about 1 ns per range.
    pub(super) fn arrange(
        &mut self,
        merged: &[DeclaredRange],
        regions: &TouchedRegions,
        preamble: usize,
        foreign: Option<&ForeignRecord<'_>>,
    ) -> u64 {
        self.groups.clear();
        let mut first = 0;
        while let Some(range) = merged.get(first) {
            let region = range.region;
            let count = merged[first..].partition_point(|range| range.region == region);
            let mapping = &regions.list[region as usize];
            self.groups.push(Group {
                segment: mapping.segment.index,
                base: mapping.base,
                region,
                // Bounded by the most ranges of a transaction.
                first: first as u32,
                end: (first + count) as u32,
            });
            first += count;
        }
        self.groups
            .sort_unstable_by_key(|group| (group.segment, group.base));
        let mut cursor = RangeCursor::default();
        let mut bytes = preamble_bytes(preamble) as u64;
        for group in &self.groups {
            bytes += group_bytes(merged, group, &mut cursor);
        }
        bytes + foreign.map_or(0, |foreign| foreign.ranges.len() as u64)
    }

    /// Writes the payload.
    pub(super) fn write(
        &self,
        payload: &mut [u8],
        preamble: &[u8],
        merged: &[DeclaredRange],
        foreign: Option<&ForeignRecord<'_>>,
        (regions, held): (&TouchedRegions, &CommitLocks<'_>),
    ) {
        let mut encoder = RecordEncoder::new(payload, preamble);
        let mut foreign = foreign;
        for group in &self.groups {
            if let Some(before) = foreign.take_if(|foreign| foreign.segment < group.segment) {
                encoder.ranges(before.segment, before.end, before.ranges);
            }
            let mapping = &regions.list[group.region as usize];
            let memory = held.find(regions.position(mapping.address()));
            for range in &merged[group.first as usize..group.end as usize] {
                let bytes = encoder.range(group.segment, group.base + range.offset, range.length);
                let mut from = range.offset as usize;
                for bytes in bytes.chunks_mut(COPY_BYTES) {
                    memory.copy_out(from, bytes);
                    from += COPY_BYTES;
                }
            }
        }
        if let Some(last) = foreign {
            encoder.ranges(last.segment, last.end, last.ranges);
        }
        encoder.finish();
    }
}

/// Bytes of a region's ranges, headers and values.
fn group_bytes(merged: &[DeclaredRange], group: &Group, cursor: &mut RangeCursor) -> u64 {
    let ranges = &merged[group.first as usize..group.end as usize];
    let bytes = ranges.iter().map(|range| {
        let header = cursor.advance(group.segment, group.base + range.offset, range.length);
        header as u64 + u64::from(range.length)
    });
    bytes.sum()
}
