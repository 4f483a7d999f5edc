use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::port::RecordKind;
use crate::wire::{RecordHeader, finish_record};

const JOURNAL: JournalId = JournalId(0xABCD);
const INCARNATION: Incarnation = Incarnation(42);
const WINDOW: u64 = WINDOW_BYTES_MIN;

#[derive(Default)]
struct Ring(Vec<u8>);

impl Window for Ring {
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.0 = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        let size = self.0.len();
        for (index, byte) in bytes.iter().enumerate() {
            self.0[(at.0 as usize + index) % size] = *byte;
        }
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = at.0 as usize % self.0.len();
        // Cut small, so that records straddle pieces.
        &self.0[start..][..max.min(self.0.len() - start).min(24)]
    }
}

/// A stand-in for the writer: makes records and tracks the end of the log.
struct RecordMaker {
    epoch: Epoch,
    link: ChainPoint,
}

impl RecordMaker {
    fn new(epoch: u32) -> RecordMaker {
        RecordMaker {
            epoch: Epoch(epoch),
            link: ChainPoint {
                lsn: Lsn(64),
                chain: 9,
            },
        }
    }

    fn record(&mut self, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader::new(
            self.link,
            self.epoch,
            Lsn(0),
            RecordKind(16),
            false,
            payload.len(),
        );
        let mut bytes = vec![0; header.length];
        header.write(&mut bytes);
        bytes[crate::limit::RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let chain = finish_record(&mut bytes, JOURNAL.into());
        self.link = ChainPoint {
            lsn: header.next(),
            chain,
        };
        bytes
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        FrameHeader {
            epoch: self.epoch,
            sender: 1,
            ..FrameHeader::new(kind)
        }
    }
}

struct Bench {
    member: Member,
    ring: Ring,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            member: Member::new(JOURNAL, INCARNATION),
            ring: Ring::default(),
        }
    }

    fn joined(maker: &RecordMaker) -> Bench {
        let mut bench = Bench::new();
        bench.send(maker.header(FrameKind::Fence), &[]);
        bench.join(maker, 1);
        bench
    }

    fn join(&mut self, maker: &RecordMaker, generation: u64) -> FrameHeader {
        let header = FrameHeader {
            lsn: maker.link.lsn,
            mark: maker.link.chain,
            stable: Lsn(generation),
            ..maker.header(FrameKind::Join)
        };
        self.send(header, &WINDOW.to_le_bytes())
    }

    fn append(&mut self, maker: &RecordMaker, at: Lsn, stable: Lsn, body: &[u8]) -> FrameHeader {
        self.send(
            FrameHeader {
                lsn: at,
                stable,
                ..maker.header(FrameKind::Append)
            },
            body,
        )
    }

    fn send(&mut self, header: FrameHeader, body: &[u8]) -> FrameHeader {
        *self
            .member
            .handle(&Frame { header, body }, &mut self.ring)
            .header()
    }
}

fn refusal(header: &FrameHeader) -> Option<RefusalReason> {
    (header.kind == FrameKind::Refuse).then(|| RefusalReason::from_byte(header.flags).unwrap())
}

#[test]
fn only_whole_checked_contiguous_records_are_acknowledged() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let bytes = [maker.record(b"one"), maker.record(b"two two two")].concat();
    for cut in 1..bytes.len() {
        let mut bench = Bench::joined(&RecordMaker::new(1));
        let first = bench.append(&maker, at, Lsn(0), &bytes[..cut]);
        assert!(
            first.lsn == at || first.lsn == at.plus(48),
            "an incomplete record was acknowledged"
        );
        assert_eq!(first.stable, at.plus(cut as u64));
        let rest = bench.append(&maker, at.plus(cut as u64), Lsn(0), &bytes[cut..]);
        assert_eq!(rest.lsn, maker.link.lsn);
    }
    let gap = bench.append(&maker, at.plus(48), Lsn(0), &bytes[48..]);
    assert_eq!((gap.flags, gap.lsn, gap.stable), (Flag::GAP, at, at));
}

#[test]
fn duplicate_and_overlapping_appends_change_nothing() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let bytes = [maker.record(b"one"), maker.record(b"two")].concat();
    bench.append(&maker, at, Lsn(0), &bytes[..48]);
    assert_eq!(bench.append(&maker, at, Lsn(0), &bytes[..48]).lsn, at.plus(48));
    assert_eq!(bench.append(&maker, at, Lsn(0), &bytes).lsn, maker.link.lsn);
}

