//! `rvm_malloc_X`, `rvm_init_X`, `rvm_copy_X`, `rvm_free_X`.

use super::heap::{copy, free_record, init, malloc, release};
use super::record;
use crate::record::{Options, Region, Tid};
use crate::statistics::StatisticsRecord;

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_tid() -> *mut Tid {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_tid(tid: *mut Tid) {
    init(tid);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_tid(tid: *const Tid) -> *mut Tid {
    copy(tid)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_tid(tid: *mut Tid) {
    free_record(tid);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_region() -> *mut Region {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_region(region: *mut Region) {
    init(region);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_region(region: *const Region) -> *mut Region {
    copy(region)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_region(region: *mut Region) {
    free_record(region);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_malloc_options() -> *mut Options {
    malloc()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_options(options: *mut Options) {
    init(options);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_copy_options(options: *const Options) -> *mut Options {
    copy(options)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_free_options(options: *mut Options) {
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
