//! The bytes that each lock of a region covers.

use netram_shared_machine::limit::REGION_LOCKS_MAX;
use netram_shared_machine::{LockId, LockVersion};

/// Alignment of spans in bytes, so that a unit of change tracking never belongs to two locks.
pub const SPAN_ALIGN: u64 = 8;

/// The bytes that one lock covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The lock.
    pub lock: LockId,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Span {
    /// Offset after the last byte. For a span in [`Spans`] it is inside the region.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The spans of a region: none is empty, unaligned, outside the region, or overlaps another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Spans, ascending by lock.
    all: Vec<Span>,
}

/// Defect in a region's spans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The number of locks is zero or too high.
    #[error("a region has 1 to {REGION_LOCKS_MAX} locks, not {count}; choose larger spans")]
    Count {
        /// Number of locks.
        count: u64,
    },
    /// A lock has two spans.
    #[error("lock {lock} has two spans; a lock covers one")]
    Twice {
        /// The lock.
        lock: LockId,
    },
    /// A span is empty, or not aligned to [`SPAN_ALIGN`].
    #[error(
        "the span of lock {lock}, {length} bytes at {offset}, is empty or not aligned to {SPAN_ALIGN} bytes"
    )]
    Shape {
        /// The lock.
        lock: LockId,
        /// Offset of the span.
        offset: u64,
        /// Length of the span in bytes.
        length: u64,
    },
    /// A span reaches beyond the region.
    #[error("the span of lock {lock}, {length} bytes at {offset}, reaches beyond the region's {bytes} bytes")]
    Outside {
        /// The lock.
        lock: LockId,
        /// Offset of the span.
        offset: u64,
        /// Length of the span in bytes.
        length: u64,
        /// Size of the region in bytes.
        bytes: u64,
    },
    /// Two spans overlap.
    #[error("the spans of locks {lock} and {other} both cover the byte at {offset}")]
    Overlap {
        /// One lock.
        lock: LockId,
        /// The other.
        other: LockId,
        /// The first byte that both cover.
        offset: u64,
    },
    /// A line of a list is not a span.
    #[error("line {line}: write LOCK OFFSET LENGTH, three numbers, not `{text}`")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
}

impl Spans {
    /// Checks spans of a region of `bytes`.
    ///
    /// # Errors
    ///
    /// [`SpanError`] for the first defect.
    pub fn new(bytes: u64, mut all: Vec<Span>) -> Result<Spans, SpanError> {
        if all.is_empty() || all.len() > REGION_LOCKS_MAX {
            let count = all.len() as u64;
            return Err(SpanError::Count { count });
        }
        for Span { lock, offset, length } in all.iter().copied() {
            if length == 0 || !offset.is_multiple_of(SPAN_ALIGN) || !length.is_multiple_of(SPAN_ALIGN) {
                return Err(SpanError::Shape { lock, offset, length });
            }
            if offset.checked_add(length).is_none_or(|end| end > bytes) {
                return Err(SpanError::Outside {
                    lock,
                    offset,
                    length,
                    bytes,
                });
            }
        }
        all.sort_unstable_by_key(|span| span.offset);
        for pair in all.windows(2) {
            if pair[1].offset < pair[0].end() {
                return Err(SpanError::Overlap {
                    lock: pair[0].lock,
                    other: pair[1].lock,
                    offset: pair[1].offset,
                });
            }
        }
        all.sort_unstable_by_key(|span| span.lock);
        match all.windows(2).find(|pair| pair[0].lock == pair[1].lock) {
            Some(pair) => Err(SpanError::Twice { lock: pair[0].lock }),
            None => Ok(Spans { all }),
        }
    }

    /// Makes spans of `span_bytes` each, the last perhaps shorter, under the locks 0, 1, 2 ...
    ///
    /// # Errors
    ///
    /// [`SpanError`] if there would be no span or too many, or they are not aligned.
    pub fn even(bytes: u64, span_bytes: u64) -> Result<Spans, SpanError> {
        let count = match span_bytes {
            0 => u64::MAX,
            span_bytes => bytes.div_ceil(span_bytes),
        };
        if count == 0 || count > REGION_LOCKS_MAX as u64 {
            return Err(SpanError::Count { count });
        }
        let spans = (0..count).map(|index| {
            let offset = index * span_bytes;
            Span {
                lock: LockId(index as u32),
                offset,
                length: span_bytes.min(bytes - offset),
            }
        });
        Spans::new(bytes, spans.collect())
    }

