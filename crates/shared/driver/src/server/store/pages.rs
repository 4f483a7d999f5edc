//! The region's bytes, for a node that joins.

use super::RegionStore;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = crate::server::table::PAGE;
/// Bytes that one look for pages passes over at most, so that merging never waits long for a region of zeros.
const LOOKED_BYTES_MAX: usize = 4 << 20;

const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Neighbouring pages that are not all zeros, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Where they begin in the region.
    pub offset: u64,
    /// Their bytes; none: only zeros were passed over.
    pub bytes: Vec<u8>,
    /// Where to go on; `None`: that was the region's end.
    pub next: Option<u64>,
}

impl RegionStore {
    /// Lends bytes of the region as they are now, as far as there are so many: no record is in them in part.
    pub fn with_bytes<R>(&self, offset: u64, bytes: u64, with: impl FnOnce(&[u8]) -> R) -> R {
        let memory = self.region.read();
        let place = |at: u64| usize::try_from(at).map_or(memory.len(), |at| at.min(memory.len()));
        let (start, end) = (place(offset), place(offset.saturating_add(bytes)));
        with(&memory[start..end])
    }

    /// The region's next pages from `from` on, a multiple of [`PAGE_BYTES`], that are not zeros: at most
    /// `bytes_max` bytes of them.
    ///
    /// They have every record that was merged before the call, whole, and nothing of any that is merged
    /// later.
    pub fn page_run(&self, from: u64, bytes_max: usize) -> PageRun {
        assert!(from.is_multiple_of(PAGE_BYTES) && bytes_max >= PAGE_BYTES as usize);
        let memory = self.region.read();
        let from = (from as usize).min(memory.len());
        let looked = &memory[from..(from + LOOKED_BYTES_MAX).min(memory.len())];
        let mut pages = looked.chunks(PAGE_BYTES as usize);
        let zeros = pages.by_ref().take_while(|page| is_zero(page)).count() * PAGE_BYTES as usize;
        let start = zeros.min(looked.len());
        let data = looked[start..].chunks(PAGE_BYTES as usize);
        let data = data
            .take_while(|page| !is_zero(page))
            .take(bytes_max / PAGE_BYTES as usize);
        let length = data.map(<[u8]>::len).sum::<usize>();
        let end = from + start + length;
        PageRun {
            offset: (from + start) as u64,
            bytes: looked[start..start + length].to_vec(),
            next: (end < memory.len()).then_some(end as u64),
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    *page == ZEROS[..page.len()]
}
