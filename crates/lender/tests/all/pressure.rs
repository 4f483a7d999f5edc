//! A lender whose machine is short of memory: what it asks owners for, what it releases to the machine, and
//! when it lends again.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::common::owner::{OwnerSession, PAGE};
use crate::common::{TestWriter, config, memory_dir, receive, socket, status, until};
use netram_far_machine::limit::DEPOSIT_SLOTS_MAX;
use netram_lender::{Lender, LenderConfig, MemoryWatch};
use netram_proto::wire::{Flag, FrameKind, RefusalReason};
use netram_transport::NetAddress;
use tempfile::TempDir;

/// Maximum bytes of deposits: half of the memory.
const MOST: u64 = 1 << 19;
const KEEP_FREE: u64 = 1 << 30;
const PLENTY: u64 = 1 << 40;

/// Sets the available memory that the lender reads.
fn says(dir: &TempDir, available: u64) {
    let whole = dir.path().join("meminfo.new");
    std::fs::write(
        &whole,
        format!("MemTotal: 1 kB\nMemAvailable: {} kB\n", available / 1024),
    )
    .unwrap();
    std::fs::rename(whole, dir.path().join("meminfo")).unwrap();
}

fn watched(dir: &TempDir) -> LenderConfig {
    let mut config = config(dir);
    config.watch = MemoryWatch {
        keep_free: KEEP_FREE,
        waits: 1000,
        calm: Duration::from_millis(50),
        proc: dir.path().to_owned(),
    };
    config
}

fn started(dir: &TempDir) -> (Lender, NetAddress) {
    says(dir, PLENTY);
    (
        Lender::start(watched(dir)).unwrap(),
        NetAddress::Unix(socket(dir)),
    )
}

/// Bytes of memory behind the store's file.
fn resident(dir: &TempDir) -> u64 {
    std::fs::metadata(dir.path().join("store")).unwrap().blocks() * 512
}

/// Receives the next request for slots, and returns how many the owner may keep.
fn wished(owner: &mut OwnerSession) -> u64 {
    let answer = receive(&mut owner.link).unwrap();
    assert_eq!(
        (answer.header.kind, answer.header.flags),
        (FrameKind::Withdraw, Flag::PARTIAL)
    );
    assert_eq!(
        (answer.header.epoch.0, answer.header.sender),
        (owner.epoch, owner.life)
    );
    answer.header.lsn.0
}

#[test]
fn the_largest_deposits_are_asked_first_and_released_slots_return_to_the_machine() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    let all = resident(&dir);
    let mut large = OwnerSession::open(&address, 1, 1).unwrap();
    let mut small = OwnerSession::open(&address, 2, 1).unwrap();
    large.resize(96);
    small.resize(32);
    large.put(&[(0, 5), (95, 6)]);
    // A quarter of the deposits' memory is missing.
    says(&dir, KEEP_FREE - MOST / 4);
    assert_eq!(wished(&mut large), 64);
    // Slots that are being given back make up for it.
    says(&dir, KEEP_FREE);
    let report = status(&address);
    assert!(report.memory.is_short());
    assert_eq!(report.memory.deposits_limit, Some(MOST - MOST / 4));
    assert_eq!(
        report.memory.given_back, 0,
        "the slots belong to the owner until it gives them back"
    );
    until("the report shows it", || {
        status(&address).deposits[0].asked_back == 32
    });
    assert_eq!(large.get(&[(0, 5), (95, 6)]), [true, true]);
    let refused = large.resize(97);
    assert_eq!(
        (refused.refusal(), refused.header.stable.0),
        (Some(RefusalReason::NoRoom), 96)
    );
    assert_eq!(large.resize(64).header.kind, FrameKind::DepositAck);
    until("the memory is released", || {
        status(&address).memory.given_back == MOST / 4
    });
    assert_eq!(resident(&dir), all - MOST / 4);
    assert_eq!(status(&address).memory.used, 96 * PAGE as u64);
    assert_eq!(small.resize(33).refusal(), Some(RefusalReason::NoRoom));
    // The shortage is over: the asked owner is told, and others may have more.
    says(&dir, PLENTY);
    assert_eq!(wished(&mut large), u64::from(DEPOSIT_SLOTS_MAX));
    until("the memory is reserved again", || {
        status(&address).memory.given_back == 0
    });
    assert_eq!(resident(&dir), all);
    assert!(!status(&address).memory.is_short());
    assert_eq!(large.resize(96).header.kind, FrameKind::DepositAck);
    assert_eq!(large.get(&[(0, 5)]), [true]);
}

#[test]
fn an_owner_that_connects_while_memory_is_short_is_told_at_once() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    let mut owner = OwnerSession::open(&address, 1, 1).unwrap();
    owner.resize(64);
    says(&dir, 0);
    assert_eq!(wished(&mut owner), 0);
    let mut owner = OwnerSession::open(&address, 1, 2).unwrap();
    assert_eq!((owner.slots, wished(&mut owner)), (64, 0));
    // Its pages have nowhere to go, so nothing is taken away.
    until("only the owner's slots are left", || {
        status(&address).memory.given_back == MOST / 2
    });
    owner.put(&[(63, 9)]);
    assert_eq!(owner.get(&[(63, 9)]), [true]);
    let mut other = OwnerSession::open(&address, 2, 1).unwrap();
    assert_eq!(other.resize(1).refusal(), Some(RefusalReason::NoRoom));
}

#[test]
fn windows_are_lent_while_memory_is_short() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    says(&dir, 0);
    until("the memory is released", || {
        status(&address).memory.given_back == MOST
    });
    // Twelve of these are more than the half that deposits may not have.
    let mut writers: Vec<TestWriter> = (0..12).map(|id| TestWriter::join(&address, id, 1)).collect();
    for writer in &mut writers {
        writer.append(b"a record");
        writer.acked();
    }
    let given = status(&address).memory.given_back;
    assert!(given < MOST && given > 0, "{given}");
}

#[test]
fn the_next_process_lends_released_memory_again_when_the_machine_has_it() {
    let dir = memory_dir();
    let (lender, address) = started(&dir);
    let all = resident(&dir);
    says(&dir, 0);
    until("the memory is released", || {
        status(&address).memory.given_back == MOST
    });
    drop(lender);
    let lender = Lender::start(watched(&dir)).unwrap();
    let memory = lender.report().memory;
    assert_eq!((memory.given_back, memory.deposits_limit), (MOST, Some(0)));
    says(&dir, PLENTY);
    until("the memory is lent again", || !lender.report().memory.is_short());
    until("the memory is reserved again", || resident(&dir) == all);
}

/// A lender without pressure checks reserves the memory that an earlier process released.
#[test]
fn a_lender_without_pressure_checks_is_never_short() {
    let dir = memory_dir();
    let (lender, address) = started(&dir);
    says(&dir, 0);
    until("the memory is released", || {
        status(&address).memory.given_back == MOST
    });
    drop(lender);
    let lender = Lender::start(config(&dir)).unwrap();
    until("the memory is lent again", || !lender.report().memory.is_short());
    until("the memory is reserved again", || {
        lender.report().memory.given_back == 0
    });
    let mut owner = OwnerSession::open(&address, 1, 1).unwrap();
    assert_eq!(
        owner.resize((MOST / PAGE as u64) as u32).header.kind,
        FrameKind::DepositAck
    );
}
