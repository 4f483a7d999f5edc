//! The functions of `rvm_segment.h`.

use std::ffi::{c_char, c_int, c_ulong};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use std::slice;

use super::calls::choices_if_any;
use super::{guarded, heap, is_usable, memory, name, put};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::LIBRARY;
use crate::record::{Length, OffsetRecord, OptionsRecord, RegionDefRecord};
use crate::segment::{LoaderSegment, REGIONS_MAX, RegionDefinition, sort};

#[unsafe(no_mangle)]
extern "C" fn rvm_create_segment(
    device: *const c_char,
    device_length: OffsetRecord,
    options: *const OptionsRecord,
    count: Length,
    definitions: *mut RegionDefRecord,
) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let choices = choices_if_any(options)?;
        let path = device_name(device)?;
        let mut wanted = read_definitions(definitions, count)?;
        let made = LIBRARY.create_segment(&segment(&path, device_length)?, choices, &mut wanted);
        // Sorted even after an error, because callers of the original see it so.
        write_definitions(definitions, &wanted);
        made
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_load_segment(
    device: *const c_char,
    device_length: OffsetRecord,
    options: *const OptionsRecord,
    count: *mut c_ulong,
    definitions: *mut *mut RegionDefRecord,
) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        if !is_usable(count) || !is_usable(definitions) {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the pointer for the regions is NULL or misaligned",
            ));
        }
        let choices = choices_if_any(options)?;
        let path = device_name(device)?;
        let loaded = LIBRARY.load_segment(&segment(&path, device_length)?, choices)?;
        let records: Vec<RegionDefRecord> = loaded.iter().map(to_record).collect();
        let Some(array) = heap::array(&records) else {
            LIBRARY.release_segment(&loaded)?;
            return Err(CallFailure::new(
                ReturnCode::NoMemory,
                "no memory to return the regions",
            ));
        };
        let lowest = loaded.iter().map(|it| it.address).min().unwrap_or_default();
        memory::loaded(bytes_of(&loaded), lowest);
        put(count, records.len() as c_ulong);
        put(definitions, array);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_release_segment(count: c_ulong, definitions: *mut *mut RegionDefRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        if !is_usable(definitions) {
            return Err(no_definitions());
        }
        // SAFETY: it is neither NULL nor misaligned, and the header requires the pointer that loading filled.
        let array = unsafe { definitions.read() };
        let loaded = read_definitions(array, count)?;
        LIBRARY.release_segment(&loaded)?;
        memory::released(bytes_of(&loaded));
        heap::release(array);
        put(definitions, null_mut());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn overlap(count: c_ulong, definitions: *mut RegionDefRecord) -> c_int {
    let mut overlapping = true;
    let code = guarded(|| {
        let mut read = read_definitions(definitions, count)?;
        overlapping = sort(&mut read);
        write_definitions(definitions, &read);
        Ok(())
    });
    (code != 0 || overlapping).into()
}

fn device_name(device: *const c_char) -> Result<std::path::PathBuf, CallFailure> {
    name(device).ok_or_else(|| CallFailure::new(ReturnCode::Region, "the segment's name is NULL"))
}

fn segment(path: &Path, device_length: OffsetRecord) -> Result<LoaderSegment<'_>, CallFailure> {
    match device_length.high {
        0 => Ok(LoaderSegment {
            path,
            device_length: device_length.low,
        }),
        _ => Err(CallFailure::new(
            ReturnCode::Offset,
            "the segment's length exceeds 64 bits",
        )),
    }
}

fn read_definitions(
    array: *const RegionDefRecord,
    count: Length,
) -> Result<Vec<RegionDefinition>, CallFailure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if !is_usable(array) {
        return Err(no_definitions());
    }
    if count == 0 || count > REGIONS_MAX {
        return Err(CallFailure::new(
            ReturnCode::Range,
            format!("{count} regions were passed; a segment has 1 to {REGIONS_MAX}"),
        ));
    }
    // SAFETY: it is neither NULL nor misaligned, and the header requires `count` definitions there.
    let records = unsafe { slice::from_raw_parts(array, count) };
    Ok(records.iter().map(from_record).collect())
}

fn write_definitions(array: *mut RegionDefRecord, definitions: &[RegionDefinition]) {
    for (index, definition) in definitions.iter().enumerate() {
        // SAFETY: the same number was read from there.
        let element = unsafe { array.add(index) };
        put(element, to_record(definition));
    }
}

fn from_record(record: &RegionDefRecord) -> RegionDefinition {
    RegionDefinition {
        offset: record.offset.low,
        length: record.length as usize,
        address: record.vmaddr.addr(),
    }
}

pub(super) fn to_record(definition: &RegionDefinition) -> RegionDefRecord {
    RegionDefRecord {
        offset: OffsetRecord {
            high: 0,
            low: definition.offset,
        },
        length: definition.length as Length,
        vmaddr: without_provenance_mut(definition.address),
    }
}

pub(super) fn bytes_of(definitions: &[RegionDefinition]) -> usize {
    definitions.iter().map(|it| it.length).sum()
}

fn no_definitions() -> CallFailure {
    CallFailure::new(
        ReturnCode::Range,
        "the pointer to the region definitions is NULL or misaligned",
    )
}
