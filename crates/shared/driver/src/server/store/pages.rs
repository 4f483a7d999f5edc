//! The region's bytes, for a joining node.

use super::RegionStore;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = crate::server::table::PAGE;
/// Maximum bytes that one search for pages examines, so that merging never waits long for a region of zeros.
const LOOKED_BYTES_MAX: usize = 4 << 20;

const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Adjacent pages that are not all zeros, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Offset of the first page in the region.
    pub offset: u64,
    /// Bytes of the pages; empty: the search found only zeros.
    pub bytes: Vec<u8>,
    /// Offset at which to continue; `None`: the region's end was reached.
    pub next: Option<u64>,
}

impl RegionStore {
    /// Calls `with` on the region's bytes as they are now, cut at the region's end. They contain each record
    /// as a whole or not at all.
    pub fn with_bytes<R>(&self, offset: u64, bytes: u64, with: impl FnOnce(&[u8]) -> R) -> R {
        let memory = self.region.read();
        let place = |at: u64| usize::try_from(at).map_or(memory.len(), |at| at.min(memory.len()));
        let (start, end) = (place(offset), place(offset.saturating_add(bytes)));
        with(&memory[start..end])
    }

    /// Next pages from `from` on (a multiple of [`PAGE_BYTES`]) that are not all zeros: at most `bytes_max`
    /// bytes.
    ///
    /// They contain every record that was merged before the call, and no later one.
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
