//! Encoding of a heap's header, roots, page descriptors and run headers. `docs/design/heap.md` draws them.

use crate::class::{CLASSES, RUN_HEADER_BYTES, RUNS, RunLayout};
use crate::error::{HeapDamage, HeapOpenError};
use crate::limit::{PAGE_BYTES, PAGES_MAX, PAGES_MIN, ROOTS};

const MAGIC: [u8; 8] = *b"NRAMHEAP";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 40;
/// Offset of the roots: in the header's page but behind the header, which is never rewritten.
pub(crate) const ROOTS_AT: u64 = 512;
pub(crate) const DESCRIPTOR_BYTES: usize = 8;
const RUN_MAGIC: [u8; 4] = *b"NRUN";

/// State of a slot. The two differ in several bits, so that one flipped bit is damage and not another state.
pub(crate) const SLOT_FREE: u8 = 0;
pub(crate) const SLOT_TAKEN: u8 = 0xa5;

const _: () = assert!(ROOTS_AT as usize >= HEADER_BYTES);
const _: () = assert!(ROOTS_AT as usize + ROOTS * 8 <= PAGE_BYTES);

/// Layout of a heap: its pages and the origin of its pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapGeometry {
    /// Pages of the heap, header and table included.
    pub(crate) pages: u32,
    /// First page that can be allocated.
    pub(crate) first: u32,
    /// Offset of the heap from the origin of its pointers, in bytes.
    pub(crate) origin: u64,
}

impl HeapGeometry {
    /// The geometry of a heap of this length; an incomplete last page is not used.
    pub(crate) fn of(bytes: u64) -> Option<HeapGeometry> {
        let pages = bytes / PAGE_BYTES as u64;
        if !(PAGES_MIN as u64..=PAGES_MAX as u64).contains(&pages) {
            return None;
        }
        let table = (pages * DESCRIPTOR_BYTES as u64).div_ceil(PAGE_BYTES as u64);
        Some(HeapGeometry {
            pages: pages as u32,
            first: 1 + table as u32,
            origin: 0,
        })
    }

    /// The same heap with pointers that count from `origin` bytes before it.
    pub(crate) fn counted_from(self, origin: u64) -> HeapGeometry {
        HeapGeometry { origin, ..self }
    }

    /// The pointer to an offset in the heap.
    pub(crate) fn pointer(self, at: u64) -> u64 {
        self.origin + at
    }

    /// Length of the heap, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        page_at(self.pages)
    }

    /// Number of pages that can be allocated.
    pub(crate) fn usable(self) -> u32 {
        self.pages - self.first
    }
}

/// Offset of a page.
pub(crate) fn page_at(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

/// Offset of a page's descriptor.
pub(crate) fn descriptor_at(page: u32) -> u64 {
    PAGE_BYTES as u64 + u64::from(page) * DESCRIPTOR_BYTES as u64
}

/// Offset of a root.
pub(crate) fn root_at(number: usize) -> u64 {
    assert!(number < ROOTS);
    ROOTS_AT + number as u64 * 8
}

/// Offset in its run of a slot's state byte.
pub(crate) fn state_at(slot: u32) -> u64 {
    RUN_HEADER_BYTES as u64 + u64::from(slot)
}

pub(crate) fn encode_header(geometry: HeapGeometry) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&geometry.bytes().to_le_bytes());
    bytes[24..32].copy_from_slice(&u64::from(geometry.first).to_le_bytes());
    let crc = crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes and checks the header of a heap for which `room` bytes are available.