#[test]
fn a_bad_record_is_refused_and_leaves_the_window_as_it_was() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let mut bytes = maker.record(b"payload");
    bytes[45] ^= 1;
    let answer = bench.append(&maker, at, Lsn(0), &bytes);
    assert_eq!(refusal(&answer), Some(RefusalReason::BadRecord));
    bytes[45] ^= 1;
    assert_eq!(bench.append(&maker, at, Lsn(0), &bytes).lsn, maker.link.lsn);
    // The same in two halves.
    let at = maker.link.lsn;
    let mut bytes = maker.record(b"payload");
    bytes[45] ^= 1;
    bench.append(&maker, at, Lsn(0), &bytes[..42]);
    let answer = bench.append(&maker, at.plus(42), Lsn(0), &bytes[42..]);
    assert_eq!(refusal(&answer), Some(RefusalReason::BadRecord));
    bytes[45] ^= 1;
    assert_eq!(bench.append(&maker, at, Lsn(0), &bytes).lsn, maker.link.lsn);
}

#[test]
fn a_higher_epoch_fences_the_lower_and_a_twin_of_the_same_epoch() {
    let mut old = RecordMaker::new(1);
    let mut bench = Bench::joined(&old);
    let at = old.link.lsn;
    let bytes = old.record(b"one");
    bench.append(&old, at, Lsn(0), &bytes);
    let new = RecordMaker::new(2);
    let fenced = bench.send(new.header(FrameKind::Fence), &[]);
    assert_eq!(
        (fenced.kind, fenced.flags, fenced.lsn),
        (FrameKind::Fenced, Flag::KNOWN, old.link.lsn)
    );
    let late_at = old.link.lsn;
    let late = old.record(b"late");
    assert_eq!(
        refusal(&bench.append(&old, late_at, Lsn(0), &late)),
        Some(RefusalReason::Fenced)
    );
    assert_eq!(
        refusal(&bench.send(old.header(FrameKind::Fence), &[])),
        Some(RefusalReason::Fenced)
    );
    let twin = FrameHeader {
        sender: 99,
        ..new.header(FrameKind::Fence)
    };
    assert_eq!(refusal(&bench.send(twin, &[])), Some(RefusalReason::Fenced));
}

/// A new epoch's stable LSN trimmed the window of an earlier one in the middle of a record of a discarded
/// history. The lender's next process then took all of its memory for damaged (simulator seed 3018930).
#[test]
fn a_later_epoch_cannot_change_a_window_that_it_did_not_join() {
    let mut old = RecordMaker::new(1);
    let mut bench = Bench::joined(&old);
    let body = [old.record(b"one"), old.record(b"two")].concat();
    bench.append(&old, Lsn(64), Lsn(0), &body);
    let mut new = RecordMaker {
        link: old.link,
        ..RecordMaker::new(2)
    };
    bench.send(new.header(FrameKind::Fence), &[]);
    let before = *bench.member.state();
    let stable = Lsn(70);
    bench.send(
        FrameHeader {
            stable,
            ..new.header(FrameKind::Ping)
        },
        &[],
    );
    let (at, record) = (new.link.lsn, new.record(b"three"));
    let answer = bench.append(&new, at, stable, &record);
    assert_eq!(refusal(&answer), Some(RefusalReason::NotJoined));
    assert_eq!(*bench.member.state(), before);
}

#[test]
fn a_delayed_join_or_leave_does_not_empty_a_filled_window() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let start = RecordMaker::new(1);
    let at = maker.link.lsn;
    let bytes = maker.record(b"one");
    bench.append(&maker, at, Lsn(0), &bytes);
    assert_eq!(bench.join(&start, 1).lsn, maker.link.lsn);
    bench.send(
        FrameHeader {
            lsn: Lsn(1),
            mark: 7,
            ..maker.header(FrameKind::Leave)
        },
        &[],
    );
    assert!(bench.member.state().joined);
    bench.send(
        FrameHeader {
            lsn: Lsn(1),
            mark: 1,
            ..maker.header(FrameKind::Leave)
        },
        &[],
    );
    assert!(!bench.member.state().joined);
    assert_eq!(
        refusal(&bench.append(&maker, at, Lsn(0), &bytes)),
        Some(RefusalReason::NotJoined)
    );
}

#[test]
fn a_full_window_refuses_appends_until_the_stable_lsn_frees_space() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let start = maker.link.lsn;
    let mut ends = Vec::new();
    loop {
        let at = maker.link.lsn;
        let bytes = maker.record(&[7; 1000]);
        let answer = bench.append(&maker, at, Lsn(0), &bytes);
        if refusal(&answer) == Some(RefusalReason::Overrun) {
            assert_eq!(answer.stable, start.plus(WINDOW));
            let answer = bench.append(&maker, at, ends[0], &bytes);
            assert_eq!(answer.lsn, maker.link.lsn, "the stable LSN made room");
            break;
        }
        ends.push(maker.link.lsn);
    }
    assert_eq!(bench.member.state().trim, ends[0]);
}

