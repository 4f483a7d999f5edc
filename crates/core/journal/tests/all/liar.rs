//! A lender that lies: it claims to hold more than its window has room for, or a fence that nobody made.

use std::fs::File as OsFile;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalOpenError, LinkFailure};
use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::journal::{JoinId, PeerAnswer, RecoveryError, SlotPair, View, ViewMember};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, SLOT_BYTES};
use netram_proto::port::{Durability, IoError, RecordLog, StorageFile};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::both_ends::finish;
use netram_transport::{Link, Listener, Security};

use crate::common::{TestJournal, append};

const WINDOW: u64 = 1 << 20;
const LIFE: u64 = 7;

/// Subject of the lender's lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// The lender claims to hold everything up to this LSN.
    Held(u64),
    /// A writer of this epoch has fenced the journal.
    Fenced(u32),
}

/// A view file, written directly.
struct ViewFile(OsFile);

impl StorageFile for ViewFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0.metadata().map_err(|_| IoError::EIO)?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.0.read_exact_at(into, offset).map_err(|_| IoError::EIO)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.0.write_all_at(bytes, offset).map_err(|_| IoError::EIO)
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

/// A journal whose only member is the lender at "liar".
fn journal_of_liar(place: &TestJournal) {
    Journal::create(&place.journal(), 4 << 20).unwrap();
    let path = place.journal().join("view");
    let file = ViewFile(OsFile::options().read(true).write(true).open(path).unwrap());
    let (mut slots, payload) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES).unwrap();
    let view = View::decode(&payload).unwrap();
    let member = ViewMember {
        incarnation: Incarnation(LIFE),
        join: Some(JoinId {
            epoch: Epoch(1),
            generation: 1,
        }),
        address: place.address("liar").to_string(),
        domain: String::from("elsewhere"),
    };
    let view = View {
        epoch: Epoch(1),
        counting: true,
        window_bytes: WINDOW,
        members: vec![member],
        ..view
    };
    slots.store(&file, &view.encode()).unwrap();
}

/// Serves one client after the other until the opening has ended, and counts the bytes requested.
fn lie(listener: &Listener, lie: Lie, given: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let Ok(Some(mut pending)) = listener.accept(Instant::now()) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if let Ok(link) = finish(&mut pending) {
            serve(link, lie, given, ended);
        }
    }
}

fn serve(mut link: Link, lie: Lie, given: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let answer = match link.receive() {
            Ok(Some(packet)) => {
                let asked = Frame::parse(packet).unwrap().header;
                if asked.kind == FrameKind::Prove {
                    continue;
                }
                answer(&asked, lie)
            }
            Ok(None) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(_) => return,
        };
        let (header, body) = answer;
        given.fetch_add(body.len() as u64, Ordering::Relaxed);
        if link.send(&[&header.encode(body.len()), &body]).is_err() {
            return;
        }
    }
}

fn answer(asked: &FrameHeader, lie: Lie) -> (FrameHeader, Vec<u8>) {
    let header = |kind| FrameHeader {
        epoch: asked.epoch,
        sender: LIFE,
        ..FrameHeader::new(kind)
    };
    let held = match lie {
        Lie::Held(held) => held,
        Lie::Fenced(epoch) => {
            let refused = FrameHeader {
                epoch: Epoch(epoch),
                flags: RefusalReason::Fenced as u8,
                ..header(FrameKind::Refuse)
            };
            let told = FrameHeader {
                epoch: Epoch(epoch),
                ..header(FrameKind::ProbeReply)
            };
            return match asked.kind {
                FrameKind::Bind => (header(FrameKind::Bound), b"elsewhere".to_vec()),
                FrameKind::Ping if asked.flags & Flag::PROBE != 0 => (told, vec![7; 12]),
                // A signature of its own making.
                _ => (refused, vec![7; 72]),
            };
        }
    };
    match asked.kind {
        FrameKind::Bind => (header(FrameKind::Bound), b"elsewhere".to_vec()),
        FrameKind::Fence => {
            let sealed = FrameHeader {
                flags: Flag::KNOWN,
                lsn: Lsn(held),
                mark: 1,
                ..header(FrameKind::Fenced)
            };
            (sealed, 1u32.to_le_bytes().to_vec())
        }
        // The probe before the fence gets the same false answer.
        FrameKind::Ping if asked.flags & Flag::PROBE != 0 => {
            let told = FrameHeader {
                epoch: Epoch(0),
                flags: Flag::KNOWN,
                lsn: Lsn(held),
                mark: 1,
                ..header(FrameKind::ProbeReply)
            };
            (told, [&[0; 8][..], &1u32.to_le_bytes()].concat())
        }
        FrameKind::Read => {
            let data = FrameHeader {
                lsn: asked.lsn,
                ..header(FrameKind::Data)
            };
            (data, vec![0x5A; FRAME_BODY_BYTES_MAX])
        }
        _ => (header(FrameKind::Pong), Vec::new()),
    }
}