pub(crate) fn decode_header(bytes: &[u8; HEADER_BYTES], room: u64) -> Result<HeapGeometry, HeapOpenError> {
    if bytes[..8] != MAGIC {
        return Err(HeapOpenError::Foreign);
    }
    // The checksum is checked before the version, so that a flipped bit is not reported as another version.
    let crc = crc32c(&bytes[..32]);
    if bytes[32..36] != crc.to_le_bytes() {
        return Err(HeapOpenError::Header);
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(HeapOpenError::Version {
            found: version,
            known: VERSION,
        });
    }
    let length = u64_at(bytes, 16);
    let geometry = HeapGeometry::of(length).filter(|geometry| {
        geometry.bytes() == length
            && u64_at(bytes, 24) == u64::from(geometry.first)
            && u32_at(bytes, 12) as usize == PAGE_BYTES
    });
    let geometry = geometry.ok_or(HeapOpenError::Header)?;
    if length > room {
        return Err(HeapOpenError::Short {
            needed: length,
            found: room,
        });
    }
    Ok(geometry)
}

/// Decoded descriptor: the extent or run that begins at its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageDescriptor {
    /// The page is free, or not the first of its extent or run.
    Empty,
    /// A large block.
    Extent { pages: u32 },
    /// A run of slots.
    Run { class: u8 },
}

const KIND_EXTENT: u8 = b'E';
const KIND_RUN: u8 = b'R';

impl PageDescriptor {
    pub(crate) fn encode(self, page: u32) -> [u8; DESCRIPTOR_BYTES] {
        let (kind, class, pages) = match self {
            PageDescriptor::Empty => return [0; DESCRIPTOR_BYTES],
            PageDescriptor::Extent { pages } => (KIND_EXTENT, 0, pages),
            PageDescriptor::Run { class } => (KIND_RUN, class, RUNS[usize::from(class)].pages),
        };
        checksum_descriptor(page, pages, kind, class)
    }

    /// Decodes and checks the descriptor of `page`.
    pub(crate) fn decode(
        bytes: [u8; DESCRIPTOR_BYTES],
        page: u32,
        geometry: HeapGeometry,
    ) -> Result<PageDescriptor, HeapDamage> {
        let word = u64::from_le_bytes(bytes);
        if word == 0 {
            return Ok(PageDescriptor::Empty);
        }
        let damage = HeapDamage::Descriptor { page };
        let body = word & 0x0000_ffff_ffff_ffff;
        if (word >> 48) as u16 != check(page, body) {
            return Err(damage);
        }
        let (pages, class) = (word as u32, bytes[4]);
        let fits = pages > 0 && page >= geometry.first && pages <= geometry.pages - page;
        match bytes[5] {
            KIND_EXTENT if fits && class == 0 => Ok(PageDescriptor::Extent { pages }),
            KIND_RUN if fits && usize::from(class) < CLASSES && RUNS[usize::from(class)].pages == pages => {
                Ok(PageDescriptor::Run { class })
            }
            _ => Err(damage),
        }
    }

    /// Number of pages of the extent or run; zero if empty.
    pub(crate) fn pages(self) -> u32 {
        match self {
            PageDescriptor::Empty => 0,
            PageDescriptor::Extent { pages } => pages,
            PageDescriptor::Run { class } => RUNS[usize::from(class)].pages,
        }
    }
}

