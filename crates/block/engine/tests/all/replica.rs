//! A volume kept twice: what the journal keeps for the data lender, what is sent when it no longer does, and
//! what is taken back from it.

use std::sync::{Arc, Mutex};

use crate::common::pair::{ClientDisk, Pair};
use crate::common::{BLOCK, Machine, TestDisk};
use netram_block::{BlockFetch, DeviceError, DiskOpenError, VolumeSuperblock};
use netram_proto::id::Lsn;
use netram_proto::port::{IoError, RecordLog};

const LOG: u64 = 256 * 1024;
const BLOCKS: u64 = 64;
const BYTES: u64 = BLOCKS * BLOCK as u64;

fn write<C: BlockFetch>(
    disk: &netram_block::Disk<Machine, crate::common::MachineFile, C>,
    number: u64,
    value: u8,
) {
    let pending = disk.write(number * BLOCK as u64, &[value; BLOCK]).unwrap();
    disk.wait(pending).unwrap();
}

fn contents<C: BlockFetch>(disk: &netram_block::Disk<Machine, crate::common::MachineFile, C>) -> Vec<u8> {
    let mut bytes = vec![0xee; disk.geometry().bytes as usize];
    disk.read(0, &mut bytes).unwrap();
    bytes
}

/// Where block `number` is in the image.
fn at(number: usize) -> usize {
    (number + 1) * BLOCK
}

#[test]
fn the_journal_is_kept_for_the_data_lender_up_to_half_of_it() {
    let pair = Pair::new(LOG, BYTES);
    let disk = pair.open();
    let head = pair.client.state().head;
    (0..20).for_each(|number| write(&disk, number, 1));
    disk.drain().unwrap();
    assert_eq!(pair.client.state().head, head, "the data lender has nothing yet");
    assert!(disk.applied() > head);
    let tail = pair.client.state().tail;
    disk.replica_flushed(tail);
    disk.apply_step().unwrap();
    assert_eq!(pair.client.state().head, tail);
    // Away for long: half of the journal is kept, and nobody waits.
    (0..200u64).for_each(|turn| write(&disk, turn % 50, 2));
    disk.drain().unwrap();
    let state = pair.client.state();
    assert!(state.tail.since(state.head) <= LOG / 2);
    assert!(state.tail.since(state.head) > LOG / 4);
    let status = disk.status();
    let replica = status.replica.unwrap();
    assert_eq!(replica.dirty_blocks, BLOCKS, "a new map knows of no copy");
    assert_eq!((replica.flushed, replica.dirty_from), (tail, None));
    assert!(status.statistics.given_up_bytes > 0);
    assert_eq!(status.statistics.mark_failures, 0);
}

#[test]
fn a_data_lender_that_was_away_is_sent_what_changed_and_no_more() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..BLOCKS).for_each(|number| write(pair.disk(), number, 1));
    assert_eq!(pair.disk().dirty_from(), None, "the first time all of it");
    assert!(pair.resync() > BLOCKS / 2);
    let seen = pair.follow();
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 0);
    // Away. The records of these are given up.
    (0..300u64).for_each(|turn| write(pair.disk(), 10 + turn % 20, turn as u8));
    pair.disk().zero(3 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    pair.disk().drain().unwrap();
    let dirty_from = pair.disk().dirty_from().unwrap();
    assert!(dirty_from <= seen && pair.client.state().head > seen);
    let sent = pair.resync();
    // Some of them are equal already, by records that came beside the blocks.
    assert!((1..=22).contains(&sent), "{sent}");
    pair.follow();
    assert_eq!(contents(&pair.replica_disk), contents(pair.disk()));
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 0);
    // In service the journal goes as both have it, and nothing is marked.
    let before = pair.disk().status().statistics.given_up_bytes;
    for turn in 0..300u64 {
        write(pair.disk(), turn % 50, turn as u8);
        pair.follow();
    }
    pair.disk().drain().unwrap();
    assert_eq!(pair.disk().status().statistics.given_up_bytes, before);
    assert_eq!(contents(&pair.replica_disk), contents(pair.disk()));
}

