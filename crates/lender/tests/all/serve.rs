//! A lender's promises to its clients, through its sockets.

use std::time::Duration;

use crate::common::{
    START, TestWriter, WINDOW, config, memory_dir, receive, send, socket, start, status, until,
};
use netram_lender::{JournalReport, Lender, StoreOrigin};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::{Flag, FrameKind, RefusalReason};
use netram_transport::{ClusterKey, NetAddress, Security, WaitPolicy};

/// The epoch in a report that the lender's own process makes.
fn epoch(journal: &JournalReport) -> u32 {
    journal.state.as_ref().unwrap().epoch.0
}

#[test]
fn a_restarted_lender_keeps_windows_and_fences() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = lender.addresses()[0].clone();
    let mut writer = TestWriter::join(&address, 7, 2);
    let records: Vec<u8> = (0..20).flat_map(|index| writer.append(&[index; 500])).collect();
    writer.acked();
    let incarnation = lender.incarnation();
    assert_eq!(lender.stop(Duration::ZERO).windows_left, 1);
    drop(lender);

    let lender = start(&dir);
    assert_eq!(
        (lender.origin(), lender.incarnation()),
        (StoreOrigin::Restored, incarnation)
    );
    let mut old = TestWriter::bind(&address, 7, 1);
    assert_eq!(
        old.fence().refusal(),
        Some(RefusalReason::Fenced),
        "a fence outlives the process"
    );
    let mut new = TestWriter::bind(&address, 7, 3);
    let sealed = new.fence();
    assert_eq!(sealed.header.flags, Flag::KNOWN);
    assert_eq!(
        (sealed.header.stable, sealed.header.lsn),
        (START, START.plus(records.len() as u64))
    );
    assert_eq!(new.read(START, records.len()), records);
    // The earlier writer, which never noticed, is fenced now.
    let mut back = TestWriter::bind(&address, 7, 2);
    back.at = writer.at;
    back.append(b"late");
    assert_eq!(
        receive(&mut back.link).unwrap().refusal(),
        Some(RefusalReason::Fenced)
    );
}

#[test]
fn appends_before_a_fence_or_a_join_are_refused_and_the_session_goes_on() {
    let dir = memory_dir();
    let lender = start(&dir);
    let mut writer = TestWriter::bind(&lender.addresses()[0], 7, 2);
    writer.append(b"early");
    assert_eq!(
        receive(&mut writer.link).unwrap().refusal(),
        Some(RefusalReason::NotFenced)
    );
    writer.fence();
    writer.append(b"early");
    assert_eq!(
        receive(&mut writer.link).unwrap().refusal(),
        Some(RefusalReason::NotJoined)
    );
    assert_eq!(writer.join_window(WINDOW, 1).header.kind, FrameKind::Ack);
    writer.append(b"now");
    writer.acked();
    let report = lender.report();
    assert_eq!(report.counters.refusals["NotFenced"], 1);
    assert_eq!(report.counters.refusals["NotJoined"], 1);
}

#[test]
fn a_full_ring_wraps_repeatedly_and_holds_its_newest_bytes() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = &lender.addresses()[0];
    let mut writer = TestWriter::join(address, 7, 1);
    let mut log = Vec::new();
    for index in 0..500_u32 {
        log.extend(writer.append(&[index as u8; 1000]));
        writer.acked();
        // Bytes more than half a window old count as being on the disk.
        let stable = (writer.at.lsn.0 - START.0).saturating_sub(WINDOW / 2);
        writer.stable = Lsn(START.0 + stable / 1040 * 1040);
    }
    let from = writer.stable;
    let mut reader = TestWriter::bind(address, 7, 2);
    let sealed = reader.fence();
    assert!(sealed.header.stable <= from);
    assert_eq!(sealed.header.lsn, writer.at.lsn);
    let at = (sealed.header.stable.0 - START.0) as usize;
    assert_eq!(reader.read(sealed.header.stable, log.len() - at), log[at..]);
}

#[test]
fn acknowledgements_of_one_turn_are_merged_and_gaps_are_never_dropped() {
    let dir = memory_dir();
    let lender = start(&dir);
    let mut writer = TestWriter::join(&lender.addresses()[0], 7, 1);
    for index in 0..1000_u32 {
        writer.append(&index.to_le_bytes());
    }
    writer.acked();
    let mut header = writer.header(FrameKind::Append);
    header.lsn = writer.at.lsn.plus(80);
    for _ in 0..3 {
        send(&mut writer.link, header, &[0; 8]);
    }
    for _ in 0..3 {
        let answer = receive(&mut writer.link).unwrap();
        assert_eq!(
            (answer.header.flags, answer.header.stable),
            (Flag::GAP, writer.at.lsn)
        );
    }
    let counters = lender.report().counters;
    assert_eq!(counters.appends, 1003);
    assert!(counters.acks <= 1001);
}

