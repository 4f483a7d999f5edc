use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use netram_fuse::{
    AgreedSession, FuseDevice, FuseOperation, FuseOptions, FuseRequest, FuseSession, capability,
};

use crate::one_file::{FILE_BYTES, OPTIONS, OneFile, mount, open};

#[test]
fn threads_with_ends_of_their_own_answer_several_programs_until_the_last_file_is_closed() {
    let Some(mount) = mount() else { return };
    let agreed = AgreedSession::begin(mount.device, &OPTIONS).unwrap();
    let service = Arc::new(OneFile::default());
    let session = agreed.serve_apart(Arc::clone(&service), 3).unwrap();
    let programs = (0..4).map(|program| {
        let file = open(&mount.root).unwrap();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 100_000];
            for round in 0..50 {
                file.write_all_at(&bytes[..512], program * 512).unwrap();
                file.sync_data().unwrap();
                file.read_exact_at(&mut bytes, round * 100).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 7));
            }
        })
    });
    for program in programs.collect::<Vec<_>>() {
        program.join().unwrap();
    }
    assert_eq!(service.written.load(Ordering::Relaxed), 4 * 50 * 512);
    drop(mount.root);
    session.join();
}

/// Two servers die with a request that they have read: a third answers it, and the program notices nothing.
#[test]
fn a_request_left_unanswered_is_answered_by_the_server_that_takes_over() {
    let Some(mount) = mount() else { return };
    let agreed = AgreedSession::begin(mount.device, &OPTIONS).unwrap();
    if !agreed.agreement().can_be_taken_over() {
        eprintln!("\nSKIPPED: this kernel does not resend requests (Linux 6.9 does)");
        return;
    }
    let root = mount.root;
    let program = std::thread::spawn(move || {
        let file = open(&root).unwrap();
        assert_eq!(file.metadata().unwrap().len(), FILE_BYTES);
    });
    let mut buffer = vec![0; 2 << 20];
    let length = agreed.device().receive(&mut buffer).unwrap().unwrap();
    let first = FuseRequest::parse(&buffer[..length]).unwrap();
    assert_eq!(first.operation, FuseOperation::Lookup(b"file"));
    let number = first.unique;
    // All that a supervisor keeps.
    let kept = rustix::io::dup(&**agreed.device()).unwrap();
    drop(agreed);
    let second = FuseDevice::from(rustix::io::dup(&kept).unwrap());
    second.resend().unwrap();
    let length = second.receive(&mut buffer).unwrap().unwrap();
    let resent = FuseRequest::parse(&buffer[..length]).unwrap();
    assert_eq!(resent.operation, FuseOperation::Lookup(b"file"));
    assert_eq!(resent.unique, number | 1 << 63);
    drop(second);
    let session =
        FuseSession::take_over(Arc::new(FuseDevice::from(kept)), Arc::new(OneFile::default()), 2).unwrap();
    program.join().unwrap();
    session.join();
}

#[test]
fn requests_by_io_uring_are_answered_on_every_core() {
    let Some(mount) = mount() else { return };
    let options = FuseOptions {
        wanted: OPTIONS.wanted | capability::OVER_IO_URING,
        ..OPTIONS
    };
    let agreed = AgreedSession::begin(mount.device, &options).unwrap();
    if !agreed.agreement().is_over_io_uring() {
        eprintln!(
            "\nSKIPPED: this kernel offers no FUSE over io_uring (`echo Y > /sys/module/fuse/parameters/enable_uring`)"
        );
        return;
    }
    let service = Arc::new(OneFile::default());
    let session = agreed.serve_by_ring(Arc::clone(&service), 2).unwrap();
    let programs = (0..4).map(|program| {
        let file = open(&mount.root).unwrap();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 100_000];
            for round in 0..50 {
                file.write_all_at(&bytes, program * 512).unwrap();
                file.sync_data().unwrap();
                file.read_exact_at(&mut bytes, round * 100).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 7));
            }
        })
    });
    for program in programs.collect::<Vec<_>>() {
        program.join().unwrap();
    }
    assert_eq!(service.written.load(Ordering::Relaxed), 4 * 50 * 100_000);
    drop(mount.root);
    session.join();
}
