//! Clients that ask without end. Each holds the cluster key; an honest client goes on committing beside it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{TestWriter, config, dial, memory_dir, start, status, until};
use netram_lender::limit::REPORT_INTERVAL;
use netram_lender::{Lender, LenderConfig};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{Link, LinkError};

/// Records that the honest client appends, each acknowledged before the next.
const COMMITS: usize = 300;

/// Asks `question` again and again, as fast as the lender takes it, and reads the answers, until `over`.
/// Returns the number of answers of this kind.
fn ask_without_end(link: &mut Link, question: &[u8], kind: FrameKind, over: &AtomicBool) -> u64 {
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..64 {
            match link.queue(&[question]) {
                Ok(()) => (),
                Err(LinkError::Congested) => break,
                Err(error) => panic!("{error}"),
            }
        }
        link.flush().unwrap();
        while let Some(packet) = link.receive().unwrap() {
            answers += u64::from(Frame::parse(packet).unwrap().header.kind == kind);
        }
    }
    answers
}

/// Commits of an honest client, one after the other, and the time that they took.
fn commit(lender: &Lender, journal: u128, commits: usize) -> Duration {
    let mut honest = TestWriter::join(&lender.addresses()[0], journal, 1);
    let began = Instant::now();
    for _ in 0..commits {
        honest.append(b"an honest record");
        honest.acked();
        honest.stable = honest.at.lsn;
    }
    began.elapsed()
}

/// Lets `attack` run beside honest commits on the only shard. Returns what the attack counted, and how long
/// it ran.
fn beside(lender: &Lender, attack: impl FnOnce(&AtomicBool) -> u64 + Send) -> (u64, Duration) {
    let over = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(&over));
        commit(lender, 1, COMMITS);
        over.store(true, Ordering::Relaxed);
        let counted = attacker.join().unwrap();
        (counted, began.elapsed())
    })
}

/// The most reports that can be built in this time.
fn reports_max(span: Duration) -> u64 {
    span.as_millis() as u64 / REPORT_INTERVAL.as_millis() as u64 + 2
}

fn one_shard(dir: &tempfile::TempDir) -> Lender {
    Lender::start(LenderConfig {
        shards: 1,
        ..config(dir)
    })
    .unwrap()
}

/// Each question cost the shard a report of all journals, and its turn ended only when no more were there:
/// another journal's commits went at its disk's pace.
#[test]
fn a_bound_session_that_asks_for_the_status_without_end_gets_a_few_reports_a_second() {
    let dir = memory_dir();
    let lender = one_shard(&dir);
    let (reports, span) = beside(&lender, |over| {
        let mut noisy = TestWriter::bind(&lender.addresses()[0], 2, 1);
        let question = FrameHeader::new(FrameKind::Status).encode(0);
        ask_without_end(&mut noisy.link, &question, FrameKind::Report, over)
    });
    assert!(reports <= reports_max(span), "{reports} reports in {span:?}");
}

/// Half of the honest clients could not connect within two seconds.
#[test]
fn a_connection_that_asks_for_the_status_without_end_gets_a_few_reports_a_second() {
    let dir = memory_dir();
    let lender = one_shard(&dir);
    let (reports, span) = beside(&lender, |over| {
        let mut noisy = dial(&lender.addresses()[0]);
        let question = FrameHeader::new(FrameKind::Status).encode(0);
        ask_without_end(&mut noisy, &question, FrameKind::Report, over)
    });
    assert!(reports <= reports_max(span), "{reports} reports in {span:?}");
}

#[test]
fn a_question_is_answered_with_what_was_true_when_it_was_asked() {
    let dir = memory_dir();
    let lender = start(&dir);
    for journal in 1..6 {
        let _bound = TestWriter::join(&lender.addresses()[0], journal, 1);
        assert_eq!(status(&lender.addresses()[0]).journals.len(), journal as usize);
    }
}

