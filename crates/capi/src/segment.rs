//! The segment loader: a first page that says at which addresses a segment's regions belong.
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
//! Numbers are the machine's own, as the original wrote them: its segments load here.

use std::path::Path;
use std::sync::Arc;

use netram_proto::port::Durability;
use netram_rvm::Mode;

use crate::code::Code;
use crate::failure::Failure;
use crate::library::Library;
use crate::log::{Choices, OpenLog};
use crate::mapping::Wish;
use crate::places::{PAGE, end_of_pages};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = PAGE;
/// Regions that fit a header.
pub(crate) const REGIONS_MAX: usize = (HEADER_BYTES - DEFINITIONS_AT) / DEFINITION_BYTES;

const ID: u32 = 1;
const VERSION: &[u8] = b"RVM Segment Loader Release 0.1  15 Nov. 1990";
const VERSION_AT: usize = 4;
const VERSION_BYTES: usize = 128;
const COUNT_AT: usize = 136;
const DEFINITIONS_AT: usize = 144;
const DEFINITION_BYTES: usize = 32;

/// One region of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) address: usize,
}

/// A segment to be loaded or made.
pub(crate) struct Segment<'a> {
    pub(crate) path: &'a Path,
    pub(crate) device_length: u64,
}

impl Library {
    /// Writes a segment's header. `definitions` are sorted and given their offsets.
    pub(crate) fn create_segment(
        &self,
        segment: &Segment<'_>,
        choices: Option<Choices>,
        definitions: &mut [Definition],
    ) -> Result<(), Failure> {
        lay_out(definitions)?;
        let _setup = self.setup()?;
        if let Some(choices) = choices {
            self.choose(choices)?;
        }
        self.with_log(|log| {
            if let Some(last) = definitions.last() {
                // Refuses a file that cannot hold the last region, before anything is written.
                segment.wish(last.offset, last.length).check_fits()?;
            }
            self.write_header(log, segment, &encode(definitions))
        })
    }

    /// Maps a segment's regions at their addresses.
    pub(crate) fn load_segment(
        &self,
        segment: &Segment<'_>,
        choices: Option<Choices>,
    ) -> Result<Vec<Definition>, Failure> {
        let _setup = self.setup()?;
        if let Some(choices) = choices {
            self.choose(choices)?;
        }
        self.with_log(|log| {
            let definitions = decode(&self.read_header(log, segment)?)?;
            for (index, definition) in definitions.iter().enumerate() {
                if let Err(failure) = self.load_region(log, segment, definition) {
                    self.unload(&definitions[..index])?;
                    return Err(failure);
                }
            }
            Ok(definitions)
        })
    }

    /// Unmaps a loaded segment's regions and gives their memory back.
    pub(crate) fn release_segment(&self, definitions: &[Definition]) -> Result<(), Failure> {
        let _setup = self.setup()?;
        self.release(definitions, None, || ())
    }

    /// Unmaps a segment's regions and gives their memory back: all of them or, if it is refused, none. `setup` is held.
    /// A heap that holds the region beginning at `heap` lets go of it in `let_go`.
    pub(crate) fn release(
        &self,
        definitions: &[Definition],
        heap: Option<usize>,
        let_go: impl FnOnce(),
    ) -> Result<(), Failure> {
        for definition in definitions {
            let open = self.transactions.list(Some(definition.address)).len();
            if open > 0 {
                return Err(Failure::new(
                    Code::Uncommitted,
                    format!(
                        "{open} open transactions have ranges in the region at {:#x}; commit or abort them first",
                        definition.address
                    ),
                ));
            }
        }
        let taken = self.take_all(definitions, heap)?;
        let_go();
        for mapped in taken {
            let mapped = Arc::into_inner(mapped).expect("nobody else held it, and nobody found it since");
            self.unmap_taken(mapped.region)?;
        }
        Ok(())
    }

