//! Deposits at a real lender: what it keeps, returns and refuses, and when it ends. Lenders and owners that
//! are killed are processes of their own: this test binary, started again with the name of one test.

use std::time::Duration;

use crate::common::child::{self, TestChild};
use crate::common::owner::{OwnerSession, PAGE, content};
use crate::common::{TestWriter, WINDOW, config, dial, memory_dir, receive, send, socket, status, until};
use netram_far_machine::deposit::{page_header, write_run};
use netram_far_machine::limit::DEPOSIT_FRAMES_MAX;
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};
use netram_transport::NetAddress;
use tempfile::TempDir;

/// Number of slots in half of the memory.
const ROOM: u32 = (1 << 19) / PAGE as u32;

fn started(dir: &TempDir, lease_ms: u64) -> (Lender, NetAddress) {
    let mut config = config(dir);
    config.limits.deposit_lease = Duration::from_millis(lease_ms);
    (Lender::start(config).unwrap(), NetAddress::Unix(socket(dir)))
}

#[test]
fn pages_return_in_the_version_that_was_put_or_not_at_all() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 5, 1).unwrap();
    assert_eq!(owner.resize(40).header.kind, FrameKind::DepositAck);
    for first in (0..40_u32).step_by(10) {
        let pages: Vec<(u32, u64)> = (first..first + 10)
            .map(|slot| (slot, u64::from(slot) + 100))
            .collect();
        let stashed = owner.put(&pages);
        assert_eq!(
            (stashed.header.kind, stashed.header.mark),
            (FrameKind::PutAck, 77)
        );
    }
    owner.put(&[(3, 200)]);
    assert_eq!(
        owner.get(&[(2, 102), (3, 103), (3, 200), (39, 139), (39, 0)]),
        [true, false, true, true, false]
    );
    // Slots kept by a smaller deposit still hold their pages; slots released and obtained again are empty.
    assert_eq!(owner.resize(8).header.lsn, Lsn(8));
    assert_eq!(owner.resize(40).header.lsn, Lsn(40));
    assert_eq!(owner.get(&[(7, 107), (8, 108), (39, 139)]), [true, false, false]);
    let report = status(&address);
    assert_eq!((report.deposits[0].slots, report.deposits[0].held), (40, 8));
    assert!(report.deposits[0].connected && report.memory.deposits >= 40 * PAGE as u64);
}

#[test]
fn blocks_are_returned_in_the_requested_order_and_version_only() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 5, 1).unwrap();
    owner.resize(40);
    owner.put(&[(3, 100), (39, 101)]);
    let (listed, spaced) = ([255, 0, 7], [2, 102, 202]);
    let mut body = Vec::new();
    write_run(39, 101, &listed, &mut body);
    write_run(3, 100, &spaced, &mut body);
    write_run(3, 99, &listed, &mut body);
    let answer = owner.ask(FrameKind::Gather, 0, &body);
    assert_eq!(
        (answer.header.kind, answer.header.mark),
        (FrameKind::GatherReply, 77)
    );
    let run = |slot: u32, version: u64, blocks: [usize; 3]| {
        let page = content(slot, version);
        let bytes = blocks
            .map(|block| page[16 * block..16 * block + 16].to_vec())
            .concat();
        [&[3, 0][..], &bytes].concat()
    };
    let expected = [run(39, 101, [255, 0, 7]), run(3, 100, [2, 102, 202]), vec![0, 0]];
    assert_eq!(answer.body, expected.concat());
    let mut beyond = Vec::new();
    write_run(40, 1, &listed, &mut beyond);
    assert_eq!(
        owner.ask(FrameKind::Gather, 0, &beyond).refusal(),
        Some(RefusalReason::Malformed)
    );
}

#[test]
fn a_full_lender_refuses_with_its_free_bytes_and_windows_keep_their_part() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut first = OwnerSession::open(&address, 1, 1).unwrap();
    let mut second = OwnerSession::open(&address, 2, 1).unwrap();
    assert_eq!(first.resize(ROOM - 8).header.kind, FrameKind::DepositAck);
    let refused = second.resize(9);
    assert_eq!(refused.refusal(), Some(RefusalReason::NoRoom));
    assert_eq!((refused.header.lsn, refused.header.stable), (Lsn(9), Lsn(8)));
    assert_eq!(second.resize(8).header.kind, FrameKind::DepositAck);
    // The other half is for journals.
    for journal in 0..8 {
        TestWriter::join(&address, journal, 1);
    }
    let report = status(&address);
    assert_eq!(report.memory.deposits, report.memory.deposits_max);
    assert_eq!(
        report.memory.free, 0,
        "8 windows of {WINDOW} bytes and all deposits"
    );
    // The slots that the first releases are available to the second.
    first.resize(0);
    assert_eq!(second.resize(ROOM).header.kind, FrameKind::DepositAck);
}

