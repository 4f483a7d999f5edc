//! The spans under a transaction's locks, which it may read or write.

use std::ops::Range;

use netram_shared_machine::{LockId, LockMode};

use crate::server::Span;

/// A span whose lock the transaction holds.
struct LockedSpan {
    start: usize,
    end: usize,
    lock: LockId,
    hold: LockMode,
    written: bool,
}

/// The spans of one transaction, ascending by start.
#[derive(Default)]
pub(super) struct LockedSpans(Vec<LockedSpan>);

impl LockedSpans {
    /// Adds an acquired lock, or upgrades it.
    pub(super) fn enter(&mut self, span: &Span, hold: LockMode) {
        let (start, end) = (span.offset as usize, span.end() as usize);
        let (lock, written) = (span.lock, false);
        match self.0.binary_search_by_key(&start, |held| held.start) {
            Ok(place) => self.0[place].hold = self.0[place].hold.max(hold),
            Err(place) => self.0.insert(
                place,
                LockedSpan {
                    start,
                    end,
                    lock,
                    hold,
                    written,
                },
            ),
        }
    }

    /// Indexes of the spans that contain the bytes from `offset` to `end`, if all of them are held in this
    /// mode. Otherwise the first byte that is not.
    pub(super) fn cover(&self, offset: usize, end: usize, hold: LockMode) -> Result<Range<usize>, usize> {
        let first = self.0.partition_point(|held| held.end <= offset);
        let (mut at, mut next) = (offset, first);
        while at < end {
            let held = self.0.get(next);
            match held.filter(|held| held.start <= at && held.hold >= hold) {
                Some(held) => (at, next) = (held.end, next + 1),
                None => return Err(at),
            }
        }
        Ok(first..next)
    }

    /// Marks spans, as returned by [`cover`](Self::cover), as written.
    pub(super) fn set_written(&mut self, places: Range<usize>) {
        for held in &mut self.0[places] {
            held.written = true;
        }
    }

    /// Ranges that may be written, ascending.
    pub(super) fn exclusive(&self) -> impl Iterator<Item = Range<usize>> {
        let exclusive = self.0.iter().filter(|held| held.hold == LockMode::Exclusive);
        exclusive.map(|held| held.start..held.end)
    }

    /// Locks under which bytes were declared.
    pub(super) fn written(&self) -> impl Iterator<Item = LockId> {
        self.0.iter().filter(|held| held.written).map(|held| held.lock)
    }

    pub(super) fn any_written(&self) -> bool {
        self.0.iter().any(|held| held.written)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lock: u32, offset: u64, length: u64) -> Span {
        Span {
            lock: LockId(lock),
            offset,
            length,
        }
    }

    #[test]
    fn bytes_are_covered_by_touching_spans_that_are_held_for_enough() {
        let mut spans = LockedSpans::default();
        // Entered in no order: 64..128 exclusive, 128..192 shared, 256..320 exclusive.
        spans.enter(&span(9, 256, 64), LockMode::Exclusive);
        spans.enter(&span(3, 64, 64), LockMode::Exclusive);
        spans.enter(&span(5, 128, 64), LockMode::Shared);
        assert_eq!(spans.cover(64, 128, LockMode::Exclusive), Ok(0..1));
        assert_eq!(spans.cover(60, 70, LockMode::Shared), Err(60));
        assert_eq!(spans.cover(100, 192, LockMode::Shared), Ok(0..2));
        assert_eq!(spans.cover(100, 192, LockMode::Exclusive), Err(128));
        assert_eq!(spans.cover(100, 193, LockMode::Shared), Err(192));
        assert_eq!(spans.cover(200, 200, LockMode::Exclusive), Ok(2..2));
        // An upgrade stays an upgrade.
        spans.enter(&span(5, 128, 64), LockMode::Exclusive);
        spans.enter(&span(5, 128, 64), LockMode::Shared);
        let written = spans.cover(100, 192, LockMode::Exclusive).unwrap();
        assert!(!spans.any_written());
        spans.set_written(written);
        assert_eq!(spans.written().collect::<Vec<_>>(), [LockId(3), LockId(5)]);
    }
}
