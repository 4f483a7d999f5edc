//! The newest value of every byte that a log has for one segment.

use std::collections::BTreeMap;

/// Disjoint pieces of bytes by offset, each with the LSN of the transaction that wrote it.
#[derive(Debug, Default)]
pub struct LogOverlay {
    pieces: BTreeMap<u64, OverlayPiece>,
}

/// Bytes of one transaction that no later one overwrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayPiece {
    pub lsn: u64,
    pub bytes: Vec<u8>,
}

impl LogOverlay {
    /// Records that the transaction at `lsn`, later than all before, wrote `bytes` at `offset`.
    pub fn write(&mut self, lsn: u64, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        self.split(offset);
        self.split(end);
        let covered: Vec<u64> = self.pieces.range(offset..end).map(|(at, _)| *at).collect();
        for at in covered {
            self.pieces.remove(&at);
        }
        let bytes = bytes.to_vec();
        self.pieces.insert(offset, OverlayPiece { lsn, bytes });
    }

    /// Overwrites `into`, the bytes from `offset` on, with those that the log has.
    pub fn apply(&self, offset: u64, into: &mut [u8]) {
        for (at, piece) in self.within(offset, into.len() as u64) {
            let start = (at - offset) as usize;
            into[start..start + piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
    }

    /// Returns the log's pieces of the `length` bytes from `offset` on, cut to these bytes, in order.
    pub fn within(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, OverlayPiece)> {
        let end = offset.saturating_add(length);
        let before = self.pieces.range(..offset).next_back();
        let inside = self.pieces.range(offset..end);
        before.into_iter().chain(inside).filter_map(move |(&at, piece)| {
            let (from, to) = (at.max(offset), (at + piece.bytes.len() as u64).min(end));
            (from < to).then(|| {
                let bytes = piece.bytes[(from - at) as usize..(to - at) as usize].to_vec();
                (
                    from,
                    OverlayPiece {
                        lsn: piece.lsn,
                        bytes,
                    },
                )
            })
        })
    }

    /// Splits the piece that has `at` in its inside.
    fn split(&mut self, at: u64) {
        let Some((&start, piece)) = self.pieces.range_mut(..at).next_back() else {
            return;
        };
        if start + (piece.bytes.len() as u64) <= at {
            return;
        }
        let bytes = piece.bytes.split_off((at - start) as usize);
        let lsn = piece.lsn;
        self.pieces.insert(at, OverlayPiece { lsn, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_write_of_every_byte_shows() {
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % bound
        };
        for round in 0..200 {
            let (mut overlay, mut model) = (LogOverlay::default(), vec![(0_u64, 0_u8); 64]);
            for lsn in 1..12 {
                let (offset, value) = (below(64), below(255) as u8);
                let length = below(65 - offset);
                overlay.write(lsn, offset, &vec![value; length as usize]);
                for byte in &mut model[offset as usize..(offset + length) as usize] {
                    *byte = (lsn, value);
                }
            }
            let from = below(64);
            let length = below(65 - from);
            let mut bytes = vec![0; length as usize];
            overlay.apply(from, &mut bytes);
            let mut writers = vec![0; length as usize];
            for (at, piece) in overlay.within(from, length) {
                let start = (at - from) as usize;
                writers[start..start + piece.bytes.len()].fill(piece.lsn);
            }
            let expected = &model[from as usize..(from + length) as usize];
            let found: Vec<(u64, u8)> = writers.into_iter().zip(bytes).collect();
            assert_eq!(found, expected, "round {round}");
        }
    }
}
