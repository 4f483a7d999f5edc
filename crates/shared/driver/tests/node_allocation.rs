//! A steady transaction on shared memory allocates nothing in the thread that runs it.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use common::world::{SPAN, TestPaths};
use netram_alloc_counter::{AllocationCounter, allocations_of_thread};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared_machine::{LockId, LockMode};

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn a_steady_transaction_allocates_nothing() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(8, &["a"]);
    let _serving = place.serve();
    let node = place.join("one");
    let mut value = 0_u64;
    let mut round = |commits: u64| {
        let before = allocations_of_thread();
        for _ in 0..commits {
            value += 1;
            let mut txn = node.begin(RestoreMode::Restore).unwrap();
            txn.acquire(LockId(1), LockMode::Exclusive).unwrap();
            txn.acquire(LockId(3), LockMode::Shared).unwrap();
            txn.set(SPAN, &value).unwrap();
            txn.commit(Durability::Remote).unwrap();
            let mut reads = node.begin(RestoreMode::Restore).unwrap();
            reads.acquire(LockId(3), LockMode::Shared).unwrap();
            assert_eq!(reads.get::<u64>(3 * SPAN), Ok(0));
            reads.commit(Durability::Remote).unwrap();
        }
        allocations_of_thread() - before
    };
    // Queues grow while the server's disk lags more than ever before. An allocation of the transaction itself
    // would occur in each round.
    let least = (0..20).map(|_| round(500)).min();
    assert_eq!(least, Some(0), "in 500 commits");
    node.leave().expect("it leaves");
}