#[test]
fn what_becomes_dirty_during_a_resync_stays_dirty() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let whole_at = pair.follow();
    (0..300u64).for_each(|turn| write(pair.disk(), turn % 10, 1));
    pair.disk().drain().unwrap();
    let begun = pair.disk().begin_resync(Some(whole_at)).unwrap();
    assert!(!begun.all && begun.blocks == 10, "{begun:?}");
    (0..300u64).for_each(|turn| write(pair.disk(), 20 + turn % 10, 1));
    pair.disk().drain().unwrap();
    pair.disk().finish_resync().unwrap();
    // The journal still had records of the first ten, and has given those up too.
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 20);
    assert_eq!(
        pair.disk().next_resync(0, 99).unwrap(),
        None,
        "they belong to the next"
    );
    // A crash forgets none of it.
    pair.crash_client(7);
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 20);
    let begun = pair.disk().begin_resync(Some(begun.from)).unwrap();
    assert!(!begun.all && begun.blocks == 20, "{begun:?}");
    let run = pair.disk().next_resync(15, 99).unwrap().unwrap();
    assert_eq!((run.first, run.end, run.hole), (20, 30, false));
}

/// A resync that the journal left behind began anew with all of its blocks: where much was written, for ever.
#[test]
fn a_resync_goes_on_where_the_journal_left_its_copy_behind() {
    let mut moves = 0;
    for pace in 1..30u64 {
        let mut pair = Pair::new(LOG, BYTES);
        pair.client_disk = Some(pair.open());
        (0..BLOCKS).for_each(|number| write(pair.disk(), number, 1));
        let machine = pair.client.clone();
        let mut turn = 0;
        let mut busy = |disk: &ClientDisk| {
            // Parts of blocks, holes, and whole ones, some of them again and again; less and less, as a
            // resync gets shorter.
            turn += 1;
            for number in (0..pace * 8 / turn).map(|index| (index * 7 + turn * pace) % BLOCKS) {
                match (number + turn) % 5 {
                    0 => drop(disk.zero(number * BLOCK as u64, BLOCK as u64).unwrap()),
                    1 => drop(
                        disk.write(number * BLOCK as u64 + 512, &[turn as u8; 512])
                            .unwrap(),
                    ),
                    _ => write(disk, number, turn as u8),
                }
            }
            machine.log_syncs();
            if turn % 2 == 0 {
                disk.drain().unwrap();
            }
        };
        moves += pair.resync_beside(usize::MAX, &mut busy).unwrap().moves;
        pair.follow();
        pair.disk().drain().unwrap();
        assert_eq!(contents(&pair.replica_disk), contents(pair.disk()), "pace {pace}");
        assert_eq!(dirty_blocks(&pair), 0);
    }
    assert!(moves > 10, "{moves}");
}

/// A copy that is older than what was trimmed with both having it must not be taken for one that needs a few
/// blocks.
#[test]
fn an_older_copy_is_sent_everything() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let old = pair.follow();
    (0..20).for_each(|number| write(pair.disk(), number, 5));
    pair.disk().drain().unwrap();
    pair.follow();
    pair.disk().apply_step().unwrap();
    assert!(pair.client.state().head > old);
    assert!(pair.disk().dirty_from().unwrap() > old);
    assert!(pair.disk().begin_resync(Some(old)).unwrap().all);
}

/// A resync clears what it sent: whoever was whole before it began, as a data lender's directory that was put
/// back, lacks that.
#[test]
fn a_copy_that_is_older_than_the_last_resync_is_sent_everything() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let old = pair.follow();
    (0..300u64).for_each(|turn| write(pair.disk(), turn % 10, 1));
    pair.disk().drain().unwrap();
    let begun = pair.disk().begin_resync(Some(old)).unwrap();
    assert!(!begun.all && begun.from > old, "{begun:?}");
    pair.disk().finish_resync().unwrap();
    for seed in 0..3 {
        assert_eq!(pair.disk().dirty_from(), Some(begun.from));
        pair.crash_client(seed);
    }
    assert!(pair.disk().begin_resync(Some(old)).unwrap().all);
}

