//! No key and nonce ever seal two records (rule 21), and directories of the format before salts are still
//! read.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{KIND, TestJournal, commit, copy_of, payloads};
use netram_journal::{Journal, JournalInspector};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::View;
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::{AppendError, Durability, RecordLog};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RecordHeader};
use netram_transport::both_ends::finish;
use netram_transport::{Link, Listener, Security};

const LOG_BYTES: u64 = 1 << 20;
/// Where a log's records begin in its file.
const DATA_START: usize = 8192;

/// The records at the front of a log file, as they are on the disk.
fn raw_records(root: &Path) -> Vec<(RecordHeader, Vec<u8>)> {
    let log = std::fs::read(root.join("log")).unwrap();
    let mut rest = &log[DATA_START..];
    let mut records = Vec::new();
    while let Some(Ok(header)) = rest.first_chunk().map(RecordHeader::parse)
        && header.length > 0
    {
        let (record, behind) = rest.split_at(header.length);
        records.push((header, record.to_vec()));
        rest = behind;
    }
    records
}

fn sealed_payload((header, record): &(RecordHeader, Vec<u8>)) -> &[u8] {
    &record[RECORD_HEADER_BYTES..][..header.payload]
}

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

/// Appends one record in a new epoch of the journal at `root`, whose only lender is `lender`.
fn live(place: &TestJournal, root: &Path, lender: &str, payload: &[u8]) {
    let (journal, _) = Journal::open(root, place.config(&[lender], 1)).unwrap();
    journal.wait_for_members(Duration::from_secs(5)).unwrap();
    commit(&journal, payload, Durability::Both);
    journal.close().unwrap();
}

/// A copied directory counted the same epochs and LSNs as its original under the same key, if no lender of
/// its original was among its own. Whoever saw both logs could subtract the ciphertexts, and forge records.
#[test]
fn a_copied_directory_beside_its_original_repeats_no_nonce_and_is_fenced() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    live(&place, &place.journal(), "a", b"before the copy");
    let copy = copy_of(&place);
    let fenced_copy = place.directory.path().join("fenced copy");
    std::fs::create_dir(&fenced_copy).unwrap();
    for name in ["log", "view", "data.key", "lock"] {
        std::fs::copy(copy.join(name), fenced_copy.join(name)).unwrap();
    }
    let (one, other) = (b"of the original", b"then of the cpy");
    let (running, _) = place.open(place.config(&["a"], 1));
    commit(&running, one, Durability::Both);

    // The lender of the original knows the epoch: the copy becomes no writer there.
    let (fenced, _) = Journal::open(&fenced_copy, place.config(&["a"], 1)).unwrap();
    let error = loop {
        match fenced.append(KIND, 1, &mut |into| into.fill(1)) {
            Ok(ticket) => drop(fenced.wait(ticket, Durability::Remote)),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, AppendError::Fenced { seen: Epoch(2), .. }),
        "{error}"
    );
    commit(&running, b"and goes on", Durability::Both);
    running.close().unwrap();

    // Another lender does not.
    live(&place, &copy, "b", other);

    let (original, copied) = (raw_records(&place.journal()), raw_records(&copy));
    assert_eq!(original[0], copied[0]);
    let (original, copied) = (&original[1], &copied[1]);
    let nonce = |record: &(RecordHeader, Vec<u8>)| (record.0.epoch, record.0.lsn);
    assert_eq!(nonce(original), nonce(copied), "the nonce is repeated");
    assert_eq!(original.0.epoch, Epoch(2));
    let salts = [original, copied].map(|record| record.0.salt(&record.1));
    assert!(salts[0].is_some() && salts[0] != salts[1], "{salts:?}");
    // Under one key the ciphertexts would differ as the payloads do.
    let difference = xor(sealed_payload(original), sealed_payload(copied));
    assert_ne!(difference, xor(one, other));
    let reader = JournalInspector::open(&copy).unwrap();
    assert_eq!(reader.view().salt, salts[1], "the view had the salt first");
}

/// A lender with the window of the kept journal's third epoch.
struct KeptMember {
    view: View,
    window: Vec<u8>,
}

