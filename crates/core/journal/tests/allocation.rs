//! A commit allocates nothing on the heap: not in the committing thread, the lender, the disk thread or the
//! maintenance thread.
//!
//! A test binary of its own, since the counting allocator sees every thread of the process.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use common::{KIND, TestJournal};
use netram_alloc_counter::{AllocationCounter, allocations};
use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordLog};
use netram_transport::WaitPolicy;

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn a_commit_allocates_nothing_however_it_waits() {
    for wait in [WaitPolicy::default(), WaitPolicy::Block] {
        let place = TestJournal::new();
        let _lenders = [place.lender("a"), place.lender("b")];
        Journal::create(&place.journal(), 16 << 20).unwrap();
        let (journal, _) = place.open(JournalConfig {
            wait,
            ..place.config(&["a", "b"], 2)
        });
        let payload = [7; 128];
        let commit = |durability| {
            let ticket = journal.append(KIND, payload.len(), &mut |into| into.copy_from_slice(&payload));
            journal.wait(ticket.unwrap(), durability).unwrap();
        };
        let all = [
            Durability::Remote,
            Durability::Lazy,
            Durability::Disk,
            Durability::Both,
        ];
        // Buffers and the cipher's tables reach their size.
        (0..200).for_each(|_| all.into_iter().for_each(commit));
        let before = allocations();
        (0..500).for_each(|_| all.into_iter().for_each(commit));
        assert_eq!(allocations() - before, 0, "waiting by {wait}");
    }
}
