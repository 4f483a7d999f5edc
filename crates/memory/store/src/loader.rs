//! The segment loader's header page, which records the addresses of a segment's regions.
//!
//! The format is the original RVM's. C programs load and create such segments (`rvm_segment.h`), and so do
//! the replacements for the original's tools. This module only encodes and decodes the page; callers read and
//! write it.
//!
//! ```text
//!         0       1       2       3       4       5       6       7
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//!   0 |         id (1)                |                               |
//!     +-------+-------+-------+-------+                               |
//!     |             version text, 128 bytes with its zeros            |
//! 128 |                               +-------+-------+-------+-------+
//!     |                               |           padding             |
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//! 136 |                       count of regions                        |
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//! 144 |                  offset in the segment, high                  |   for
//! 152 |                  offset in the segment, low                   |   each
//! 160 |                       length in bytes                         |   region
//! 168 |                          address                              |
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//! ```
//!
//! Numbers have the machine's byte order, as in the original, so that its segments load here.

use netram_rvm::limit::PAGE_BYTES;

/// Bytes of a page.
const PAGE: usize = PAGE_BYTES as usize;
/// Bytes of the header.
pub const HEADER_BYTES: usize = PAGE;
/// Regions that fit a header.
pub const REGIONS_MAX: usize = (HEADER_BYTES - DEFINITIONS_AT) / DEFINITION_BYTES;

const ID: u32 = 1;
const VERSION: &[u8] = b"RVM Segment Loader Release 0.1  15 Nov. 1990";
const VERSION_AT: usize = 4;
const VERSION_BYTES: usize = 128;
const COUNT_AT: usize = 136;
const DEFINITIONS_AT: usize = 144;
const DEFINITION_BYTES: usize = 32;

/// One region of a segment in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDefinition {
    /// Offset in the segment; set by [`lay_out`].
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Address in memory.
    pub address: usize,
}

/// Why regions cannot be laid out in a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoaderLayoutError {
    /// The number of regions is zero or too large.
    #[error("{count} regions were given; a segment's header holds 1 to {REGIONS_MAX}")]
    Count {
        /// Number of regions given.
        count: usize,
    },
    /// The addresses of two regions overlap.
    #[error("two of the regions overlap")]
    Overlap,
    /// A region is not whole pages, is at address 0, or extends beyond the last address.
    #[error("{length} bytes at {address:#x} are not whole pages of {PAGE}")]
    NotPages {
        /// Length of the region, in bytes.
        length: usize,
        /// Address of the region.
        address: usize,
    },
    /// The regions together are longer than a file can be.
    #[error("the regions are longer than a file can be")]
    TooLong,
}

/// Why a page is not a usable header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoaderHeaderError {
    /// The page is not a loader header.
    #[error("the segment has no header; create it with rvm_create_segment")]
    Missing,
    /// The header was written by another loader.
    #[error("the segment's header has another version; load it with the library that made it")]
    Version,
    /// The page is a loader header, but damaged.
    #[error("the segment's header is damaged: {0}")]
    Damaged(&'static str),
}

/// Sorts definitions by address, checks them, and assigns consecutive offsets in the segment.
///
/// # Errors
///
/// [`LoaderLayoutError`] if there are no regions or too many, two overlap, or one is not whole pages.
pub fn lay_out(definitions: &mut [RegionDefinition]) -> Result<(), LoaderLayoutError> {
    let count = definitions.len();
    if count == 0 || count > REGIONS_MAX {
        return Err(LoaderLayoutError::Count { count });
    }
    if sort(definitions) {
        return Err(LoaderLayoutError::Overlap);
    }
    let mut offset = HEADER_BYTES as u64;
    for definition in definitions {
        let RegionDefinition { length, address, .. } = *definition;
        if !whole_pages(address, length) {
            return Err(LoaderLayoutError::NotPages { length, address });
        }
        definition.offset = offset;
        offset = offset
            .checked_add(definition.length as u64)
            .ok_or(LoaderLayoutError::TooLong)?;
    }
    Ok(())
}

/// Sorts definitions by address; returns whether two of them overlap.
pub fn sort(definitions: &mut [RegionDefinition]) -> bool {
    definitions.sort_by_key(|definition| definition.address);
    definitions
        .windows(2)
        .any(|pair| pair[1].address - pair[0].address < pair[0].length)
}

/// Encodes the header page. The definitions must be laid out.
pub fn encode(definitions: &[RegionDefinition]) -> [u8; HEADER_BYTES] {
    assert!(definitions.len() <= REGIONS_MAX);
    let mut header = [0; HEADER_BYTES];
    header[..VERSION_AT].copy_from_slice(&ID.to_ne_bytes());
    header[VERSION_AT..VERSION_AT + VERSION.len()].copy_from_slice(VERSION);
    put(&mut header, COUNT_AT, definitions.len() as u64);
    for (index, definition) in definitions.iter().enumerate() {
        let at = DEFINITIONS_AT + index * DEFINITION_BYTES;
        put(&mut header, at + 8, definition.offset);
        put(&mut header, at + 16, definition.length as u64);
        put(&mut header, at + 24, definition.address as u64);
    }
    header
}

