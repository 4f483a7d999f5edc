//! Many more regions than file descriptors. Runs alone in its process, because it lowers the process's limit.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "all/common/mod.rs"]
mod common;

use common::{Machine, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode, SegmentAllocation};
use rustix::process::{Resource, Rlimit};

const DESCRIPTORS: u64 = 64;
const SEGMENTS: u64 = 8;
const REGIONS: u64 = 1000;
const PAGE: u64 = 4096;

#[test]
fn a_thousand_regions_are_mapped_and_committed_with_sixty_four_descriptors() {
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let open = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok());
    assert!(
        open.collect::<Vec<_>>().len() < DESCRIPTORS as usize,
        "the limit is in force"
    );

    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = |segment: u64| directory.path(&format!("segment-{segment}"));
    for segment in 0..SEGMENTS {
        rvm.create_segment(
            &path(segment),
            REGIONS / SEGMENTS * PAGE,
            SegmentAllocation::Sparse,
        )
        .unwrap();
    }
    let map = |rvm: &netram_rvm::Rvm<_, _>| -> Vec<Region> {
        let mapped = (0..REGIONS).map(|number| {
            rvm.map(&path(number % SEGMENTS), number / SEGMENTS * PAGE, PAGE)
                .unwrap()
        });
        mapped.collect()
    };
    let regions = map(&rvm);
    let mut transaction = rvm.begin(RestoreMode::Restore);
    for (number, region) in regions.iter().enumerate() {
        transaction.set(region, number, &(number as u64 + 1)).unwrap();
    }
    transaction.commit(Durability::Remote).unwrap();
    rvm.truncate().unwrap();
    drop((regions, rvm));
    machine.crash(1);
    let rvm = directory.open(&machine).unwrap();
    for (number, region) in map(&rvm).iter().enumerate() {
        assert_eq!(region.get(number), Ok(number as u64 + 1));
    }
}
