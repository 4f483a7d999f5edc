//! Regions at chosen addresses, regions that stay mapped after their end, and closing an `Rvm`: with real
//! files and private mappings.

use std::os::unix::fs::FileExt;

use crate::common::{Machine, TestDirectory};
use netram_proto::port::{Durability, RecordLog, WaitError};
use netram_rvm::{
    FlushError, MapError, RealStorage, Region, RestoreMode, Rvm, RvmCloseError, SegmentAllocation, UnmapError,
};

const PAGE: usize = 4096;
/// Far from the addresses that the system chooses. Tests in this process that request addresses use distinct
/// ones.
const FREE: usize = 0x1000_0000_0000;

fn opened(directory: &TestDirectory, machine: &Machine) -> (Rvm<Machine, RealStorage>, String) {
    let rvm = directory.open(machine).unwrap();
    let path = directory.path("a");
    if !std::path::Path::new(&path).exists() {
        rvm.create_segment(&path, 16 * PAGE as u64, SegmentAllocation::Sparse)
            .unwrap();
    }
    (rvm, path)
}

fn commit(rvm: &Rvm<Machine, RealStorage>, region: &Region, offset: usize, value: u64) {
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(region, offset, &value).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

#[test]
fn a_region_lies_at_the_requested_address_and_replaces_nothing() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    let address = FREE;
    let first = rvm.map_at(&path, 0, 4 * PAGE as u64, address).unwrap();
    commit(&rvm, &first, 8, 7);
    let refused = rvm.map_at(&path, 4 * PAGE as u64, PAGE as u64, address + PAGE);
    let expected = MapError::AddressTaken {
        address: address + PAGE,
        length: PAGE,
    };
    assert_eq!(refused.unwrap_err(), expected);
    assert_eq!(first.get(8), Ok(7u64), "nothing was replaced");
    first.unmap().unwrap();
    let again = rvm.map_at(&path, 0, 4 * PAGE as u64, address).unwrap();
    assert_eq!((again.as_ptr().addr(), again.get(8)), (address, Ok(7u64)));
    commit(&rvm, &again, 16, 8);
    assert_eq!(again.get(16), Ok(8u64));
}

#[test]
fn impossible_addresses_are_refused() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    for address in [FREE + 8, 0] {
        let refused = rvm.map_at(&path, 0, 0, address);
        assert!(matches!(refused, Err(MapError::AddressUnaligned { .. })));
    }
    for address in [usize::MAX - PAGE + 1, 1 << 60] {
        let refused = rvm.map_at(&path, 0, 0, address);
        assert!(matches!(refused, Err(MapError::AddressUnusable { .. })));
    }
    assert!(rvm.query().regions.is_empty());
}

#[test]
fn a_region_kept_unmapped_stays_readable_and_can_be_mapped_again() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    let region = rvm.map(&path, 0, 0).unwrap();
    commit(&rvm, &region, 0, 7);
    let mut open = rvm.begin(RestoreMode::Restore);
    open.set(&region, 8, &8u64).unwrap();
    let (refused, region) = region.keep_unmapped().unwrap_err();
    assert_eq!(refused, UnmapError::Uncommitted { transactions: 1 });
    open.abort();
    let left = region.as_ptr().addr();
    region.keep_unmapped().unwrap();
    assert_eq!(rvm.query().regions, []);

    let again = rvm.map(&path, 0, 0).unwrap();
    assert_ne!(again.as_ptr().addr(), left);
    assert_eq!(again.get(0), Ok(7u64), "committed bytes are mapped again");
    commit(&rvm, &again, 0, 9);
    drop((again, rvm));
    // Read like a debugger does: reading fails where nothing is mapped.
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = [0xee; 16];
    memory.read_exact_at(&mut bytes, left as u64).unwrap();
    assert_eq!(bytes, [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn closing_makes_lazy_commits_safe_and_returns_the_log() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    rvm.start_truncation().unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    let mut lazy = rvm.begin(RestoreMode::Restore);
    lazy.set(&region, 0, &7u64).unwrap();
    let open = rvm.begin(RestoreMode::Restore);
    let (refused, rvm) = rvm.close().err().unwrap();
    assert_eq!(refused, RvmCloseError::Uncommitted { transactions: 2 });
    drop(open);
    let ticket = lazy.commit(Durability::Lazy).unwrap().ticket.unwrap();
    let log = rvm.close().unwrap();
    assert!(log.state().acked >= ticket.end);
    assert_eq!(region.get(0), Ok(7u64), "regions keep their memory");
    drop((region, log));
    machine.crash(1);
    let (rvm, path) = opened(&directory, &machine);
    assert_eq!(rvm.map(&path, 0, 0).unwrap().get(0), Ok(7u64));
}

#[test]
fn closing_returns_the_rvm_if_lazy_commits_cannot_be_made_safe() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    let region = rvm.map(&path, 0, 0).unwrap();
    let mut lazy = rvm.begin(RestoreMode::Restore);
    lazy.set(&region, 0, &7u64).unwrap();
    lazy.commit(Durability::Lazy).unwrap();
    machine.crash_after(0);
    let (refused, rvm) = rvm.close().err().unwrap();
    let expected = RvmCloseError::Flush(FlushError::Unknown(WaitError::Closed));
    assert_eq!(refused, expected);
    assert_eq!(rvm.query().regions.len(), 1);
}

#[test]
fn the_list_of_segments_has_their_numbers() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, path) = opened(&directory, &machine);
    assert_eq!(rvm.segments(), []);
    drop(rvm.map(&path, 0, 0).unwrap());
    let segments = rvm.segments();
    assert_eq!(segments.len(), 1);
    assert!(segments[0].path.ends_with("/a"));
    assert_eq!((segments[0].index, segments[0].length), (0, 16 * PAGE as u64));
}
