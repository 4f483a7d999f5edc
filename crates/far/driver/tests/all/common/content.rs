//! Page content that identifies its page and round.

use netram_far::{Page, PageContent, RemotePages};

pub(crate) fn content(page: u32, round: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(u64::from(page) << 32 | round << 12 | index as u64).to_le_bytes());
    }
    bytes
}

pub(crate) fn check(depot: &RemotePages, pages: std::ops::Range<u32>, round: u64) {
    for page in pages {
        let mut bytes = [1; 4096];
        assert_eq!(depot.get(Page(page), &mut bytes), Ok(PageContent::Page));
        assert_eq!(bytes, content(page, round), "page {page}");
    }
}
