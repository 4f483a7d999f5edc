//! Draining: a lender serves on, gives clients no more memory, and says when nobody needs what it has.

use netram_lender::{LeftReport, operator_path};
use netram_proto::wire::{Flag, FrameHeader, FrameKind, RefusalReason};
use netram_transport::NetAddress;
use tempfile::TempDir;

use crate::common::owner::OwnerSession;
use crate::common::{
    START, TestWriter, WINDOW, config, dial, memory_dir, receive, send, start, status, until,
};

fn operator(dir: &TempDir) -> NetAddress {
    NetAddress::Unix(operator_path(&dir.path().join("store")))
}

/// Gives the order, and returns the report that answers it.
fn order(address: &NetAddress, flags: u8) -> Result<netram_lender::StatusReport, RefusalReason> {
    let header = FrameHeader {
        flags,
        ..FrameHeader::new(FrameKind::Drain)
    };
    let mut link = dial(address);
    send(&mut link, header, &[]);
    let answer = receive(&mut link).unwrap();
    match answer.refusal() {
        Some(refusal) => Err(refusal),
        None => Ok(netram_lender::StatusReport::from_frame_body(&answer.body).unwrap()),
    }
}

#[test]
fn a_lender_is_drained_at_its_operators_socket_only() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = &lender.addresses()[0];
    assert_eq!(order(address, 0).unwrap_err(), RefusalReason::NotOwner);
    assert!(!lender.report().draining);
    let report = order(&operator(&dir), 0).unwrap();
    assert!(report.draining);
    until("it is safe to stop", || status(address).safe_to_stop);
    assert!(!order(&operator(&dir), Flag::UNDRAIN).unwrap().draining);
}

#[test]
fn a_drained_lender_serves_its_windows_gives_no_new_ones_and_is_safe_once_they_are_left() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = lender.addresses()[0].clone();
    let mut writer = TestWriter::join(&address, 7, 1);
    lender.drain();
    let asked = receive(&mut writer.link).unwrap().header;
    assert_eq!((asked.kind, asked.flags), (FrameKind::Withdraw, Flag::DRAINS));
    writer.append(b"served");
    writer.acked();
    let mut late = TestWriter::bind(&address, 8, 1);
    let asked = receive(&mut late.link).unwrap().header;
    assert_eq!((asked.kind, asked.flags), (FrameKind::Withdraw, Flag::DRAINS));
    late.fence();
    assert_eq!(
        late.join_window(WINDOW, 1).refusal(),
        Some(RefusalReason::Stopping)
    );
    let report = status(&address);
    let bytes = writer.at.lsn.since(START);
    let left = LeftReport {
        windows: 1,
        bytes,
        pages: 0,
    };
    assert_eq!((report.left, report.safe_to_stop), (left, false));
    // Its client dies. The window stays, and nobody can move it.
    let (epoch, journal) = (writer.epoch, writer.journal);
    drop(writer);
    until("the session has ended", || {
        status(&address)
            .journals
            .iter()
            .all(|one| one.sessions == 0 || one.used_bytes == 0)
    });
    assert!(!status(&address).safe_to_stop);
    let mut again = TestWriter::bind(&address, journal.0, epoch.0);
    assert_eq!(receive(&mut again.link).unwrap().header.kind, FrameKind::Withdraw);
    again.fence();
    again.leave();
    until("it is safe to stop", || status(&address).safe_to_stop);
    lender.undrain();
    for link in [&mut late.link, &mut again.link] {
        assert!(receive(link).is_err(), "the session was ended");
    }
    TestWriter::join(&address, 9, 1);
    assert!(!status(&address).safe_to_stop);
}

#[test]
fn a_drained_lender_keeps_deposits_until_their_owners_have_moved_their_pages() {
    let dir = memory_dir();
    let lender = netram_lender::Lender::start(config(&dir)).unwrap();
    let address = lender.addresses()[0].clone();
    let mut owner = OwnerSession::open(&address, 3, 1).unwrap();
    owner.resize(4);
    owner.put(&[(0, 5)]);
    lender.drain();
    assert_eq!(receive(&mut owner.link).unwrap().header.kind, FrameKind::Withdraw);
    assert_eq!(owner.get(&[(0, 5)]), [true], "it is served until it has moved");
    assert_eq!(owner.resize(100).refusal(), Some(RefusalReason::NoRoom));
    let report = status(&address);
    assert_eq!((report.left.pages, report.safe_to_stop), (4, false));
    owner.resize(0);
    until("it is safe to stop", || status(&address).safe_to_stop);
    lender.undrain();
    assert!(receive(&mut owner.link).is_err(), "the session was ended");
    let mut owner = OwnerSession::open(&address, 3, 2).unwrap();
    assert!(owner.resize(100).refusal().is_none());
}

/// A stop begins as a drain, and says near its end that it cannot wait any longer.
#[test]
fn a_client_that_stays_is_told_before_the_stop_ends() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = lender.addresses()[0].clone();
    let mut writer = TestWriter::join(&address, 7, 1);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| lender.stop(std::time::Duration::from_millis(800)));
        let told: Vec<u8> = (0..2)
            .map(|_| receive(&mut writer.link).unwrap().header)
            .inspect(|header| assert_eq!(header.kind, FrameKind::Withdraw))
            .map(|header| header.flags)
            .collect();
        assert_eq!(told, [Flag::DRAINS, 0]);
        assert_eq!(stop.join().unwrap().windows_left, 1, "an empty window counts");
    });
}
