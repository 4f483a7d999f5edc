//! Pages in the bodies of frames, one after another:
//!
//! ```text
//!  0  slot u32 | bytes u16 | zeros u16
//!  8  version u64
//! 16  the bytes, 0 to 4,096; in `Get` none
//! ```

use crate::limit::{FRAME_PAGES_MAX, PAGE_BYTES, PAGE_HEADER_BYTES};
use netram_proto::wire::{ByteReader, ShortInputError};

/// The header before a page's bytes.
pub fn page_header(slot: u32, version: u64, bytes: usize) -> [u8; PAGE_HEADER_BYTES] {
    assert!(bytes <= PAGE_BYTES);
    let mut head = [0; PAGE_HEADER_BYTES];
    head[0..4].copy_from_slice(&slot.to_le_bytes());
    head[4..6].copy_from_slice(&(bytes as u16).to_le_bytes());
    head[8..16].copy_from_slice(&version.to_le_bytes());
    head
}

/// A received page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage<'a> {
    /// Slot that has the page or is to get it.
    pub slot: u32,
    /// Version of the page.
    pub version: u64,
    /// Bytes of the page; empty in a request, and if the slot does not have this version.
    pub bytes: &'a [u8],
}

/// The body is not a sequence of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFrameError;

impl From<ShortInputError> for PageFrameError {
    fn from(_: ShortInputError) -> PageFrameError {
        PageFrameError
    }
}

/// The pages of a body, checked as a whole: at least one, at most as many as fit a frame.
#[derive(Clone, Copy, Debug)]
pub struct FramePages<'a>([StoredPage<'a>; FRAME_PAGES_MAX], usize);

impl<'a> FramePages<'a> {
    /// Parses a body.
    ///
    /// # Errors
    ///
    /// [`PageFrameError`] if the body is not a sequence of one to [`FRAME_PAGES_MAX`] pages.
    pub fn parse(body: &'a [u8]) -> Result<FramePages<'a>, PageFrameError> {
        let empty = StoredPage {
            slot: 0,
            version: 0,
            bytes: &[],
        };
        let mut cut = FramePages([empty; FRAME_PAGES_MAX], 0);
        let mut cursor = ByteReader::new(body);
        while !cursor.rest().is_empty() {
            let slot = cursor.u32()?;
            let length = usize::from(cursor.u16()?);
            let (zeros, version) = (cursor.u16()?, cursor.u64()?);
            if zeros != 0 || length > PAGE_BYTES {
                return Err(PageFrameError);
            }
            let bytes = cursor.bytes(length)?;
            *cut.0.get_mut(cut.1).ok_or(PageFrameError)? = StoredPage { slot, version, bytes };
            cut.1 += 1;
        }
        if cut.1 == 0 { Err(PageFrameError) } else { Ok(cut) }
    }

    /// The pages, in order.
    pub fn pages(&self) -> &[StoredPage<'a>] {
        &self.0[..self.1]
    }
}

/// A requested page, and whether it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRequest {
    /// Slot of the page.
    pub slot: u32,
    /// Version of the page.
    pub version: u64,
    /// Bytes that are there; 0: the slot does not have this version.
    pub bytes: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn body(pages: usize, bytes: usize) -> Vec<u8> {
        let mut body = Vec::new();
        for page in 0..pages {
            body.extend_from_slice(&page_header(page as u32, 1 << 40 | page as u64, bytes));
            body.resize(body.len() + bytes, page as u8);
        }
        body
    }

    #[test]
    fn written_pages_parse_to_themselves() {
        for (pages, bytes) in [
            (1, 0),
            (1, PAGE_BYTES),
            (FRAME_PAGES_MAX, 0),
            (FRAME_PAGES_MAX, PAGE_BYTES),
        ] {
            let body = body(pages, bytes);
            let cut = FramePages::parse(&body).unwrap();
            assert_eq!(cut.pages().len(), pages);
            for (index, page) in cut.pages().iter().enumerate() {
                assert_eq!((page.slot, page.version), (index as u32, 1 << 40 | index as u64));
                assert!(page.bytes.len() == bytes && page.bytes.iter().all(|byte| *byte == index as u8));
            }
        }
    }

    #[test]
    fn a_truncated_body_is_refused() {
        let two = body(2, 100);
        for cut in (0..two.len()).filter(|cut| *cut != two.len() / 2) {
            assert!(FramePages::parse(&two[..cut]).is_err(), "cut at {cut}");
        }
        assert!(FramePages::parse(&body(FRAME_PAGES_MAX + 1, 0)).is_err());
        let mut long = page_header(0, 1, PAGE_BYTES).to_vec();
        long[4..6].copy_from_slice(&(PAGE_BYTES as u16 + 1).to_le_bytes());
        long.resize(PAGE_HEADER_BYTES + PAGE_BYTES + 1, 0);
        assert!(FramePages::parse(&long).is_err());
        let mut reserved = body(1, 0);
        reserved[7] = 1;
        assert!(FramePages::parse(&reserved).is_err());
    }
}
