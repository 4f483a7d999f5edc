//! Making a region a heap.

use std::sync::Arc;

use netram_proto::port::{Durability, Log};
use netram_rvm::{Mode, Region, Rvm, Storage, Transaction};

use super::Heap;
use crate::error::FormatError;
use crate::layout::{Geometry, HEADER_BYTES, ROOTS_AT, descriptor_at, encode_header, page_at};
use crate::limit::{FORMAT_STEP_BYTES, PAGES_MAX, PAGES_MIN, ROOTS};

impl Heap {
    /// Makes the region a heap without blocks, whatever it was, and opens it. It returns when the heap is as
    /// safe as a remote commit.
    ///
    /// The table is cleared in small transactions of which the header's is the last: a crash on the way
    /// leaves no heap.
    pub fn format<L: Log, S: Storage>(
        rvm: &Rvm<L, S>,
        region: impl Into<Arc<Region>>,
    ) -> Result<Heap, FormatError> {
        let region = region.into();
        let geometry = geometry(&region)?;
        let mut from = 0;
        while from < page_at(geometry.first) {
            let mut step = rvm.begin(Mode::Restore);
            let to = (from + FORMAT_STEP_BYTES as u64).min(page_at(geometry.first));
            clear(&mut step, &region, from, to)?;
            step.commit(Durability::Lazy)?;
            from = to;
        }
        let mut last = rvm.begin(Mode::Restore);
        last.write(&region, 0, &encode_header(geometry))?;
        last.commit(Durability::Remote)?;
        Ok(Heap::open(region).expect("a heap just formatted opens"))
    }

    /// Makes the region a heap without blocks as a part of the caller's transaction, and nothing else. A
    /// region whose table is not zeros, eight bytes a page, needs a record that large.
    ///
    /// Open it when the transaction has committed. Other values of [`Heap`] for the same region are void.
    pub fn format_in<L: Log, S: Storage>(
        transaction: &mut Transaction<L, S>,
        region: &Region,
    ) -> Result<(), FormatError> {
        let geometry = geometry(region)?;
        let mut from = 0;
        while from < page_at(geometry.first) {
            let to = (from + FORMAT_STEP_BYTES as u64).min(page_at(geometry.first));
            clear(transaction, region, from, to)?;
            from = to;
        }
        transaction.write(region, 0, &encode_header(geometry))?;
        Ok(())
    }
}

fn geometry(region: &Region) -> Result<Geometry, FormatError> {
    let found = region.len() as u64;
    Geometry::of(found).ok_or(FormatError::Size {
        found,
        min: page_at(PAGES_MIN as u32),
        max: page_at(PAGES_MAX as u32),
    })
}

/// Zeroes what is not zeros yet of a part of the header's page and the table: a fresh segment costs no log.
fn clear<L: Log, S: Storage>(
    transaction: &mut Transaction<L, S>,
    region: &Region,
    from: u64,
    to: u64,
) -> Result<(), FormatError> {
    const ROOTS_END: u64 = ROOTS_AT + ROOTS as u64 * 8;
    let mut bytes = [0; FORMAT_STEP_BYTES];
    // Between header, roots and table nothing has a meaning.
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
        region.read_into(start as usize, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            bytes.fill(0);
            transaction.write(region, start as usize, bytes)?;
        }
    }
    Ok(())
}