    fn unload(&self, definitions: &[Definition]) -> Result<(), Failure> {
        for definition in definitions {
            self.unmap_whole(definition.address, definition.length)?;
        }
        Ok(())
    }

    fn load_region(
        &self,
        log: &OpenLog,
        segment: &Segment<'_>,
        definition: &Definition,
    ) -> Result<(), Failure> {
        let wish = Wish {
            address: definition.address,
            ..segment.wish(definition.offset, definition.length)
        };
        wish.check_fits()?;
        let got = self.map_in(log, &wish);
        got.map(drop).map_err(|failure| match failure.code {
            // What the original's loader answers when an address cannot be had.
            Code::Range | Code::MemoryOverlap => Failure {
                code: Code::Internal,
                ..failure
            },
            _ => failure,
        })
    }

    fn read_header(&self, log: &OpenLog, segment: &Segment<'_>) -> Result<[u8; HEADER_BYTES], Failure> {
        let got = self.map_in(log, &segment.wish(0, HEADER_BYTES))?;
        let mut header = [0; HEADER_BYTES];
        let read = match self.regions.find(got.address, HEADER_BYTES) {
            Some(mapped) => Ok(mapped.region.read_into(0, &mut header)?),
            None => Err(no_header(segment)),
        };
        self.unmap_whole(got.address, got.length)?;
        read.map(|()| header)
    }

    fn write_header(
        &self,
        log: &OpenLog,
        segment: &Segment<'_>,
        header: &[u8; HEADER_BYTES],
    ) -> Result<(), Failure> {
        let got = self.map_in(log, &segment.wish(0, HEADER_BYTES))?;
        let written = match self.regions.find(got.address, HEADER_BYTES) {
            Some(mapped) => {
                let mut transaction = log.memory.begin(Mode::Restore);
                let declared = transaction
                    .write(&mapped.region, 0, header)
                    .map_err(Failure::from);
                declared.and_then(|()| Ok(transaction.commit(Durability::Remote).map(drop)?))
            }
            None => Err(no_header(segment)),
        };
        self.unmap_whole(got.address, got.length)?;
        written
    }
}

impl Segment<'_> {
    fn wish(&self, offset: u64, length: usize) -> Wish {
        Wish {
            path: self.path.to_path_buf(),
            device_length: self.device_length,
            offset,
            length: length as u64,
            address: 0,
        }
    }
}

fn no_header(segment: &Segment<'_>) -> Failure {
    Failure::new(
        Code::SegmentHeader,
        format!("{} is shorter than a segment's header", segment.path.display()),
    )
}

/// Sorts definitions by address, refuses what cannot be, and lays the regions one behind the other.
fn lay_out(definitions: &mut [Definition]) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(Code::Range, text));
    if definitions.is_empty() || definitions.len() > REGIONS_MAX {
        return refused(format!(
            "{} regions; a segment's header has room for 1 to {REGIONS_MAX}",
            definitions.len()
        ));
    }
    if sort(definitions) {
        return refused("two of the regions overlap".to_owned());
    }
    let mut offset = HEADER_BYTES as u64;
    for definition in definitions {
        if end_of_pages(definition.address, definition.length).is_none() {
            return refused(format!(
                "{} bytes at {:#x} are not whole pages of {PAGE}",
                definition.length, definition.address
            ));
        }
        definition.offset = offset;
        offset = offset
            .checked_add(definition.length as u64)
            .ok_or_else(|| Failure::new(Code::Offset, "the regions are longer than a file can be"))?;
    }
    Ok(())
}

/// Sorts definitions by address; whether two of them overlap.
pub(crate) fn sort(definitions: &mut [Definition]) -> bool {
    definitions.sort_by_key(|definition| definition.address);
    definitions
        .windows(2)
        .any(|pair| pair[1].address - pair[0].address < pair[0].length)
}