fn dirty_blocks(pair: &Pair) -> u64 {
    pair.disk().status().replica.unwrap().dirty_blocks
}

/// Writes so much that the records of blocks 20 to 29 are given up; where the journal ends.
fn give_up_ten(pair: &Pair) -> Lsn {
    (0..300u64).for_each(|turn| write(pair.disk(), 20 + turn % 10, turn as u8));
    pair.disk().drain().unwrap();
    pair.client.state().tail
}

#[test]
fn what_the_data_lender_got_by_records_after_all_does_not_stay_dirty() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let old = pair.follow();
    let begun = pair.disk().begin_resync(Some(old)).unwrap();
    let tail = give_up_ten(&pair);
    pair.disk().finish_resync().unwrap();
    let left = pair.disk().replica_flushed(begun.from);
    assert_eq!((dirty_blocks(&pair), left), (10, 0), "records will bring them");
    assert_eq!(pair.disk().replica_flushed(tail), 0);
    assert_eq!(dirty_blocks(&pair), 0);
    assert!(
        pair.disk().dirty_from().unwrap() > begun.from,
        "an older copy lacks them"
    );
    pair.crash_client(2);
    assert_eq!(dirty_blocks(&pair), 0);
    assert!(pair.disk().dirty_from().unwrap() > begun.from);
}

#[test]
fn lost_blocks_and_those_of_a_resync_stay_dirty_whatever_is_flushed() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    pair.follow();
    pair.disk().mark_dirty(&[7]).unwrap();
    let tail = give_up_ten(&pair);
    assert_eq!(pair.disk().replica_flushed(tail), 11, "only a resync brings them");
    assert_eq!(dirty_blocks(&pair), 11);
    pair.crash_client(1);
    pair.disk().replica_flushed(tail);
    assert_eq!(dirty_blocks(&pair), 11);
    // A resync that was cut off knows better than anybody later which of them nobody has.
    let from = pair.disk().dirty_from();
    pair.disk().begin_resync(from).unwrap();
    pair.client_disk = None;
    pair.client_disk = Some(pair.open());
    pair.disk().replica_flushed(tail);
    assert_eq!(dirty_blocks(&pair), 11);
    // One that ended sent them; a block that was lost meanwhile waits for the next.
    assert!(!pair.disk().begin_resync(from).unwrap().all);
    pair.disk().mark_dirty(&[9]).unwrap();
    pair.disk().finish_resync().unwrap();
    pair.disk().replica_flushed(tail);
    assert_eq!(dirty_blocks(&pair), 1);
    pair.disk().begin_resync(pair.disk().dirty_from()).unwrap();
    pair.disk().finish_resync().unwrap();
    let tail = give_up_ten(&pair);
    assert_eq!(dirty_blocks(&pair), 10);
    pair.disk().replica_flushed(tail);
    assert_eq!(dirty_blocks(&pair), 0, "nothing is lost any more");
}

