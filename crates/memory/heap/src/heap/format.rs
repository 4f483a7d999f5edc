//! Making a heap in a region.

use std::sync::Arc;

use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{Region, RestoreMode, Rvm, SegmentStorage};

use super::Heap;
use crate::error::HeapFormatError;
use crate::layout::{HEADER_BYTES, HeapGeometry, ROOTS_AT, descriptor_at, encode_header, page_at};
use crate::limit::{ALIGNMENT, FORMAT_STEP_BYTES, PAGES_MAX, PAGES_MIN, ROOTS};
use crate::transact::Transact;

impl Heap {
    /// Makes an empty heap in the region, replacing its content, and opens it. Returns when the heap is as
    /// safe as a remote commit. No open transaction may have ranges in the region. Earlier values of [`Heap`]
    /// for the same bytes must not be used any more.
    ///
    /// # Errors
    ///
    /// As [`Heap::format_part`]; [`HeapFormatError::Open`] if the new heap could not be opened.
    pub fn format<L: RecordLog, S: SegmentStorage>(
        rvm: &Rvm<L, S>,
        region: impl Into<Arc<Region>>,
    ) -> Result<Heap, HeapFormatError> {
        let region = region.into();
        Heap::format_part(rvm, &region, 0, region.len())?;
        Ok(Heap::open(region)?)
    }

    /// Makes an empty heap in a part of a region: `length` bytes from `start`, a multiple of 16.
    ///
    /// The table is cleared in small transactions; the header is written last, so a crash during formatting
    /// leaves no heap. No open transaction may have ranges in the region. Earlier values of [`Heap`] for the
    /// same bytes must not be used any more.
    ///
    /// # Errors
    ///
    /// [`HeapFormatError::Size`] or [`HeapFormatError::Busy`] if there can be no heap;
    /// [`HeapFormatError::Commit`] if a step could not be committed.
    pub fn format_part<L: RecordLog, S: SegmentStorage>(
        rvm: &Rvm<L, S>,
        region: &Region,
        start: usize,
        length: usize,
    ) -> Result<(), HeapFormatError> {
        let geometry = geometry(region, start, length)?;
        no_others(region.open_transactions())?;
        for (from, to) in steps(geometry) {
            let mut step = rvm.begin(RestoreMode::Restore);
            clear(&mut step, region, start, from, to)?;
            step.commit(Durability::Lazy)?;
        }
        let mut last = rvm.begin(RestoreMode::Restore);
        last.write(region, start, &encode_header(geometry))?;
        last.commit(Durability::Remote)?;
        Ok(())
    }

    /// Makes an empty heap in a part of a region within the caller's transaction. If the table is not zeros
    /// yet, the record needs eight bytes for each page.
    ///
    /// Open the heap after the transaction has committed. No other transaction may have ranges in the region.
    /// Earlier values of [`Heap`] for the same bytes must not be used any more.
    ///
    /// # Errors
    ///
    /// [`HeapFormatError::Size`], [`HeapFormatError::Busy`], or [`HeapFormatError::Range`] if the transaction
    /// refuses the change.
    pub fn format_in<X: Transact>(
        transaction: &mut X,
        region: &Region,
        start: usize,
        length: usize,
    ) -> Result<(), HeapFormatError> {
        let geometry = geometry(region, start, length)?;
        no_others(transaction.others_in(region))?;
        for (from, to) in steps(geometry) {
            clear(transaction, region, start, from, to)?;
        }
        transaction.write(region, start, &encode_header(geometry))?;
        Ok(())
    }
}

/// Fails if other open transactions have ranges in the region: undoing them later would overwrite the new
/// table.
fn no_others(others: usize) -> Result<(), HeapFormatError> {
    match others {
        0 => Ok(()),
        transactions => Err(HeapFormatError::Busy { transactions }),
    }
}

/// Parts of header and table that are cleared at once.
fn steps(geometry: HeapGeometry) -> impl Iterator<Item = (u64, u64)> {
    let end = page_at(geometry.first);
    let begins = (0..end).step_by(FORMAT_STEP_BYTES);
    begins.map(move |from| (from, end.min(from + FORMAT_STEP_BYTES as u64)))
}

fn geometry(region: &Region, start: usize, length: usize) -> Result<HeapGeometry, HeapFormatError> {
    let room = region.len().saturating_sub(start).min(length);
    let found = room as u64;
    let geometry = HeapGeometry::of(found).filter(|_| start.is_multiple_of(ALIGNMENT));
    geometry.ok_or(HeapFormatError::Size {
        found,
        min: page_at(PAGES_MIN as u32),
        max: page_at(PAGES_MAX as u32),
    })
}

/// Zeroes the nonzero bytes of a part of the header's page and the table, so that a new segment costs no log.
fn clear<X: Transact>(
    transaction: &mut X,
    region: &Region,
    base: usize,
    from: u64,
    to: u64,
) -> Result<(), HeapFormatError> {
    const ROOTS_END: u64 = ROOTS_AT + ROOTS as u64 * 8;
    let mut bytes = [0; FORMAT_STEP_BYTES];
    // Bytes between header, roots and table have no meaning.
    for (start, end) in [
        (0, HEADER_BYTES as u64),
        (ROOTS_AT, ROOTS_END),
        (descriptor_at(0), u64::MAX),
    ] {
        let (start, end) = (start.max(from), end.min(to));
        if start >= end {
            continue;
        }
        let bytes = &mut bytes[..(end - start) as usize];
        region.read_into(base + start as usize, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            bytes.fill(0);
            transaction.write(region, base + start as usize, bytes)?;
        }
    }
    Ok(())
}
