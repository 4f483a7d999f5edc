//! Regions: mapping and unmapping.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netram_rvm::Region;

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::Library;
use crate::log::{LibraryLog, LibraryOptions, absolute};
use crate::regions::{MappedRegion, TakeRegionError};
use crate::registered_pages::PAGE;
use crate::segment::RegionDefinition;

/// The usable length of a segment is a multiple of this, as in the original.
const SECTOR: u64 = 512;

/// A program's request for a mapping.
#[derive(Clone, Debug)]
pub(crate) struct MapRequest {
    pub(crate) path: PathBuf,
    /// Maximum length to use of the segment; 0 means all.
    pub(crate) device_length: u64,
    pub(crate) offset: u64,
    /// Length of the mapping; 0 means to the end.
    pub(crate) length: u64,
    /// Address of the mapping; 0 means anywhere.
    pub(crate) address: usize,
}

/// The resulting mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapResult {
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) address: usize,
}

impl MapRequest {
    /// Fails unless all bytes are inside the segment.
    pub(crate) fn check_fits(&self) -> Result<(), CallFailure> {
        let usable = usable(&self.path, self.device_length)?;
        let end = self.offset.checked_add(self.length);
        match end.is_some_and(|end| end <= usable) {
            true => Ok(()),
            false => Err(self.outside(usable)),
        }
    }

    fn outside(&self, usable: u64) -> CallFailure {
        let MapRequest {
            path, offset, length, ..
        } = self;
        CallFailure::new(
            ReturnCode::Offset,
            format!(
                "{length} bytes from {offset} exceed the {usable} usable bytes of {}; make the file longer",
                path.display()
            ),
        )
    }
}

impl Library {
    /// `rvm_map`.
    pub(crate) fn map(
        &self,
        request: &MapRequest,
        choices: Option<LibraryOptions>,
    ) -> Result<MapResult, CallFailure> {
        let _setup = self.setup()?;
        if let Some(choices) = choices {
            self.choose(choices)?;
        }
        self.with_log(|log| self.map_in(log, request))
    }

    /// Maps while the caller holds `setup`.
    pub(crate) fn map_in(&self, log: &LibraryLog, request: &MapRequest) -> Result<MapResult, CallFailure> {
        let path = absolute(&request.path)?;
        let usable = usable(&path, request.device_length)?;
        let (offset, length) = span(request, usable)?;
        let region = self.map_placed(log, &path, offset, length, request.address)?;
        let mapped = MappedRegion::of(region);
        let got = MapResult {
            offset,
            length: mapped.length,
            address: mapped.start,
        };
        self.regions.insert(Arc::new(mapped));
        Ok(got)
    }

    fn map_placed(
        &self,
        log: &LibraryLog,
        path: &Path,
        offset: u64,
        length: u64,
        address: usize,
    ) -> Result<Region, CallFailure> {
        let path = path.to_str().ok_or_else(|| {
            CallFailure::io(
                libc::EILSEQ,
                format!("{}: the name is not UTF-8; choose another", path.display()),
            )
        })?;
        if address == 0 {
            return Ok(log.memory.map(path, offset, length)?);
        }
        let bytes = usize::try_from(length).map_err(|_| unusable(address, "exceeds the address space"))?;
        if !address.is_multiple_of(PAGE) {
            return Err(unusable(address, "is not a multiple of the page size"));
        }
        if self.regions.meet(address, bytes) {
            return Err(CallFailure::new(
                ReturnCode::MemoryOverlap,
                format!(
                    "some of the {bytes} bytes at {address:#x} belong to a mapped region; unmap it first"
                ),
            ));
        }
        // Whole pages, because the rest of the last page is not usable otherwise.
        match self.registered_pages.hold(address, bytes.next_multiple_of(PAGE)) {
            Some(place) => Ok(crate::abi::map_over(&log.memory, path, offset, length, place)?),
            None => Ok(log.memory.map_at(path, offset, length, address)?),
        }
    }

    /// `rvm_unmap`: the memory stays mapped.
    pub(crate) fn unmap(&self, address: usize, length: usize) -> Result<(), CallFailure> {
        let _setup = self.setup()?;
        let region = self.take(address, length)?;
        region
            .keep_unmapped()
            .map_err(|(error, region)| self.put_back(error.into(), region))
    }

    /// Unmaps and releases the memory, unless the program owned it before. The caller holds `setup`.
    pub(crate) fn unmap_whole(&self, address: usize, length: usize) -> Result<(), CallFailure> {
        self.unmap_taken(self.take(address, length)?)
    }

    /// Unmaps a region that was removed from the table; puts it back after an error.
    pub(crate) fn unmap_taken(&self, region: Region) -> Result<(), CallFailure> {
        let (address, length) = (region.as_ptr().addr(), region.len());
        // Registered pages stay mapped and registered, to be replaced again. If they were released, a later
        // region would replace other mappings at their addresses.
        let unmapped = match self.registered_pages.hold(address, length.next_multiple_of(PAGE)) {
            Some(_) => region.keep_unmapped(),
            None => region.unmap(),
        };
        unmapped.map_err(|(error, region)| self.put_back(error.into(), region))
    }