    /// Parses a list of spans, one `LOCK OFFSET LENGTH` per line; `#` starts a comment.
    ///
    /// # Errors
    ///
    /// [`SpanError::Line`] for a line that is not a span; otherwise as for [`Spans::new`].
    pub fn parse(bytes: u64, text: &str) -> Result<Spans, SpanError> {
        let mut all = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let said = line.split('#').next().unwrap_or("");
            if said.trim().is_empty() {
                continue;
            }
            let wrong = || SpanError::Line {
                line: index + 1,
                text: line.to_owned(),
            };
            let numbers: Result<Vec<u64>, _> = said.split_whitespace().map(number).collect();
            let [lock, offset, length] = numbers.map_err(|()| wrong())?[..] else {
                return Err(wrong());
            };
            let lock = LockId(u32::try_from(lock).map_err(|_| wrong())?);
            all.push(Span { lock, offset, length });
        }
        Spans::new(bytes, all)
    }

    /// Number of spans.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a region without locks cannot be made"
    )]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All spans, ascending by lock.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Span> {
        self.all.iter()
    }

    /// Index of the lock's span.
    pub fn find(&self, lock: LockId) -> Option<usize> {
        // Most regions number their locks from zero.
        let guess = lock.0 as usize;
        match self.all.get(guess) {
            Some(span) if span.lock == lock => Some(guess),
            _ => self.all.binary_search_by_key(&lock, |span| span.lock).ok(),
        }
    }

    /// The span at an index that [`find`](Self::find) returned.
    pub fn at(&self, place: usize) -> &Span {
        &self.all[place]
    }

    /// Ranges under these locks, ascending, adjacent spans joined.
    ///
    /// # Errors
    ///
    /// The first lock that the region does not have.
    pub fn cover(&self, written: &[(LockId, LockVersion)]) -> Result<Vec<(u64, u64)>, LockId> {
        let mut cover = Vec::with_capacity(written.len());
        for (lock, _) in written {
            let span = self.at(self.find(*lock).ok_or(*lock)?);
            cover.push((span.offset, span.end()));
        }
        cover.sort_unstable();
        cover.dedup_by(|next, before| {
            let touches = before.1 == next.0;
            if touches {
                before.1 = next.1;
            }
            touches
        });
        Ok(cover)
    }
}

fn number(text: &str) -> Result<u64, ()> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| ())
}

/// First byte of ascending ranges (start, end) that lies outside ascending, disjoint cover ranges (start,
/// end).
///
/// It needs one or two comparisons per range, of which a record may have tens of thousands.
pub fn first_outside(cover: &[(u64, u64)], ranges: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut cover = cover.iter();
    let mut current = cover.next();
    for (start, end) in ranges {
        while let Some(&(_, cover_end)) = current
            && cover_end <= start
        {
            current = cover.next();
        }
        match current {
            Some(&(cover_start, cover_end)) if cover_start <= start => {
                if end > cover_end {
                    return Some(cover_end);
                }
            }
            _ => return Some(start),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(lock: u32, offset: u64, length: u64) -> Span {
        Span {
            lock: LockId(lock),
            offset,
            length,
        }
    }

    #[test]
    fn invalid_spans_are_refused() {
        let refused = |spans: &[Span]| Spans::new(4096, spans.to_vec()).unwrap_err();
        assert_eq!(refused(&[]), SpanError::Count { count: 0 });
        assert!(matches!(refused(&[span(0, 0, 0)]), SpanError::Shape { .. }));
        assert!(matches!(refused(&[span(0, 4, 8)]), SpanError::Shape { .. }));
        assert!(matches!(refused(&[span(0, 0, 9)]), SpanError::Shape { .. }));
        assert!(matches!(refused(&[span(0, 4088, 16)]), SpanError::Outside { .. }));
        assert!(matches!(
            refused(&[span(0, u64::MAX - 7, 16)]),
            SpanError::Outside { .. }
        ));
        assert_eq!(
            refused(&[span(3, 64, 64), span(1, 0, 72)]),
            SpanError::Overlap {
                lock: LockId(1),
                other: LockId(3),
                offset: 64
            }
        );
        assert_eq!(
            refused(&[span(1, 0, 8), span(1, 64, 8)]),
            SpanError::Twice { lock: LockId(1) }
        );
        assert!(Spans::even(1 << 30, 8).is_err());
        assert!(Spans::even(1 << 30, 0).is_err());
        assert!(Spans::even(0, 8).is_err());
    }

    #[test]
    fn spans_are_read_from_a_list() {
        let text = "# lock, offset, length\n7 0 64\n\n 3 0x40 64 # behind\n";
        let spans = Spans::parse(4096, text).unwrap();
        assert_eq!(
            spans,
            Spans::new(4096, vec![span(3, 64, 64), span(7, 0, 64)]).unwrap()
        );
        assert_eq!(
            (
                spans.find(LockId(3)),
                spans.find(LockId(7)),
                spans.find(LockId(0))
            ),
            (Some(0), Some(1), None)
        );
        for wrong in ["7 0", "7 0 64 1", "7 0 -8", "4294967296 0 8", "a 0 8"] {
            assert!(
                matches!(Spans::parse(4096, wrong), Err(SpanError::Line { line: 1, .. })),
                "{wrong}"
            );
        }
        let spans = Spans::even(100, 40).unwrap_err();
        assert!(matches!(spans, SpanError::Shape { length: 20, .. }), "{spans}");
        assert_eq!(Spans::even(96, 40).unwrap().at(2), &span(2, 80, 16));
    }

    proptest! {
        /// Compared with the plain definition: every byte of every range is under one of the locks.
        #[test]
        fn a_byte_outside_the_written_spans_is_found(
            locks in proptest::collection::btree_set(0_u32..16, 0..8),
            starts in proptest::collection::btree_set(0_u64..256, 0..20),
            lengths in proptest::collection::vec(1_u64..24, 20),
        ) {
            let spans = Spans::even(256, 16).unwrap();
            let written: Vec<_> = locks.iter().map(|lock| (LockId(*lock), LockVersion(1))).collect();
            let cover = spans.cover(&written).unwrap();
            let starts: Vec<u64> = starts.into_iter().collect();
            let ranges: Vec<(u64, u64)> = starts.iter().enumerate().map(|(index, start)| {
                let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
                (*start, (start + lengths[index]).min(next))
            }).collect();
            let mut bytes = ranges.iter().flat_map(|(start, end)| *start..*end);
            let expected = bytes.find(|byte| !locks.contains(&((byte / 16) as u32)));
            prop_assert_eq!(first_outside(&cover, ranges.iter().copied()), expected);
        }
    }
}
