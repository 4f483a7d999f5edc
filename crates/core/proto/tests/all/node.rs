//! A dead node's journal, read from its members and released: the machines of both sides, with frames carried
//! by hand.

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    CommitRule, ForgetNotice, FrameBody, NodeReadError, OutgoingFrame, PeerAnswer, PeerWindow, Recovery,
    RecoveryError, View, ViewMember, node_records,
};
use netram_proto::limit::{RECORD_HEADER_BYTES, WINDOW_BYTES_MIN};
use netram_proto::member::{Member, MemberReply, copy_out};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::RecordKind;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{
    ChainPoint, Frame, FrameHeader, FrameKind, RecordHeader, RefusalReason, finish_record,
};

use crate::window::WindowBuffer;

const JOURNAL: JournalId = JournalId(0x5EED);
const NODE: WriterId = WriterId(3);
const EPOCH: Epoch = Epoch(5);

/// A lender's side of the journal.
struct TestLender {
    member: Member,
    window: WindowBuffer,
}

impl TestLender {
    fn new(incarnation: u64) -> TestLender {
        TestLender {
            member: Member::new(JOURNAL, Incarnation(incarnation)),
            window: WindowBuffer::default(),
        }
    }

    /// Passes a frame to the member. The session's part, answering `Bind`, is done here.
    fn answer(&mut self, header: FrameHeader, body: &[u8]) -> (FrameHeader, Vec<u8>) {
        if header.kind == FrameKind::Bind {
            return (FrameHeader::new(FrameKind::Bound), Vec::new());
        }
        match self.member.handle(&Frame { header, body }, &mut self.window) {
            MemberReply::Frame(header, body, length) => (header, body[..length].to_vec()),
            MemberReply::Data(header, bytes) => {
                let mut body = vec![0; bytes];
                copy_out(&self.window, header.lsn, &mut body);
                (header, body)
            }
        }
    }

    fn takes(
        &mut self,
        kind: FrameKind,
        epoch: Epoch,
        change: impl FnOnce(&mut FrameHeader),
        body: &[u8],
    ) -> FrameHeader {
        let mut header = FrameHeader {
            epoch,
            sender: NODE.0,
            ..FrameHeader::new(kind)
        };
        change(&mut header);
        self.answer(header, body).0
    }

    /// Has epoch `epoch` of the node open a window at `start` and fill it with `records`.
    fn joins(&mut self, epoch: Epoch, start: ChainPoint, records: &[u8]) {
        self.takes(FrameKind::Fence, epoch, |_| (), b"");
        let bytes = WINDOW_BYTES_MIN.to_le_bytes();
        let join = |header: &mut FrameHeader| {
            (header.lsn, header.mark, header.stable) = (start.lsn, start.chain, Lsn(1))
        };
        self.takes(FrameKind::Join, epoch, join, &bytes);
        let held = self.appended(epoch, start.lsn, records);
        assert_eq!(held.lsn, start.lsn.plus(records.len() as u64));
    }

    fn appended(&mut self, epoch: Epoch, at: Lsn, records: &[u8]) -> FrameHeader {
        self.takes(FrameKind::Append, epoch, |header| header.lsn = at, records)
    }
}

/// Consecutive records of `epoch`, and the end of each, with the start first.
fn records(epoch: Epoch, start: ChainPoint, payloads: &[&str]) -> (Vec<u8>, Vec<ChainPoint>) {
    let (mut bytes, mut ends) = (Vec::new(), vec![start]);
    for payload in payloads {
        let end = ends[ends.len() - 1];
        let header = RecordHeader::new(end, epoch, Lsn(0), RecordKind(16), false, payload.len());
        let mut record = vec![0; header.length];
        header.write(&mut record);
        record[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload.as_bytes());
        let chain = finish_record(&mut record, JOURNAL.into());
        bytes.extend_from_slice(&record);
        let lsn = header.next();
        ends.push(ChainPoint { lsn, chain });
    }
    (bytes, ends)
}

fn view(members: u64, rule: CommitRule, counting: bool) -> View {
    let member = |number: u64| ViewMember {
        incarnation: Incarnation(number),
        join: None,
        address: format!("l{number}"),
        domain: String::new(),
    };
    View {
        epoch: EPOCH,
        writer: NODE,
        rule,
        counting,
        members: (0..members).map(member).collect(),
        ..View::first(JOURNAL)
    }
}

