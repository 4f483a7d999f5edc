//! Bytes that a power cut can still remove must not be relied on. A resync sends blocks as they are now, and
//! their newest bytes may be only in memory. A failed sync leaves bytes in the page cache that no later sync
//! writes to the disk.

use crate::common::pair::Pair;
use crate::common::{BLOCK, Machine, MachineFile};
use netram_block::{BlockFetch, DeviceError, Disk};
use netram_proto::port::RecordLog;

const BLOCKS: u64 = 8;
const BYTES: u64 = BLOCKS * BLOCK as u64;
const LOG: u64 = 96 * 1024;

fn write(pair: &Pair, number: u64, value: u8) {
    let at = number * BLOCK as u64;
    pair.disk().write(at, &[value; BLOCK]).unwrap();
}

/// First byte of each block.
fn firsts<L: RecordLog, C: BlockFetch>(disk: &Disk<L, MachineFile, C>) -> Vec<u8> {
    let mut bytes = vec![0xee; BYTES as usize];
    disk.read(0, &mut bytes).unwrap();
    bytes.iter().step_by(BLOCK).copied().collect()
}

/// Power loss at the client that removes every unsynced byte.
fn crash_client(pair: &mut Pair) {
    pair.client_disk = None;
    pair.client.crash_to_what_was_synced();
    pair.client_disk = Some(pair.open());
}

/// A volume with blocks 0 to 3 written, and a whole copy.
fn kept_twice() -> Pair {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..4).for_each(|number| write(&pair, number, 10 + number as u8));
    pair.resync();
    pair
}

/// The client's disk was lost and the volume restored: blocks 0 to 3 are only in the copy.
fn restored() -> Pair {
    let mut pair = kept_twice();
    pair.lose_client();
    pair.restore().unwrap();
    pair.client_disk = Some(pair.open());
    assert!(pair.disk().is_restoring());
    pair
}

/// Sends block 2 but not block 6, because the connection breaks.
fn break_off_a_resync(pair: &mut Pair) {
    pair.disk().mark_dirty(&[2, 6]).unwrap();
    assert!(pair.resync_until(1).is_err());
}

/// The copy had a write that the client had lost, and that was in no journal any more.
#[test]
fn an_interrupted_resync_leaves_no_write_that_the_client_loses() {
    for hole in [false, true] {
        let mut pair = kept_twice();
        match hole {
            false => write(&pair, 2, 77),
            true => drop(pair.disk().zero(2 * BLOCK as u64, BLOCK as u64).unwrap()),
        }
        break_off_a_resync(&mut pair);
        crash_client(&mut pair);
        assert_eq!(firsts(&pair.replica_disk), firsts(pair.disk()), "hole: {hole}");
    }
}

/// A block had been fetched from the copy, but its checksum was not durable. A resync sent the block with an
/// unacknowledged write; a power cut removed that write and the checksum. The block, missing again, came back
/// with the lost write, although the journal had neither it nor the writes before it.
#[test]
fn a_block_missing_again_after_a_crash_does_not_return_with_a_lost_write() {
    let mut pair = restored();
    assert_eq!(pair.disk().scrub(2, 1).unwrap().repaired, 1);
    write(&pair, 7, 76);
    write(&pair, 2, 77);
    break_off_a_resync(&mut pair);
    crash_client(&mut pair);
    let found = firsts(pair.disk());
    assert!(
        found[2] != 77 || found[7] == 76,
        "a write is there without the one before it: {found:?}"
    );
    assert_eq!(firsts(&pair.replica_disk)[2], found[2]);
}

/// The operating system reported once that the checksums were not durable. The next sync succeeded, so the
/// volume called itself whole, and after a power cut its blocks were missing. The data lender had the only
/// copy, and no status showed it.
#[test]
fn a_failed_sync_of_checksums_does_not_leave_a_restored_volume_incomplete() {
    for good in 0..3 {
        let mut pair = restored();
        let (mut next, mut failed) = (0, false);
        for step in 0..100 {
            if !pair.disk().is_restoring() {
                break;
            }
            pair.client.fail_syncs("sums", u32::from(step == good));
            match pair.disk().copy_step(next) {
                Ok(copied) => next = copied.next % BLOCKS,
                Err(error) => {
                    assert!(matches!(error, DeviceError::Io(_)), "{error}");
                    failed = true;
                }
            }
        }
        assert!(!pair.disk().is_restoring());
        assert!(failed || good > 0);
        pair.client.fail_syncs("sums", 0);
        crash_client(&mut pair);
        pair.copy.leave();
        assert_eq!(firsts(pair.disk()), [10, 11, 12, 13, 0, 0, 0, 0]);
    }
}

/// The superblock's sync failed, and the process was killed. The next process read from the page cache which
/// blocks a crash may tear, and did not store that again. After a power cut during its recovery, a torn block
/// was taken for a damaged one, and refused.
#[test]
fn recovery_stores_anew_which_blocks_a_crash_may_tear() {
    for operations in 0..30 {
        for seed in 0..20 {
            let machine = Machine::new(LOG, BYTES);
            let disk = machine.open().unwrap();
            disk.write(0, &[1; BLOCK]).unwrap();
            disk.drain().unwrap();
            let pending = disk.write(512, &[2; 1024]).unwrap();
            disk.wait(pending).unwrap();
            machine.fail_syncs("superblock", 1);
            assert!(disk.drain().is_err());
            drop(disk);
            machine.kill();
            machine.crash_after(operations);
            drop(machine.open());
            machine.crash(seed);
            let mut found = [0xee; BLOCK];
            let read = machine.open().unwrap().read(0, &mut found);
            assert_eq!(read, Ok(()), "{operations} operations, seed {seed}");
            assert!(found[512..1536] == [2; 1024] && found[1536..] == [1; BLOCK - 1536]);
        }
    }
}

/// The dirty map's header did not reach the disk, and the process was killed. The next process read it from
/// the page cache, took it for stored, and cleared the bits of a resync. After a power cut the disk had the
/// old header, and an older copy would have been sent nothing.
#[test]
fn a_map_header_that_did_not_reach_the_disk_is_not_relied_on() {
    let mut pair = kept_twice();
    let old = pair.follow();
    (0..80u64).for_each(|turn| write(&pair, turn % 4, turn as u8));
    pair.disk().drain().unwrap();
    let begun = pair.disk().begin_resync(Some(old)).unwrap();
    assert!(!begun.all && begun.from > old, "{begun:?}");
    pair.client.fail_syncs("dirty", 1);
    assert!(pair.disk().finish_resync().is_err());
    pair.client_disk = None;
    pair.client.kill();
    pair.client_disk = Some(pair.open());
    // The copy has followed: the next resync has no block to send.
    let followed = pair.disk().dirty_from().unwrap();
    pair.disk().begin_resync(Some(followed)).unwrap();
    pair.disk().finish_resync().unwrap();
    crash_client(&mut pair);
    assert!(pair.disk().begin_resync(Some(old)).unwrap().all);
}
