//! A lender killed at any moment loses nothing that it has acknowledged.

use crate::common::child::TestChild;
use crate::common::{START, TestWriter, WINDOW, config, memory_dir, receive, socket};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::Lsn;
use netram_proto::wire::{Flag, FrameKind, RefusalReason};
use netram_transport::NetAddress;

/// Writes until the lender is killed. Returns the log, the acknowledged end, and the LSN that the writer last
/// declared stable.
fn write_until_killed(
    mut writer: TestWriter,
    mut process: Option<TestChild>,
    appends: u32,
) -> (Vec<u8>, Lsn, Lsn) {
    let (mut log, mut acked) = (Vec::new(), START);
    let mut declared = START;
    for index in 0..u32::MAX {
        // Below the acknowledged bytes, at the start of a record, and eventually almost a whole window back.
        let behind = acked.0.saturating_sub(START.0 + WINDOW * 3 / 4) / 440 * 440;
        writer.stable = Lsn(START.0 + behind);
        let mut header = writer.header(FrameKind::Append);
        (header.lsn, header.stable, header.mark) = (writer.at.lsn, writer.stable, writer.at.chain);
        let record = writer.record(&[index as u8; 400]);
        log.extend_from_slice(&record);
        if writer
            .link
            .send(&[&header.encode(record.len()), &record])
            .is_err()
        {
            break;
        }
        declared = writer.stable;
        // A few appends are always in flight, so that the kill hits one at some point.
        if writer.at.lsn.since(acked) > 8 * 440 || index > appends {
            match receive(&mut writer.link) {
                Ok(ack) => {
                    assert_eq!(ack.header.kind, FrameKind::Ack, "{ack:?}");
                    acked = ack.header.lsn;
                }
                Err(_) => break,
            }
        }
        if index == appends {
            let process = process.take();
            // Kills from another thread, so that the kill happens at any point while appends go on.
            std::thread::spawn(move || drop(process));
        }
    }
    while let Ok(ack) = receive(&mut writer.link) {
        acked = ack.header.lsn;
    }
    (log, acked, declared)
}

#[test]
fn every_acknowledged_byte_survives_a_kill() {
    let dir = memory_dir();
    let address = NetAddress::Unix(socket(&dir));
    let mut incarnation = None;
    for round in 0..12_u32 {
        let process = TestChild::lender(&dir);
        let writer = TestWriter::join(&address, 7, 2 * round + 1);
        assert!(incarnation.is_none_or(|before| before == writer.incarnation));
        incarnation = Some(writer.incarnation);
        let (log, acked, declared) = write_until_killed(writer, Some(process), 100 + round * 37);

        let process = TestChild::lender(&dir);
        let mut reader = TestWriter::bind(&address, 7, 2 * round + 2);
        assert_eq!(Some(reader.incarnation), incarnation);
        let sealed = reader.fence();
        assert_eq!(
            sealed.header.flags,
            Flag::KNOWN,
            "the window is known after the kill"
        );
        let (trim, held) = (sealed.header.stable, sealed.header.lsn);
        assert!(held >= acked, "acknowledged up to {acked}, held up to {held}");
        assert!(trim <= declared, "trimmed up to {trim}, stable up to {declared}");
        let (from, end) = ((trim.0 - START.0) as usize, (held.0 - START.0) as usize);
        assert_eq!(reader.read(trim, end - from), log[from..end]);
        drop(process);
    }
}

#[test]
fn a_new_lender_beside_a_running_one_is_refused_its_store() {
    let dir = memory_dir();
    let process = TestChild::lender(&dir);
    let other = LenderConfig {
        listen: vec![NetAddress::Unix(dir.path().join("other"))],
        ..config(&dir)
    };
    let refused = Lender::start(other).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|text| text.contains("another lender")));
    drop(process);
}

/// One client that fenced journals and left them filled a lender for the life of its memory.
#[test]
fn fences_without_a_window_fill_no_lender_and_others_outlive_them_and_a_kill() {
    let dir = memory_dir();
    let address = NetAddress::Unix(socket(&dir));
    let process = TestChild::lender(&dir);
    let mut holder = TestWriter::join(&address, 1, 5);
    holder.append(b"held");
    holder.acked();
    let mut left = TestWriter::join(&address, 2, 5);
    let mut leave = left.header(FrameKind::Leave);
    (leave.lsn, leave.mark) = (Lsn(5), 1);
    assert_eq!(left.ask(leave, &[]).header.kind, FrameKind::LeaveAck);
    drop((holder, left));
    // It has 64 slots.
    for journal in 100..1200 {
        let mut idle = TestWriter::bind(&address, journal, 1);
        assert_eq!(idle.fence().header.kind, FrameKind::Fenced);
    }
    drop(TestWriter::join(&address, 3, 5));
    drop(process);

    let process = TestChild::lender(&dir);
    let old_writer = |journal| TestWriter::bind(&address, journal, 4).fence();
    for journal in [1, 2, 3] {
        let refused = old_writer(journal);
        assert_eq!(
            refused.refusal(),
            Some(RefusalReason::Fenced),
            "journal {journal}"
        );
    }
    let mut remembered = TestWriter::bind(&address, 1199, 1);
    remembered.writer.0 += 1;
    assert_eq!(
        remembered.fence().refusal(),
        Some(RefusalReason::Fenced),
        "while there is room"
    );
    assert_eq!(
        old_writer(100).header.kind,
        FrameKind::Fenced,
        "the oldest is forgotten"
    );
    assert_eq!(TestWriter::bind(&address, 1, 6).fence().header.flags, Flag::KNOWN);
    drop(process);
}
