//! Tests of a data lender whose own threads fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netram_block_machine::ReplicaIdentity;
use netram_block_machine::message::FollowRequest;
use netram_lender::{DataService, Lender, LenderConfig};
use netram_proto::id::{Epoch, JournalId, WriterId};
use netram_proto::wire::FrameKind;
use netram_transport::{NetAddress, Security, connect};

use super::link::ReplicaLink;
use super::replica_host::ReplicaHost;
use super::restore::replicas;
use crate::{BlockDevice, Volume, VolumeSettings};

const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn write(volume: &Volume, byte: u8) {
    volume.wait(volume.write(0, &[byte; 4096]).unwrap()).unwrap();
}

fn await_service(volume: &Volume) {
    until("the copy has everything", || {
        let tail = volume.status().journal.log.tail.0;
        (volume.data_lender()).is_some_and(|kept| kept.in_service && kept.flushed == tail)
    });
}

fn lender(directory: &Path, keeper: &Arc<ReplicaHost>) -> Lender {
    let config = LenderConfig {
        listen: vec![NetAddress::Unix(directory.join("socket"))],
        memory: 1 << 20,
        store: Some(directory.join("store")),
        allow_disk: true,
        ..LenderConfig::default()
    };
    Lender::start_with(config, Some(Arc::clone(keeper) as _)).unwrap()
}

/// The thread had ended but its entry in the table remained. The copy's client was silently dropped until the
/// lender was restarted.
#[test]
fn a_copy_whose_thread_panicked_is_reopened_for_the_next_session() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let keeper = Arc::new(ReplicaHost::start(&directory.join("kept")).unwrap());
    let lender = lender(directory, &keeper);
    Volume::create(&directory.join("volume"), 1 << 20, 1 << 20).unwrap();
    let mut settings = VolumeSettings {
        data_lender: Some(NetAddress::Unix(directory.join("socket"))),
        ..VolumeSettings::default()
    };
    settings.journal.insecure = true;
    let (volume, _) = Volume::open_with(&directory.join("volume"), &settings).unwrap();
    for byte in 1..4 {
        write(&volume, byte);
        await_service(&volume);
        keeper.plant_panic();
        until("the client notices", || {
            volume.data_lender().is_some_and(|kept| !kept.in_service)
        });
    }
    write(&volume, 9);
    await_service(&volume);
    assert_eq!(keeper.replicas()[0].error, None);
    volume.close().unwrap();
    lender.stop(Duration::ZERO);
    keeper.stop();
}

/// One frame that named a log of two gigabytes had them written to the data lender's disk.
#[test]
fn a_copys_log_takes_room_as_records_come_and_not_as_its_client_claims() {
    const LOG: u64 = 256 << 20;
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let keeper = Arc::new(ReplicaHost::start(&directory.join("kept")).unwrap());
    let lender = lender(directory, &keeper);
    let asked = FollowRequest {
        identity: ReplicaIdentity {
            volume: 7,
            journal: JournalId(8),
        },
        bytes: 1 << 20,
        capacity: LOG,
        key: Vec::new(),
        wrapped_key: Vec::new(),
    };
    let follow = asked.message(Epoch(1), WriterId(1));
    let link = connect(&lender.addresses()[0], &Security::Insecure, PATIENCE).unwrap();
    let mut wire = ReplicaLink::new(link).unwrap();
    wire.send(&follow).unwrap();
    let answer = wire.await_next(Instant::now() + PATIENCE).unwrap().unwrap();
    assert_eq!(answer.header.kind, FrameKind::Following);
    let copies = keeper.copies();
    assert!(copies.promised_bytes > LOG, "the quota counts all of it");
    assert!(
        copies.taken_bytes < LOG / 16,
        "{} bytes are taken",
        copies.taken_bytes
    );
    drop(wire);
    lender.stop(Duration::ZERO);
    keeper.stop();
}

/// A list of all copies reads their files, and a session's arrival must not wait for that.
#[test]
fn a_list_of_all_copies_is_answered_by_a_thread_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let keeper = Arc::new(ReplicaHost::start(&directory.join("kept")).unwrap());
    let lender = lender(directory, &keeper);
    for _ in 0..3 {
        let list = replicas(&lender.addresses()[0], &Security::Insecure).unwrap();
        assert!(list.copies.is_empty());
    }
    lender.stop(Duration::ZERO);
    keeper.stop();
    let late = replicas(&NetAddress::Unix(directory.join("socket")), &Security::Insecure);
    assert!(late.is_err(), "the lender is gone");
}

/// A data lender killed while it created a copy counted the remains as another copy, and with a quota it then
/// refused that volume for good.
#[test]
fn the_remains_of_an_interrupted_creation_do_not_count_against_the_quota() {
    let place = tempfile::tempdir().unwrap();
    let left = place.path().join(format!(".{:032x}.new-0123abcd", 7));
    let copy = place.path().join(format!("{:032x}", 8));
    for directory in [&left, &copy] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("replica"), []).unwrap();
        std::fs::write(directory.join("image"), [0; 8192]).unwrap();
    }
    let keeper = ReplicaHost::start(place.path()).unwrap();
    assert!(!left.exists());
    // Another copy is being created now.
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("replica"), []).unwrap();
    assert_eq!((keeper.copies().copies, keeper.replicas().len()), (1, 1));
    keeper.stop();
}

impl ReplicaHost {
    fn plant_panic(&self) {
        self.shared.planted.store(true, Ordering::Release);
    }
}