/// A session that waits for a report goes on where it was: frames behind the question are answered, too.
#[test]
fn frames_behind_a_question_are_answered_in_their_order() {
    let dir = memory_dir();
    let lender = start(&dir);
    let mut client = TestWriter::join(&lender.addresses()[0], 1, 1);
    for _ in 0..3 {
        let question = FrameHeader::new(FrameKind::Status).encode(0);
        client.link.queue(&[&question]).unwrap();
        client.append(b"behind the question");
        let report = crate::common::receive(&mut client.link).unwrap();
        assert_eq!(report.header.kind, FrameKind::Report);
        client.acked();
        client.stable = client.at.lsn;
    }
}

/// A session's frames are handled in several turns: none is lost between them.
#[test]
fn every_frame_of_a_burst_is_answered() {
    const BURST: u64 = 5000;
    let dir = memory_dir();
    let lender = one_shard(&dir);
    let mut client = TestWriter::join(&lender.addresses()[0], 1, 1);
    let ping = client.header(FrameKind::Ping).encode(0);
    let (mut sent, mut answered) = (0, 0);
    until("all pings are answered", || {
        while sent < BURST && client.link.queue(&[&ping]).is_ok() {
            sent += 1;
        }
        client.link.flush().unwrap();
        while let Some(packet) = client.link.receive().unwrap() {
            assert_eq!(Frame::parse(packet).unwrap().header.kind, FrameKind::Pong);
            answered += 1;
        }
        answered == BURST
    });
}

/// Figures: an honest client's commits beside each kind of noise, compared with those without it.
#[test]
#[ignore = "figures, half a minute: cargo test -p netram-lender --test all noisy::the_honest -- --ignored --nocapture"]
fn the_honest_client_keeps_its_commits() {
    const ROUND: Duration = Duration::from_secs(2);
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        shards: 1,
        memory: 16 << 20,
        ..config(&dir)
    })
    .unwrap();
    let address = lender.addresses()[0].clone();
    let journals = AtomicU64::new(1);
    let fresh = || u128::from(journals.fetch_add(1, Ordering::Relaxed));
    let rate = || {
        let mut honest = TestWriter::join(&address, fresh(), 1);
        let (began, mut commits) = (Instant::now(), 0_u32);
        while began.elapsed() < ROUND {
            honest.append(&[7; 128]);
            honest.acked();
            honest.stable = honest.at.lsn;
            commits += 1;
        }
        f64::from(commits) / began.elapsed().as_secs_f64()
    };
    let kinds: [(&str, FrameKind, bool); 4] = [
        ("status, bound", FrameKind::Status, true),
        ("status, not bound", FrameKind::Status, false),
        ("pings", FrameKind::Ping, true),
        ("reads of 60 KiB", FrameKind::Read, true),
    ];
    for (name, kind, bound) in kinds {
        let mut shares = Vec::new();
        for _ in 0..3 {
            let alone = rate();
            let over = AtomicBool::new(false);
            let beside = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut noisy = TestWriter::join(&address, fresh(), 1);
                    noisy.append(&vec![1; 60_000]);
                    noisy.acked();
                    let mut header = noisy.header(kind);
                    header.lsn = crate::common::START;
                    let length = (FRAME_BODY_BYTES_MAX as u32).to_le_bytes();
                    let body = if kind == FrameKind::Read { &length[..] } else { &[] };
                    let question = [&header.encode(body.len())[..], body].concat();
                    let mut link = if bound { noisy.link } else { dial(&address) };
                    ask_without_end(&mut link, &question, FrameKind::Report, &over);
                });
                let beside = rate();
                over.store(true, Ordering::Relaxed);
                beside
            });
            shares.push(beside / alone);
        }
        shares.sort_by(f64::total_cmp);
        let _ = writeln!(
            std::io::stderr(),
            "{name}: {:.0} % of the commits (median of 3: {shares:.2?})",
            100.0 * shares[1]
        );
    }
}