#[test]
fn an_unreadable_map_stops_no_volume_and_stands_for_more_blocks() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    pair.follow();
    give_up_ten(&pair);
    let from = pair.disk().dirty_from().unwrap();
    let (one_slot, page) = (0..512, 2 * BLOCK as u64 + 512..2 * BLOCK as u64 + 1024);
    pair.client_disk = None;
    pair.client.spoil_dirty(Some(one_slot));
    pair.client_disk = Some(pair.open());
    assert_eq!((dirty_blocks(&pair), pair.disk().dirty_from()), (10, Some(from)));
    pair.client_disk = None;
    pair.client.spoil_dirty(Some(page));
    pair.client_disk = Some(pair.open());
    assert_eq!(
        (dirty_blocks(&pair), pair.disk().dirty_from()),
        (BLOCKS, Some(from))
    );
    // A resync writes the page anew, and begins with all that it may have said.
    let begun = pair.disk().begin_resync(Some(from)).unwrap();
    assert_eq!((begun.all, begun.blocks), (false, BLOCKS));
    pair.client.spoil_dirty(None);
    let run = pair.disk().next_resync(0, BLOCKS).unwrap().unwrap();
    assert_eq!(run.first, 0);
    pair.disk().finish_resync().unwrap();
    assert_eq!(pair.disk().begin_resync(Some(begun.from)).unwrap().blocks, 0);
    // Without both slots it says nothing.
    pair.client_disk = None;
    pair.client.spoil_dirty(Some(0..2 * BLOCK as u64));
    pair.client_disk = Some(pair.open());
    assert_eq!(pair.disk().dirty_from(), None);
    assert!(pair.disk().begin_resync(Some(Lsn(u64::MAX))).unwrap().all);
}

#[test]
fn a_map_that_cannot_be_written_stops_no_writer_and_is_not_believed() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let whole_at = pair.follow();
    pair.client.fail_dirty(Some(IoError::ENOSPC));
    (0..300u64).for_each(|turn| write(pair.disk(), turn % 20, 9));
    pair.disk().drain().unwrap();
    assert!(pair.disk().status().statistics.mark_failures > 0);
    assert!(pair.disk().dirty_from().unwrap() > whole_at);
    pair.client.fail_dirty(None);
    pair.crash_client(3);
    assert!(pair.disk().dirty_from().unwrap() > whole_at);
    pair.resync();
    pair.follow();
    assert_eq!(contents(&pair.replica_disk), contents(pair.disk()));
}

#[test]
fn a_damaged_map_stands_for_more_blocks_and_never_for_fewer() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    pair.follow();
    (0..300u64).for_each(|turn| write(pair.disk(), turn % 10, 1));
    pair.disk().drain().unwrap();
    pair.client_disk = None;
    let header = 2 * BLOCK;
    pair.client.change_file("dirty", |bytes| bytes[header + 100] ^= 4);
    pair.client_disk = Some(pair.open());
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, BLOCKS);
    // Without its header it says nothing.
    pair.client_disk = None;
    pair.client.change_file("dirty", |bytes| bytes[..header].fill(7));
    pair.client_disk = Some(pair.open());
    assert_eq!(pair.disk().dirty_from(), None);
    assert!(pair.disk().begin_resync(Some(Lsn(u64::MAX))).unwrap().all);
}

#[test]
fn a_damaged_block_is_taken_from_the_data_lender_and_mended() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..BLOCKS).for_each(|number| write(pair.disk(), number, number as u8 + 1));
    pair.resync();
    pair.follow();
    pair.disk().drain().unwrap();
    let good = contents(pair.disk());
    pair.client.change_file("image", |bytes| bytes[at(3) + 77] ^= 1);
    pair.client.change_file("sums", |bytes| bytes[BLOCK + 4 * 9] ^= 1);
    assert_eq!(contents(pair.disk()), good);
    assert_eq!(pair.disk().status().statistics.mended, 2);
    // It is in the image again.
    pair.copy.leave();
    assert_eq!(contents(pair.disk()), good);
    // A part written over a damaged block needs the rest.
    pair.copy.come_back();
    pair.client.change_file("image", |bytes| bytes[at(5) + 4000] ^= 1);
    pair.disk().write(5 * BLOCK as u64, &[77; 512]).unwrap();
    pair.disk().drain().unwrap();
    pair.copy.leave();
    let mut expected = good;
    expected[5 * BLOCK..5 * BLOCK + 512].fill(77);
    assert_eq!(contents(pair.disk()), expected);
    // Nobody else has what is dirty.
    pair.copy.come_back();
    pair.disk().mark_dirty(&[7]).unwrap();
    pair.client.change_file("image", |bytes| bytes[at(7)] ^= 1);
    let mut block = [0; BLOCK];
    let refused = pair.disk().read(7 * BLOCK as u64, &mut block);
    assert_eq!(refused, Err(DeviceError::Corrupt { block: 7 }));
    assert_eq!(pair.disk().take_bad_blocks(), [7]);
}