#[test]
fn many_journals_on_several_shards_are_kept_apart_and_reported() {
    let dir = memory_dir();
    let lender = Lender::start(netram_lender::LenderConfig {
        shards: 3,
        memory: 4 << 20,
        listen: vec![
            NetAddress::Unix(socket(&dir)),
            "tcp://127.0.0.1:0".parse().unwrap(),
        ],
        wait: WaitPolicy::Block,
        ..config(&dir)
    })
    .unwrap();
    let addresses = lender.addresses().to_vec();
    assert_eq!(addresses.len(), 2);
    let mut writers: Vec<TestWriter> = (0..50)
        .map(|id| TestWriter::join(&addresses[id as usize % 2], id << 64 | 5, 1))
        .collect();
    let mut logs = vec![Vec::new(); writers.len()];
    for round in 0..10_u8 {
        for (writer, log) in writers.iter_mut().zip(&mut logs) {
            log.extend(writer.append(&[round; 300]));
        }
    }
    for (writer, log) in writers.iter_mut().zip(&logs) {
        writer.acked();
        assert_eq!(&writer.read(START, log.len()), log);
    }
    let report = status(&addresses[1]);
    assert_eq!(
        report,
        netram_lender::StatusReport {
            uptime_s: report.uptime_s,
            ..report.clone()
        }
    );
    assert_eq!(
        (report.name.as_str(), report.domain.as_str(), report.shards),
        ("test", "mains-a", 3)
    );
    assert_eq!(report.incarnation, lender.incarnation().to_string());
    assert_eq!(report.journals.len(), 50);
    assert_eq!(report.journals_left_out, 0);
    assert_eq!(report.memory.used, 50 * WINDOW);
    assert_eq!(report.counters.appends, 500);
    let journal = &report.journals[3];
    let known = lender.report().journals;
    let known = known.iter().find(|one| one.id == journal.id).unwrap();
    assert_eq!(
        (epoch(known), journal.window_bytes, journal.sessions),
        (1, WINDOW, 1)
    );
    assert_eq!(journal.used_bytes, logs[3].len() as u64);
    assert!(journal.last_append_age_ms.is_some());
}

#[test]
fn limits_on_memory_quota_and_journals_are_reported() {
    let dir = memory_dir();
    let small = netram_lender::LenderConfig {
        quota: Some(512 * 1024),
        journals_max: 3,
        ..config(&dir)
    };
    let lender = Lender::start(small).unwrap();
    let address = &lender.addresses()[0];
    let mut first = TestWriter::bind(address, 1, 1);
    first.fence();
    let over = first.join_window(512 * 1024 + 1, 1);
    assert_eq!(
        (over.refusal(), over.header.stable),
        (Some(RefusalReason::OverQuota), Lsn(512 * 1024))
    );
    assert_eq!(first.join_window(512 * 1024, 1).header.kind, FrameKind::Ack);
    let mut second = TestWriter::bind(address, 2, 1);
    second.fence();
    assert_eq!(second.join_window(500 * 1024, 1).header.kind, FrameKind::Ack);
    let mut third = TestWriter::bind(address, 3, 1);
    third.fence();
    let full = third.join_window(64 * 1024, 1);
    assert_eq!(
        (full.refusal(), full.header.stable),
        (Some(RefusalReason::NoRoom), Lsn(0))
    );
    let memory = lender.report().memory;
    assert_eq!((memory.reserved, memory.used, memory.free), (1 << 20, 1 << 20, 0));

    let mut fourth = crate::common::dial(address);
    let bind = netram_proto::wire::FrameHeader::new(FrameKind::Bind);
    send(&mut fourth, bind, &4_u128.to_le_bytes());
    let refused = receive(&mut fourth).unwrap();
    assert_eq!(
        (refused.refusal(), refused.header.stable),
        (Some(RefusalReason::TooManyJournals), Lsn(3))
    );
    assert!(receive(&mut fourth).is_err(), "the session ends");

    // A refused join has released the earlier window, and the report shows it.
    assert_eq!(
        first.join_window(1 << 30, 2).refusal(),
        Some(RefusalReason::OverQuota)
    );
    let report = lender.report();
    assert_eq!(
        (report.memory.used, report.journals[0].window_bytes),
        (512 * 1024, 0)
    );
    assert_eq!(first.join_window(512 * 1024, 3).header.kind, FrameKind::Ack);

    // Released memory can be lent again; the fence stays.
    let mut leave = second.header(FrameKind::Leave);
    leave.lsn = Lsn(u64::from(leave.epoch.0));
    leave.mark = 1;
    assert_eq!(second.ask(leave, &[]).header.kind, FrameKind::LeaveAck);
    assert_eq!(third.join_window(64 * 1024, 1).header.kind, FrameKind::Ack);
    let mut stale = TestWriter::bind(address, 2, 1);
    stale.writer.0 += 1;
    assert_eq!(stale.fence().refusal(), Some(RefusalReason::Fenced));
}