fn encode(definitions: &[Definition]) -> [u8; HEADER_BYTES] {
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

fn decode(header: &[u8; HEADER_BYTES]) -> Result<Vec<Definition>, Failure> {
    if header[..VERSION_AT] != ID.to_ne_bytes() {
        return Err(Failure::new(
            Code::SegmentHeader,
            "the segment has no header; make it with rvm_create_segment",
        ));
    }
    let text = &header[VERSION_AT..VERSION_AT + VERSION_BYTES];
    if !text.starts_with(VERSION) || text.get(VERSION.len()) != Some(&0) {
        return Err(Failure::new(
            Code::VersionSkew,
            "the segment's header is of another version; load it with the library that made it",
        ));
    }
    let damaged = |what: &str| {
        Failure::new(
            Code::SegmentHeader,
            format!("the segment's header is damaged: {what}"),
        )
    };
    let count = usize::try_from(get(header, COUNT_AT)).unwrap_or(usize::MAX);
    if count == 0 || count > REGIONS_MAX {
        return Err(damaged("no such number of regions can be"));
    }
    let definition = |index: usize| {
        let at = DEFINITIONS_AT + index * DEFINITION_BYTES;
        let definition = Definition {
            offset: get(header, at + 8),
            length: get(header, at + 16) as usize,
            address: get(header, at + 24) as usize,
        };
        let whole = end_of_pages(definition.address, definition.length).is_some();
        let apart = get(header, at) == 0 && definition.offset.is_multiple_of(PAGE as u64);
        (whole && apart && definition.offset >= HEADER_BYTES as u64)
            .then_some(definition)
            .ok_or_else(|| damaged("a region is not whole pages behind it"))
    };
    (0..count).map(definition).collect()
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

    fn definition(address: usize, pages: usize) -> Definition {
        Definition {
            offset: 0,
            length: pages * PAGE,
            address: address * PAGE,
        }
    }

    #[test]
    fn regions_lie_behind_the_header_in_the_order_of_their_addresses() {
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
    fn what_cannot_be_laid_out_is_refused() {
        let code = |definitions: &mut [Definition]| lay_out(definitions).map_err(|failure| failure.code);
        assert_eq!(code(&mut [definition(1, 2), definition(2, 1)]), Err(Code::Range));
        assert_eq!(code(&mut []), Err(Code::Range));
        let odd = Definition {
            length: 100,
            ..definition(1, 1)
        };
        assert_eq!(code(&mut [odd]), Err(Code::Range));
        assert_eq!(
            code(&mut [definition(0, 1)]),
            Err(Code::Range),
            "the address NULL"
        );
        let mut many: Vec<_> = (1..REGIONS_MAX + 2).map(|at| definition(at, 1)).collect();
        assert_eq!(code(&mut many), Err(Code::Range));
        assert_eq!(code(&mut many[..REGIONS_MAX]), Ok(()));
    }

    #[test]
    fn a_damaged_header_is_told_from_another_version_and_from_none() {
        let mut definitions = [definition(2, 1)];
        lay_out(&mut definitions).expect("they can be laid out");
        let good = encode(&definitions);
        let code = |at: usize, byte: u8| {
            let mut header = good;
            header[at] ^= byte;
            decode(&header).map_err(|failure| failure.code)
        };
        assert_eq!(code(0, 2), Err(Code::SegmentHeader));
        assert_eq!(code(VERSION_AT + 20, 1), Err(Code::VersionSkew));
        assert_eq!(code(VERSION_AT + VERSION.len(), 1), Err(Code::VersionSkew));
        assert_eq!(code(COUNT_AT, 1), Err(Code::SegmentHeader));
        assert_eq!(code(COUNT_AT + 1, 1), Err(Code::SegmentHeader));
        assert_eq!(code(DEFINITIONS_AT + 8, 1), Err(Code::SegmentHeader));
        assert_eq!(code(DEFINITIONS_AT + 16, 1), Err(Code::SegmentHeader));
        assert_eq!(decode(&good).expect("it is whole"), definitions);
    }
}
