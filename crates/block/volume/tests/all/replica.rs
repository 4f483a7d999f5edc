//! A volume kept twice, by a data lender in this process: following, absence, repairs, and both ways to
//! continue without the client's disk.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use netram_block::VolumeId;
use netram_lender::{Lender, LenderConfig};
use netram_transport::{NetAddress, Security};
use netram_volume::replica::restore::{DataLenderEndpoint as From, RestoreRequest, replicas, restore};
use netram_volume::replica::{DataLenderStatus, ReplicaHost};
use netram_volume::{BlockDevice, Volume, VolumeOpenError, VolumeSettings};

const BLOCK: usize = 4096;
const BYTES: u64 = 16 << 20;
const JOURNAL_BYTES: u64 = 4 << 20;
/// Timeout of everything that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a client's volume and a data lender's directory.
struct TestPaths {
    directory: tempfile::TempDir,
}

/// A data lender, stopped when dropped.
struct RunningDataLender {
    lender: Lender,
    keeper: Arc<ReplicaHost>,
}

impl Drop for RunningDataLender {
    fn drop(&mut self) {
        self.lender.stop(Duration::ZERO);
        self.keeper.stop();
    }
}

impl TestPaths {
    fn new() -> TestPaths {
        let directory = tempfile::tempdir().unwrap();
        TestPaths { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self) -> NetAddress {
        NetAddress::Unix(self.path("data.sock"))
    }

    fn lender(&self) -> RunningDataLender {
        let keeper = Arc::new(ReplicaHost::start(&self.path("kept")).unwrap());
        let config = LenderConfig {
            listen: vec![self.address()],
            memory: 1 << 20,
            store: Some(self.path("store")),
            allow_disk: true,
            ..LenderConfig::default()
        };
        let lender = Lender::start_with(config, Some(keeper.clone())).unwrap();
        RunningDataLender { lender, keeper }
    }

    fn settings(&self) -> VolumeSettings {
        let mut settings = VolumeSettings {
            data_lender: Some(self.address()),
            ..VolumeSettings::default()
        };
        settings.journal.insecure = true;
        settings.policy.bytes = 128 * 1024;
        settings
    }

    fn create(&self) -> VolumeId {
        Volume::create(&self.path("volume"), BYTES, JOURNAL_BYTES).unwrap()
    }

    fn open(&self) -> Volume {
        Volume::open_with(&self.path("volume"), &self.settings())
            .unwrap()
            .0
    }

    fn copy(&self, volume: VolumeId) -> PathBuf {
        self.path("kept").join(volume.to_string())
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn standing(volume: &Volume) -> DataLenderStatus {
    let mut status = None;
    until("the feeder has reported its status", || {
        status = volume.status().data_lender;
        status.is_some()
    });
    status.unwrap()
}

/// Waits until the data lender has everything written.
fn settle(volume: &Volume) {
    volume.drain().unwrap();
    until("the data lender has everything", || {
        let status = standing(volume);
        let stable = volume.status().journal.log.stable.0;
        status.in_service && status.flushed == stable
    });
}

fn fill(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK)
        .map(|at| (at as u64 ^ block.wrapping_mul(37)) as u8 ^ version)
        .collect()
}

/// Writes blocks, and waits for all of them together.
fn write_all(volume: &Volume, blocks: impl Iterator<Item = u64>, version: u8) {
    let pending = blocks.map(|block| volume.write(block * BLOCK as u64, &fill(block, version)).unwrap());
    volume.wait(pending.last().unwrap()).unwrap();
}

fn write(volume: &Volume, block: u64, version: u8) {
    write_all(volume, [block].into_iter(), version);
}

fn read(volume: &Volume, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    volume.read(block * BLOCK as u64, &mut bytes).unwrap();
    bytes
}

fn check(volume: &Volume, blocks: impl Iterator<Item = (u64, u8)>) {
    for (block, version) in blocks {
        assert!(read(volume, block) == fill(block, version), "block {block}");
    }
}

/// Flips a byte of a block in an image.
fn spoil(root: &Path, block: u64) {
    let image = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(root.join("image"))
        .unwrap();
    let mut byte = [0];
    let at = BLOCK as u64 * (block + 1) + 77;
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 8], at).unwrap();
}