/// The result of a recovery whose only member claims to hold up to `held`, and the number of bytes requested
/// from that member.
fn recovery_from_liar(told: Lie) -> (JournalOpenError, u64) {
    let mut place = TestJournal::new();
    place.security = Security::Insecure;
    journal_of_liar(&place);
    let listener = Listener::bind(&place.address("liar"), place.security.clone()).unwrap();
    let given = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let (read, over) = (Arc::clone(&given), Arc::clone(&ended));
    let liar = std::thread::spawn(move || lie(&listener, told, &read, &over));
    let opened = Journal::open(&place.journal(), place.config(&["liar"], 1)).map(drop);
    ended.store(true, Ordering::Relaxed);
    liar.join().unwrap();
    (
        opened.expect_err("no honest member answered"),
        given.load(Ordering::Relaxed),
    )
}

/// Regression: the member was read for as long as it sent bytes, 1.4 GB in five seconds.
#[test]
fn a_lender_that_claims_to_hold_2_to_the_60_is_not_read_at_all() {
    let (refused, given) = recovery_from_liar(Lie::Held(1 << 60));
    match &refused {
        JournalOpenError::Refused {
            refusal: RecoveryError::Missing { missing, .. },
            ..
        } => assert_eq!(missing[0].1, PeerAnswer::Overclaims),
        other => panic!("{other}"),
    }
    assert!(
        refused
            .to_string()
            .contains("claims more than its window can hold"),
        "{refused}"
    );
    assert!(given < 100, "only names and numbers: {given} bytes");
}

#[test]
fn a_lender_that_lies_within_its_window_is_read_no_further_than_that() {
    let (refused, given) = recovery_from_liar(Lie::Held(WINDOW));
    assert!(matches!(refused, JournalOpenError::Damaged { .. }), "{refused}");
    let frames = WINDOW.div_ceil(FRAME_BODY_BYTES_MAX as u64) * FRAME_BODY_BYTES_MAX as u64;
    assert!((WINDOW..=frames + 100).contains(&given), "{given} bytes");
}

/// A lender that invents a fence is one that did not answer: the journal is not taken for fenced.
#[test]
fn an_opening_believes_no_fence_that_the_owner_has_not_signed() {
    let (refused, _) = recovery_from_liar(Lie::Fenced(9));
    let JournalOpenError::Refused { refusal, away, .. } = &refused else {
        panic!("{refused}")
    };
    assert!(matches!(refusal, RecoveryError::Missing { .. }), "{refusal}");
    assert_eq!(away.0[0].1, LinkFailure::ForgedFence);
    assert!(refused.to_string().contains("no signature"), "{refused}");
}

/// Finding S8 of the review: a spare that said "fenced" once stopped the writer for good.
#[test]
fn a_writer_believes_no_fence_that_the_owner_has_not_signed() {
    let mut place = TestJournal::new();
    place.security = Security::Insecure;
    let _honest = place.lender("honest");
    for epoch in [0, 1, 9] {
        let listener = Listener::bind(&place.address("liar"), place.security.clone()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (told, over) = (Arc::new(AtomicU64::new(0)), Arc::clone(&ended));
        let seen = Arc::clone(&told);
        let liar = std::thread::spawn(move || lie(&listener, Lie::Fenced(epoch), &told, &over));
        let _ = Journal::create(&place.journal(), 4 << 20);
        let (journal, _) = place.open(place.config(&["liar", "honest"], 1));
        let until = Instant::now() + Duration::from_secs(20);
        // Until the lie is told: 72 bytes are its signature.
        while seen.load(Ordering::Relaxed) < 72 {
            assert!(Instant::now() < until, "the liar is not asked");
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..100 {
            let ticket = append(&journal, b"goes on");
            journal.wait(ticket, Durability::Remote).unwrap();
        }
        drop(journal);
        ended.store(true, Ordering::Relaxed);
        liar.join().unwrap();
    }
}
