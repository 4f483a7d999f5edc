//! A lender that claims to hold more than its window has room for.

use std::fs::File as OsFile;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalOpenError};
use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::journal::{JoinId, PeerAnswer, RecoveryError, SlotPair, View, ViewMember};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, SLOT_BYTES};
use netram_proto::port::{IoError, StorageFile};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind};
use netram_transport::{HandshakeProgress, Link, Listener, Security};

use crate::common::TestJournal;

const WINDOW: u64 = 1 << 20;
const LIFE: u64 = 7;

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
fn lie(listener: &Listener, held: u64, given: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let Ok(Some(mut pending)) = listener.accept(Instant::now()) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let link = loop {
            match pending.advance(Instant::now()) {
                Ok(HandshakeProgress::Done(link)) => break Some(link),
                Ok(HandshakeProgress::NeedRead) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break None,
            }
        };
        if let Some(link) = link {
            serve(link, held, given);
        }
    }
}

fn serve(mut link: Link, held: u64, given: &AtomicU64) {
    loop {
        let answer = match link.receive() {
            Ok(Some(packet)) => {
                let asked = Frame::parse(packet).unwrap().header;
                answer(&asked, held)
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

fn answer(asked: &FrameHeader, held: u64) -> (FrameHeader, Vec<u8>) {
    let header = |kind| FrameHeader {
        epoch: asked.epoch,
        sender: LIFE,
        ..FrameHeader::new(kind)
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
                epoch: Epoch(1),
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
fn recovery_from_liar(held: u64) -> (JournalOpenError, u64) {
    let mut place = TestJournal::new();
    place.security = Security::Insecure;
    journal_of_liar(&place);
    let listener = Listener::bind(&place.address("liar"), place.security.clone()).unwrap();
    let given = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let (told, over) = (Arc::clone(&given), Arc::clone(&ended));
    let liar = std::thread::spawn(move || lie(&listener, held, &told, &over));
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
    let (refused, given) = recovery_from_liar(1 << 60);
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
    let (refused, given) = recovery_from_liar(WINDOW);
    assert!(matches!(refused, JournalOpenError::Damaged { .. }), "{refused}");
    let frames = WINDOW.div_ceil(FRAME_BODY_BYTES_MAX as u64) * FRAME_BODY_BYTES_MAX as u64;
    assert!((WINDOW..=frames + 100).contains(&given), "{given} bytes");
}