#[test]
fn a_copy_follows_and_is_taken_over_in_place() {
    let place = TestPaths::new();
    let id = place.create();
    let lender = place.lender();
    let volume = place.open();
    write_all(&volume, 0..200, 1);
    volume.discard(10 * BLOCK as u64, 5 * BLOCK as u64).unwrap();
    settle(&volume);
    volume.grow(BYTES + (1 << 20)).unwrap();
    write(&volume, BYTES / BLOCK as u64, 2);
    settle(&volume);
    let kept = replicas(&place.address(), &Security::Insecure).unwrap();
    assert_eq!(kept.left_out, 0);
    let listed = kept.copies;
    assert_eq!((listed.len(), listed[0].state.as_str()), (1, "following"));
    assert_eq!(listed[0].volume, id.to_string());
    assert!(listed[0].flushed.is_some(), "the copy is open");
    let copy = place.copy(id);
    let refused = Volume::open_with(&copy, &VolumeSettings::default()).unwrap_err();
    assert!(matches!(refused, VolumeOpenError::Replica { .. }), "{refused}");
    volume.close().unwrap();
    drop(lender);
    let taking = VolumeSettings {
        take_over: true,
        client_is_off: true,
        ..VolumeSettings::default()
    };
    let (taken, _) = Volume::open_with(&copy, &taking).unwrap();
    assert_eq!(taken.geometry().bytes, BYTES + (1 << 20));
    check(&taken, (0..10).chain(15..200).map(|block| (block, 1)));
    check(&taken, [(BYTES / BLOCK as u64, 2)].into_iter());
    assert!((10..15).all(|block| read(&taken, block) == [0; BLOCK]));
    taken.close().unwrap();
    let (again, _) = Volume::open_with(&copy, &VolumeSettings::default()).unwrap();
    check(&again, (15..200).map(|block| (block, 1)));
    drop(again);
    // The old client learns that it is no longer the volume, before it serves any request.
    let _lender = place.lender();
    let refused = Volume::open_with(&place.path("volume"), &place.settings()).map(drop);
    let refused = refused
        .expect_err("the volume opened although its copy was taken over")
        .to_string();
    assert!(refused.contains("claimed it"), "{refused}");
}

#[test]
fn after_an_absence_only_changed_blocks_are_sent() {
    let place = TestPaths::new();
    let id = place.create();
    let lender = place.lender();
    let volume = place.open();
    write_all(&volume, 0..2000, 1);
    settle(&volume);
    // Blocks marked by a slow start are sent first, so that only later ones count.
    netram_volume::resync(&volume, false, &AtomicBool::new(false), &mut |_| ()).unwrap();
    settle(&volume);
    until("no block is left to be sent", || {
        standing(&volume).dirty_blocks == 0
    });
    let resyncs = standing(&volume).resyncs;
    // A short absence: the journal still has everything.
    drop(lender);
    write_all(&volume, 0..20, 2);
    let lender = place.lender();
    settle(&volume);
    assert_eq!(standing(&volume).resyncs, resyncs, "the journal reached back");
    // A long absence: several times the journal, on a few blocks.
    drop(lender);
    for version in 0..40 {
        write_all(&volume, 100..200, version);
    }
    volume.zero(500 * BLOCK as u64, 10 * BLOCK as u64).unwrap();
    volume.drain().unwrap();
    let dirty = standing(&volume).dirty_blocks;
    // Besides the 110, those of the stage during which the data lender went away.
    assert!((1..=500).contains(&dirty), "{dirty} blocks are dirty");
    let sent = standing(&volume).resync_sent_blocks;
    let lender = place.lender();
    settle(&volume);
    let status = standing(&volume);
    assert_eq!(status.resyncs, resyncs + 1);
    assert!(
        (1..=500).contains(&(status.resync_sent_blocks - sent)),
        "more than the changed blocks was sent: {status:?}"
    );
    assert_eq!(status.dirty_blocks, 0);
    volume.close().unwrap();
    drop(lender);
    let taking = VolumeSettings {
        take_over: true,
        client_is_off: true,
        ..VolumeSettings::default()
    };
    let (taken, _) = Volume::open_with(&place.copy(id), &taking).unwrap();
    check(&taken, (0..20).map(|block| (block, 2)));
    check(&taken, (20..100).map(|block| (block, 1)));
    check(&taken, (100..200).map(|block| (block, 39)));
    check(&taken, (200..500).chain(510..2000).map(|block| (block, 1)));
    assert!((500..510).all(|block| read(&taken, block) == [0; BLOCK]));
}

#[test]
fn damage_on_either_side_is_repaired_from_the_other() {
    let place = TestPaths::new();
    let id = place.create();
    let lender = place.lender();
    let volume = place.open();
    write_all(&volume, 0..100, 1);
    settle(&volume);
    until("the copy's image has the block", || {
        standing(&volume).applied >= standing(&volume).flushed
    });
    spoil(volume.paths().root(), 7);
    spoil(volume.paths().root(), 8);
    check(&volume, (0..100).map(|block| (block, 1)));
    assert_eq!(volume.status().disk.statistics.mended, 2);
    // On the other side it is found when the block is fetched or scrubbed there; then it is sent again.
    spoil(&place.copy(id), 20);
    spoil(volume.paths().root(), 20);
    let mut bytes = [0; BLOCK];
    let lost = volume.read(20 * BLOCK as u64, &mut bytes);
    assert!(lost.is_err(), "both copies are damaged");
    write(&volume, 20, 3);
    settle(&volume);
    check(&volume, [(20, 3)].into_iter());
    volume.close().unwrap();
    drop(lender);
}

