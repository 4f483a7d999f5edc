//! Answering a request allocates nothing. A program of its own, because it counts all threads.

#[path = "all/one_file.rs"]
mod one_file;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use netram_alloc_counter::{AllocationCounter, allocations};
use netram_fuse::{AgreedSession, FuseOptions, capability};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::one_file::{FILE_BYTES, OPTIONS, OneFile, mount, open};

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn reads_writes_and_syncs_allocate_nothing() {
    // One core, whose thread has given the largest reply before.
    let mut core = CpuSet::new();
    core.set(sched_getcpu());
    sched_setaffinity(None, &core).unwrap();
    for over_ring in [false, true] {
        let Some(mount) = mount() else { return };
        let wanted = OPTIONS.wanted | if over_ring { capability::OVER_IO_URING } else { 0 };
        let agreed = AgreedSession::begin(mount.device, &FuseOptions { wanted, ..OPTIONS }).unwrap();
        if over_ring && !agreed.agreement().is_over_io_uring() {
            eprintln!("\nSKIPPED: this kernel offers no FUSE over io_uring");
            return;
        }
        let service = Arc::new(OneFile::default());
        let session = match over_ring {
            true => agreed.serve_by_ring(Arc::clone(&service), 1),
            false => agreed.serve(Arc::clone(&service), 1),
        };
        let session = session.unwrap();
        let file = open(&mount.root).unwrap();
        let mut bytes = vec![0; FILE_BYTES as usize];
        let mut ask = || {
            file.write_all_at(&[7; 512], 0).unwrap();
            file.sync_data().unwrap();
            file.read_exact_at(&mut bytes, 0).unwrap();
        };
        ask();
        let before = allocations();
        for _ in 0..100 {
            ask();
        }
        assert_eq!(allocations() - before, 0, "by io_uring: {over_ring}");
        drop(mount.root);
        drop(file);
        session.join();
    }
}