    /// Removes regions from the table: all of them or, if one is in use, none. Only a heap may use the one
    /// that begins at `heap`.
    pub(crate) fn take_all(
        &self,
        definitions: &[RegionDefinition],
        heap: Option<usize>,
    ) -> Result<Vec<Arc<MappedRegion>>, CallFailure> {
        let spans: Vec<_> = definitions.iter().map(|it| (it.address, it.length)).collect();
        let idle = |mapped: &Arc<MappedRegion>| {
            let holders = 1 + usize::from(heap == Some(mapped.start));
            Arc::strong_count(mapped) == holders && mapped.region.open_transactions() == 0
        };
        let taken = self.regions.take_several(&spans, idle);
        taken.map_err(|(why, (address, length))| take_failure(why, address, length))
    }

    fn take(&self, address: usize, length: usize) -> Result<Region, CallFailure> {
        let taken = self.regions.take(address, length);
        Ok(taken.map_err(|why| take_failure(why, address, length))?.region)
    }

    fn put_back(&self, failure: CallFailure, region: Region) -> CallFailure {
        self.regions.insert(Arc::new(MappedRegion::of(region)));
        failure
    }
}

fn take_failure(why: TakeRegionError, address: usize, length: usize) -> CallFailure {
    let (code, what) = match why {
        TakeRegionError::NoRegion => (ReturnCode::NotMapped, "are not a mapped region"),
        TakeRegionError::Part => (
            ReturnCode::Range,
            "are only a part of a mapped region; unmap the whole region",
        ),
        TakeRegionError::InUse => (
            ReturnCode::Uncommitted,
            "are a region that an open transaction or a started heap uses; end that first",
        ),
    };
    CallFailure::new(code, format!("the {length} bytes at {address:#x} {what}"))
}

/// Keeps a region's memory mapped for the rest of the process's life. No transaction may be open.
pub(crate) fn keep_readable(mut mapped: Arc<MappedRegion>) {
    loop {
        match Arc::try_unwrap(mapped) {
            Ok(alone) => {
                // Without a transaction this cannot fail.
                let kept = alone.region.keep_unmapped();
                assert!(kept.is_ok(), "no transaction has ranges in it");
                return;
            }
            // A call in another thread still uses it, and is about to fail because the library has ended.
            Err(shared) => mapped = shared,
        }
        std::thread::yield_now();
    }
}

fn unusable(address: usize, why: &str) -> CallFailure {
    CallFailure::new(
        ReturnCode::Range,
        format!("the address {address:#x} cannot be used: it {why}"),
    )
}

/// Length of a segment that can be mapped.
fn usable(path: &Path, device_length: u64) -> Result<u64, CallFailure> {
    let found = fs::metadata(path).map_err(|error| {
        CallFailure::system(
            &error,
            format!(
                "the segment {} cannot be read: {error}; create it first",
                path.display()
            ),
        )
    })?;
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(CallFailure::io(
            libc::EISDIR,
            format!("{} is a directory; a segment is a file", path.display()),
        ));
    }
    if (kind.is_block_device() || kind.is_char_device()) && device_length == 0 {
        return Err(CallFailure::new(
            ReturnCode::NotMapped,
            format!("{} is a device; set its length", path.display()),
        ));
    }
    if !kind.is_file() {
        return Err(CallFailure::io(
            libc::EOPNOTSUPP,
            format!(
                "{} is not a file; copy the device's contents to a file and map that",
                path.display()
            ),
        ));
    }
    let whole = found.len() / SECTOR * SECTOR;
    Ok(match device_length {
        0 => whole,
        // The cap is also rounded to sectors: the original wrote nothing smaller.
        cap => whole.min(cap / SECTOR * SECTOR),
    })
}

/// Offset and length of a mapping: whole pages, cut at the usable end.
fn span(request: &MapRequest, usable: u64) -> Result<(u64, u64), CallFailure> {
    let outside = || request.outside(usable);
    let page = PAGE as u64;
    let offset = request.offset / page * page;
    let end = match request.length {
        0 => usable,
        length => {
            let end = request.offset.checked_add(length).ok_or_else(outside)?;
            end.checked_next_multiple_of(page)
                .ok_or_else(outside)?
                .min(usable)
        }
    };
    match request.offset < usable && offset < end {
        true => Ok((offset, end - offset)),
        false => Err(outside()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_of(offset: u64, length: u64, usable: u64) -> Result<(u64, u64), ReturnCode> {
        let request = MapRequest {
            path: "segment".into(),
            device_length: 0,
            offset,
            length,
            address: 0,
        };
        span(&request, usable).map_err(|failure| failure.code)
    }

    #[test]
    fn spans_are_whole_pages_cut_at_the_usable_end() {
        assert_eq!(span_of(0, 0, 9728), Ok((0, 9728)));
        assert_eq!(span_of(0, 10_000, 9728), Ok((0, 9728)));
        assert_eq!(span_of(5000, 10, 9728), Ok((4096, 4096)));
        assert_eq!(span_of(4095, 2, 9728), Ok((0, 8192)));
        assert_eq!(span_of(8192, 0, 9728), Ok((8192, 1536)));
    }

    #[test]
    fn mappings_beyond_the_end_and_overflowing_ones_are_refused() {
        for (offset, length, usable) in [
            (9728, 0, 9728),
            (20_000, 1, 9728),
            (0, 0, 0),
            (1, u64::MAX, 9728),
            (0, u64::MAX - 1, 9728),
        ] {
            assert_eq!(
                span_of(offset, length, usable),
                Err(ReturnCode::Offset),
                "{offset} {length}"
            );
        }
    }
}