/// A copy whose log had lost records that its image has could not be opened any more, and no resync repaired
/// it.
#[test]
fn a_copy_whose_log_lost_records_is_marked_inconsistent_and_rebuilt() {
    let place = TestPaths::new();
    let id = place.create();
    let lender = place.lender();
    let volume = place.open();
    write_all(&volume, 0..100, 1);
    settle(&volume);
    drop(lender);
    let log = place.copy(id).join("journal").join("log");
    let old = std::fs::read(&log).unwrap();
    let lender = place.lender();
    // Enough for its image to pass the end of the old log.
    for version in 2..20 {
        write_all(&volume, 100..200, version);
    }
    volume.drain().unwrap();
    settle(&volume);
    drop(lender);
    volume.close().unwrap();
    std::fs::write(&log, &old).unwrap();
    let lender = place.lender();
    let volume = place.open();
    settle(&volume);
    assert_eq!(standing(&volume).resyncs, 1);
    volume.close().unwrap();
    drop(lender);
    let taking = VolumeSettings {
        take_over: true,
        client_is_off: true,
        ..VolumeSettings::default()
    };
    let (taken, _) = Volume::open_with(&place.copy(id), &taking).unwrap();
    check(&taken, (0..100).map(|block| (block, 1)));
    check(&taken, (100..200).map(|block| (block, 19)));
}

/// The copy's holes arrived as zeros that took space, and every one of them was fetched.
#[test]
fn a_volume_that_is_mostly_empty_is_restored_with_its_holes() {
    let bytes: u64 = 10 << 30;
    let place = TestPaths::new();
    let id = Volume::create(&place.path("volume"), bytes, JOURNAL_BYTES).unwrap();
    let _lender = place.lender();
    let volume = place.open();
    let blocks = [0, 1, 2, 491_519, 491_520, 777_777, bytes / BLOCK as u64 - 1];
    write_all(&volume, blocks.into_iter().chain(1000..1100), 1);
    volume.discard(1000 * BLOCK as u64, 100 * BLOCK as u64).unwrap();
    settle(&volume);
    volume.close().unwrap();
    std::fs::remove_dir_all(place.path("volume")).unwrap();
    let config = place.settings().journal_config().unwrap();
    let from = From {
        address: place.address(),
        security: config.security.clone(),
    };
    let request = RestoreRequest {
        from: &from,
        volume: id,
        config: &config,
        recovery: None,
        client_is_off: true,
    };
    restore(&place.path("volume"), &request, |_| Ok(())).unwrap();
    let volume = place.open();
    until("the restore is complete", || volume.status().restoring.is_none());
    assert_eq!(volume.status().disk.statistics.copied, blocks.len() as u64);
    check(&volume, blocks.into_iter().map(|block| (block, 1)));
    for hole in [3, 1050, 491_521, 2_000_000] {
        assert_eq!(read(&volume, hole), [0; BLOCK]);
    }
    let taken = Volume::inspect(&place.path("volume")).unwrap().image_taken_bytes;
    assert!(
        taken < 1 << 20,
        "{taken} bytes of a volume that has {}",
        blocks.len() * BLOCK
    );
    settle(&volume);
    assert_eq!(standing(&volume).resyncs, 0);
}

#[test]
fn a_lost_client_is_restored_and_serves_at_once() {
    let place = TestPaths::new();
    let id = place.create();
    let lender = place.lender();
    let volume = place.open();
    write_all(&volume, 0..1000, 1);
    settle(&volume);
    write_all(&volume, 0..10, 2);
    settle(&volume);
    volume.close().unwrap();
    std::fs::remove_dir_all(place.path("volume")).unwrap();
    let config = place.settings().journal_config().unwrap();
    let from = From {
        address: place.address(),
        security: config.security.clone(),
    };
    let request = RestoreRequest {
        from: &from,
        volume: id,
        config: &config,
        recovery: None,
        client_is_off: true,
    };
    let unknown = RestoreRequest {
        volume: VolumeId(1),
        ..request
    };
    let wrong = restore(&place.path("volume"), &unknown, |_| Ok(()));
    assert!(wrong.unwrap_err().to_string().contains("keeps no copy"));
    let restored = restore(&place.path("volume"), &request, |_| Ok(())).unwrap();
    assert!(restored.closed);
    let volume = place.open();
    // Reads and partial writes while nearly every block is missing.
    check(&volume, (990..1000).map(|block| (block, 1)));
    let pending = volume.write(600 * BLOCK as u64 + 512, &[9; 512]).unwrap();
    volume.wait(pending).unwrap();
    check(&volume, (0..10).map(|block| (block, 2)));
    until("the restore is complete", || volume.status().restoring.is_none());
    settle(&volume);
    drop(lender);
    check(&volume, (10..600).chain(601..1000).map(|block| (block, 1)));
    let mut expected = fill(600, 1);
    expected[512..1024].fill(9);
    assert!(read(&volume, 600) == expected);
    volume.close().unwrap();
    let volume = place.open();
    check(&volume, (10..600).map(|block| (block, 1)));
}

/// The client hears of a resync's end from the data lender, and tells others.
#[test]
fn a_copy_in_service_is_whole_for_everybody_who_asks() {
    for round in 0..6 {
        let place = TestPaths::new();
        let _keeper = place.lender();
        place.create();
        let volume = place.open();
        until("the copy is in service", || standing(&volume).in_service);
        let found = replicas(&place.address(), &Security::Insecure).unwrap().copies;
        assert_eq!(found[0].state, "following", "round {round}");
        volume.close().unwrap();
    }
}