#[test]
fn a_member_that_fell_behind_the_disk_restarts_at_the_stable_lsn() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    maker.record(b"never sent");
    let link = maker.link;
    let bytes = maker.record(b"next");
    let header = FrameHeader {
        lsn: link.lsn,
        mark: link.chain,
        stable: link.lsn,
        ..maker.header(FrameKind::Append)
    };
    assert_eq!(
        bench.send(header, &bytes).flags,
        Flag::GAP,
        "without FRESH it may not restart"
    );
    let header = FrameHeader {
        flags: Flag::FRESH,
        ..header
    };
    assert_eq!(bench.send(header, &bytes).lsn, maker.link.lsn);
    assert_eq!(bench.member.state().trim, link.lsn);
}

#[test]
fn a_read_never_returns_bytes_outside_the_window() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let bytes = maker.record(b"one");
    bench.append(&maker, at, Lsn(0), &bytes);
    let read = FrameHeader {
        lsn: at,
        ..maker.header(FrameKind::Read)
    };
    let frame = Frame {
        header: read,
        body: &u32::MAX.to_le_bytes(),
    };
    let MemberReply::Data(header, count) = bench.member.handle(&frame, &mut bench.ring) else {
        panic!("no data")
    };
    assert_eq!((header.lsn, count), (at, bytes.len()));
    let outside = FrameHeader {
        lsn: maker.link.lsn.plus(1),
        ..read
    };
    assert_eq!(
        refusal(&bench.send(outside, &8u32.to_le_bytes())),
        Some(RefusalReason::OutOfWindow)
    );
    let unfenced = FrameHeader {
        epoch: Epoch(9),
        ..read
    };
    assert_eq!(
        refusal(&bench.send(unfenced, &8u32.to_le_bytes())),
        Some(RefusalReason::NotFenced)
    );
}

#[test]
fn a_restarted_lender_process_keeps_a_window_only_if_it_checks() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let bytes = [maker.record(b"one"), maker.record(b"two")].concat();
    bench.append(&maker, at, Lsn(0), &bytes[..60]);
    let state = *bench.member.state();
    let restored = Member::restore(JOURNAL, INCARNATION, state, &bench.ring).expect("intact");
    assert_eq!(restored.state().held, at.plus(48));
    assert_eq!(
        restored.state().received,
        at.plus(48),
        "the beginning of a record is requested again"
    );
    bench.ring.write(at.plus(41), b"!");
    assert!(Member::restore(JOURNAL, INCARNATION, state, &bench.ring).is_none());
}

#[test]
fn positions_that_no_log_reaches_are_refused_before_they_overflow() {
    let maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    for at in [Lsn(u64::MAX), Lsn(u64::MAX - 8), LSN_LAST.plus(1)] {
        let refused = bench.append(&maker, at, at, &[0; 64]);
        assert_eq!(refusal(&refused), Some(RefusalReason::Malformed));
        let mut far = RecordMaker::new(1);
        far.link.lsn = at;
        assert_eq!(refusal(&bench.join(&far, 2)), Some(RefusalReason::Malformed));
    }
    assert_eq!(
        bench.member.state().received,
        maker.link.lsn,
        "no position has moved"
    );
}

#[test]
fn an_answer_names_only_the_current_join_of_the_current_epoch() {
    let old = RecordMaker::new(1);
    let mut bench = Bench::joined(&old);
    assert_eq!(bench.send(old.header(FrameKind::Ping), &[]).mark, 1);
    let new = RecordMaker::new(2);
    assert_eq!(
        bench.send(new.header(FrameKind::Fence), &[]).mark,
        1,
        "recovery must know the join"
    );
    assert_eq!(bench.send(new.header(FrameKind::Ping), &[]).mark, 0);
    bench.join(&new, 1);
    assert_eq!(bench.send(new.header(FrameKind::Ping), &[]).mark, 1);
    let leave = FrameHeader {
        lsn: Lsn(2),
        mark: 1,
        ..new.header(FrameKind::Leave)
    };
    bench.send(leave, &[]);
    assert_eq!(
        bench.join(&new, 1).mark,
        0,
        "a join whose number has left is void"
    );
}

