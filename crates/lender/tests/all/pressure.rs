//! A lender whose machine is short of memory: what it asks clients for, what it releases to the machine, and
//! when it lends again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::common::owner::{OwnerSession, PAGE};
use crate::common::{TestWriter, WINDOW, config, dial, memory_dir, receive, send, socket, status, until};
use netram_far_machine::limit::DEPOSIT_SLOTS_MAX;
use netram_lender::{Lender, LenderConfig, MemoryWatch, StatusReport, operator_path};
use netram_proto::id::Lsn;
use netram_proto::wire::{Flag, FrameHeader, FrameKind, RefusalReason};
use netram_transport::NetAddress;
use tempfile::TempDir;

const MEMORY: u64 = 1 << 20;
/// Maximum bytes of deposits: half of the memory.
const MOST: u64 = MEMORY / 2;
const KEEP_FREE: u64 = 1 << 30;
/// Enough to lend all, and so near the reserve that the lender looks often.
const PLENTY: u64 = KEEP_FREE + KEEP_FREE / 2;

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
        least: 0,
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

/// Takes so many bytes in windows: with free memory left, a lender would first release that.
fn fill(address: &NetAddress, bytes: u64) -> Vec<TestWriter> {
    let windows = u128::from(bytes / WINDOW);
    (0..windows).map(|id| TestWriter::join(address, id, 1)).collect()
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
    let _windows = fill(&address, MEMORY - MOST);
    // A quarter of the deposits' memory is missing.
    says(&dir, KEEP_FREE - MOST / 4);
    assert_eq!(wished(&mut large), 64);
    // Slots that are being given back make up for it.
    says(&dir, KEEP_FREE);
    let report = status(&address);
    assert!(report.memory.is_short());
    assert_eq!(report.memory.deposits_limit, Some(MOST - MOST / 4));
    assert_eq!(
        (report.memory.offered, report.memory.given_back),
        (Some(MEMORY - MOST / 4), 0),
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
    let memory = status(&address).memory;
    assert_eq!((memory.used, memory.free), (MEMORY - MOST / 4, 0));
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
        status(&address).memory.given_back == MEMORY - MOST / 2
    });
    owner.put(&[(63, 9)]);
    assert_eq!(owner.get(&[(63, 9)]), [true]);
    let mut other = OwnerSession::open(&address, 2, 1).unwrap();
    assert_eq!(other.resize(1).refusal(), Some(RefusalReason::NoRoom));
}

/// Receives the notice that the journal's window is wanted back.
fn is_asked(writer: &mut TestWriter) {
    let asked = receive(&mut writer.link).unwrap().header;
    assert_eq!(
        (asked.kind, asked.flags),
        (FrameKind::Withdraw, Flag::DRAINS | Flag::PARTIAL)
    );
}

/// Windows stayed for ever, whatever the machine lacked.
#[test]
fn windows_are_asked_back_after_pages_and_return_once_memory_suffices() {
    let dir = memory_dir();
    let (_lender, address) = started(&dir);
    let all = resident(&dir);
    let mut owner = OwnerSession::open(&address, 1, 1).unwrap();
    let pages = 64 * PAGE as u64;
    owner.resize(64);
    let mut writers = fill(&address, MEMORY - pages);
    // All pages are missing, and one window.
    says(&dir, KEEP_FREE - pages - WINDOW);
    assert_eq!(wished(&mut owner), 0);
    is_asked(&mut writers[0]);
    // What is on its way makes up for it.
    says(&dir, KEEP_FREE);
    for writer in &mut writers {
        writer.append(b"served as long as it is here");
        writer.acked();
    }
    assert_eq!(owner.resize(0).header.kind, FrameKind::DepositAck);
    until("only windows are left", || {
        status(&address).memory.given_back == pages
    });
    assert_eq!(writers[0].leave().header.kind, FrameKind::LeaveAck);
    until("its memory is released", || {
        status(&address).memory.given_back == pages + WINDOW
    });
    assert_eq!(resident(&dir), all - pages - WINDOW);
    let memory = status(&address).memory;
    let used = MEMORY - pages - WINDOW;
    assert_eq!((memory.used, memory.free, memory.windows_asked), (used, 0, 1));
    // Nobody gets it, neither the one that left nor another.
    assert_eq!(
        writers[0].join_window(WINDOW, 2).refusal(),
        Some(RefusalReason::NoRoom)
    );
    let mut other = TestWriter::bind(&address, 99, 1);
    other.fence();
    assert_eq!(
        other.join_window(WINDOW, 1).refusal(),
        Some(RefusalReason::NoRoom)
    );
    // One that reconnects is told again.
    let mut again = TestWriter::bind(&address, 0, 1);
    is_asked(&mut again);
    says(&dir, PLENTY);
    for writer in [&mut writers[0], &mut again] {
        assert!(receive(&mut writer.link).is_err(), "the session was ended");
    }
    until("all is lent again", || {
        status(&address).memory.free == pages + WINDOW
    });
    assert_eq!(resident(&dir), all);
    let mut again = TestWriter::bind(&address, 0, 1);
    again.fence();
    assert!(again.join_window(WINDOW, 2).refusal().is_none());
    for writer in &mut writers[1..] {
        writer.append(b"never asked");
        writer.acked();
    }
}

