//! Pages, compressed. LZ4 takes 3.5 µs a page of text in and 0.9 out, measured with its library in C; this
//! one, in safe Rust, has not been measured.

use std::sync::Arc;

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use netram_far_machine::limit::PAGE_BYTES;

use crate::seal::PageBytes;

/// A page that is compressed takes so many bytes at most: it has to save a quarter.
const PACKED_MAX: usize = PAGE_BYTES / 4 * 3;

/// A page in the clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlainPage {
    Whole(Box<PageBytes>),
    /// Compressed, and so shorter than a page.
    Packed(Arc<[u8]>),
}

impl PlainPage {
    /// As it is, or compressed if that saves a quarter of it.
    pub(crate) fn pack(bytes: &PageBytes) -> Option<PlainPage> {
        let mut packed = vec![0; get_maximum_output_size(PAGE_BYTES)];
        let length = compress_into(bytes, &mut packed).expect("there is room for the worst case");
        (length <= PACKED_MAX).then(|| PlainPage::Packed(packed[..length].into()))
    }

    pub(crate) fn whole(bytes: &PageBytes) -> PlainPage {
        PlainPage::Whole(Box::new(*bytes))
    }

    /// What it is made of: a page is whole if that is as long as one.
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

    /// The page. Panics if these bytes are no page's: they were sealed, or never left.
    pub(crate) fn unpack(&self, into: &mut PageBytes) {
        match self {
            PlainPage::Whole(bytes) => *into = **bytes,
            PlainPage::Packed(packed) => {
                let length = decompress_into(packed, into).expect("what was packed is a page");
                assert_eq!(length, PAGE_BYTES, "what was packed is a page");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_compressed_if_that_saves_a_quarter_and_comes_back_as_it_was() {
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
