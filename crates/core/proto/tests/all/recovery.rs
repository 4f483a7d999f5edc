//! Tests of the local log and of recovery, on a file in memory and with members played by hand.

use std::cell::RefCell;

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    AssembleError, AssembleOptions, LogFile, LogFileError, PeerAnswer, PeerWindow, Recovery, RecoveryError,
    View, ViewMember, assemble,
};
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{IoError, RecordKind, StorageFile};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{
    ChainPoint, Flag, Frame, FrameHeader, FrameKind, RecordHeader, RefusalReason, finish_record,
};

const JOURNAL: JournalId = JournalId(0x5EED);
const CAPACITY: u64 = 16 * 1024;

/// A file in memory, with sectors that may be made unreadable.
#[derive(Default)]
struct MemoryFile {
    bytes: RefCell<Vec<u8>>,
    bad: RefCell<Option<std::ops::Range<u64>>>,
}

impl StorageFile for MemoryFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let end = offset + into.len() as u64;
        if self
            .bad
            .borrow()
            .as_ref()
            .is_some_and(|bad| offset < bad.end && bad.start < end)
        {
            return Err(IoError::EIO);
        }
        let bytes = self.bytes.borrow();
        let from = bytes.get(offset as usize..end as usize).ok_or(IoError::EOF)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        self.bytes.borrow_mut()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

/// A log file, and all records made for it.
struct RecoveryBench {
    log: LogFile<MemoryFile>,
    end: ChainPoint,
    records: Vec<(Lsn, Vec<u8>)>,
}

impl RecoveryBench {
    fn new() -> RecoveryBench {
        let file = MemoryFile::default();
        file.bytes
            .borrow_mut()
            .resize(LogFile::<MemoryFile>::file_bytes(CAPACITY) as usize, 0);
        let (log, _) = LogFile::create(file, JOURNAL, CAPACITY).expect("a log");
        RecoveryBench {
            log,
            end: ChainPoint::default(),
            records: Vec::new(),
        }
    }

