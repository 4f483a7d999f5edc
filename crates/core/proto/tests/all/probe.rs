//! The probe before the fence (rule 18): a member's answer, the judgement of the answers, and that the probe
//! changes no member.

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{NotNewestError, PeerAnswer, Recovery, RecoveryError, View, ViewMember};
use netram_proto::limit::{EPOCH_MAX, WINDOW_BYTES_MIN};
use netram_proto::member::{Member, MemberReply, ReserveError, Window};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

const JOURNAL: JournalId = JournalId(7);
const END: Lsn = Lsn(100);

/// A window with space that stores nothing: only positions matter.
struct EmptyWindow;

impl Window for EmptyWindow {
    fn capacity(&self) -> u64 {
        WINDOW_BYTES_MIN
    }
    fn reserve(&mut self, _: u64) -> Result<(), ReserveError> {
        Ok(())
    }
    fn release(&mut self) {}
    fn write(&mut self, _: Lsn, _: &[u8]) {}
    fn piece(&self, _: Lsn, _: usize) -> &[u8] {
        unreachable!("nothing is read")
    }
}

/// A lender's member that a writer of `epoch` has fenced, and joined at `from`.
fn joined(lender: u64, epoch: u32, from: u64) -> Member {
    let mut member = Member::new(JOURNAL, Incarnation(lender));
    say(&mut member, FrameKind::Fence, epoch, from, 0);
    let answer = say(&mut member, FrameKind::Join, epoch, from, 1);
    assert_eq!(answer.header().kind, FrameKind::Ack);
    member
}

fn say(member: &mut Member, kind: FrameKind, epoch: u32, lsn: u64, stable: u64) -> MemberReply {
    let header = FrameHeader {
        epoch: Epoch(epoch),
        sender: u64::from(epoch),
        lsn: Lsn(lsn),
        stable: Lsn(stable),
        ..FrameHeader::new(kind)
    };
    let body = WINDOW_BYTES_MIN.to_le_bytes();
    let body = if kind == FrameKind::Join { &body[..] } else { &[] };
    member.handle(&Frame { header, body }, &mut EmptyWindow)
}

/// A counting view of epoch 1, whose members are the lenders 0, 1 and so on.
fn view(members: u64, rule: &str) -> View {
    let member = |number| ViewMember {
        incarnation: Incarnation(number),
        join: None,
        address: format!("unix:/lender-{number}"),
        domain: String::new(),
    };
    let mut view = View {
        rule: rule.parse().expect("a rule"),
        counting: true,
        epoch: Epoch(1),
        writer: WriterId(1),
        members: (0..members).map(member).collect(),
        ..View::first(JOURNAL)
    };
    view.epochs.begin(Epoch(1), WriterId(1), Lsn(0));
    view
}

fn inquiry(claim: &View) -> Recovery {
    let (grace, patience) = (Nanos(10), Nanos(100));
    Recovery::new(claim, claim.epoch, claim.writer, END, Time(0), grace, patience).probing()
}

/// Exchanges frames between the probe and a member until the probe has no more. Returns the kinds of its
/// frames.
fn talk(inquiry: &mut Recovery, index: usize, member: &mut Member) -> Vec<FrameKind> {
    let mut asked = Vec::new();
    inquiry.on_connected(index);
    while let Some(outgoing) = inquiry.next_frame(index) {
        let header = outgoing.header;
        asked.push(header.kind);
        if header.kind == FrameKind::Bind {
            let header = FrameHeader::new(FrameKind::Bound);
            inquiry.on_frame(index, &Frame { header, body: &[] });
            continue;
        }
        match member.handle(&Frame { header, body: &[] }, &mut EmptyWindow) {
            MemberReply::Frame(header, body, length) => {
                let body = &body[..length];
                inquiry.on_frame(index, &Frame { header, body });
            }
            MemberReply::Data(..) => panic!("nothing is read"),
        }
    }
    asked
}

#[test]
fn a_probe_changes_no_member_and_neither_fences_nor_reads() {
    let claim = view(2, "all").claimed(WriterId(9));
    let mut inquiry = inquiry(&claim);
    for index in 0..2 {
        let mut member = joined(index as u64, 1, 60);
        let before = *member.state();
        let asked = talk(&mut inquiry, index, &mut member);
        assert_eq!(asked, [FrameKind::Bind, FrameKind::Ping]);
        assert_eq!(*member.state(), before);
    }
    assert_eq!(inquiry.verdict(Time(0)), Some(Ok(())));
    let (_, answer, report) = inquiry.reports().next().expect("two members");
    let report = report.expect("a report");
    let window = report.window.expect("it has one");
    assert_eq!(
        (answer, report.fence_epoch, report.writer),
        (PeerAnswer::Complete, Epoch(1), WriterId(1))
    );
    assert_eq!((window.epoch, window.generation), (Epoch(1), 1));
    assert_eq!((window.trim, window.held), (Lsn(60), Lsn(60)));
}

