//! Compression of pages with LZ4. The C library takes 3.5 µs to compress a page of text and 0.9 µs to
//! decompress it; this implementation in safe Rust has not been measured.

use std::sync::Arc;

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use netram_far_machine::limit::PAGE_BYTES;

use crate::seal::PageBytes;

/// Maximum bytes of a compressed page: compression must save a quarter.
const PACKED_MAX: usize = PAGE_BYTES / 4 * 3;

/// A page in clear text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlainPage {
    Whole(Box<PageBytes>),
    /// Compressed, and shorter than a page.
    Packed(Arc<[u8]>),
}

impl PlainPage {
    /// The page compressed. `None`: that does not save a quarter.
    pub(crate) fn pack(bytes: &PageBytes) -> Option<PlainPage> {
        let mut packed = vec![0; get_maximum_output_size(PAGE_BYTES)];
        let length = compress_into(bytes, &mut packed).expect("there is room for the worst case");
        (length <= PACKED_MAX).then(|| PlainPage::Packed(packed[..length].into()))
    }

    pub(crate) fn whole(bytes: &PageBytes) -> PlainPage {
        PlainPage::Whole(Box::new(*bytes))
    }

    /// The stored bytes. A full page's length marks an uncompressed page.
    pub(crate) fn parts(&self) -> &[u8] {
        match self {
            PlainPage::Whole(bytes) => &bytes[..],
            PlainPage::Packed(packed) => packed,
        }
    }

    /// The inverse of [`PlainPage::parts`].
    pub(crate) fn of(parts: &[u8]) -> PlainPage {
        match parts.first_chunk::<PAGE_BYTES>() {
            Some(bytes) => PlainPage::whole(bytes),
            None => PlainPage::Packed(parts.into()),
        }
    }

    /// Decompresses the page. Panics on other bytes, which is a defect: they were verified or never left.
    pub(crate) fn unpack(&self, into: &mut PageBytes) {
        match self {
            PlainPage::Whole(bytes) => *into = **bytes,
            PlainPage::Packed(packed) => {
                let length = decompress_into(packed, into).expect("a packed page decompresses to a page");
                assert_eq!(length, PAGE_BYTES, "a packed page decompresses to a page");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_compressed_losslessly_if_that_saves_a_quarter() {
        let mut state = 7_u64;
        let mut any = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        for random in (0..=PAGE_BYTES).step_by(64) {
            let mut bytes = [9; PAGE_BYTES];
            bytes[..random].fill_with(&mut any);
            let packed = PlainPage::pack(&bytes);
            match random {
                0..=2900 => assert!(packed.is_some(), "{random} of 4096 bytes are random"),
                3200.. => assert!(packed.is_none(), "{random} of 4096 bytes are random"),
                _ => (),
            }
            let clear = packed.unwrap_or_else(|| PlainPage::whole(&bytes));
            let mut back = [0; PAGE_BYTES];
            clear.unpack(&mut back);
            assert_eq!(back, bytes);
            assert_eq!(PlainPage::of(clear.parts()), clear);
        }
    }
}
