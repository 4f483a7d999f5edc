//! Promises of a volume, one scenario each.

use crate::common::{BLOCK, JOURNAL, Machine, MachineFile, TestDisk, VOLUME};
use netram_block::{
    ApplyError, ApplyProgress, DeviceError, Disk, DiskFiles, DiskGrowError, DiskOpenError, DiskOptions,
    FileKind, VolumeId, VolumeSuperblock, create,
};
use netram_proto::id::JournalId;
use netram_proto::port::{IoError, RecordLog};

const LOG: u64 = 256 * 1024;
const BYTES: u64 = 64 * BLOCK as u64;

fn block(disk: &TestDisk, number: u64) -> Result<u8, DeviceError> {
    let mut bytes = [0xee; BLOCK];
    disk.read(number * BLOCK as u64, &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    Ok(bytes[0])
}

fn write(disk: &TestDisk, number: u64, value: u8) {
    let pending = disk.write(number * BLOCK as u64, &[value; BLOCK]).unwrap();
    disk.wait(pending).unwrap();
}

/// Offset of block `number` in the image.
fn at(number: usize) -> usize {
    (number + 1) * BLOCK
}

#[test]
fn a_damaged_block_is_refused_and_the_others_are_not() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..8).for_each(|number| write(&disk, number, number as u8 + 1));
    disk.drain().unwrap();
    machine.change_file("image", |bytes| bytes[at(3) + 77] ^= 1);
    assert_eq!(block(&disk, 3), Err(DeviceError::Corrupt { block: 3 }));
    assert_eq!((block(&disk, 2), block(&disk, 4)), (Ok(3), Ok(5)));
    assert_eq!(disk.status().statistics.corrupt_reads, 1);
    // Overwriting the whole block repairs it.
    write(&disk, 3, 9);
    assert_eq!(block(&disk, 3), Ok(9));
    disk.drain().unwrap();
    assert_eq!(block(&disk, 3), Ok(9));
}

#[test]
fn a_block_in_the_wrong_place_and_a_lost_checksum_are_noticed() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..8).for_each(|number| write(&disk, number, number as u8 + 1));
    disk.drain().unwrap();
    // Block 2's bytes and checksum at the place of block 5.
    machine.change_file("image", |bytes| bytes.copy_within(at(2)..at(3), at(5)));
    machine.change_file("sums", |bytes| {
        bytes.copy_within(BLOCK + 8..BLOCK + 12, BLOCK + 20)
    });
    assert_eq!(block(&disk, 5), Err(DeviceError::Corrupt { block: 5 }));
    // A checksum of zero does not turn written data into a hole.
    machine.change_file("sums", |bytes| bytes[BLOCK + 4..BLOCK + 8].fill(0));
    assert_eq!(block(&disk, 1), Err(DeviceError::Corrupt { block: 1 }));
}

/// Front ends do not read a range reported as a hole, so lost checksums turned written data into zeros.
#[test]
fn lost_checksums_do_not_turn_written_blocks_into_holes() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (8..24).for_each(|number| write(&disk, number, 7));
    disk.drain().unwrap();
    machine.change_file("sums", |bytes| bytes[BLOCK..].fill(0));
    let mut runs = Vec::new();
    let mut each = |length, hole| {
        runs.push((length / BLOCK as u64, hole));
        true
    };
    disk.extents(0, BYTES, &mut each).unwrap();
    assert_eq!(runs, [(8, true), (16, false), (40, true)]);
    assert_eq!(block(&disk, 8), Err(DeviceError::Corrupt { block: 8 }));
}

#[test]
fn a_partial_write_over_a_damaged_block_does_not_hide_the_damage() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    write(&disk, 3, 1);
    disk.drain().unwrap();
    machine.change_file("image", |bytes| bytes[at(3) + 4000] ^= 1);
    disk.wait(disk.write(3 * BLOCK as u64, &[7; 512]).unwrap())
        .unwrap();
    // The written sector itself can be read while its stage has it.
    let mut sector = [0; 512];
    disk.read(3 * BLOCK as u64, &mut sector).unwrap();
    assert_eq!(sector, [7; 512]);
    assert_eq!(block(&disk, 3), Err(DeviceError::Corrupt { block: 3 }));
    disk.drain().unwrap();
    assert_eq!(block(&disk, 3), Err(DeviceError::Corrupt { block: 3 }));
    assert_eq!(disk.status().statistics.corrupt_bases, 1);
    // A crash does not hide the damage either.
    disk.wait(disk.write(3 * BLOCK as u64, &[8; 512]).unwrap())
        .unwrap();
    drop(disk);
    machine.kill();
    let disk = machine.open().unwrap();
    assert_eq!(disk.recovered().unverified, 0);
    assert_eq!(block(&disk, 3), Err(DeviceError::Corrupt { block: 3 }));
    write(&disk, 3, 5);
    assert_eq!(block(&disk, 3), Ok(5));
}

