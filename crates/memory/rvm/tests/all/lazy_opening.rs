//! Opening and mapping a large segment reads nothing of it. Runs alone in its process, because it reads the
//! process's counters.

use crate::common::{Machine, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, SegmentAllocation};

const SEGMENT_BYTES: u64 = 1 << 30;
const PAGE: usize = 4096;
/// The original read the whole segment. This is a thousandth of it, enough for everything else.
const READ_BYTES_MAX: u64 = 1 << 20;
const PAGES_MAX: u64 = 1000;

/// Bytes that this process has read by system calls, and its minor page faults.
fn costs() -> (u64, u64) {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields follow the program's name, which may contain anything: the first is the state, the eighth the
    // minor faults.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let faults = fields.split(' ').nth(7).unwrap();
    (read.unwrap().parse().unwrap(), faults.parse().unwrap())
}

#[test]
fn a_segment_of_a_gigabyte_is_opened_without_reading_it() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let path = directory.path("large");
    let places: Vec<usize> = (0..10)
        .map(|part| part * (SEGMENT_BYTES as usize / 10) / 8 * 8)
        .collect();
    let rvm = directory.open(&machine).unwrap();
    rvm.create_segment(&path, SEGMENT_BYTES, SegmentAllocation::Preallocated)
        .unwrap();
    let before = costs();
    let large = rvm.map(&path, 0, 0).unwrap();
    assert_eq!(large.len() as u64, SEGMENT_BYTES);
    for place in &places {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.set(&large, *place, &(*place as u64 + 1)).unwrap();
        transaction.commit(Durability::Remote).unwrap();
    }
    drop((large, rvm));
    machine.crash(1);
    // Again with ten transactions to recover, in ten pages.
    let rvm = directory.open(&machine).unwrap();
    assert_eq!(rvm.recovery().transactions, 10);
    let large = rvm.map(&path, 0, 0).unwrap();
    for place in &places {
        assert_eq!(large.get(*place), Ok(*place as u64 + 1));
    }
    assert_eq!(large.get(SEGMENT_BYTES as usize - 8), Ok(0u64));
    let after = costs();
    let (read, pages) = (after.0 - before.0, after.1 - before.1);
    assert!(read < READ_BYTES_MAX, "{read} bytes read");
    assert!(pages < PAGES_MAX, "{pages} pages touched");

    // Check that the counters work: a full read shows up.
    let bytes = large.read();
    let ones = bytes[..256 * PAGE]
        .iter()
        .step_by(PAGE)
        .filter(|byte| **byte == 1);
    assert_eq!(ones.count(), 1);
    let _ = std::fs::read(directory.path("table")).unwrap();
    let again = costs();
    assert!(again.0 - after.0 >= 128 * 1024, "reading the table is counted");
    assert!(again.1 > after.1, "touched pages are counted");
}
