//! All of an arena for one holder, who hands its addresses out himself: an allocator.

use std::ops::Range;

use netram_far_machine::limit::PAGE_BYTES;

use crate::arena::{Arena, ArenaStatus, FarAccessError};
use crate::sys::ArenaArea;

/// All addresses of an arena. What they hold is between those who have them; here pages are only thrown away.
/// A reference to a page that is lost is a bus error (`SIGBUS`), and one by a child of `fork` a segmentation
/// fault.
#[derive(Debug)]
pub struct ArenaSpace {
    arena: Arena,
    area: ArenaArea,
}

impl ArenaSpace {
    /// All of it. `None`: a vector has a part.
    pub fn of(arena: &Arena) -> Option<ArenaSpace> {
        let area = arena.take(arena.pages())?;
        area.dump(0..arena.pages(), false);
        Some(ArenaSpace {
            arena: arena.clone(),
            area,
        })
    }

    /// Where it is; whole pages.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.area.as_ptr().addr();
        start..start + self.area.pages().len() * PAGE_BYTES
    }

    /// Throws away what these pages hold, counted from the first one: they are zeros from now on, and
    /// nowhere. Waits until a thread of the arena has heard of it, 10 to 30 µs.
    pub fn empty(&self, pages: Range<usize>) {
        assert!(pages.end <= self.area.pages().len(), "pages of the arena");
        self.arena.empty(pages);
    }

    /// A core dump has these pages from now on, as far as they are here; without a word it has none.
    pub fn dump(&self, pages: Range<usize>) {
        self.area.dump(pages, true);
    }

    /// Whether these pages were never written, or thrown away since: they are zeros, and nowhere.
    pub fn is_blank(&self, page: usize) -> bool {
        self.arena.is_blank(page)
    }

    /// Waits until more can be kept: not while so many pages wait for room at lenders that nothing more may
    /// leave.
    pub fn room(&self) -> Result<(), FarAccessError> {
        self.arena.room()
    }

    /// How it stands.
    pub fn status(&self) -> ArenaStatus {
        self.arena.status()
    }
}
