//! A volume kept twice: which journal is kept for the data lender, what is sent without it, and what is
//! fetched back.

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

/// Offset of block `number` in the image.
fn at(number: usize) -> usize {
    (number + 1) * BLOCK
}

#[test]
fn at_most_half_of_the_journal_is_kept_for_the_data_lender() {
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
    // The data lender is away for long: half of the journal is kept, and no writer waits.
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
fn a_data_lender_that_was_away_is_sent_only_changed_blocks() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    (0..BLOCKS).for_each(|number| write(pair.disk(), number, 1));
    assert_eq!(
        pair.disk().dirty_from(),
        None,
        "the first resync sends everything"
    );
    assert!(pair.resync() > BLOCKS / 2);
    let seen = pair.follow();
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 0);
    // The data lender is away, and the records of these blocks are trimmed.
    (0..300u64).for_each(|turn| write(pair.disk(), 10 + turn % 20, turn as u8));
    pair.disk().zero(3 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    pair.disk().drain().unwrap();
    let dirty_from = pair.disk().dirty_from().unwrap();
    assert!(dirty_from <= seen && pair.client.state().head > seen);
    let sent = pair.resync();
    // Some blocks are equal already, because their records arrived as well.
    assert!((1..=22).contains(&sent), "{sent}");
    pair.follow();
    assert_eq!(contents(&pair.replica_disk), contents(pair.disk()));
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 0);
    // In service the journal is trimmed as far as both have it, and no block is marked.
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
fn blocks_dirtied_during_a_resync_stay_dirty_after_it() {
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
    // The journal still had the records of the first ten blocks, and has now trimmed those too.
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 20);
    assert_eq!(
        pair.disk().next_resync(0, 99).unwrap(),
        None,
        "they belong to the next resync"
    );
    // A crash keeps all marks.
    pair.crash_client(7);
    assert_eq!(pair.disk().status().replica.unwrap().dirty_blocks, 20);
    let begun = pair.disk().begin_resync(Some(begun.from)).unwrap();
    assert!(!begun.all && begun.blocks == 20, "{begun:?}");
    let run = pair.disk().next_resync(15, 99).unwrap().unwrap();
    assert_eq!((run.first, run.end, run.hole), (20, 30, false));
}

