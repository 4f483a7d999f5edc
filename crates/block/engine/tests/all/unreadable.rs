//! Sectors that a disk can no longer read, and blocks lost on both sides, must not affect the rest of the
//! volume.

use crate::common::pair::Pair;
use crate::common::{BLOCK, Machine, MachineFile};
use netram_block::{BlockFetch, DeviceError, Disk, digest};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;

const LOG: u64 = 256 * 1024;
/// Enough for several fetch runs.
const BLOCKS: u64 = 200;
const BYTES: u64 = BLOCKS * BLOCK as u64;

fn contents<C: BlockFetch>(disk: &Disk<Machine, MachineFile, C>) -> Vec<u8> {
    let mut bytes = vec![0xee; BYTES as usize];
    disk.read(0, &mut bytes).unwrap();
    bytes
}

fn block<C: BlockFetch>(disk: &Disk<Machine, MachineFile, C>, number: u64) -> Result<u8, DeviceError> {
    let mut bytes = [0xee; BLOCK];
    disk.read(number * BLOCK as u64, &mut bytes)?;
    Ok(bytes[0])
}

/// A volume with each block full of its number, applied to both images.
fn kept_twice() -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    for number in 0..BLOCKS {
        let bytes = [number as u8 + 1; BLOCK];
        let pending = pair.disk().write(number * BLOCK as u64, &bytes).unwrap();
        pair.disk().wait(pending).unwrap();
    }
    pair.resync();
    pair.follow();
    pair.disk().drain().unwrap();
    pair.replica_disk.drain().unwrap();
    let good = contents(pair.disk());
    (pair, good)
}

/// The volume is lost, and restored from a copy whose blocks `rotten` are damaged.
fn restored(rotten: &[u64]) -> (Pair, Vec<u8>) {
    let (mut pair, good) = kept_twice();
    for number in rotten {
        let at = (*number as usize + 1) * BLOCK;
        pair.replica.change_file("image", |bytes| bytes[at + 99] ^= 1);
    }
    pair.lose_client();
    pair.restore().unwrap();
    pair.client_disk = Some(pair.open());
    assert!(pair.disk().is_restoring());
    (pair, good)
}

#[test]
fn an_unreadable_block_is_repaired_like_a_damaged_one() {
    let (pair, good) = kept_twice();
    let disk = pair.disk();
    pair.client.spoil_image(5);
    pair.client.spoil_image(70);
    pair.copy.leave();
    let found = disk.scrub(0, BLOCKS).unwrap();
    assert_eq!(
        (found.blocks, found.repaired, found.bad),
        (BLOCKS, 0, vec![5, 70])
    );
    assert_eq!(block(disk, 5), Err(DeviceError::Corrupt { block: 5 }));
    assert_eq!((block(disk, 4), block(disk, 6)), (Ok(5), Ok(7)));
    pair.copy.come_back();
    assert_eq!(block(disk, 70), Ok(71), "a read repairs it too");
    let found = disk.scrub(0, BLOCKS).unwrap();
    assert_eq!((found.repaired, found.bad), (1, vec![]));
    pair.copy.leave();
    assert_eq!(contents(disk), good);
}

/// A copy's scrub ended with an error at such a block. The copy was closed and, reopened for the next
/// session, failed there again, as did a resync of the whole volume.
#[test]
fn a_copy_reports_a_block_that_it_cannot_read_and_accepts_it_again() {
    let (pair, good) = kept_twice();
    let copy = &pair.replica_disk;
    pair.replica.spoil_image(7);
    let found = copy.scrub(0, BLOCKS).unwrap();
    assert_eq!((found.blocks, found.bad), (BLOCKS, vec![7]));
    assert_eq!(copy.take_bad_blocks(), [7]);
    let digests: Vec<_> = good.chunks_exact(BLOCK).map(digest).collect();
    let differing = copy.differing(0, &digests).unwrap();
    assert!(
        (0..BLOCKS)
            .zip(&differing)
            .all(|(number, differs)| *differs == (number == 7))
    );
    let mut bytes = [0; BLOCK];
    assert!(copy.answer(7, Lsn(0), &mut bytes).is_err());
    assert_eq!(
        copy.take_bad_blocks(),
        [7],
        "a client that fetches it is not told to wait"
    );
    copy.put_blocks(7, &good[7 * BLOCK..8 * BLOCK]).unwrap();
    copy.sync().unwrap();
    assert_eq!(copy.scrub(0, BLOCKS).unwrap().bad, []);
    assert_eq!(contents(copy), good);
}