#[test]
fn only_the_fencing_writer_ends_a_journal_and_the_next_fence_revives_it() {
    let old = RecordMaker::new(1);
    let mut bench = Bench::joined(&old);
    let new = RecordMaker::new(2);
    let over = |epoch: u64, maker: &RecordMaker| FrameHeader {
        flags: Flag::ENDED,
        lsn: Lsn(epoch),
        mark: 1,
        ..maker.header(FrameKind::Leave)
    };
    bench.send(new.header(FrameKind::Fence), &[]);
    assert_eq!(bench.send(over(1, &old), &[]).kind, FrameKind::Refuse);
    bench.send(over(2, &new), &[]);
    assert!(
        !bench.member.may_be_forgotten(),
        "the window of another epoch remains"
    );
    bench.send(over(1, &new), &[]);
    assert!(bench.member.may_be_forgotten());
    assert_eq!(
        bench.send(old.header(FrameKind::Fence), &[]).kind,
        FrameKind::Refuse,
        "a remembered member stays fenced"
    );
    bench.send(new.header(FrameKind::Fence), &[]);
    assert!(bench.member.may_be_forgotten(), "the same writer again");
    let next = RecordMaker::new(3);
    bench.send(next.header(FrameKind::Fence), &[]);
    assert!(!bench.member.may_be_forgotten());
}

/// A client that fenced journals by the thousand filled a lender for the life of its memory.
#[test]
fn a_fence_without_a_window_may_be_forgotten_until_a_writer_has_joined() {
    let mut bench = Bench::new();
    let maker = RecordMaker::new(1);
    bench.send(maker.header(FrameKind::Fence), &[]);
    assert!(bench.member.may_be_forgotten());
    bench.join(&maker, 1);
    assert!(!bench.member.may_be_forgotten());
    let leave = FrameHeader {
        lsn: Lsn(1),
        mark: 1,
        ..maker.header(FrameKind::Leave)
    };
    bench.send(leave, &[]);
    assert!(!bench.member.state().joined);
    assert!(!bench.member.may_be_forgotten(), "a view may name the window");
    let next = RecordMaker::new(2);
    bench.send(next.header(FrameKind::Fence), &[]);
    assert!(!bench.member.may_be_forgotten(), "a later fence, too");
}

/// The fence of a closed journal occupied a slot for the life of the lender's memory.
#[test]
fn a_cleanly_closed_journal_may_be_forgotten_until_it_is_fenced_again() {
    let maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let leave = |generation| FrameHeader {
        flags: Flag::CLOSED_CLEAN,
        lsn: Lsn(1),
        mark: generation,
        ..maker.header(FrameKind::Leave)
    };
    bench.send(leave(9), &[]);
    assert!(!bench.member.may_be_forgotten(), "the window of another join");
    bench.send(leave(1), &[]);
    assert!(bench.member.may_be_forgotten());
    let next = RecordMaker::new(2);
    bench.send(next.header(FrameKind::Fence), &[]);
    assert!(!bench.member.may_be_forgotten());
    bench.join(&next, 1);
    assert!(!bench.member.state().closed);
}

/// The client was only cut off for long: the same writer comes back to a window that has a file by now.
#[test]
fn a_frozen_window_grows_no_more_and_is_replaced_by_its_own_writer() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let at = maker.link.lsn;
    let (first, second) = (maker.record(b"one"), maker.record(b"two"));
    bench.append(&maker, at, Lsn(0), &first);
    bench.append(&maker, at.plus(first.len() as u64), Lsn(0), &second[..10]);
    bench.member.freeze();
    let next = at.plus(first.len() as u64);
    let refused = bench.append(&maker, next, Lsn(0), &second);
    assert_eq!(refusal(&refused), Some(RefusalReason::NotJoined));
    let fenced = bench.send(maker.header(FrameKind::Fence), &[]);
    assert_eq!(fenced.flags, Flag::KNOWN | Flag::READ_ONLY);
    assert_eq!((fenced.lsn, fenced.mark), (next, 1));
    bench.join(&maker, 1);
    assert!(
        bench.member.state().spilled,
        "a late copy of its join changes nothing"
    );
    let joined = bench.join(&maker, 2);
    assert_eq!((joined.kind, joined.mark), (FrameKind::Ack, 2));
    assert_eq!(bench.member.incarnation(), INCARNATION);
    assert!(!bench.member.state().spilled && bench.member.state().joined);
}

#[test]
fn a_window_of_a_file_must_match_what_its_member_remembers() {
    let mut maker = RecordMaker::new(1);
    let mut bench = Bench::joined(&maker);
    let (at, first) = (maker.link.lsn, maker.record(b"one"));
    bench.append(&maker, at, Lsn(0), &first);
    bench.member.freeze();
    let member = Member::of_file(JOURNAL, (INCARNATION, INCARNATION), *bench.member.state());
    assert!(!member.has_window_in(&Ring::default()));
    assert!(member.has_window_in(&bench.ring));
    bench.ring.write(at.plus(20), b"x");
    assert!(!member.has_window_in(&bench.ring));
}