/// If only the process dies, the operating system keeps its writes in order, so recovery can verify every
/// base.
#[test]
fn after_a_killed_process_every_base_is_verified() {
    for operations in 0..80 {
        let machine = Machine::new(LOG, BYTES);
        let disk = machine.open().unwrap();
        (0..5).for_each(|number| write(&disk, number, 1));
        disk.drain().unwrap();
        for number in 0..5 {
            disk.write(number * BLOCK as u64 + 512, &[2; 1024]).unwrap();
        }
        machine.crash_after(operations);
        let _ = disk.drain();
        drop(disk);
        machine.kill();
        let disk = machine.open().unwrap();
        assert_eq!(disk.recovered().unverified, 0, "killed at operation {operations}");
        let mut bytes = [0; BLOCK];
        disk.read(4 * BLOCK as u64, &mut bytes).unwrap();
        assert_eq!((bytes[511], bytes[512], bytes[1535], bytes[1536]), (1, 2, 2, 1));
    }
}

#[test]
fn files_of_other_volumes_are_refused_with_the_reason() {
    let (one, other) = (Machine::new(LOG, BYTES), Machine::new(LOG, BYTES));
    create(other.files(), VolumeId(9), JOURNAL, BYTES).unwrap();
    let open = |change: &dyn Fn(&mut DiskFiles<MachineFile>)| {
        let mut files = one.files();
        change(&mut files);
        Disk::open(one.clone(), files, Machine::options()).unwrap_err()
    };
    let (expected, found) = (VOLUME, VolumeId(9));
    let refusal = |file| DiskOpenError::OtherVolume {
        file,
        expected,
        found,
    };
    assert_eq!(
        open(&|files| files.image = other.files().image),
        refusal(FileKind::Image)
    );
    assert_eq!(
        open(&|files| files.sums = other.files().sums),
        refusal(FileKind::Sums)
    );
    let file = FileKind::Sums;
    assert_eq!(
        open(&|files| files.sums = one.files().image),
        DiskOpenError::Foreign { file }
    );
    let strange = DiskOptions::new(JournalId(7));
    let refused = Disk::open(one.clone(), one.files(), strange).unwrap_err();
    assert!(matches!(refused, DiskOpenError::OtherJournal { .. }), "{refused}");
    one.change_file("image", |bytes| bytes.truncate(20 * BLOCK));
    let refused = one.open().unwrap_err();
    assert!(matches!(refused, DiskOpenError::Short { .. }), "{refused}");
}

#[test]
fn a_foreign_record_stops_the_opening() {
    let machine = Machine::new(LOG, BYTES);
    machine
        .append(netram_proto::port::RecordKind(16), 8, &mut |into| into.fill(0))
        .unwrap();
    machine.log_syncs();
    let refused = machine.open().unwrap_err();
    assert!(matches!(refused, DiskOpenError::Record { .. }), "{refused}");
}

#[test]
fn a_full_disk_fails_writes_with_no_space_until_there_is_room() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    machine.fail_image(Some(IoError::ENOSPC));
    let refused = (0..1000).find_map(|turn| disk.write(turn % 64 * BLOCK as u64, &[turn as u8; BLOCK]).err());
    assert_eq!(refused, Some(DeviceError::NoSpace));
    let failure = disk.status().failure;
    let expected = ApplyError::File {
        file: FileKind::Image,
        cause: IoError::ENOSPC,
    };
    assert_eq!(failure, Some(expected));
    // Reads still work, and accepted writes are kept.
    assert_eq!(block(&disk, 0), Ok(0));
    machine.fail_image(None);
    write(&disk, 1, 77);
    disk.drain().unwrap();
    assert_eq!((block(&disk, 1), disk.status().failure), (Ok(77), None));
}

#[test]
fn a_block_that_was_being_merged_when_the_disk_failed_can_be_read() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    write(&disk, 3, 1);
    disk.drain().unwrap();
    disk.write(3 * BLOCK as u64 + 512, &[2; 512]).unwrap();
    // The checksum is written first and has changed already.
    machine.fail_image(Some(IoError::EIO));
    assert!(disk.drain().is_err());
    let mut bytes = [0; BLOCK];
    disk.read(3 * BLOCK as u64, &mut bytes).unwrap();
    assert_eq!((bytes[511], bytes[512], bytes[1024]), (1, 2, 1));
}