#[test]
fn a_scrub_mends_what_the_data_lender_has_and_names_the_rest() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..40).for_each(|number| write(pair.disk(), number, 3));
    pair.resync();
    pair.follow();
    pair.disk().drain().unwrap();
    let good = contents(pair.disk());
    for number in [1, 2, 30, 50] {
        pair.client.change_file("image", |bytes| bytes[at(number)] ^= 1);
    }
    pair.copy.leave();
    let found = pair.disk().scrub(0, BLOCKS).unwrap();
    assert_eq!((found.repaired, found.bad), (0, vec![1, 2, 30, 50]));
    pair.copy.come_back();
    pair.disk().mark_dirty(&[30]).unwrap();
    let found = pair.disk().scrub(0, BLOCKS).unwrap();
    assert_eq!((found.repaired, found.bad), (3, vec![30]));
    pair.copy.leave();
    let found = pair.disk().scrub(0, 30).unwrap();
    assert_eq!((found.repaired, found.bad.len()), (0, 0));
    write(pair.disk(), 30, 3);
    assert_eq!(contents(pair.disk()), good);
}

/// What a reader fetched must not be written over what the applier has written meanwhile.
#[test]
fn a_fetch_that_the_applier_overtakes_does_not_undo_a_write() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..8).for_each(|number| write(pair.disk(), number, 1));
    pair.resync();
    pair.follow();
    pair.disk().drain().unwrap();
    pair.client.change_file("image", |bytes| bytes[at(3) + 4000] ^= 1);
    let late = Arc::new(Mutex::new(false));
    // While the reader waits for his answer, a part of the block is written and applied.
    let writer = pair.disk_shared();
    let (once, machine) = (Arc::clone(&late), pair.client.clone());
    pair.copy.after_next_answer(move || {
        *once.lock().unwrap() = true;
        writer.write(3 * BLOCK as u64, &[9; 512]).unwrap();
        machine.log_syncs();
        writer.drain().unwrap();
    });
    let mut block = [0; BLOCK];
    pair.disk().read(3 * BLOCK as u64, &mut block).unwrap();
    assert!(*late.lock().unwrap());
    pair.copy.leave();
    pair.disk().read(3 * BLOCK as u64, &mut block).unwrap();
    assert_eq!((block[0], block[512], block[4000]), (9, 1, 1));
    pair.crash_client(1);
    pair.disk().read(3 * BLOCK as u64, &mut block).unwrap();
    assert_eq!((block[0], block[512], block[4000]), (9, 1, 1));
}

#[test]
fn a_lost_volume_is_restored_and_serves_at_once() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..40).for_each(|number| write(pair.disk(), number, number as u8 + 1));
    pair.resync();
    pair.follow();
    let good = contents(pair.disk());
    pair.lose_client();
    pair.restore().unwrap();
    let from = pair.client.state().head;
    pair.client_disk = Some(pair.open());
    assert!(pair.disk().is_restoring());
    assert_eq!(pair.disk().dirty_from(), Some(from));
    let mut block = [0; BLOCK];
    pair.disk().read(5 * BLOCK as u64, &mut block).unwrap();
    assert_eq!(block, [6; BLOCK]);
    // Written in part, and applied: the rest comes. Away: it waits.
    pair.copy.leave();
    pair.disk().write(6 * BLOCK as u64, &[99; 512]).unwrap();
    let waits = pair.disk().drain().unwrap_err();
    assert!(waits.to_string().contains("data lender"), "{waits}");
    let refused = pair.disk().read(7 * BLOCK as u64, &mut block);
    assert_eq!(refused, Err(DeviceError::Missing { block: 7 }));
    assert!(pair.disk().begin_resync(None).is_err(), "it has nothing to give");
    pair.crash_client(5);
    assert!(
        pair.client_disk.is_none(),
        "the journal has a part of a block that is not here"
    );
    pair.copy.come_back();
    pair.client_disk = Some(pair.open());
    let mut at = 0;
    while at < BLOCKS {
        at = pair.disk().copy_step(at).unwrap().next;
    }
    assert!(!pair.disk().is_restoring());
    pair.copy.leave();
    let mut expected = good;
    expected[6 * BLOCK..6 * BLOCK + 512].fill(99);
    assert_eq!(contents(pair.disk()), expected);
    assert_eq!(pair.disk().scrub(0, BLOCKS).unwrap().bad, []);
    pair.crash_client(9);
    assert!(!pair.disk().is_restoring());
    assert_eq!(contents(pair.disk()), expected);
}