#[test]
fn a_refused_probe_names_the_missing_member_and_changes_none() {
    let claim = view(2, "any").claimed(WriterId(9));
    let mut inquiry = inquiry(&claim);
    let mut there = joined(0, 1, 60);
    let before = *there.state();
    talk(&mut inquiry, 0, &mut there);
    assert_eq!(inquiry.verdict(Time(99)), None);
    match inquiry.verdict(Time(100)) {
        Some(Err(RecoveryError::Missing { missing, .. })) => {
            assert_eq!(missing, [("unix:/lender-1".to_string(), PeerAnswer::Unreachable)]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(*there.state(), before);
}

/// A fence at a member that is not needed counts as well: another process may be writing.
#[test]
fn a_probe_reports_a_fence_after_all_answers_and_fences_no_member() {
    let claim = view(2, "all").claimed(WriterId(9));
    let mut inquiry = inquiry(&claim);
    let mut fenced = joined(0, 1, 60);
    say(&mut fenced, FrameKind::Fence, 2, 0, 0);
    talk(&mut inquiry, 0, &mut fenced);
    assert_eq!(inquiry.verdict(Time(0)), None, "the other may say more");
    let mut free = joined(1, 1, 60);
    talk(&mut inquiry, 1, &mut free);
    let refusal = RecoveryError::Fenced { seen: Epoch(2) };
    assert_eq!(inquiry.verdict(Time(0)), Some(Err(refusal)));
    assert_eq!(free.state().epoch, Epoch(1));
}

/// The fences of refused attempts locked the restore out for ever.
#[test]
fn a_copy_is_refused_before_its_members_are_fenced_unless_they_continue_it() {
    let copy = view(1, "all");
    let claim = copy.restored(WriterId(9));
    let ask = |member: &mut Member| {
        let mut inquiry = inquiry(&claim).of_replica(&claim, None);
        talk(&mut inquiry, 0, member);
        let answer = inquiry.answers().next().expect("a member").1;
        (
            answer,
            inquiry.verdict(Time(0)).expect("all have answered").is_ok(),
        )
    };
    let mut continues = joined(0, 1, 60);
    assert_eq!(ask(&mut continues), (PeerAnswer::Complete, true));
    let mut beyond = joined(0, 1, END.0 + 1);
    assert_eq!(ask(&mut beyond), (PeerAnswer::AheadOfReplica, false));
    let mut reigned_on = joined(0, 1, 60);
    say(&mut reigned_on, FrameKind::Fence, 2, 0, 0);
    assert_eq!(ask(&mut reigned_on), (PeerAnswer::AheadOfReplica, false));
    let mut gone = Member::new(JOURNAL, Incarnation(0));
    assert_eq!(ask(&mut gone), (PeerAnswer::Amnesiac, false));
    assert_eq!(gone.state().epoch, Epoch(0));
}

/// A lender of an earlier release refuses the probe like the ping of a fenced writer, and names its
/// incarnation and the epoch that fenced it.
#[test]
fn a_lender_that_does_not_know_the_probe_is_judged_by_its_refusal() {
    let answer = |life: u64, fence_epoch: u32| {
        let claim = view(1, "all").claimed(WriterId(9));
        let mut inquiry = inquiry(&claim);
        inquiry.on_connected(0);
        inquiry.next_frame(0).expect("a bind");
        let header = FrameHeader::new(FrameKind::Bound);
        inquiry.on_frame(0, &Frame { header, body: &[] });
        inquiry.next_frame(0).expect("the question");
        let header = FrameHeader {
            flags: RefusalReason::Fenced as u8,
            epoch: Epoch(fence_epoch),
            sender: life,
            ..FrameHeader::new(FrameKind::Refuse)
        };
        inquiry.on_frame(0, &Frame { header, body: &[] });
        // The driver drops the link to a lender that refuses.
        inquiry.on_lost(0);
        let report = inquiry.reports().next().expect("a member").2.expect("a report");
        assert!(report.partial && report.window.is_none());
        inquiry.verdict(Time(100)).expect("it has answered")
    };
    assert_eq!(answer(0, 1), Ok(()));
    assert_eq!(answer(0, 2), Err(RecoveryError::Fenced { seen: Epoch(2) }));
    assert!(
        matches!(answer(5, 1), Err(RecoveryError::Missing { .. })),
        "another incarnation"
    );
    assert!(
        matches!(answer(0, 0), Err(RecoveryError::Missing { .. })),
        "it was never fenced"
    );
}

/// The probe refused as soon as the moved member had answered, before the lender now at its old address was
/// heard (seed 18824).
#[test]
fn a_member_displaced_by_a_moved_one_is_waited_for() {
    let claim = view(2, "all").claimed(WriterId(9));
    let mut inquiry = inquiry(&claim).with_addresses(["unix:/moved"]);
    let (mut first, mut second) = (joined(0, 1, 60), joined(1, 1, 60));
    inquiry.on_connected(0);
    talk(&mut inquiry, 2, &mut first);
    talk(&mut inquiry, 1, &mut first);
    assert_eq!(inquiry.verdict(Time(0)), None, "lender-0 has not answered");
    talk(&mut inquiry, 0, &mut second);
    assert_eq!(inquiry.verdict(Time(0)), Some(Ok(())));
}

#[test]
fn a_malformed_answer_does_not_count() {
    let claim = view(1, "all").claimed(WriterId(9));
    for body in [&[0; 3][..], &[]] {
        let mut inquiry = inquiry(&claim);
        inquiry.on_connected(0);
        inquiry.next_frame(0).expect("a bind");
        let header = FrameHeader::new(FrameKind::Bound);
        inquiry.on_frame(0, &Frame { header, body: &[] });
        inquiry.next_frame(0).expect("the question");
        let header = FrameHeader {
            flags: Flag::KNOWN,
            ..FrameHeader::new(FrameKind::ProbeReply)
        };
        inquiry.on_frame(0, &Frame { header, body });
        assert_eq!(
            inquiry.answers().next().expect("a member").1,
            PeerAnswer::Unreachable
        );
    }
}

/// The operator's statement overrides a fence, but not records that another writer has written.
#[test]
fn the_newest_directory_claims_above_a_fence_without_records() {
    let ours = view(2, "all");
    let claim = ours.claimed(WriterId(9));
    let word = |first: &mut Member, second: &mut Member| {
        let mut inquiry = inquiry(&claim);
        talk(&mut inquiry, 0, first);
        talk(&mut inquiry, 1, second);
        inquiry.newest()
    };
    let mut fenced = joined(0, 1, 60);
    say(&mut fenced, FrameKind::Fence, 131_073, 0, 0);
    let mut free = joined(1, 1, 60);
    assert_eq!(word(&mut fenced, &mut free), Ok(Epoch(131_073)));
    let above = ours.claimed_above(Epoch(131_073), WriterId(9));
    let mut proof = inquiry(&above);
    talk(&mut proof, 0, &mut fenced);
    talk(&mut proof, 1, &mut free);
    assert_eq!(proof.verdict(Time(0)), Some(Ok(())));

    let mut written = joined(1, 1, 60);
    say(&mut written, FrameKind::Fence, 5, 0, 0);
    say(&mut written, FrameKind::Join, 5, 60, 1);
    let refused = word(&mut fenced, &mut written);
    assert!(
        matches!(refused, Err(NotNewestError::Written { epoch: Epoch(5), .. })),
        "{refused:?}"
    );
    let mut dropped = joined(1, 1, END.0 + 8);
    let refused = word(&mut fenced, &mut dropped);
    assert!(
        matches!(refused, Err(NotNewestError::Beyond { .. })),
        "{refused:?}"
    );
    // Above these epochs no claim could be stored and claimed again.
    for epoch in [EPOCH_MAX, u32::MAX - 1, u32::MAX] {
        let mut last = joined(1, 1, 60);
        say(&mut last, FrameKind::Fence, epoch, 0, 0);
        let refused = word(&mut fenced, &mut last);
        assert_eq!(refused, Err(NotNewestError::NoEpoch(Epoch(epoch))));
    }
}

/// A lender that did not answer the probe is not waited for again: an accepted loss would cost the patience
/// twice.
#[test]
fn the_fence_does_not_wait_for_members_that_the_probe_did_not_find() {
    let claim = view(2, "any").claimed(WriterId(9));
    let mut asked = inquiry(&claim);
    let mut there = joined(0, 1, 60);
    talk(&mut asked, 0, &mut there);
    let (grace, patience) = (Nanos(10), Nanos(100));
    let fence = Recovery::new(&claim, claim.epoch, claim.writer, END, Time(0), grace, patience);
    let mut fence = fence.after_probe(&asked);
    assert_eq!(
        fence.verdict(Time(0)),
        None,
        "the member that answered must still be fenced and read"
    );
    talk(&mut fence, 0, &mut there);
    assert_eq!(there.state().epoch, claim.epoch);
    assert!(matches!(
        fence.verdict(Time(0)),
        Some(Err(RecoveryError::Missing { .. }))
    ));
}