#[test]
fn unfenced_journals_make_room_when_their_sessions_end() {
    let dir = memory_dir();
    let lender = Lender::start(netram_lender::LenderConfig {
        journals_max: 2,
        ..config(&dir)
    })
    .unwrap();
    let address = &lender.addresses()[0];
    for id in 0..20 {
        drop(TestWriter::bind(address, id, 1));
        until("the session ended", || lender.report().journals.is_empty());
    }
    drop(TestWriter::join(address, 100, 5));
    until("the session ended", || lender.report().connections == 0);
    assert_eq!(epoch(&lender.report().journals[0]), 5);
}

#[test]
fn a_stopping_lender_warns_clients_and_waits_until_they_have_left() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = lender.addresses()[0].clone();
    let mut writer = TestWriter::join(&address, 7, 1);
    writer.append(b"unsynced");
    writer.acked();
    let mut idle = TestWriter::bind(&address, 8, 1);
    idle.fence();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| lender.stop(crate::common::PATIENCE));
        for link in [&mut writer.link, &mut idle.link] {
            assert_eq!(receive(link).unwrap().header.kind, FrameKind::Withdraw);
        }
        assert_eq!(
            idle.join_window(WINDOW, 1).refusal(),
            Some(RefusalReason::Stopping)
        );
        // Still served: the ping drops the bytes that are stable now. The empty window is needed, too.
        let mut ping = writer.header(FrameKind::Ping);
        ping.stable = writer.at.lsn;
        assert_eq!(writer.ask(ping, &[0; 8]).header.kind, FrameKind::Pong);
        assert!(!stop.is_finished());
        assert_eq!(writer.leave().header.kind, FrameKind::LeaveAck);
        let stopped = stop.join().unwrap();
        assert_eq!((stopped.windows_left, stopped.failed), (0, false));
    });
    drop(lender);
    let lender = start(&dir);
    assert_eq!(lender.origin(), StoreOrigin::Restored);
    lender.stop_and_forget(Duration::ZERO);
    assert!(!dir.path().join("store").exists());
}

#[test]
fn with_a_key_only_holders_are_served_and_others_are_counted() {
    let dir = memory_dir();
    let key = ClusterKey::generate();
    let security = Security::Key(key);
    let lender = Lender::start(netram_lender::LenderConfig {
        security: security.clone(),
        ..config(&dir)
    })
    .unwrap();
    let address = &lender.addresses()[0];
    let other = Security::Key(ClusterKey::generate());
    assert!(netram_transport::connect(address, &other, crate::common::PATIENCE).is_err());
    assert!(netram_transport::connect(address, &Security::Insecure, crate::common::PATIENCE).is_err());
    let mut link = netram_transport::connect(address, &security, crate::common::PATIENCE).unwrap();
    send(
        &mut link,
        netram_proto::wire::FrameHeader::new(FrameKind::Status),
        &[],
    );
    let report = netram_lender::StatusReport::from_frame_body(&receive(&mut link).unwrap().body).unwrap();
    assert!(report.secure);
    assert_eq!(report.counters.handshakes_failed["wrong_key"], 1);
    assert_eq!(report.counters.handshakes_failed["secure_required"], 1);
}

#[test]
fn a_newer_writer_takes_over_and_the_older_session_is_told() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = &lender.addresses()[0];
    let mut old = TestWriter::join(address, 7, 1);
    old.append(b"mine");
    old.acked();
    let mut new = TestWriter::bind(address, 7, 2);
    assert_eq!(new.fence().header.epoch, Epoch(2));
    old.append(b"late");
    let refused = receive(&mut old.link).unwrap();
    assert_eq!(
        (refused.refusal(), refused.header.epoch),
        (Some(RefusalReason::Fenced), Epoch(2))
    );
}

#[test]
fn waiting_for_a_lender_ends_when_it_is_stopped() {
    let dir = memory_dir();
    let lender = start(&dir);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lender.wait());
        assert!(!lender.stop(Duration::ZERO).failed);
        assert_eq!(waiting.join().unwrap().windows_left, 0);
    });
    let gone = netram_transport::connect(
        &lender.addresses()[0],
        &Security::Insecure,
        crate::common::PATIENCE,
    );
    assert!(gone.is_err(), "the lender no longer listens");
}