#[test]
fn an_image_that_is_ahead_of_its_journal_is_refused() {
    let pair = Pair::new(LOG, BYTES);
    let disk = pair.open();
    let head = pair.client.state().head;
    (0..20).for_each(|number| write(&disk, number, 1));
    disk.drain().unwrap();
    drop(disk);
    pair.client.restart_log(head);
    let Err(refused) = pair.try_open() else {
        panic!("its journal lost what the image has")
    };
    assert!(
        matches!(refused, DiskOpenError::JournalBehind { .. }),
        "{refused}"
    );
}

/// A copy whose journal was begun anew, and whose image was not told before the crash.
#[test]
fn a_copy_can_be_opened_wherever_its_restart_was_cut_off() {
    let machine = Machine::new(LOG, BYTES);
    let disk: TestDisk = machine.open().unwrap();
    (0..20).for_each(|number| write(&disk, number, 1));
    disk.drain().unwrap();
    drop(disk);
    machine.restart_log(Lsn(64));
    assert!(machine.open().is_err());
    let disk = machine.open_restarted().unwrap();
    disk.restart().unwrap();
    assert_eq!(disk.applied(), Lsn(64));
    drop(disk);
    assert_eq!(
        VolumeSuperblock::read(&machine.files().superblock)
            .unwrap()
            .applied,
        Lsn(64)
    );
    machine.open().unwrap();
}

#[test]
fn a_put_whose_sync_failed_is_told() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    disk.put_blocks(3, &[5; BLOCK]).unwrap();
    // A stage comes along, and its sync hears of the failure.
    write(&disk, 9, 1);
    machine.fail_image_syncs(1);
    assert!(disk.drain().is_err());
    disk.drain().unwrap();
    assert!(disk.sync().is_err(), "the block may not be on the disk");
    disk.put_blocks(3, &[5; BLOCK]).unwrap();
    disk.sync().unwrap();
    drop(disk);
    machine.crash(0);
    let mut block = [0; BLOCK];
    machine
        .open()
        .unwrap()
        .read(3 * BLOCK as u64, &mut block)
        .unwrap();
    assert_eq!(block, [5; BLOCK]);
}

#[test]
fn only_whole_blocks_inside_the_volume_are_put() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    assert!(disk.put_blocks(BLOCKS, &[5; BLOCK]).is_err());
    assert!(disk.put_blocks(0, &[5; 512]).is_err());
    assert!(disk.put_blocks(u64::MAX, &[5; BLOCK]).is_err());
    assert!(disk.put_hole(0, BLOCKS + 1).is_err());
    assert!(disk.put_hole(u64::MAX - 1, u64::MAX).is_err());
    assert!(disk.put_hole(9, 3).is_err());
    assert!(disk.differing(BLOCKS - 1, &[[0; 16]; 2]).is_err());
    assert!(disk.read_own(u64::MAX, &mut [0; BLOCK]).is_err());
    assert_eq!(disk.differing(BLOCKS - 1, &[[0; 16]]), Ok(vec![false]));
}