#[test]
fn a_partial_write_over_an_unreadable_block_of_a_copy_waits_for_the_whole_block() {
    let (pair, mut good) = kept_twice();
    let copy = &pair.replica_disk;
    pair.replica.spoil_image(9);
    pair.disk().write(9 * BLOCK as u64, &[99; 512]).unwrap();
    good[9 * BLOCK..][..512].fill(99);
    pair.client.log_syncs();
    assert!(pair.client.ship(&pair.replica, usize::MAX));
    copy.follow().unwrap();
    assert!(copy.drain().is_err());
    assert_eq!(copy.take_bad_blocks(), [9]);
    copy.put_blocks(9, &good[9 * BLOCK..10 * BLOCK]).unwrap();
    copy.drain().unwrap();
    assert_eq!(copy.applied(), pair.replica.state().tail);
    assert_eq!(contents(copy), good);
}

/// Blocks before it in its run, and earlier runs, were skipped together with it and never fetched.
#[test]
fn a_block_lost_on_both_sides_does_not_keep_others_from_being_restored() {
    let (pair, good) = restored(&[70, 150]);
    let disk = pair.disk();
    let copied = disk.copy_step(0).unwrap();
    assert_eq!((copied.next, copied.blocks), (BLOCKS, BLOCKS - 2));
    assert_eq!(copied.lost, [70, 150]);
    assert!(!disk.is_restoring(), "no block is missing any more");
    assert_eq!(disk.status().statistics.lost_blocks, 2);
    assert_eq!(disk.take_bad_blocks(), [70, 150]);
    pair.copy.leave();
    for number in [70, 150] {
        assert_eq!(block(disk, number), Err(DeviceError::Corrupt { block: number }));
        disk.write(number * BLOCK as u64, &good[number as usize * BLOCK..][..BLOCK])
            .unwrap();
    }
    assert_eq!(contents(disk), good);
}

/// If steps had left blocks out, the last step returned an error, and the copier repeated it for ever.
#[test]
fn a_restore_that_left_blocks_out_ends_and_starts_over() {
    let (pair, good) = restored(&[]);
    let disk = pair.disk();
    let copied = disk.copy_step(50).unwrap();
    assert_eq!((copied.next, copied.blocks), (BLOCKS, BLOCKS - 50));
    assert!(disk.is_restoring());
    let copied = disk.copy_step(0).unwrap();
    assert_eq!((copied.next, copied.blocks), (BLOCKS, 50));
    assert!(!disk.is_restoring());
    pair.copy.leave();
    assert_eq!(contents(disk), good);
}

/// Blocks that arrived before the data lender went away are kept.
#[test]
fn an_interrupted_step_keeps_the_blocks_that_have_arrived() {
    let (pair, _) = restored(&[]);
    let disk = pair.disk();
    let copy = pair.copy.clone();
    pair.copy.after_next_answer(move || copy.leave());
    let copied = disk.copy_step(0).unwrap();
    assert!(0 < copied.next && copied.next < BLOCKS);
    assert_eq!(copied.blocks, copied.next);
    let away = disk.copy_step(copied.next);
    assert_eq!(away, Err(DeviceError::Missing { block: copied.next }));
    pair.copy.come_back();
    assert_eq!(disk.copy_step(copied.next).unwrap().next, BLOCKS);
    assert!(!disk.is_restoring());
}