    /// Makes a record, and writes it to the local file if `local`.
    fn record(&mut self, payload: &[u8], stable: Lsn, local: bool) {
        let header = RecordHeader::new(self.end, Epoch(1), stable, RecordKind(16), false, payload.len());
        let mut bytes = vec![0; header.length];
        header.write(&mut bytes);
        bytes[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let chain = finish_record(&mut bytes, JOURNAL.into());
        if local {
            self.log.write(self.end.lsn, &bytes).expect("room");
        }
        self.records.push((self.end.lsn, bytes));
        self.end = ChainPoint {
            lsn: header.next(),
            chain,
        };
    }

    /// The window of a member that holds the records from `index` on.
    fn window(&self, index: usize) -> PeerWindow {
        let from = self.records[index].0;
        let bytes = self.records[index..]
            .iter()
            .flat_map(|(_, bytes)| bytes.clone())
            .collect();
        PeerWindow {
            trim: from,
            from,
            bytes,
            promised: Lsn(0),
        }
    }

    fn damage(&self, index: usize) {
        let at = self.records[index].0;
        let mut byte = [0];
        self.log.read(at.plus(44), &mut byte).expect("in the file");
        self.log.write(at.plus(44), &[byte[0] ^ 1]).expect("in the file");
    }

    fn recover(&self, windows: &[PeerWindow], proof: Lsn) -> Result<(Lsn, u64), AssembleError> {
        let local = self.log.scan(ChainPoint::default(), Lsn(CAPACITY), &mut |_| true);
        let known = AssembleOptions {
            proof,
            limit: Lsn(CAPACITY),
            accept_loss: false,
            local_durable: None,
        };
        let taken = assemble(&self.log, &local, windows, known, FaultSwitch::NONE, &mut |_| {
            true
        })?;
        Ok((taken.end.lsn, taken.from_members))
    }
}

#[test]
fn members_continue_the_local_log_and_complete_it() {
    let mut bench = RecoveryBench::new();
    for index in 0..6 {
        bench.record(&[index; 100], Lsn(0), index < 3);
    }
    let (end, from_members) = bench.recover(&[bench.window(2)], Lsn(0)).expect("recovers");
    assert_eq!((end, from_members), (bench.end.lsn, 3 * 144));
    let (end, from_members) = bench.recover(&[], Lsn(0)).expect("no member is needed any more");
    assert_eq!((end, from_members), (bench.end.lsn, 0));
}

#[test]
fn the_longest_of_several_windows_is_used() {
    let mut bench = RecoveryBench::new();
    for index in 0..6 {
        bench.record(&[index; 100], Lsn(0), index < 2);
    }
    let mut short = bench.window(2);
    short.bytes.truncate(200);
    let (end, _) = bench
        .recover(&[short, bench.window(1)], Lsn(0))
        .expect("recovers");
    assert_eq!(end, bench.end.lsn);
}

#[test]
fn the_log_ends_at_a_torn_record_and_drops_what_follows() {
    let mut bench = RecoveryBench::new();
    for index in 0..4 {
        bench.record(&[index; 100], Lsn(0), true);
    }
    bench.damage(2);
    assert_eq!(
        bench.recover(&[], Lsn(0)).expect("recovers").0,
        bench.records[2].0
    );
}

#[test]
fn a_bad_record_is_damage_if_anything_proves_that_it_was_durable() {
    let make = |stable_of_last: u64| {
        let mut bench = RecoveryBench::new();
        for index in 0..4 {
            let stable = if index == 3 { Lsn(stable_of_last) } else { Lsn(0) };
            bench.record(&[index; 100], stable, true);
        }
        bench.damage(1);
        bench
    };
    // A later record of the local log proves it.
    let bench = make(3 * 144);
    let error = bench.recover(&[], Lsn(0)).unwrap_err();
    assert!(
        matches!(
            error,
            AssembleError::Corrupt {
                at: Lsn(144),
                proof: Lsn(432),
                ..
            }
        ),
        "{error}"
    );
    // The superblock or the view proves it.
    let bench = make(0);
    assert!(matches!(
        bench.recover(&[], Lsn(288)),
        Err(AssembleError::Corrupt { .. })
    ));
    // A member that has dropped it proves it.
    assert!(matches!(
        bench.recover(&[bench.window(2)], Lsn(0)),
        Err(AssembleError::Corrupt { .. })
    ));
    // A member that still has it repairs it.
    let (end, from_members) = bench.recover(&[bench.window(1)], Lsn(288)).expect("repaired");
    assert_eq!((end, from_members), (bench.end.lsn, 3 * 144));
}

#[test]
fn a_bad_record_in_the_only_window_is_damage_and_not_the_end() {
    // Once the bad record was taken for the end of the log: one flipped bit in a lender's memory lost every
    // acknowledged record after it, silently.
    let mut bench = RecoveryBench::new();
    for index in 0..4 {
        bench.record(&[index; 100], Lsn(0), index < 1);
    }
    let rotten = |promised: Lsn| {
        let mut window = PeerWindow {
            promised,
            ..bench.window(1)
        };
        window.bytes[144 + 50] ^= 1;
        window
    };
    let error = bench.recover(&[rotten(bench.end.lsn)], Lsn(0)).unwrap_err();
    assert!(
        matches!(
            error,
            AssembleError::Corrupt {
                at: Lsn(288),
                promised: Lsn(576),
                ..
            }
        ),
        "{error}"
    );
    // Without acknowledged records beyond it, the log may end there.
    let (end, _) = bench.recover(&[rotten(Lsn(288))], Lsn(0)).expect("recovers");
    assert_eq!(end, Lsn(288));
    // Another member has an intact copy.
    let (end, _) = bench
        .recover(&[rotten(bench.end.lsn), bench.window(1)], Lsn(0))
        .expect("recovers");
    assert_eq!(end, bench.end.lsn);
}

#[test]
fn a_sector_that_cannot_be_read_is_named_or_repaired() {
    let mut bench = RecoveryBench::new();
    for index in 0..4 {
        bench.record(&[index; 100], Lsn(0), true);
    }
    *bench.log.file().bad.borrow_mut() = Some(8192 + 150..8192 + 160);
    match bench.recover(&[], Lsn(432)) {
        Err(AssembleError::Corrupt { unreadable, .. }) => assert_eq!(unreadable, Some(IoError::EIO)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_wraps_and_is_read_across_the_wrap() {
    let mut bench = RecoveryBench::new();
    let mut head = ChainPoint::default();
    for index in 0..200u8 {
        if index == 150 {
            head = bench.end;
        }
        bench.record(&[index; 100], Lsn(0), true);
    }
    let mut seen = 0;
    let limit = head.lsn.plus(CAPACITY);
    let scan = bench.log.scan(head, limit, &mut |record| {
        seen += usize::from(record.payload() == [150 + seen as u8; 100]);
        true
    });
    assert_eq!((scan.end.lsn, seen), (bench.end.lsn, 50));
}

#[test]
fn files_that_are_not_logs_are_refused_with_the_reason() {
    let open = |bytes: Vec<u8>| {
        LogFile::open(MemoryFile {
            bytes: RefCell::new(bytes),
            bad: RefCell::default(),
        })
        .map(drop)
        .unwrap_err()
    };
    let good = RecoveryBench::new().log.file().bytes.borrow().clone();
    assert_eq!(open(vec![7; 40_000]), LogFileError::NotALog);
    assert_eq!(open(good[..100].to_vec()), LogFileError::Damaged);
    let expected = good.len() as u64;
    assert_eq!(
        open(good[..12_000].to_vec()),
        LogFileError::Truncated {
            expected,
            found: 12_000
        }
    );
    let mut damaged = good.clone();
    damaged[30] ^= 1;
    damaged[4096 + 30] ^= 1;
    assert_eq!(open(damaged), LogFileError::Damaged);
}

pub(crate) fn view(members: u64, rule: &str) -> View {
    let member = |number| ViewMember {
        incarnation: Incarnation(number),
        join: None,
        address: format!("unix:/lender-{number}"),
        domain: String::new(),
    };
    View {
        rule: rule.parse().expect("a rule"),
        counting: true,
        members: (0..members).map(member).collect(),
        ..View::first(JOURNAL)
    }
}

/// Recovery of a counting view of `members`.
pub(crate) fn recovery(members: u64, rule: &str) -> Recovery {
    let (grace, patience) = (Nanos(10), Nanos(100));
    let view = view(members, rule);
    Recovery::new(&view, Epoch(2), WriterId(5), Lsn(100), Time(0), grace, patience)
}

fn of_replica(rule: &str, closed: Option<Lsn>) -> Recovery {
    recovery(2, rule).of_replica(&view(2, rule), closed)
}

/// Member `index` reports the epoch that last fenced it.
fn fenced_by(recovery: &mut Recovery, index: usize, epoch: u32) {
    connect(recovery, index);
    let ping = recovery.next_frame(index).expect("a question");
    assert_eq!(ping.header.kind, FrameKind::Ping);
    let header = FrameHeader {
        flags: RefusalReason::NotFenced as u8,
        epoch: Epoch(epoch),
        ..FrameHeader::new(FrameKind::Refuse)
    };
    recovery.on_frame(index, &Frame { header, body: b"" });
    // The driver drops the link to a lender that refuses.
    recovery.on_lost(index);
}

pub(crate) fn bind(recovery: &mut Recovery, index: usize) {
    connect(recovery, index);
    assert_eq!(
        recovery
            .next_frame(index)
            .expect("a fence comes before any read")
            .header
            .kind,
        FrameKind::Fence
    );
}

pub(crate) fn connect(recovery: &mut Recovery, index: usize) {
    recovery.on_connected(index);
    assert_eq!(
        recovery.next_frame(index).expect("a bind").header.kind,
        FrameKind::Bind
    );
    recovery.on_frame(
        index,
        &Frame {
            header: FrameHeader::new(FrameKind::Bound),
            body: b"",
        },
    );
}

pub(crate) fn fenced(
    recovery: &mut Recovery,
    index: usize,
    incarnation: u64,
    flags: u8,
    trim: u64,
    held: u64,
) {
    let header = FrameHeader {
        flags,
        epoch: Epoch(2),
        lsn: Lsn(held),
        stable: Lsn(trim),
        sender: incarnation,
        ..FrameHeader::new(FrameKind::Fenced)
    };
    recovery.on_frame(
        index,
        &Frame {
            header,
            body: &[0; 4],
        },
    );
}

#[test]
fn one_member_suffices_for_rule_all_and_its_window_is_read() {
    let mut recovery = recovery(2, "all");
    bind(&mut recovery, 1);
    fenced(&mut recovery, 1, 1, Flag::KNOWN, 60, 130);
    let read = recovery.next_frame(1).expect("a read").header;
    assert_eq!((read.kind, read.lsn), (FrameKind::Read, Lsn(100)));
    assert_eq!(recovery.verdict(Time(5)), None);
    let data = FrameHeader {
        lsn: Lsn(100),
        ..FrameHeader::new(FrameKind::Data)
    };
    recovery.on_frame(
        1,
        &Frame {
            header: data,
            body: &[9; 30],
        },
    );
    assert_eq!(
        recovery.verdict(Time(5)),
        None,
        "the other member has until the end of the grace time"
    );
    assert_eq!(recovery.verdict(Time(10)), Some(Ok(())));
    assert_eq!(recovery.windows()[0].bytes, [9; 30]);
}

#[test]
fn rule_any_needs_every_member_and_the_refusal_names_the_missing_one() {
    let mut recovery = recovery(2, "any");
    bind(&mut recovery, 0);
    fenced(&mut recovery, 0, 0, Flag::KNOWN, 60, 100);
    assert_eq!(recovery.verdict(Time(99)), None);
    match recovery.verdict(Time(100)) {
        Some(Err(RecoveryError::Missing {
            needed,
            answered,
            missing,
            from,
            held_max: shown,
        })) => {
            assert_eq!((needed, answered, from, shown), (2, 1, Lsn(100), Some(Lsn(100))));
            assert_eq!(missing, [("unix:/lender-1".to_string(), PeerAnswer::Unreachable)]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lender_that_restarted_without_its_memory_does_not_count() {
    for (incarnation, flags) in [(77, Flag::KNOWN), (0, 0)] {
        let mut recovery = recovery(1, "all");
        bind(&mut recovery, 0);
        fenced(&mut recovery, 0, incarnation, flags, 0, 0);
        match recovery.verdict(Time(1)) {
            Some(Err(RecoveryError::Missing { missing, .. })) => {
                assert_eq!(missing[0].1, PeerAnswer::Amnesiac);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_newer_writer_ends_recovery() {
    let mut recovery = recovery(2, "all");
    bind(&mut recovery, 0);
    let refuse = FrameHeader {
        flags: RefusalReason::Fenced as u8,
        epoch: Epoch(9),
        ..FrameHeader::new(FrameKind::Refuse)
    };
    recovery.on_frame(
        0,
        &Frame {
            header: refuse,
            body: &[],
        },
    );
    assert_eq!(
        recovery.verdict(Time(0)),
        Some(Err(RecoveryError::Fenced { seen: Epoch(9) }))
    );
}

#[test]
fn a_replica_needs_every_member_with_a_window_that_continues_it() {
    let mut recovery = of_replica("all", None);
    fenced_by(&mut recovery, 0, 1);
    bind(&mut recovery, 0);
    fenced(&mut recovery, 0, 0, Flag::KNOWN, 100, 100);
    assert_eq!(
        recovery.verdict(Time(99)),
        None,
        "`all` alone would need only one"
    );
    fenced_by(&mut recovery, 1, 1);
    bind(&mut recovery, 1);
    fenced(&mut recovery, 1, 1, Flag::KNOWN, 101, 130);
    match recovery.verdict(Time(99)) {
        Some(Err(RecoveryError::Missing { needed, missing, .. })) => {
            assert_eq!(needed, 2);
            assert_eq!(
                missing,
                [("unix:/lender-1".to_string(), PeerAnswer::AheadOfReplica)]
            );
        }
        other => panic!("{other:?}"),
    }
    let mut recovery = of_replica("all", None);
    for index in 0..2 {
        fenced_by(&mut recovery, index, 1);
        bind(&mut recovery, index);
        fenced(&mut recovery, index, index as u64, Flag::KNOWN, 90, 100);
    }
    assert_eq!(recovery.verdict(Time(0)), Some(Ok(())));
}

/// The client had opened once more without its data lender and written; then its disk was lost. The first
/// attempt to restore was refused, but fenced the member. The second attempt then found nothing wrong with
/// the member.
#[test]
fn a_member_fenced_by_a_later_epoch_never_proves_a_replica() {
    let mut view = view(2, "all");
    view.epochs.begin(Epoch(7), WriterId(1), Lsn(0));
    view.epoch = Epoch(7);
    for _ in 0..3 {
        view = view.restored(WriterId(5));
        let (grace, patience) = (Nanos(10), Nanos(100));
        let mut recovery = Recovery::new(&view, view.epoch, view.writer, Lsn(100), Time(0), grace, patience)
            .of_replica(&view, None);
        fenced_by(&mut recovery, 0, 8);
        // Its refusal comes twice; then it reconnects, and is still not fenced.
        let again = FrameHeader {
            flags: RefusalReason::NotFenced as u8,
            epoch: Epoch(8),
            ..FrameHeader::new(FrameKind::Refuse)
        };
        let frame = Frame {
            header: again,
            body: b"",
        };
        recovery.on_frame(0, &frame);
        recovery.on_lost(0);
        recovery.on_connected(0);
        assert!(recovery.next_frame(0).is_none());
        assert_eq!(
            recovery.answers().next(),
            Some(("unix:/lender-0", PeerAnswer::AheadOfReplica))
        );
        match recovery.verdict(Time(100)) {
            Some(Err(RecoveryError::Missing { missing, .. })) => assert_eq!(missing.len(), 2),
            other => panic!("{other:?}"),
        }
    }
    // An epoch that the replica knew of, or one of another attempt, proves nothing.
    for seen in [0, 6, 7, view.epoch.0 - 1] {
        let (grace, patience) = (Nanos(10), Nanos(100));
        let mut recovery = Recovery::new(&view, view.epoch, view.writer, Lsn(100), Time(0), grace, patience)
            .of_replica(&view, None);
        fenced_by(&mut recovery, 0, seen);
        bind(&mut recovery, 0);
    }
}

#[test]
fn a_view_that_did_not_count_proves_nothing_unless_the_volume_was_closed() {
    let mut view = view(0, "all");
    view.counting = false;
    let begin = |closed| {
        let (grace, patience) = (Nanos(10), Nanos(100));
        Recovery::new(&view, Epoch(4), WriterId(1), Lsn(100), Time(0), grace, patience)
            .of_replica(&view, closed)
    };
    let unproven = Some(Err(RecoveryError::Unproven { from: Lsn(100) }));
    assert_eq!(begin(None).verdict(Time(0)), unproven);
    assert_eq!(begin(Some(Lsn(101))).verdict(Time(0)), unproven);
    assert_eq!(begin(Some(Lsn(100))).verdict(Time(0)), Some(Ok(())));
}
