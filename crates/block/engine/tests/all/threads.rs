//! Writers, readers and the applier run concurrently. A reader never sees a sector go back in time, a torn
//! sector, or a damaged block.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{BLOCK, Machine, Random, SECTOR, TestDisk};
use netram_block::{ApplierTask, ApplyProgress, DeviceError};
use netram_proto::port::IoError;
use netram_proto::time::Time;

const WRITERS: u64 = 2;
/// Blocks of each writer.
const BLOCKS: u64 = 24;
const WRITES: u64 = 4000;

/// Announces that the applier thread has ended, even after a panic, so that no writer waits for it.
struct StopGuard<'a>(&'a TestDisk);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.applier_ended();
    }
}

/// The volume's applier thread.
fn attend(disk: &TestDisk) {
    let _leave = StopGuard(disk);
    let mut now = 0;
    while disk.wait_for_work(Duration::from_millis(1)) == ApplierTask::Look {
        now += 1;
        disk.tick(Time(now * 1_000_000));
        while !matches!(disk.apply_step(), Ok(ApplyProgress::Idle) | Err(_)) {}
    }
}

fn fill(bytes: &mut [u8], version: u64) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&version.to_le_bytes());
    }
}

/// Versions of the sectors of `bytes`; all words of a sector must have the same.
fn versions(bytes: &[u8]) -> Vec<u64> {
    let sectors = bytes.chunks_exact(SECTOR).map(|sector| {
        let first: [u8; 8] = sector[..8].try_into().unwrap();
        assert!(sector.chunks_exact(8).all(|word| word == first), "a torn sector");
        u64::from_le_bytes(first)
    });
    sectors.collect()
}

/// Writes ever higher versions to the writer's own blocks, and sometimes zeros.
fn write(disk: &TestDisk, writer: u64) {
    let mut random = Random(writer + 1);
    let begin = writer * BLOCKS * BLOCK as u64;
    let sectors = BLOCKS * (BLOCK / SECTOR) as u64;
    for version in 1..=WRITES {
        let first = random.below(sectors);
        let count = (random.below(12) + 1).min(sectors - first);
        let mut bytes = vec![0; count as usize * SECTOR];
        fill(&mut bytes, version);
        let pending = disk.write(begin + first * SECTOR as u64, &bytes).unwrap();
        if version % 8 == 0 {
            disk.wait(pending).unwrap();
        }
    }
}

fn read(disk: &TestDisk, done: &AtomicBool, reads: &AtomicU64) {
    let mut random = Random(99);
    let sectors = WRITERS * BLOCKS * (BLOCK / SECTOR) as u64;
    let mut seen = vec![0; sectors as usize];
    while !done.load(Ordering::Relaxed) {
        let first = random.below(sectors);
        let count = (random.below(40) + 1).min(sectors - first);
        let mut bytes = vec![0; count as usize * SECTOR];
        disk.read(first * SECTOR as u64, &mut bytes).unwrap();
        let seen = &mut seen[first as usize..][..count as usize];
        for (version, seen) in versions(&bytes).into_iter().zip(seen) {
            assert!(version >= *seen, "version {version} after {seen}");
            *seen = version;
        }
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn readers_beside_writers_and_the_applier_see_the_newest() {
    let machine = Machine::new(256 * 1024, WRITERS * BLOCKS * BLOCK as u64);
    let disk = machine.open().unwrap();
    machine.slow_down();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    disk.applier_started();
    std::thread::scope(|scope| {
        scope.spawn(|| attend(&disk));
        let reader = scope.spawn(|| read(&disk, &done, &reads));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let disk = &disk;
                scope.spawn(move || write(disk, writer))
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        let read = reader.join();
        disk.stop();
        assert!(read.is_ok() && written.iter().all(Result::is_ok));
    });
    let status = disk.status();
    assert!(status.statistics.stages > 10 && reads.load(Ordering::Relaxed) > 0);
    assert_eq!(status.statistics.corrupt_reads, 0);
    disk.drain().unwrap();
    // The image has what the readers saw last.
    let mut bytes = vec![0; (WRITERS * BLOCKS) as usize * BLOCK];
    disk.read(0, &mut bytes).unwrap();
    let before = versions(&bytes);
    drop(disk);
    machine.crash(3);
    machine.open().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(versions(&bytes), before);
}

#[test]
fn writers_waiting_for_a_failing_image_get_the_error() {
    let machine = Machine::new(256 * 1024, 64 * BLOCK as u64);
    let disk = machine.open().unwrap();
    machine.fail_image(Some(IoError::EIO));
    disk.applier_started();
    std::thread::scope(|scope| {
        scope.spawn(|| attend(&disk));
        let refused = (0..1000u64).find_map(|turn| disk.write(turn % 64 * BLOCK as u64, &[1; BLOCK]).err());
        disk.stop();
        assert_eq!(refused, Some(DeviceError::Io(IoError::EIO)));
    });
    // Without the thread, writers do its work.
    machine.fail_image(None);
    for turn in 0..100u64 {
        disk.write(turn % 64 * BLOCK as u64, &[2; BLOCK]).unwrap();
    }
}

#[test]
fn a_journal_refilled_at_once_by_other_writers_is_not_reported_full() {
    const EACH: usize = 8 * BLOCK;
    let machine = Machine::new(3 * EACH as u64, 64 * BLOCK as u64);
    let disk = machine.open().unwrap();
    disk.applier_started();
    std::thread::scope(|scope| {
        let applier = scope.spawn(|| attend(&disk));
        let writers: Vec<_> = (0..8u64)
            .map(|writer| {
                let disk = &disk;
                scope.spawn(move || {
                    (0..2000).find_map(|_| disk.write(writer * EACH as u64, &vec![writer as u8; EACH]).err())
                })
            })
            .collect();
        let refused: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        disk.stop();
        applier.join().unwrap();
        assert!(
            refused.iter().all(|refused| matches!(refused, Ok(None))),
            "{refused:?}"
        );
    });
}

/// A status query held the stages' lock while it took the signal's. A writer waiting for room held the
/// signal's lock and took the stages'. The deadlock stopped the applier too, and with it all reads, writes
/// and the copy.
#[test]
fn querying_the_status_while_writers_wait_does_not_deadlock() {
    let (finished, ended) = std::sync::mpsc::channel();
    let story = std::thread::spawn(move || {
        let machine = Machine::new(256 * 1024, 64 * BLOCK as u64);
        let disk = machine.open().unwrap();
        let done = AtomicBool::new(false);
        disk.applier_started();
        std::thread::scope(|scope| {
            scope.spawn(|| attend(&disk));
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        disk.status();
                    }
                });
            }
            let writers: Vec<_> = (0..2u8)
                .map(|writer| {
                    let disk = &disk;
                    scope.spawn(move || {
                        for turn in 0..20_000u64 {
                            disk.write(turn % 64 * BLOCK as u64, &[writer; BLOCK]).unwrap();
                        }
                    })
                })
                .collect();
            let written = writers.into_iter().all(|writer| writer.join().is_ok());
            done.store(true, Ordering::Relaxed);
            disk.stop();
            assert!(written);
        });
        assert!(disk.status().statistics.stalls > 0, "no writer waited");
        finished.send(()).unwrap();
    });
    if ended.recv_timeout(Duration::from_secs(120)).is_err() {
        // A deadlocked thread cannot be joined.
        assert!(story.is_finished(), "deadlock");
        panic!("the scenario failed");
    }
    story.join().unwrap();
}