#[test]
fn a_deposit_outlives_its_session_and_obeys_the_newest_one_only() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 9, 1).unwrap();
    owner.resize(4);
    owner.put(&[(1, 11)]);
    let mut next = OwnerSession::open(&address, 9, 2).unwrap();
    assert_eq!((next.life, next.slots), (owner.life, 4));
    assert!(receive(&mut owner.link).is_err(), "the earlier session has ended");
    assert_eq!(next.get(&[(1, 11)]), [true]);
    let fenced = OwnerSession::open(&address, 9, 2).err().unwrap();
    assert_eq!(fenced.refusal(), Some(RefusalReason::Fenced));
    drop(next);
    let mut last = OwnerSession::open(&address, 9, 3).unwrap();
    assert_eq!(last.get(&[(1, 11)]), [true]);
    // A deposit with another id holds none of its pages.
    let mut other = OwnerSession::open(&address, 10, 1).unwrap();
    other.resize(4);
    assert_eq!(other.get(&[(1, 11)]), [false]);
}

#[test]
fn a_deposit_is_freed_when_its_lease_ends() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 200);
    let mut owner = OwnerSession::open(&address, 9, 1).unwrap();
    let life = owner.life;
    owner.resize(16);
    owner.put(&[(1, 11)]);
    drop(owner);
    until("its memory is free again", || {
        let report = status(&address);
        report.memory.deposits == 0 && report.deposits.is_empty()
    });
    let back = OwnerSession::open(&address, 9, 2).unwrap();
    assert_eq!(back.slots, 0);
    assert_ne!(
        back.life, life,
        "an owner that returns learns that its deposit was freed"
    );
}

#[test]
fn a_lender_without_deposits_refuses_them() {
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        deposits: Some(0),
        ..config(&dir)
    });
    let _lender = lender.unwrap();
    let refused = OwnerSession::open(&NetAddress::Unix(socket(&dir)), 1, 1)
        .err()
        .unwrap();
    assert_eq!(refused.refusal(), Some(RefusalReason::NoDeposit));
}

#[test]
fn invalid_frames_end_their_session_only() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(4);
    owner.put(&[(0, 5)]);
    let beyond = [&page_header(4, 9, 8)[..], &[0; 8]].concat();
    let long = [&page_header(0, 9, PAGE)[..], &[0; PAGE - 1]].concat();
    let mut epoch = 1;
    for (kind, body) in [
        (FrameKind::Put, &beyond[..]),
        (FrameKind::Put, &long),
        (FrameKind::Put, &[]),
        (FrameKind::Put, &page_header(0, 0, 0)),
        (FrameKind::Get, &page_header(u32::MAX, 9, 0)),
        (FrameKind::Get, &beyond),
        (FrameKind::Append, &[]),
        (FrameKind::Deposit, &3_u128.to_le_bytes()),
        (FrameKind::GetReply, &[]),
    ] {
        assert_eq!(
            owner.ask(kind, 0, body).refusal(),
            Some(RefusalReason::Malformed),
            "{kind:?}"
        );
        assert!(receive(&mut owner.link).is_err(), "the session has ended");
        epoch += 1;
        owner = OwnerSession::open(&address, 3, epoch).unwrap();
        assert_eq!(owner.get(&[(0, 5)]), [true]);
    }
    for (epoch, body) in [(1, &[1, 2][..]), (1, &[0; 17]), (0, &[0; 16])] {
        let mut link = dial(&address);
        let mut header = FrameHeader::new(FrameKind::Deposit);
        header.epoch = Epoch(epoch);
        send(&mut link, header, body);
        assert_eq!(
            receive(&mut link).unwrap().refusal(),
            Some(RefusalReason::Malformed)
        );
    }
    assert_eq!(owner.resize(u32::MAX).refusal(), Some(RefusalReason::NoRoom));
}

