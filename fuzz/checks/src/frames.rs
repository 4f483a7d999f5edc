//! Frames, and the records in them.

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::MemberReport;
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, RECORD_HEADER_BYTES};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::RecordKind;
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::wire::{
    ChainPoint, CrcSeed, Frame, FrameHeader, FrameKind, RecordHeader, RefusalReason, ScanStep, check_record,
    finish_record, scan_step,
};

use crate::input::FuzzInput;

const JOURNAL: JournalId = JournalId(0xF00D);

/// A frame as a packet.
pub fn packet(header: &FrameHeader, body: &[u8]) -> Vec<u8> {
    [&header.encode(body.len())[..], body].concat()
}

/// A valid record, as a writer makes it.
pub fn record(journal: JournalId, link: ChainPoint, epoch: u32, stable: Lsn, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader::new(link, Epoch(epoch), stable, RecordKind(16), false, payload.len());
    let mut bytes = vec![0; header.length];
    header.write(&mut bytes);
    bytes[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    finish_record(&mut bytes, journal.into());
    bytes
}

/// Consecutive frames of the wire format. Each is parsed, must have only one encoding, and is judged by a
/// session.
pub fn frame(bytes: &[u8]) {
    let mut session = LenderSession::default();
    let mut rest = bytes;
    for _ in 0..4 {
        let length = rest
            .get(4..8)
            .and_then(|length| length.first_chunk())
            .map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let cut = FRAME_HEADER_BYTES.saturating_add(length).min(rest.len());
        let (packet, behind) = rest.split_at(cut);
        one_frame(&mut session, packet);
        rest = behind;
    }
    let _ = Frame::parse(bytes);
}

fn one_frame(session: &mut LenderSession, bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    assert!(frame.body.len() <= FRAME_BODY_BYTES_MAX);
    assert_eq!(packet(&frame.header, frame.body), bytes, "a frame has one form");
    let before = session.journal();
    match session.handle(&frame) {
        Ok(SessionAction::Bind(journal, writer)) => {
            assert_eq!(before, None, "a session is bound once");
            assert_eq!(session.journal(), Some(journal));
            assert_eq!(writer.0, frame.header.sender);
        }
        Ok(SessionAction::Member(journal) | SessionAction::Invite(journal)) => {
            assert_eq!(before, Some(journal))
        }
        Ok(
            SessionAction::Data
            | SessionAction::Deposit
            | SessionAction::Share
            | SessionAction::Drain(_)
            | SessionAction::Offer(_)
            | SessionAction::Prove(_),
        ) => {
            assert_eq!(before, None)
        }
        Ok(SessionAction::Status) | Err(_) => assert_eq!(session.journal(), before),
    }
    if let Some(told) = MemberReport::decode(&frame) {
        assert_eq!(
            (told.incarnation.0, told.fence_epoch),
            (frame.header.sender, frame.header.epoch)
        );
    }
    if let Some(refusal) = RefusalReason::from_byte(frame.header.flags) {
        assert_eq!(refusal as u8, frame.header.flags);
    }
}

/// Kinds of frames for seeds.
pub(crate) const KINDS: [FrameKind; 12] = [
    FrameKind::Bind,
    FrameKind::Fence,
    FrameKind::Join,
    FrameKind::Append,
    FrameKind::Read,
    FrameKind::Status,
    FrameKind::Invite,
    FrameKind::Follow,
    FrameKind::Share,
    FrameKind::Deposit,
    FrameKind::ProbeReply,
    FrameKind::Refuse,
];

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let one = |kind| {
        let mut header = FrameHeader::new(kind);
        (header.epoch, header.lsn, header.sender, header.flags) = (Epoch(3), Lsn(64), 9, 1);
        packet(&header, &JOURNAL.0.to_le_bytes())
    };
    let mut seeds: Vec<Vec<u8>> = KINDS.map(one).to_vec();
    seeds.push(
        [
            one(FrameKind::Bind),
            one(FrameKind::Fence),
            one(FrameKind::Append),
        ]
        .concat(),
    );
    seeds
}

/// Bytes of a log, judged as a member and a scan do. The last bytes may be made a valid record, so that the
/// code behind the checksum is reached too.
pub fn log_bytes(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let (mend, cut) = (input.u8(), usize::from(input.u8()));
    let seed = CrcSeed::from(JOURNAL);
    let mut log = input.rest().to_vec();
    if mend & 1 != 0 && log.len() >= RECORD_HEADER_BYTES {
        finish_record(&mut log, seed);
    }
    let mut link = match log.first_chunk().map(RecordHeader::parse) {
        Some(Ok(header)) if mend & 2 != 0 => ChainPoint {
            lsn: header.lsn,
            chain: header.chain,
        },
        _ => ChainPoint::default(),
    };
    let mut at = 0;
    // Honest writers never reach the end of the log's numbers: see `Lsn::plus`.
    while link.lsn < Lsn(1 << 62) {
        match scan_step(&log[at..], link, seed, FaultSwitch::NONE) {
            ScanStep::Record(header) => {
                let record = &log[at..at + header.length];
                let cut = cut.clamp(RECORD_HEADER_BYTES, header.length);
                let pieces = [&record[..cut], &record[cut..]];
                assert!(check_record(&header, pieces.into_iter(), seed, FaultSwitch::NONE));
                let mut again = vec![0; header.length];
                header.write(&mut again);
                again[4..8].copy_from_slice(&header.crc.to_le_bytes());
                assert_eq!(again[..RECORD_HEADER_BYTES], record[..RECORD_HEADER_BYTES]);
                at += header.length;
                link = header.next_point();
            }
            ScanStep::Incomplete(wanted) => {
                assert!(wanted > log.len() - at, "what is here in full is judged");
                break;
            }
            ScanStep::Bad(_) => break,
        }
    }
}

pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    let first = record(JOURNAL, ChainPoint::default(), 1, Lsn(0), b"first");
    let chain = u32::from_le_bytes([first[4], first[5], first[6], first[7]]);
    let link = ChainPoint {
        lsn: Lsn(first.len() as u64),
        chain,
    };
    let second = record(JOURNAL, link, 2, Lsn(40), &[7; 100]);
    vec![
        [&[0, 41], &first[..], &second].concat(),
        [&[3, 0], &second[..]].concat(),
        [&[1, 50], &first[..60.min(first.len())]].concat(),
    ]
}