impl KeptMember {
    fn serve(&self, listener: &Listener, ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            let Ok(Some(mut pending)) = listener.accept(Instant::now()) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if let Ok(mut link) = finish(&mut pending) {
                while self.answer(&mut link) {}
            }
        }
    }

    /// Answers one frame. `false` once the client has gone.
    fn answer(&self, link: &mut Link) -> bool {
        let asked = match link.receive() {
            Ok(Some(packet)) => Frame::parse(packet).unwrap().header,
            Ok(None) => {
                std::thread::sleep(Duration::from_millis(1));
                return true;
            }
            Err(_) => return false,
        };
        let member = &self.view.members[0];
        let join = member.join.unwrap();
        let (start, end) = (self.view.base, self.view.base.plus(self.window.len() as u64));
        let header = |kind| FrameHeader {
            epoch: asked.epoch.max(self.view.epoch),
            sender: member.incarnation.0,
            mark: join.generation,
            ..FrameHeader::new(kind)
        };
        let known = |kind| FrameHeader {
            flags: Flag::KNOWN,
            lsn: end,
            stable: start,
            ..header(kind)
        };
        let joined = join.epoch.0.to_le_bytes();
        let (answer, body) = match asked.kind {
            FrameKind::Bind => (header(FrameKind::Bound), b"default".to_vec()),
            FrameKind::Fence => (known(FrameKind::Fenced), joined.to_vec()),
            FrameKind::Ping if asked.flags & Flag::PROBE != 0 => {
                let told = FrameHeader {
                    epoch: self.view.epoch,
                    ..known(FrameKind::ProbeReply)
                };
                (told, [&self.view.writer.0.to_le_bytes()[..], &joined].concat())
            }
            FrameKind::Read => {
                let data = FrameHeader {
                    lsn: asked.lsn,
                    stable: end,
                    ..header(FrameKind::Data)
                };
                let from = asked.lsn.since(start) as usize;
                (data, self.window[from..].to_vec())
            }
            FrameKind::Leave => (header(FrameKind::LeaveAck), Vec::new()),
            _ => (header(FrameKind::Pong), Vec::new()),
        };
        link.send(&[&answer.encode(body.len()), &body]).is_ok()
    }
}

/// A directory of view format 3, whose process was killed in the journal's third epoch: two records on the
/// disk, two more in the window of one lender, all sealed under the data key itself.
fn kept_journal(place: &TestJournal) -> (PathBuf, Vec<u8>) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/format3");
    let root = place.journal();
    std::fs::create_dir(&root).unwrap();
    for name in ["log", "view", "data.key"] {
        std::fs::copy(kept.join(name), root.join(name)).unwrap();
    }
    std::fs::write(root.join("lock"), "").unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(root.join("data.key"), private).unwrap();
    (root, std::fs::read(kept.join("window")).unwrap())
}

#[test]
fn a_journal_of_the_format_before_salts_is_recovered_and_its_next_epoch_draws_one() {
    let mut place = TestJournal::new();
    place.security = Security::Insecure;
    let (root, window) = kept_journal(&place);
    let view = JournalInspector::open(&root).unwrap().view().clone();
    assert_eq!((view.epoch, view.salt, view.base), (Epoch(3), None, Lsn(160)));
    let member = KeptMember { view, window };
    let listener = Listener::bind(&place.address("kept"), Security::Insecure).unwrap();
    let ended = AtomicBool::new(false);
    let expected = [
        &b"of the first epoch"[..],
        b"of the second epoch",
        b"of the third epoch, at the lender alone",
        b"and the last one",
        b"of the first epoch with a salt",
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| member.serve(&listener, &ended));
        let opened = Journal::open(&root, place.config(&["kept"], 1));
        ended.store(true, Ordering::Relaxed);
        let (journal, recovered) = opened.unwrap();
        assert_eq!((recovered.epoch, recovered.records_from_members), (Epoch(4), 2));
        assert_eq!(payloads(&journal), expected[..4]);
        commit(&journal, expected[4], Durability::Disk);
        journal.close().unwrap();
    });
    let (journal, _) = Journal::open(&root, place.config(&[], 0)).unwrap();
    assert_eq!(payloads(&journal), expected);
    let salted = raw_records(&root)
        .iter()
        .map(|(header, _)| header.salted)
        .collect::<Vec<_>>();
    assert_eq!(salted, [false, false, false, false, true]);
}
