//! `rvm_malloc_X`, `rvm_init_X`, `rvm_copy_X`, `rvm_free_X`.

use super::heap::{copy, free_record, init, malloc, release};
use super::record;
use crate::record::{OptionsRecord, RegionRecord, TidRecord};
use crate::statistics::StatisticsRecord;

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_tid() -> *mut TidRecord {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_tid(tid: *mut TidRecord) {
    init(tid);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_tid(tid: *const TidRecord) -> *mut TidRecord {
    copy(tid)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_tid(tid: *mut TidRecord) {
    free_record(tid);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_region() -> *mut RegionRecord {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_region(region: *mut RegionRecord) {
    init(region);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_region(region: *const RegionRecord) -> *mut RegionRecord {
    copy(region)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_region(region: *mut RegionRecord) {
    free_record(region);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_options() -> *mut OptionsRecord {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_options(options: *mut OptionsRecord) {
    init(options);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_options(options: *const OptionsRecord) -> *mut OptionsRecord {
    copy(options)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_options(options: *mut OptionsRecord) {
    let Some(value) = record(options) else { return };
    if value.head.from_heap != 0 {
        release(value.tid_array);
        free_record(options);
    }
}

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_statistics() -> *mut StatisticsRecord {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_statistics(statistics: *mut StatisticsRecord) {
    init(statistics);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_statistics(statistics: *const StatisticsRecord) -> *mut StatisticsRecord {
    copy(statistics)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_statistics(statistics: *mut StatisticsRecord) {
    free_record(statistics);
}