/// Decodes the regions in a header page.
///
/// # Errors
///
/// [`LoaderHeaderError`] if the page is not an intact header of this version.
pub fn decode(header: &[u8; HEADER_BYTES]) -> Result<Vec<RegionDefinition>, LoaderHeaderError> {
    if header[..VERSION_AT] != ID.to_ne_bytes() {
        return Err(LoaderHeaderError::Missing);
    }
    let text = &header[VERSION_AT..VERSION_AT + VERSION_BYTES];
    if !text.starts_with(VERSION) || text.get(VERSION.len()) != Some(&0) {
        return Err(LoaderHeaderError::Version);
    }
    let count = usize::try_from(get(header, COUNT_AT)).unwrap_or(usize::MAX);
    if count == 0 || count > REGIONS_MAX {
        return Err(LoaderHeaderError::Damaged("the number of regions is impossible"));
    }
    let definition = |index: usize| {
        let at = DEFINITIONS_AT + index * DEFINITION_BYTES;
        let definition = RegionDefinition {
            offset: get(header, at + 8),
            length: get(header, at + 16) as usize,
            address: get(header, at + 24) as usize,
        };
        let whole = whole_pages(definition.address, definition.length);
        let apart = get(header, at) == 0 && definition.offset.is_multiple_of(PAGE as u64);
        (whole && apart && definition.offset >= HEADER_BYTES as u64)
            .then_some(definition)
            .ok_or(LoaderHeaderError::Damaged(
                "a region does not consist of whole pages behind the header",
            ))
    };
    (0..count).map(definition).collect()
}

fn whole_pages(address: usize, length: usize) -> bool {
    let whole = address.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
    whole && address != 0 && length != 0 && address.checked_add(length).is_some()
}

fn put(header: &mut [u8; HEADER_BYTES], at: usize, value: u64) {
    header[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn get(header: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(address: usize, pages: usize) -> RegionDefinition {
        RegionDefinition {
            offset: 0,
            length: pages * PAGE,
            address: address * PAGE,
        }
    }

    #[test]
    fn regions_follow_the_header_in_the_order_of_their_addresses() {
        let mut definitions = [definition(9, 1), definition(2, 3)];
        lay_out(&mut definitions).expect("they can be laid out");
        assert_eq!(definitions.map(|it| it.address), [2 * PAGE, 9 * PAGE]);
        assert_eq!(definitions.map(|it| it.offset), [PAGE as u64, 4 * PAGE as u64]);
        assert_eq!(
            decode(&encode(&definitions)).expect("it is a header"),
            definitions
        );
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let overlapping = &mut [definition(1, 2), definition(2, 1)];
        assert_eq!(lay_out(overlapping), Err(LoaderLayoutError::Overlap));
        assert_eq!(lay_out(&mut []), Err(LoaderLayoutError::Count { count: 0 }));
        let odd = RegionDefinition {
            length: 100,
            ..definition(1, 1)
        };
        let top = definition(usize::MAX / PAGE, 1);
        let null = definition(0, 1);
        for wrong in [odd, top, null] {
            let RegionDefinition { length, address, .. } = wrong;
            let refused = LoaderLayoutError::NotPages { length, address };
            assert_eq!(lay_out(&mut [wrong]), Err(refused));
        }
        let mut many: Vec<_> = (1..REGIONS_MAX + 2).map(|at| definition(at, 1)).collect();
        assert_eq!(
            lay_out(&mut many),
            Err(LoaderLayoutError::Count {
                count: REGIONS_MAX + 1
            })
        );
        assert_eq!(lay_out(&mut many[..REGIONS_MAX]), Ok(()));
    }

    #[test]
    fn a_damaged_header_is_distinguished_from_another_version_and_from_none() {
        let mut definitions = [definition(2, 1)];
        lay_out(&mut definitions).expect("they can be laid out");
        let good = encode(&definitions);
        let decoded = |at: usize, byte: u8| {
            let mut header = good;
            header[at] ^= byte;
            decode(&header)
        };
        let damaged = |at: usize| matches!(decoded(at, 1), Err(LoaderHeaderError::Damaged(_)));
        assert_eq!(decoded(0, 2), Err(LoaderHeaderError::Missing));
        assert_eq!(decoded(VERSION_AT + 20, 1), Err(LoaderHeaderError::Version));
        assert_eq!(
            decoded(VERSION_AT + VERSION.len(), 1),
            Err(LoaderHeaderError::Version)
        );
        assert!(damaged(COUNT_AT));
        assert!(damaged(COUNT_AT + 1));
        assert!(damaged(DEFINITIONS_AT + 8));
        assert!(damaged(DEFINITIONS_AT + 16));
        assert_eq!(decode(&good).expect("it is whole"), definitions);
    }
}
