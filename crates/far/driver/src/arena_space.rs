//! All of an arena for one owner that allocates its addresses itself, such as a memory allocator.

use std::ops::Range;

use netram_far_machine::limit::PAGE_BYTES;

use crate::arena::{Arena, ArenaStatus, FarAccessError};
use crate::sys::ArenaArea;

/// All addresses of an arena. Their content is up to the owner; this type only discards pages. A reference to
/// a lost page raises a bus error (`SIGBUS`), and a reference by a child of `fork` a segmentation fault.
#[derive(Debug)]
pub struct ArenaSpace {
    arena: Arena,
    area: ArenaArea,
}

impl ArenaSpace {
    /// Takes the whole arena. `None`: a vector has a part of it.
    pub fn of(arena: &Arena) -> Option<ArenaSpace> {
        let area = arena.take(arena.pages())?;
        area.dump(0..arena.pages(), false);
        Some(ArenaSpace {
            arena: arena.clone(),
            area,
        })
    }

    /// The address range, in whole pages.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.area.as_ptr().addr();
        start..start + self.area.pages().len() * PAGE_BYTES
    }

    /// Discards pages, counted from the first: they are zeros from now on, stored nowhere. Waits until a
    /// thread of the arena has recorded it, 10 to 30 µs.
    pub fn empty(&self, pages: Range<usize>) {
        assert!(pages.end <= self.area.pages().len(), "the pages are in the arena");
        self.arena.empty(pages);
    }

    /// Includes these pages in core dumps, as far as they are local. By default they are not.
    pub fn dump(&self, pages: Range<usize>) {
        self.area.dump(pages, true);
    }

    /// Whether a page was never written, or was discarded since: zeros, stored nowhere.
    pub fn is_blank(&self, page: usize) -> bool {
        self.arena.is_blank(page)
    }

    /// Waits while so many pages wait for room at lenders that none can be evicted.
    ///
    /// # Errors
    ///
    /// [`FarAccessError::NoRoom`] if that takes longer than the arena's patience.
    pub fn room(&self) -> Result<(), FarAccessError> {
        self.arena.room()
    }

    /// Figures of the arena.
    pub fn status(&self) -> ArenaStatus {
        self.arena.status()
    }
}