fn sent(outgoing: &OutgoingFrame) -> (FrameHeader, &[u8]) {
    match &outgoing.body {
        FrameBody::Inline(body, length) => (outgoing.header, &body[..*length]),
        _ => panic!("a recovery sends no log bytes"),
    }
}

fn read(
    view: &View,
    kept: ChainPoint,
    lenders: &mut [Option<&mut TestLender>],
) -> Result<(Vec<String>, ChainPoint), String> {
    let mut recovery = Recovery::of_node(view, kept.lsn, Time(0), Nanos(10), Nanos(1000));
    for (index, lender) in lenders.iter_mut().enumerate() {
        let Some(lender) = lender else { continue };
        recovery.on_connected(index);
        while let Some(outgoing) = recovery.next_frame(index) {
            let (header, body) = sent(&outgoing);
            let (header, body) = lender.answer(header, body);
            recovery.on_frame(index, &Frame { header, body: &body });
            if header.kind == FrameKind::Refuse {
                recovery.on_lost(index);
                break;
            }
        }
    }
    recovery
        .verdict(Time(1000))
        .expect("patience is over")
        .map_err(|refusal| refusal.to_string())?;
    let windows = recovery.windows();
    let mut found = Vec::new();
    let (end, all) = node_records(
        &windows,
        kept,
        view.epoch,
        JOURNAL.into(),
        FaultSwitch::NONE,
        &mut |_| true,
        &mut |record| found.push(String::from_utf8_lossy(record.payload()).into_owned()),
    );
    all.map_err(|error| error.to_string())?;
    Ok((found, end))
}

#[test]
fn one_of_two_members_returns_everything_and_the_node_is_fenced() {
    let (bytes, ends) = records(EPOCH, ChainPoint::default(), &["a", "b", "c"]);
    let mut lender = TestLender::new(1);
    lender.joins(EPOCH, ChainPoint::default(), &bytes);
    let view = view(2, CommitRule::All, true);
    // Reading may be repeated, from any end of the server.
    for (kept, rest) in [(0, "abc"), (1, "bc"), (3, ""), (0, "abc")] {
        let (found, end) = read(&view, ends[kept], &mut [None, Some(&mut lender)]).expect("all of it");
        assert_eq!((found.concat(), end), (String::from(rest), ends[3]));
    }
    // The node may still run, and so may a process that reopens its directory.
    for epoch in [EPOCH, Epoch(EPOCH.0 + 1), Epoch(60_000)] {
        let refused = lender.takes(FrameKind::Fence, epoch, |_| (), b"");
        assert_eq!(refused.flags, RefusalReason::Fenced as u8);
    }
    let refused = lender.appended(EPOCH, ends[3].lsn, &records(EPOCH, ends[3], &["d"]).0);
    assert_eq!(
        (refused.kind, refused.flags),
        (FrameKind::Refuse, RefusalReason::Fenced as u8)
    );
}

#[test]
fn with_rule_any_both_members_must_answer_and_the_refusal_names_the_missing_one() {
    let mut lender = TestLender::new(0);
    lender.joins(
        EPOCH,
        ChainPoint::default(),
        &records(EPOCH, ChainPoint::default(), &["a"]).0,
    );
    let refused = read(
        &view(2, CommitRule::Any, true),
        ChainPoint::default(),
        &mut [Some(&mut lender), None],
    );
    let said = refused.expect_err("the other member may hold more");
    assert!(said.contains("l1 (unreachable)"), "{said}");
}

#[test]
fn under_a_view_that_does_not_count_no_member_is_needed() {
    let found = read(
        &view(1, CommitRule::All, false),
        ChainPoint::default(),
        &mut [None],
    );
    assert_eq!(found, Ok((Vec::new(), ChainPoint::default())));
}

#[test]
fn a_window_that_begins_above_the_servers_end_does_not_count() {
    let (bytes, ends) = records(EPOCH, ChainPoint::default(), &["a", "b"]);
    let mut lender = TestLender::new(0);
    lender.joins(EPOCH, ends[1], &bytes[ends[1].lsn.0 as usize..]);
    let view = view(1, CommitRule::All, true);
    let refused = read(&view, ChainPoint::default(), &mut [Some(&mut lender)]);
    assert!(refused.is_err(), "{refused:?}");
    let (found, _) = read(&view, ends[1], &mut [Some(&mut lender)]).expect("it continues that");
    assert_eq!(found, ["b"]);
}