#[test]
fn what_is_always_lent_is_asked_back_from_nobody() {
    let dir = memory_dir();
    let mut config = watched(&dir);
    config.watch.least = 3 * WINDOW;
    says(&dir, PLENTY);
    let _lender = Lender::start(config).unwrap();
    let address = NetAddress::Unix(socket(&dir));
    let _writers: Vec<TestWriter> = (0..2).map(|id| TestWriter::join(&address, id, 1)).collect();
    says(&dir, 0);
    until("the rest is released", || {
        status(&address).memory.given_back == MEMORY - 3 * WINDOW
    });
    let memory = status(&address).memory;
    assert_eq!((memory.free, memory.windows_asked), (WINDOW, 0));
    TestWriter::join(&address, 7, 1);
    let mut other = TestWriter::bind(&address, 9, 1);
    other.fence();
    assert_eq!(
        other.join_window(WINDOW, 1).refusal(),
        Some(RefusalReason::NoRoom)
    );
}

/// It was refused, and lent nothing.
#[test]
fn a_lender_that_starts_on_a_full_machine_begins_with_what_is_idle() {
    let dir = memory_dir();
    let mut config = watched(&dir);
    config.watch.least = WINDOW;
    says(&dir, KEEP_FREE + 2 * WINDOW);
    let lender = Lender::start(config).unwrap();
    let address = lender.addresses()[0].clone();
    let memory = status(&address).memory;
    assert_eq!(
        (memory.given_back, memory.free),
        (MEMORY - 2 * WINDOW, 2 * WINDOW)
    );
    let tables = std::fs::metadata(dir.path().join("store")).unwrap().len() - MEMORY;
    assert_eq!(resident(&dir), tables + 2 * WINDOW);
    let _writers = fill(&address, 2 * WINDOW);
    assert_eq!(resident(&dir), tables + 2 * WINDOW);
    says(&dir, PLENTY);
    until("all is lent", || {
        status(&address).memory.free == MEMORY - 2 * WINDOW
    });
    assert_eq!(resident(&dir), tables + MEMORY);
}

/// Gives the order to lend so much to the lender that has this store.
pub(crate) fn order(store: &Path, bytes: u64) -> StatusReport {
    let header = FrameHeader {
        lsn: Lsn(bytes),
        ..FrameHeader::new(FrameKind::Offer)
    };
    let mut link = dial(&NetAddress::Unix(operator_path(store)));
    send(&mut link, header, &[]);
    StatusReport::from_frame_body(&receive(&mut link).unwrap().body).unwrap()
}

/// Also a lender that does not look at its machine's memory obeys.
#[test]
fn a_lender_gives_back_what_its_operator_asks_for() {
    let dir = memory_dir();
    let lender = Lender::start(config(&dir)).unwrap();
    let address = lender.addresses()[0].clone();
    let all = resident(&dir);
    let mut writers: Vec<TestWriter> = (0..3).map(|id| TestWriter::join(&address, id, 1)).collect();
    let store = dir.path().join("store");
    order(&store, 2 * WINDOW);
    is_asked(&mut writers[0]);
    writers[0].leave();
    until("the rest is released", || {
        resident(&dir) == all - (MEMORY - 2 * WINDOW)
    });
    let memory = status(&address).memory;
    assert_eq!((memory.offered, memory.free), (Some(2 * WINDOW), 0));
    order(&store, u64::MAX);
    until("all is lent again", || {
        status(&address).memory.free == MEMORY - 2 * WINDOW
    });
    assert_eq!(resident(&dir), all);
}

#[test]
fn the_next_process_lends_released_memory_again_when_the_machine_has_it() {
    let dir = memory_dir();
    let (lender, address) = started(&dir);
    let all = resident(&dir);
    says(&dir, 0);
    until("the memory is released", || {
        status(&address).memory.given_back == MEMORY
    });
    drop(lender);
    let lender = Lender::start(watched(&dir)).unwrap();
    let memory = lender.report().memory;
    assert_eq!((memory.given_back, memory.deposits_limit), (MEMORY, Some(0)));
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
        status(&address).memory.given_back == MEMORY
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
