//! The segment loader: mapping regions at the addresses in a segment's header page (`netram_store::loader`).

use std::path::Path;
use std::sync::Arc;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_store::loader::{HEADER_BYTES, decode, encode, lay_out};
pub(crate) use netram_store::loader::{REGIONS_MAX, RegionDefinition, sort};

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::Library;
use crate::log::{LibraryLog, LibraryOptions};
use crate::mapping::MapRequest;

/// A segment to be loaded or created.
pub(crate) struct LoaderSegment<'a> {
    pub(crate) path: &'a Path,
    pub(crate) device_length: u64,
}

impl Library {
    /// Writes a segment's header. `definitions` are sorted and get their offsets.
    pub(crate) fn create_segment(
        &self,
        segment: &LoaderSegment<'_>,
        choices: Option<LibraryOptions>,
        definitions: &mut [RegionDefinition],
    ) -> Result<(), CallFailure> {
        lay_out(definitions)?;
        let _setup = self.setup()?;
        if let Some(choices) = choices {
            self.choose(choices)?;
        }
        self.with_log(|log| {
            if let Some(last) = definitions.last() {
                // Checks, before anything is written, that the file can hold the last region.
                segment.map_request(last.offset, last.length).check_fits()?;
            }
            self.write_header(log, segment, &encode(definitions))
        })
    }

    /// Maps a segment's regions at their addresses.
    pub(crate) fn load_segment(
        &self,
        segment: &LoaderSegment<'_>,
        choices: Option<LibraryOptions>,
    ) -> Result<Vec<RegionDefinition>, CallFailure> {
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

    /// Unmaps a loaded segment's regions and releases their memory.
    pub(crate) fn release_segment(&self, definitions: &[RegionDefinition]) -> Result<(), CallFailure> {
        let _setup = self.setup()?;
        self.release(definitions, None, || ())
    }

    /// Unmaps a segment's regions and releases their memory: all of them or, after an error, none. The caller
    /// holds `setup`. `let_go` drops the heap that keeps the region at `heap` mapped.
    pub(crate) fn release(
        &self,
        definitions: &[RegionDefinition],
        heap: Option<usize>,
        let_go: impl FnOnce(),
    ) -> Result<(), CallFailure> {
        for definition in definitions {
            let open = self.transactions.list(Some(definition.address)).len();
            if open > 0 {
                return Err(CallFailure::new(
                    ReturnCode::Uncommitted,
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
            let mapped = Arc::into_inner(mapped)
                .expect("the region had no other owner and was removed from the table");
            self.unmap_taken(mapped.region)?;
        }
        Ok(())
    }

    fn unload(&self, definitions: &[RegionDefinition]) -> Result<(), CallFailure> {
        for definition in definitions {
            self.unmap_whole(definition.address, definition.length)?;
        }
        Ok(())
    }

    fn load_region(
        &self,
        log: &LibraryLog,
        segment: &LoaderSegment<'_>,
        definition: &RegionDefinition,
    ) -> Result<(), CallFailure> {
        let request = MapRequest {
            address: definition.address,
            ..segment.map_request(definition.offset, definition.length)
        };
        request.check_fits()?;
        let mapped = self.map_in(log, &request);
        mapped.map(drop).map_err(|failure| match failure.code {
            // The original's loader returns this code when an address cannot be used.
            ReturnCode::Range | ReturnCode::MemoryOverlap => CallFailure {
                code: ReturnCode::Internal,
                ..failure
            },
            _ => failure,
        })
    }

    fn read_header(
        &self,
        log: &LibraryLog,
        segment: &LoaderSegment<'_>,
    ) -> Result<[u8; HEADER_BYTES], CallFailure> {
        let mapped = self.map_in(log, &segment.map_request(0, HEADER_BYTES))?;
        let mut header = [0; HEADER_BYTES];
        let read = match self.regions.find(mapped.address, HEADER_BYTES) {
            Some(mapped) => Ok(mapped.region.read_into(0, &mut header)?),
            None => Err(no_header(segment)),
        };
        self.unmap_whole(mapped.address, mapped.length)?;
        read.map(|()| header)
    }

    fn write_header(
        &self,
        log: &LibraryLog,
        segment: &LoaderSegment<'_>,
        header: &[u8; HEADER_BYTES],
    ) -> Result<(), CallFailure> {
        let mapped = self.map_in(log, &segment.map_request(0, HEADER_BYTES))?;
        let written = match self.regions.find(mapped.address, HEADER_BYTES) {
            Some(mapped) => {
                let mut transaction = log.memory.begin(RestoreMode::Restore);
                let declared = transaction
                    .write(&mapped.region, 0, header)
                    .map_err(CallFailure::from);
                declared.and_then(|()| Ok(transaction.commit(Durability::Remote).map(drop)?))
            }
            None => Err(no_header(segment)),
        };
        self.unmap_whole(mapped.address, mapped.length)?;
        written
    }
}

impl LoaderSegment<'_> {
    fn map_request(&self, offset: u64, length: usize) -> MapRequest {
        MapRequest {
            path: self.path.to_path_buf(),
            device_length: self.device_length,
            offset,
            length: length as u64,
            address: 0,
        }
    }
}

fn no_header(segment: &LoaderSegment<'_>) -> CallFailure {
    CallFailure::new(
        ReturnCode::SegmentHeader,
        format!(
            "{} is shorter than a segment's header page",
            segment.path.display()
        ),
    )
}