#[test]
fn after_a_failed_sync_the_stage_is_written_again() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..3).for_each(|number| write(&disk, number, 7));
    machine.fail_image_syncs(1);
    assert!(disk.drain().is_err());
    disk.drain().unwrap();
    drop(disk);
    machine.crash(0);
    let disk = machine.open().unwrap();
    assert_eq!(disk.recovered().records, 0, "the log was trimmed");
    assert!((0..3).all(|number| block(&disk, number) == Ok(7)));
}

/// The operating system reports a failed sync only once. When growing got that error, the next sync of the
/// current stage succeeded. The stage was dropped, and its blocks were lost with the next power cut.
#[test]
fn a_sync_that_failed_while_growing_makes_the_current_stage_start_over() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..6).for_each(|number| write(&disk, number, 7));
    // Steps `Begin`, `Zeros` and `Blocks`: written but not synced.
    for _ in 0..3 {
        assert_eq!(disk.apply_step(), Ok(ApplyProgress::Working));
    }
    machine.fail_image_syncs(1);
    assert!(matches!(disk.grow(2 * BYTES), Err(DiskGrowError::File { .. })));
    disk.drain().unwrap();
    drop(disk);
    machine.crash(0);
    let disk = machine.open().unwrap();
    assert!((0..6).all(|number| block(&disk, number) == Ok(7)));
}

#[test]
fn memory_stays_within_the_stages_bounds() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    let policy = Machine::options().policy;
    for turn in 0..2000u64 {
        disk.write(turn * 7 % 500 * 512, &[turn as u8; 512 * 3]).unwrap();
    }
    let status = disk.status();
    // The open stage, the closed ones, and as much again kept for reuse; one request may pass each bound.
    let bound = (policy.closed_max as u64 + 2) * (policy.bytes + 2 * BLOCK as u64);
    assert!(status.stages.memory_bytes_max <= bound, "{:?}", status.stages);
    assert!(status.statistics.stalls > 0, "writers had to wait");
}

#[test]
fn discarding_everything_is_one_record_and_leaves_holes() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..64).for_each(|number| write(&disk, number, 3));
    let before = machine.state().tail;
    disk.wait(disk.zero(0, BYTES).unwrap()).unwrap();
    assert!(machine.state().tail.since(before) < 100);
    for _ in 0..2 {
        assert!((0..64).all(|number| block(&disk, number) == Ok(0)));
        let mut runs = Vec::new();
        let mut each = |length, hole| {
            runs.push((length, hole));
            true
        };
        disk.extents(0, BYTES, &mut each).unwrap();
        assert_eq!(runs, [(BYTES, true)]);
        disk.drain().unwrap();
    }
    write(&disk, 5, 1);
    let mut runs = Vec::new();
    let mut each = |length, hole| {
        runs.push((length, hole));
        runs.len() < 2
    };
    disk.extents(512, BYTES - 512, &mut each).unwrap();
    let block = BLOCK as u64;
    assert_eq!(runs, [(5 * block - 512, true), (block, false)]);
}

#[test]
fn a_volume_grows_while_it_is_open_and_never_shrinks() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    let beyond = disk.write(BYTES, &[1; 512]);
    assert!(matches!(beyond, Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(disk.grow(BYTES + 512), Err(DiskGrowError::Size { .. })));
    assert!(matches!(disk.grow(BYTES / 2), Err(DiskGrowError::Shrink { .. })));
    disk.grow(2 * BYTES).unwrap();
    assert_eq!(disk.geometry().bytes, 2 * BYTES);
    assert_eq!(block(&disk, 100), Ok(0));
    write(&disk, 100, 5);
    drop(disk);
    machine.crash(0);
    assert_eq!(
        VolumeSuperblock::read(&machine.files().superblock).unwrap().bytes,
        2 * BYTES
    );
    assert_eq!(block(&machine.open().unwrap(), 100), Ok(5));
}

#[test]
fn a_stage_of_blocks_written_often_is_applied_once() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    (0..40u8).for_each(|turn| write(&disk, 1, turn));
    disk.drain().unwrap();
    let statistics = disk.status().statistics;
    assert_eq!((statistics.writes, statistics.bases), (40, 0));
    assert!(
        statistics.blocks <= 8,
        "more than one write a stage: {statistics:?}"
    );
    assert_eq!(block(&disk, 1), Ok(39));
}
