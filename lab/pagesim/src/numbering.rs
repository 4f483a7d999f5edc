//! Numbers of the pages that a program references: 0, 1, 2 ... in the order of their first reference.
//!
//! Programs reference a few large parts of a large address space. The table therefore has a chunk for every
//! 2^15 pages that contain a reference, behind a small cache of chunks.

use std::collections::HashMap;

use netram_far_machine::paging::Page;

const CHUNK_BITS: u32 = 15;
/// Number of cached chunks: stack, heap, data and libraries are rarely more.
const CACHED: usize = 16;

/// No page has this number.
const NONE: u32 = u32::MAX;

/// Page numbers by address; the module's comment describes the table.
#[derive(Debug)]
pub(crate) struct Numbering {
    chunks: Vec<Box<[u32]>>,
    places: HashMap<u64, usize>,
    /// Number of the chunk, and its index.
    cache: [(u64, usize); CACHED],
    next: u32,
}

impl Numbering {
    pub(crate) fn new() -> Numbering {
        Numbering {
            chunks: Vec::new(),
            places: HashMap::new(),
            cache: [(u64::MAX, 0); CACHED],
            next: 0,
        }
    }

    /// The number of the page with address `page` times the page size.
    #[inline]
    pub(crate) fn number(&mut self, page: u64) -> Page {
        let chunk = page >> CHUNK_BITS;
        let (cached, place) = self.cache[chunk as usize % CACHED];
        let place = if cached == chunk { place } else { self.find(chunk) };
        let slot = &mut self.chunks[place][page as usize & ((1 << CHUNK_BITS) - 1)];
        if *slot == NONE {
            *slot = self.next;
            self.next += 1;
            assert!(self.next < NONE, "a program of less than 2^32 pages");
        }
        Page(*slot)
    }

    /// Number of referenced pages.
    pub(crate) fn pages(&self) -> u32 {
        self.next
    }

    #[cold]
    fn find(&mut self, chunk: u64) -> usize {
        let next = self.chunks.len();
        let place = *self.places.entry(chunk).or_insert(next);
        if place == next {
            self.chunks.push(vec![NONE; 1 << CHUNK_BITS].into_boxed_slice());
        }
        self.cache[chunk as usize % CACHED] = (chunk, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_in_order_of_first_reference() {
        let mut numbering = Numbering::new();
        let far = 1 << 40;
        let pages = [7, far, 7 + (CACHED as u64) * (1 << CHUNK_BITS), 8, far, 7];
        let numbers: Vec<u32> = pages.iter().map(|page| numbering.number(*page).0).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 1, 0]);
        assert_eq!(numbering.pages(), 4);
    }
}