/// The node's directory was opened by a process as a journal of its own: that process's window says nothing
/// about the node's.
#[test]
fn a_window_of_another_epoch_does_not_count() {
    let mut lender = TestLender::new(0);
    let later = Epoch(EPOCH.0 + 1);
    lender.joins(
        later,
        ChainPoint::default(),
        &records(later, ChainPoint::default(), &["x"]).0,
    );
    let refused = read(
        &view(1, CommitRule::All, true),
        ChainPoint::default(),
        &mut [Some(&mut lender)],
    );
    assert!(refused.is_err(), "{refused:?}");
}

fn window(from: Lsn, bytes: &[u8], promised: Lsn) -> PeerWindow {
    PeerWindow {
        trim: from,
        from,
        bytes: bytes.to_vec(),
        promised,
    }
}

fn found(windows: &[PeerWindow], kept: ChainPoint) -> (String, ChainPoint, Result<(), NodeReadError>) {
    let mut found = String::new();
    let (end, all) = node_records(
        windows,
        kept,
        EPOCH,
        JOURNAL.into(),
        FaultSwitch::NONE,
        &mut |_| true,
        &mut |record| found.push_str(&String::from_utf8_lossy(record.payload())),
    );
    (found, end, all)
}

#[test]
fn a_damaged_record_is_taken_from_another_window_or_reported_missing() {
    let start = ChainPoint::default();
    let (bytes, ends) = records(EPOCH, start, &["a", "b", "c"]);
    let (mut first, mut second) = (bytes.clone(), bytes.clone());
    first[ends[1].lsn.0 as usize + RECORD_HEADER_BYTES] ^= 1;
    second[ends[2].lsn.0 as usize + RECORD_HEADER_BYTES] ^= 1;
    let promised = ends[3].lsn;
    let both = [
        window(Lsn(0), &first, promised),
        window(Lsn(0), &second, promised),
    ];
    assert_eq!(found(&both, start), (String::from("abc"), ends[3], Ok(())));
    let one = &both[1..];
    let error = NodeReadError {
        at: ends[2].lsn,
        promised,
    };
    assert_eq!(found(one, start), (String::from("ab"), ends[2], Err(error)));
    let in_doubt = [window(Lsn(0), &second, ends[2].lsn)];
    assert_eq!(found(&in_doubt, start), (String::from("ab"), ends[2], Ok(())));
}

#[test]
fn records_of_another_epoch_are_not_the_nodes() {
    let start = ChainPoint::default();
    let (mut bytes, ends) = records(EPOCH, start, &["a"]);
    bytes.extend_from_slice(&records(Epoch(EPOCH.0 + 1), ends[1], &["x"]).0);
    let windows = [window(Lsn(0), &bytes, Lsn(0))];
    assert_eq!(found(&windows, start), (String::from("a"), ends[1], Ok(())));
}

#[test]
fn a_forget_notice_frees_the_nodes_windows_and_keeps_those_of_another_epoch() {
    let view = view(2, CommitRule::All, true);
    let mut lenders = [
        TestLender::new(0),
        TestLender::new(1),
        TestLender::new(2),
        TestLender::new(3),
    ];
    // A spare that was about to become a member when the node died, and a lender that the node never reached.
    let spares = [String::from("spare"), String::from("stranger")];
    lenders[2].joins(
        EPOCH,
        ChainPoint::default(),
        &records(EPOCH, ChainPoint::default(), &["a"]).0,
    );
    lenders[0].joins(
        EPOCH,
        ChainPoint::default(),
        &records(EPOCH, ChainPoint::default(), &["a"]).0,
    );
    let later = Epoch(EPOCH.0 + 1);
    lenders[1].joins(
        later,
        ChainPoint::default(),
        &records(later, ChainPoint::default(), &["x"]).0,
    );
    let named = view.members.iter().map(|member| member.address.clone());
    let named: Vec<String> = named.chain(spares).collect();
    let mut forget = ForgetNotice::new(&view, &named);
    assert!(
        forget.addresses().eq(named.iter().map(String::as_str)),
        "each is told once"
    );
    for (index, lender) in lenders.iter_mut().enumerate() {
        assert!(!forget.is_done(index));
        forget.on_connected(index);
        while let Some(outgoing) = forget.next_frame(index) {
            let (header, body) = sent(&outgoing);
            let (header, body) = lender.answer(header, body);
            forget.on_frame(index, &Frame { header, body: &body });
        }
        assert!(forget.is_done(index));
    }
    assert!(forget.is_over());
    assert!(!lenders[0].member.state().joined);
    assert!(lenders[1].member.state().joined);
    assert!(!lenders[2].member.state().joined);
    let over = |lender: &TestLender| lender.member.may_be_forgotten();
    assert_eq!(
        [
            over(&lenders[0]),
            over(&lenders[1]),
            over(&lenders[2]),
            over(&lenders[3])
        ],
        [true, false, true, true]
    );
    // A node that was paused continues, and asks the lender that it never reached for a window.
    let refused = lenders[3].takes(FrameKind::Fence, EPOCH, |_| (), b"");
    assert_eq!(refused.kind, FrameKind::Refuse);
    // A later reader learns that it is too late.
    let refused = read(&view, ChainPoint::default(), &mut [Some(&mut lenders[0]), None]);
    assert!(refused.is_err());
}

