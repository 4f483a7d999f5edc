//! Merging many logged ranges into few writes: each byte of a segment once, with its latest value.

use std::collections::BinaryHeap;

/// One logged range; its bytes are in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedExtent {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Start of its bytes in the arena. Later records lie further back, so this also orders extents by age.
    pub(crate) source: usize,
}

impl LoggedExtent {
    pub(crate) fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// Merges, and keeps its memory for the next time.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// Extents that cover the sweep's position, as (source, index): the newest comes out first.
    open: BinaryHeap<(usize, usize)>,
}

impl Merger {
    /// Sorts `extents` and writes their visible parts to `pieces`: by segment and offset, without overlaps.
    ///
    /// A sweep over the starts with a heap of the extents that cover its position, newest first: n log n, and
    /// at most twice as many pieces as extents.
    pub(crate) fn merge(&mut self, extents: &mut [LoggedExtent], pieces: &mut Vec<LoggedExtent>) {
        pieces.clear();
        extents.sort_unstable_by_key(|extent| (extent.segment, extent.offset, extent.source));
        let open = &mut self.open;
        open.clear();
        let mut next = 0;
        let mut at = 0;
        let mut segment = 0;
        loop {
            while let Some((_, top)) = open.peek()
                && extents[*top].end() <= at
            {
                open.pop();
            }
            if open.is_empty() {
                let Some(first) = extents.get(next) else { break };
                segment = first.segment;
                at = first.offset;
            }
            while let Some(extent) = extents.get(next)
                && extent.segment == segment
                && extent.offset <= at
            {
                open.push((extent.source, next));
                next += 1;
            }
            let Some((_, top)) = open.peek() else { continue };
            let top = extents[*top];
            if top.end() <= at {
                continue;
            }
            let mut end = top.end();
            if let Some(extent) = extents.get(next)
                && extent.segment == segment
            {
                end = end.min(extent.offset);
            }
            emit(pieces, top, at, end);
            at = end;
        }
    }
}

/// Adds bytes `at..end` of `extent`, extending the last piece where they continue it.
fn emit(pieces: &mut Vec<LoggedExtent>, extent: LoggedExtent, at: u64, end: u64) {
    assert!(extent.offset <= at);
    assert!(at < end);
    // The distance lies within the extent, whose bytes are in memory.
    let source = extent.source + (at - extent.offset) as usize;
    let length = end - at;
    if let Some(last) = pieces.last_mut()
        && last.segment == extent.segment
        && last.end() == at
        && last.source + last.length as usize == source
    {
        last.length += length;
        return;
    }
    pieces.push(LoggedExtent {
        segment: extent.segment,
        offset: at,
        length,
        source,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_show_the_latest_value_of_every_byte_once(
            writes in proptest::collection::vec((0u32..3, 0u64..60, 0usize..20), 0..40)
        ) {
            let mut arena = Vec::new();
            let mut extents = Vec::new();
            let mut model = std::collections::BTreeMap::new();
            for (number, (segment, offset, length)) in writes.into_iter().enumerate() {
                let length_bytes = length as u64;
                extents.push(LoggedExtent { segment, offset, length: length_bytes, source: arena.len() });
                for at in 0..length {
                    arena.push(number);
                    model.insert((segment, offset + at as u64), number);
                }
            }
            let mut pieces = Vec::new();
            Merger::default().merge(&mut extents, &mut pieces);
            let mut seen = Vec::new();
            for piece in &pieces {
                for at in 0..piece.length {
                    seen.push(((piece.segment, piece.offset + at), arena[piece.source + at as usize]));
                }
            }
            prop_assert!(seen.into_iter().eq(model), "sorted, each byte once, latest value");
            prop_assert!(pieces.len() <= 2 * extents.len());
        }
    }
}