/// Encodes the descriptor of `page` with its checksum.
pub(crate) fn checksum_descriptor(page: u32, pages: u32, kind: u8, class: u8) -> [u8; DESCRIPTOR_BYTES] {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    bytes[..4].copy_from_slice(&pages.to_le_bytes());
    bytes[4] = class;
    bytes[5] = kind;
    let check = check(page, u64::from_le_bytes(bytes));
    bytes[6..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Checksum of 16 bits over a descriptor and its page number. It is a multiplication, because every
/// allocation of pages computes it.
fn check(page: u32, body: u64) -> u16 {
    let mixed =
        (body ^ u64::from(page).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    // Never zero, so that a zeroed checksum counts as damage.
    ((mixed >> 48) as u16) | 1
}

/// Encodes the header of a run and the states of its slots, all free.
pub(crate) fn encode_run(page: u32, class: u8, into: &mut [u8]) {
    let run = RUNS[usize::from(class)];
    into.fill(SLOT_FREE);
    into[..4].copy_from_slice(&RUN_MAGIC);
    into[4..8].copy_from_slice(&page.to_le_bytes());
    into[8..10].copy_from_slice(&u16::from(class).to_le_bytes());
    into[10..12].copy_from_slice(&(run.slots as u16).to_le_bytes());
    let crc = crc32c(&into[..12]);
    into[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Bytes of a run's header and states.
pub(crate) fn run_header_bytes(run: RunLayout) -> usize {
    RUN_HEADER_BYTES + run.slots as usize
}

/// Checks a run's header and states.
pub(crate) fn check_run(page: u32, class: u8, bytes: &[u8]) -> Result<(), HeapDamage> {
    let mut expected = [0; RUN_HEADER_BYTES];
    encode_run(page, class, &mut expected);
    if bytes[..RUN_HEADER_BYTES] != expected {
        return Err(HeapDamage::Run { page });
    }
    let states = &bytes[RUN_HEADER_BYTES..];
    match states
        .iter()
        .position(|state| !matches!(*state, SLOT_FREE | SLOT_TAKEN))
    {
        None => Ok(()),
        Some(slot) => Err(HeapDamage::Slot {
            page,
            slot: slot as u32,
        }),
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 1 << 20;

    fn geometry() -> HeapGeometry {
        HeapGeometry::of(ROOM).unwrap()
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_an_error() {
        let good = encode_header(geometry());
        assert_eq!(decode_header(&good, ROOM), Ok(geometry()));
        for bit in 0..36 * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let refused = decode_header(&bad, ROOM);
            assert!(
                matches!(refused, Err(HeapOpenError::Foreign | HeapOpenError::Header)),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn another_version_and_a_short_region_have_their_own_errors() {
        let good = encode_header(geometry());
        let short = HeapOpenError::Short {
            needed: ROOM,
            found: ROOM - 4096,
        };
        assert_eq!(decode_header(&good, ROOM - 4096), Err(short));
        let mut newer = good;
        newer[8] = 9;
        let crc = crc32c(&newer[..32]);
        newer[32..36].copy_from_slice(&crc.to_le_bytes());
        let refused = HeapOpenError::Version { found: 9, known: 1 };
        assert_eq!(decode_header(&newer, ROOM), Err(refused));
    }

    #[test]
    fn no_flipped_bit_of_a_descriptor_makes_another_block() {
        for descriptor in [
            PageDescriptor::Extent { pages: 7 },
            PageDescriptor::Run { class: 12 },
        ] {
            let good = descriptor.encode(9);
            assert_eq!(PageDescriptor::decode(good, 9, geometry()), Ok(descriptor));
            assert!(
                PageDescriptor::decode(good, 10, geometry()).is_err(),
                "another page's"
            );
            for bit in 0..64 {
                let mut bad = good;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    PageDescriptor::decode(bad, 9, geometry()),
                    Err(HeapDamage::Descriptor { page: 9 }),
                    "bit {bit}"
                );
            }
        }
    }

    #[test]
    fn a_descriptor_that_reaches_beyond_the_heap_is_an_error() {
        let last = geometry().pages - 1;
        let good = PageDescriptor::Extent { pages: 1 }.encode(last);
        assert!(PageDescriptor::decode(good, last, geometry()).is_ok());
        let bad = PageDescriptor::Extent { pages: 2 }.encode(last);
        assert!(PageDescriptor::decode(bad, last, geometry()).is_err());
        let table = PageDescriptor::Extent { pages: 1 }.encode(1);
        assert!(
            PageDescriptor::decode(table, 1, geometry()).is_err(),
            "the table is not a block"
        );
    }

    #[test]
    fn every_flipped_bit_of_a_run_header_is_an_error() {
        let mut good = vec![0; run_header_bytes(RUNS[3])];
        encode_run(5, 3, &mut good);
        good[RUN_HEADER_BYTES + 2] = SLOT_TAKEN;
        assert_eq!(check_run(5, 3, &good), Ok(()));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check_run(5, 3, &bad).is_err(), "bit {bit}");
        }
    }
}