/// An operator deleted a copy of the directory made before the last opening. The lenders obey the original,
/// whose fence is newer.
#[test]
fn a_deletion_frees_windows_of_all_epochs_except_a_newer_writers() {
    let view = view(1, CommitRule::All, true);
    let later = Epoch(EPOCH.0 + 1);
    let mut lenders = [TestLender::new(0), TestLender::new(1), TestLender::new(2)];
    let earlier = Epoch(EPOCH.0 - 1);
    lenders[0].joins(
        EPOCH,
        ChainPoint::default(),
        &records(EPOCH, ChainPoint::default(), &["a"]).0,
    );
    lenders[1].joins(
        earlier,
        ChainPoint::default(),
        &records(earlier, ChainPoint::default(), &["a"]).0,
    );
    lenders[2].joins(
        later,
        ChainPoint::default(),
        &records(later, ChainPoint::default(), &["x"]).0,
    );
    let named: Vec<String> = ["a", "b", "c"].map(String::from).into();
    let mut forget = ForgetNotice::deleted(JOURNAL, (view.epoch, view.writer), ForgetNotice::ALL, &named);
    for (index, lender) in lenders.iter_mut().enumerate() {
        forget.on_connected(index);
        while let Some(outgoing) = forget.next_frame(index) {
            let (header, body) = sent(&outgoing);
            let (header, body) = lender.answer(header, body);
            forget.on_frame(index, &Frame { header, body: &body });
        }
        assert!(forget.is_done(index));
    }
    assert_eq!(
        lenders.each_ref().map(|lender| lender.member.state().joined),
        [false, false, true]
    );
    assert_eq!(
        lenders.each_ref().map(|lender| lender.member.may_be_forgotten()),
        [true, true, false]
    );
}

/// Two servers by mistake, or one whose earlier attempt was cut off: both read, and neither stops the other.
#[test]
fn two_concurrent_recoveries_read_the_same() {
    let (bytes, ends) = records(EPOCH, ChainPoint::default(), &["a", "b"]);
    let mut lender = TestLender::new(0);
    lender.joins(EPOCH, ChainPoint::default(), &bytes);
    let view = view(1, CommitRule::All, true);
    let begin = || Recovery::of_node(&view, Lsn(0), Time(0), Nanos(0), Nanos(1000));
    let mut both = [begin(), begin()];
    both.iter_mut().for_each(|recovery| recovery.on_connected(0));
    for _ in 0..8 {
        for recovery in &mut both {
            let Some(outgoing) = recovery.next_frame(0) else {
                continue;
            };
            let (header, body) = sent(&outgoing);
            let (header, body) = lender.answer(header, body);
            recovery.on_frame(0, &Frame { header, body: &body });
        }
    }
    for mut recovery in both {
        assert_eq!(recovery.verdict(Time(1)), Some(Ok(())));
        assert_eq!(recovery.windows()[0].bytes.len() as u64, ends[2].lsn.0);
    }
}

#[test]
fn a_later_fence_is_reported() {
    let mut lender = TestLender::new(0);
    lender.takes(FrameKind::Fence, Epoch(1 << 20), |_| (), b"");
    let view = view(1, CommitRule::All, true);
    let mut recovery = Recovery::of_node(&view, Lsn(0), Time(0), Nanos(0), Nanos(1000));
    recovery.on_connected(0);
    while let Some(outgoing) = recovery.next_frame(0) {
        let (header, body) = lender.answer(outgoing.header, b"");
        recovery.on_frame(0, &Frame { header, body: &body });
        if header.kind == FrameKind::Refuse {
            break;
        }
    }
    let seen = Epoch(1 << 20);
    assert_eq!(
        recovery.verdict(Time(1)),
        Some(Err(RecoveryError::Fenced { seen }))
    );
    assert!(
        recovery
            .answers()
            .all(|(_, answer)| answer != PeerAnswer::Complete)
    );
}
