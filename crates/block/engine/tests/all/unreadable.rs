//! Sectors that a disk does not give any more, and blocks that are lost on both sides: the rest of the volume
//! must not suffer.

use crate::common::pair::Pair;
use crate::common::{BLOCK, Machine, MachineFile};
use netram_block::{BlockFetch, DeviceError, Disk, digest};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;

const LOG: u64 = 256 * 1024;
/// Several of the runs that are asked for at once.
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

/// A volume of which each block is full of its number, all of it in both images.
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

/// The volume is lost, and restored from the copy, which has lost `rotten`.
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
fn a_block_that_cannot_be_read_is_mended_like_a_damaged_one() {
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
    assert_eq!(block(disk, 70), Ok(71), "a reader mends it too");
    let found = disk.scrub(0, BLOCKS).unwrap();
    assert_eq!((found.repaired, found.bad), (1, vec![]));
    pair.copy.leave();
    assert_eq!(contents(disk), good);
}

/// The scrub of a copy ended at it with an error, the copy was closed, and opened anew for the next session
/// it ended there again; and a resync of the whole volume ended there as well.
#[test]
fn a_copy_names_a_block_that_it_cannot_read_and_takes_it_again() {
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
        "a client that asks for it is not told to wait"
    );
    copy.put_blocks(7, &good[7 * BLOCK..8 * BLOCK]).unwrap();
    copy.sync().unwrap();
    assert_eq!(copy.scrub(0, BLOCKS).unwrap().bad, []);
    assert_eq!(contents(copy), good);
}

#[test]
fn a_part_written_over_what_a_copy_cannot_read_waits_until_all_of_it_comes() {
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

/// Those before it in its run, and the runs before, were skipped with it, and nobody came back for them.
#[test]
fn a_block_that_is_lost_on_both_sides_keeps_no_other_from_coming_home() {
    let (pair, good) = restored(&[70, 150]);
    let disk = pair.disk();
    let copied = disk.copy_step(0).unwrap();
    assert_eq!((copied.next, copied.blocks), (BLOCKS, BLOCKS - 2));
    assert_eq!(copied.lost, [70, 150]);
    assert!(!disk.is_restoring(), "there is nothing left to come");
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

/// The end of the blocks was an error where something was left out, and the copier tried the end again for
/// ever.
#[test]
fn a_restoring_that_left_blocks_out_comes_to_its_end_and_begins_once_more() {
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

/// What came before the data lender went is kept.
#[test]
fn a_step_that_is_cut_off_keeps_what_has_come() {
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
