//! Combining merged pieces into few large writes.
//!
//! Pieces less than a page apart are written at once; the bytes between them are read from the file and
//! written back unchanged. No additional page is written, because so small a gap contains no whole page, and
//! no other process writes the file. A log of small scattered records needs one system call for many of them.

use std::ops::Range;

use netram_proto::port::{IoError, StorageFile};

use crate::limit::{PAGE_BYTES, STEP_WRITE_BYTES};
use crate::merge::LoggedExtent;

/// Progress of the writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteCursor {
    /// Index of the piece being written.
    pub(crate) piece: usize,
    /// Bytes of it already written.
    done: u64,
}

/// Bytes of one segment to write at once, at most [`STEP_WRITE_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteRun {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    /// Indexes of the pieces in the run; a single one may be only partly in it.
    pieces: Range<usize>,
    gaps: bool,
}

/// The run at `cursor`, and the cursor behind it.
pub(crate) fn next_run(pieces: &[LoggedExtent], cursor: WriteCursor) -> Option<(WriteRun, WriteCursor)> {
    let WriteCursor { piece, done } = cursor;
    let first = pieces.get(piece)?;
    let (segment, offset) = (first.segment, first.offset + done);
    let mut end = first.end();
    if end - offset > STEP_WRITE_BYTES as u64 {
        let length = STEP_WRITE_BYTES;
        let run = WriteRun {
            segment,
            offset,
            length,
            pieces: piece..piece + 1,
            gaps: false,
        };
        let done = done + length as u64;
        return Some((run, WriteCursor { piece, done }));
    }
    let mut next = piece + 1;
    let mut gaps = false;
    while let Some(after) = pieces.get(next)
        && after.segment == segment
        && after.offset - end < PAGE_BYTES
        && after.end() - offset <= STEP_WRITE_BYTES as u64
    {
        gaps |= after.offset > end;
        end = after.end();
        next += 1;
    }
    // Bounded by the step, so it fits.
    let length = (end - offset) as usize;
    let run = WriteRun {
        segment,
        offset,
        length,
        pieces: piece..next,
        gaps,
    };
    Some((run, WriteCursor { piece: next, done: 0 }))
}

/// Writes a run; returns the bytes of its pieces, without gaps.
pub(crate) fn write_run(
    file: &impl StorageFile,
    run: &WriteRun,
    pieces: &[LoggedExtent],
    arena: &[u8],
    staging: &mut Vec<u8>,
) -> Result<usize, IoError> {
    let mut written = 0;
    let pieces = &pieces[run.pieces.clone()];
    if let [piece] = pieces {
        let from = piece.source + (run.offset - piece.offset) as usize;
        file.write_at(run.offset, &arena[from..from + run.length])?;
        return Ok(run.length);
    }
    staging.resize(run.length, 0);
    if run.gaps {
        file.read_at(run.offset, staging)?;
    }
    for piece in pieces {
        // Only the first piece may have been partly written, up to the run's offset.
        let done = run.offset.saturating_sub(piece.offset);
        let bytes = &arena[piece.source + done as usize..piece.source + piece.length as usize];
        let at = (piece.offset + done - run.offset) as usize;
        staging[at..at + bytes.len()].copy_from_slice(bytes);
        written += bytes.len();
    }
    file.write_at(run.offset, staging)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    struct Bytes(RefCell<Vec<u8>>);

    impl StorageFile for Bytes {
        fn size(&self) -> Result<u64, IoError> {
            Ok(self.0.borrow().len() as u64)
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
            let offset = offset as usize;
            into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
            Ok(())
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
            assert!(bytes.len() <= STEP_WRITE_BYTES);
            let offset = offset as usize;
            self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn sync(&self) -> Result<(), IoError> {
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn runs_write_every_piece_and_nothing_else(
            parts in proptest::collection::vec((0u64..9000, prop_oneof![1u64..200, 1u64..600_000]), 0..12)
        ) {
            let (mut pieces, mut arena, mut at) = (Vec::new(), Vec::new(), 0);
            for (gap, length) in parts {
                at += gap;
                pieces.push(LoggedExtent { segment: 0, offset: at, length, source: arena.len() });
                arena.extend((0..length).map(|byte| (byte % 251) as u8));
                at += length;
            }
            let file = Bytes(RefCell::new(vec![0xee; at as usize + 10]));
            let mut model = vec![0xee; at as usize + 10];
            for piece in &pieces {
                let bytes = &arena[piece.source..piece.source + piece.length as usize];
                model[piece.offset as usize..piece.end() as usize].copy_from_slice(bytes);
            }
            let (mut cursor, mut written, mut staging) = (WriteCursor::default(), 0, vec![7; 100]);
            while let Some((run, next)) = next_run(&pieces, cursor) {
                written += write_run(&file, &run, &pieces, &arena, &mut staging).unwrap();
                cursor = next;
            }
            prop_assert_eq!(written, arena.len());
            prop_assert!(file.0.into_inner() == model);
        }
    }
}
