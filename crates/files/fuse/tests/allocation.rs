//! Answering a request allocates nothing. A program of its own, because it counts all threads.

#[path = "all/one_file.rs"]
mod one_file;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use netram_alloc_counter::{AllocationCounter, allocations};
use netram_fuse::AgreedSession;

use crate::one_file::{FILE_BYTES, OPTIONS, OneFile, mount, open};

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn reads_writes_and_syncs_allocate_nothing() {
    let Some(mount) = mount() else { return };
    let agreed = AgreedSession::begin(mount.device, &OPTIONS).unwrap();
    let service = Arc::new(OneFile::default());
    let session = agreed.serve(Arc::clone(&service), 1).unwrap();
    let file = open(&mount.root).unwrap();
    let mut bytes = vec![0; FILE_BYTES as usize];
    let mut ask = || {
        file.write_all_at(&[7; 512], 0).unwrap();
        file.sync_data().unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
    };
    // The largest reply has been answered once.
    ask();
    let before = allocations();
    for _ in 0..100 {
        ask();
    }
    assert_eq!(allocations() - before, 0);
    drop(mount.root);
    drop(file);
    session.join();
}