#[test]
fn a_lender_that_stops_tells_owners_and_waits_for_them() {
    let dir = memory_dir();
    let (lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(4);
    owner.put(&[(0, 5)]);
    let stopping = std::thread::spawn(move || lender.stop(crate::common::PATIENCE));
    assert_eq!(receive(&mut owner.link).unwrap().header.kind, FrameKind::Withdraw);
    assert_eq!(
        owner.get(&[(0, 5)]),
        [true],
        "it is served until it has moved away"
    );
    owner.resize(0);
    assert!(!stopping.join().unwrap().failed);
}

/// Regression: an owner that did not read its answers at that moment was never told.
#[test]
fn an_owner_that_reads_late_is_told_when_it_has_read_its_answers() {
    const ASKED: usize = 100;
    let dir = memory_dir();
    let (lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(14);
    owner.put(&(0..14).map(|slot| (slot, 5)).collect::<Vec<_>>());
    let heads: Vec<u8> = (0..14).flat_map(|slot| page_header(slot, 5, 0)).collect();
    for number in 0..ASKED {
        let mut header = owner.header(FrameKind::Get);
        header.mark = number as u32;
        send(&mut owner.link, header, &heads);
    }
    until("it answers", || status(&address).counters.deposit_gets > 2);
    let stopping = std::thread::spawn(move || lender.stop(crate::common::PATIENCE));
    // By then it has most likely been told; the result must hold in either case.
    std::thread::sleep(Duration::from_millis(100));
    let mut kinds = Vec::new();
    while kinds.len() < ASKED + 1 {
        kinds.push(receive(&mut owner.link).unwrap().header.kind);
    }
    assert_eq!(
        kinds.iter().filter(|kind| **kind == FrameKind::GetReply).count(),
        ASKED
    );
    assert_eq!(
        kinds.iter().filter(|kind| **kind == FrameKind::Withdraw).count(),
        1
    );
    owner.resize(0);
    assert!(!stopping.join().unwrap().failed);
}

/// Regression: the answer that could not be sent ended the session before the frame that frees the slots was
/// read, and the deposit kept its memory for the lease.
#[test]
fn an_owner_that_leaves_without_reading_its_answers_frees_its_slots() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(14);
    owner.put(&(0..14).map(|slot| (slot, 5)).collect::<Vec<_>>());
    let heads: Vec<u8> = (0..14).flat_map(|slot| page_header(slot, 5, 0)).collect();
    // Their answers are more than the socket takes, so the last of them are not read yet.
    for _ in 0..2 * DEPOSIT_FRAMES_MAX {
        let header = owner.header(FrameKind::Get);
        send(&mut owner.link, header, &heads);
    }
    let last = owner.header(FrameKind::Resize);
    send(&mut owner.link, last, &[]);
    until("it answers", || status(&address).counters.deposit_gets > 2);
    drop(owner);
    until("it is freed", || status(&address).deposits.is_empty());
}

/// Runs in the owner process that is killed, putting pages as fast as it can; not a test by itself.
#[test]
fn owner_process() {
    let Some(directory) = child::directory() else {
        return;
    };
    let address = NetAddress::Unix(directory.join("socket"));
    let mut owner = OwnerSession::open(&address, 4, 1).unwrap();
    owner.resize(32);
    for version in 1.. {
        owner.put(&[(version as u32 % 32, version)]);
    }
}

#[test]
fn a_killed_lender_loses_its_deposits_noticeably_and_keeps_its_windows() {
    let dir = memory_dir();
    let address = NetAddress::Unix(socket(&dir));
    let process = TestChild::lender(&dir);
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(16);
    owner.put(&[(0, 5), (15, 6)]);
    let mut writer = TestWriter::join(&address, 7, 1);
    writer.append(&[1; 100]);
    writer.acked();
    drop(process);
    let _process = TestChild::lender(&dir);
    let mut back = OwnerSession::open(&address, 3, 2).unwrap();
    assert_eq!((back.slots, back.life == owner.life), (0, false));
    back.resize(16);
    assert_eq!(back.get(&[(0, 5), (15, 6)]), [false, false]);
    let mut reader = TestWriter::bind(&address, 7, 2);
    assert_eq!(
        reader.fence().header.lsn,
        writer.at.lsn,
        "the journal lost nothing"
    );
    assert_eq!(
        status(&address).memory.deposits,
        16 * PAGE as u64,
        "no memory of the dead process is still in use"
    );
}

#[test]
fn pages_of_a_killed_owner_stay_intact_for_the_lease() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir, 30_000);
    let process = TestChild::start(&dir, "deposit::owner_process");
    until("the owner has put many pages", || {
        status(&address).counters.deposit_puts > 500
    });
    drop(process);
    until("its session is over", || {
        status(&address).deposits.iter().all(|deposit| !deposit.connected)
    });
    let mut heir = OwnerSession::open(&address, 4, 2).unwrap();
    // It puts increasing versions into consecutive slots, so the last 32 versions are present and intact.
    let puts = status(&address).counters.deposit_puts;
    for slot in 0..32 {
        let mut versions =
            (puts.saturating_sub(64)..=puts).filter(|version| *version % 32 == slot && *version > 0);
        let held = versions
            .by_ref()
            .filter(|version| heir.get(&[(slot as u32, *version)]) == [true])
            .count();
        assert_eq!(held, 1, "slot {slot}");
    }
    heir.resize(0);
    drop(heir);
    // The deposit is empty, so it ends without waiting.
    until("it has ended", || status(&address).deposits.is_empty());
}