/// A resync passed by the journal's head started over with all blocks, for ever under a heavy write load.
#[test]
fn a_resync_continues_after_the_journals_head_has_passed_its_copy() {
    let mut moves = 0;
    for pace in 1..30u64 {
        let mut pair = Pair::new(LOG, BYTES);
        pair.client_disk = Some(pair.open());
        (0..BLOCKS).for_each(|number| write(pair.disk(), number, 1));
        let machine = pair.client.clone();
        let mut turn = 0;
        let mut busy = |disk: &ClientDisk| {
            // Parts of blocks, holes, and whole blocks, some of them repeatedly; fewer and fewer, as a resync
            // gets shorter.
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

/// A copy older than records that were trimmed because both had them must not seem to need only a few blocks.
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

/// A resync clears the marks of what it sent. A copy that was whole before that, such as a restored backup of
/// a data lender's directory, lacks those blocks.
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

/// A full disk may have done a write that it refuses. The blocks chosen with it then counted as sent: the
/// copy called itself whole, and had older bytes there.
#[test]
fn blocks_whose_choice_the_disk_refused_are_chosen_again() {
    let mut pair = Pair::new(LOG, BYTES);
    pair.client_disk = Some(pair.open());
    pair.resync();
    let old = pair.follow();
    pair.disk().begin_resync(Some(old)).unwrap();
    give_up_ten(&pair);
    assert!(pair.disk().continue_resync(old).unwrap().is_some());
    pair.client.refuse_dirty(IoError::ENOSPC);
    pair.disk().next_dirtied(0, 4).unwrap_err();
    let mut chosen = Vec::new();
    let mut from = 0;
    while let Some(run) = pair.disk().next_dirtied(from, 4).unwrap() {
        chosen.extend(run.first..run.end);
        from = run.end;
    }
    assert_eq!(chosen, (20..30).collect::<Vec<u64>>());
    assert_eq!(pair.disk().next_dirtied(0, 4).unwrap(), None);
}

fn dirty_blocks(pair: &Pair) -> u64 {
    pair.disk().status().replica.unwrap().dirty_blocks
}

/// Writes until the records of blocks 20 to 29 are trimmed. Returns the journal's end.
fn give_up_ten(pair: &Pair) -> Lsn {
    (0..300u64).for_each(|turn| write(pair.disk(), 20 + turn % 10, turn as u8));
    pair.disk().drain().unwrap();
    pair.client.state().tail
}

#[test]
fn blocks_that_the_data_lender_got_by_records_do_not_stay_dirty() {
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
        "an older copy lacks these blocks"
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
    // An interrupted resync knows which blocks both sides lack; later that cannot be found out.
    let from = pair.disk().dirty_from();
    pair.disk().begin_resync(from).unwrap();
    pair.client_disk = None;
    pair.client_disk = Some(pair.open());
    pair.disk().replica_flushed(tail);
    assert_eq!(dirty_blocks(&pair), 11);
    // A resync that ended has sent them. A block lost in the meantime waits for the next one.
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
    assert_eq!(dirty_blocks(&pair), 0, "no lost block is left");
}

#[test]
fn an_unreadable_map_does_not_stop_the_volume_and_counts_more_blocks_as_dirty() {
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
    // A resync rewrites the page, and includes every block that it may have named.
    let begun = pair.disk().begin_resync(Some(from)).unwrap();
    assert_eq!((begun.all, begun.blocks), (false, BLOCKS));
    pair.client.spoil_dirty(None);
    let run = pair.disk().next_resync(0, BLOCKS).unwrap().unwrap();
    assert_eq!(run.first, 0);
    pair.disk().finish_resync().unwrap();
    assert_eq!(pair.disk().begin_resync(Some(begun.from)).unwrap().blocks, 0);
    // Without both slots every block is dirty.
    pair.client_disk = None;
    pair.client.spoil_dirty(Some(0..2 * BLOCK as u64));
    pair.client_disk = Some(pair.open());
    assert_eq!(pair.disk().dirty_from(), None);
    assert!(pair.disk().begin_resync(Some(Lsn(u64::MAX))).unwrap().all);
}

#[test]
fn a_map_that_cannot_be_written_stops_no_writer_and_counts_as_incomplete() {
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
fn a_damaged_map_counts_more_blocks_as_dirty_and_never_fewer() {
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
    // Without its header every block is dirty.
    pair.client_disk = None;
    pair.client.change_file("dirty", |bytes| bytes[..header].fill(7));
    pair.client_disk = Some(pair.open());
    assert_eq!(pair.disk().dirty_from(), None);
    assert!(pair.disk().begin_resync(Some(Lsn(u64::MAX))).unwrap().all);
}

#[test]
fn a_damaged_block_is_fetched_from_the_data_lender_and_repaired() {
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
    // The block is in the image again.
    pair.copy.leave();
    assert_eq!(contents(pair.disk()), good);
    // A partial write over a damaged block needs the rest.
    pair.copy.come_back();
    pair.client.change_file("image", |bytes| bytes[at(5) + 4000] ^= 1);
    pair.disk().write(5 * BLOCK as u64, &[77; 512]).unwrap();
    pair.disk().drain().unwrap();
    pair.copy.leave();
    let mut expected = good;
    expected[5 * BLOCK..5 * BLOCK + 512].fill(77);
    assert_eq!(contents(pair.disk()), expected);
    // No other copy has the newest bytes of a dirty block.
    pair.copy.come_back();
    pair.disk().mark_dirty(&[7]).unwrap();
    pair.client.change_file("image", |bytes| bytes[at(7)] ^= 1);
    let mut block = [0; BLOCK];
    let refused = pair.disk().read(7 * BLOCK as u64, &mut block);
    assert_eq!(refused, Err(DeviceError::Corrupt { block: 7 }));
    assert_eq!(pair.disk().take_bad_blocks(), [7]);
}

#[test]
fn a_scrub_repairs_blocks_that_the_data_lender_has_and_names_the_others() {
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

/// A block fetched by a reader must not overwrite newer bytes from the applier.
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
    // While the reader waits for the answer, a part of the block is written and applied.
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
    // The block was written in part and applied: the rest is fetched. With the data lender away, the stage
    // waits.
    pair.copy.leave();
    pair.disk().write(6 * BLOCK as u64, &[99; 512]).unwrap();
    let waits = pair.disk().drain().unwrap_err();
    assert!(waits.to_string().contains("data lender"), "{waits}");
    let refused = pair.disk().read(7 * BLOCK as u64, &mut block);
    assert_eq!(refused, Err(DeviceError::Missing { block: 7 }));
    assert!(
        pair.disk().begin_resync(None).is_err(),
        "a volume being restored cannot supply blocks"
    );
    pair.crash_client(5);
    assert!(
        pair.client_disk.is_none(),
        "the journal has a part of a missing block"
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

/// A copy whose journal was begun anew, and that crashed before its image was restarted.
#[test]
fn a_copy_can_be_opened_wherever_its_restart_was_interrupted() {
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
fn a_failed_sync_of_put_blocks_is_reported() {
    let machine = Machine::new(LOG, BYTES);
    let disk = machine.open().unwrap();
    disk.put_blocks(3, &[5; BLOCK]).unwrap();
    // A stage is applied in between, and its sync gets the error.
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
