//! A lender whose machine is short of memory: what it asks of owners, what it gives back to the machine, and
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

/// What deposits may have: half of the memory.
const MOST: u64 = 1 << 19;
const KEEP_FREE: u64 = 1 << 30;
const PLENTY: u64 = 1 << 40;

/// What the machine says of its memory, until it says something else.
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

/// What the machine has lent the store.
fn resident(dir: &TempDir) -> u64 {
    std::fs::metadata(dir.path().join("store")).unwrap().blocks() * 512
}

/// The next wish: how many slots may be kept.
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
fn the_largest_deposits_are_asked_and_what_they_leave_is_given_back_to_the_machine() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    let all = resident(&dir);
    let mut large = OwnerSession::open(&address, 1, 1).unwrap();
    let mut small = OwnerSession::open(&address, 2, 1).unwrap();
    large.resize(96);
    small.resize(32);
    large.put(&[(0, 5), (95, 6)]);
    // A quarter of what deposits may have is missing.
    says(&dir, KEEP_FREE - MOST / 4);
    assert_eq!(wished(&mut large), 64);
    // What is on its way back makes up for it.
    says(&dir, KEEP_FREE);
    let report = status(&address);
    assert!(report.memory.is_short());
    assert_eq!(report.memory.deposits_limit, Some(MOST - MOST / 4));
    assert_eq!(
        report.memory.given_back, 0,
        "it is the owner's until that gives it back"
    );
    until("the report tells of it", || {
        status(&address).deposits[0].asked_back == 32
    });
    assert_eq!(large.get(&[(0, 5), (95, 6)]), [true, true]);
    let refused = large.resize(97);
    assert_eq!(
        (refused.refusal(), refused.header.stable.0),
        (Some(RefusalReason::NoRoom), 96)
    );
    assert_eq!(large.resize(64).header.kind, FrameKind::DepositAck);
    until("it is given back", || {
        status(&address).memory.given_back == MOST / 4
    });
    assert_eq!(resident(&dir), all - MOST / 4);
    assert_eq!(status(&address).memory.used, 96 * PAGE as u64);
    assert_eq!(small.resize(33).refusal(), Some(RefusalReason::NoRoom));
    // It is over: who was asked is told, and who wants more gets it.
    says(&dir, PLENTY);
    assert_eq!(wished(&mut large), u64::from(DEPOSIT_SLOTS_MAX));
    until("it is taken again", || status(&address).memory.given_back == 0);
    assert_eq!(resident(&dir), all);
    assert!(!status(&address).memory.is_short());
    assert_eq!(large.resize(96).header.kind, FrameKind::DepositAck);
    assert_eq!(large.get(&[(0, 5)]), [true]);
}

#[test]
fn an_owner_that_comes_while_memory_is_short_is_told_at_once() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    let mut owner = OwnerSession::open(&address, 1, 1).unwrap();
    owner.resize(64);
    says(&dir, 0);
    assert_eq!(wished(&mut owner), 0);
    let mut owner = OwnerSession::open(&address, 1, 2).unwrap();
    assert_eq!((owner.slots, wished(&mut owner)), (64, 0));
    // It has nowhere to go: nothing is taken away.
    until("nothing else is left", || {
        status(&address).memory.given_back == MOST / 2
    });
    owner.put(&[(63, 9)]);
    assert_eq!(owner.get(&[(63, 9)]), [true]);
    let mut other = OwnerSession::open(&address, 2, 1).unwrap();
    assert_eq!(other.resize(1).refusal(), Some(RefusalReason::NoRoom));
}

#[test]
fn windows_are_lent_while_memory_is_short_and_no_writer_is_asked() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    says(&dir, 0);
    until("it is given back", || status(&address).memory.given_back == MOST);
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
fn the_next_process_lends_again_what_was_given_back_when_the_machine_has_it() {
    let dir = memory_dir();
    let (lender, address) = started(&dir);
    let all = resident(&dir);
    says(&dir, 0);
    until("it is given back", || status(&address).memory.given_back == MOST);
    drop(lender);
    let lender = Lender::start(watched(&dir)).unwrap();
    let memory = lender.report().memory;
    assert_eq!((memory.given_back, memory.deposits_limit), (MOST, Some(0)));
    says(&dir, PLENTY);
    until("it is lent again", || !lender.report().memory.is_short());
    until("it is taken again", || resident(&dir) == all);
}

/// Whoever does not look takes back what an earlier process gave.
#[test]
fn a_lender_that_does_not_look_is_never_short() {
    let dir = memory_dir();
    let (lender, address) = started(&dir);
    says(&dir, 0);
    until("it is given back", || status(&address).memory.given_back == MOST);
    drop(lender);
    let lender = Lender::start(config(&dir)).unwrap();
    until("it is lent again", || !lender.report().memory.is_short());
    until("it is taken again", || lender.report().memory.given_back == 0);
    let mut owner = OwnerSession::open(&address, 1, 1).unwrap();
    assert_eq!(
        owner.resize((MOST / PAGE as u64) as u32).header.kind,
        FrameKind::DepositAck
    );
}
