//! Clients that ask without end. Each holds the cluster key; an honest client goes on committing beside it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{TestWriter, config, dial, memory_dir, start, status, until};
use netram_lender::limit::REPORT_INTERVAL;
use netram_lender::{Lender, LenderConfig};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{Interest, Link, LinkError, Poller};

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

/// Asks `question` whenever `on`, as fast as the lender takes it, and sleeps while the lender takes nothing:
/// an attacker on another machine needs no processor of the lender's.
fn ask_from_afar(link: &mut Link, question: &[u8], on: &AtomicBool, over: &AtomicBool) {
    let poller = Poller::new().unwrap();
    poller.add(&*link, 0, Interest::Read).unwrap();
    let mut pending = 0_u32;
    while !over.load(Ordering::Relaxed) {
        while on.load(Ordering::Relaxed) && link.queue(&[question]).is_ok() {
            pending += 1;
            if pending.is_multiple_of(64) {
                break;
            }
        }
        let sent = link.flush().unwrap();
        let mut got = false;
        while link.receive().unwrap().is_some() {
            got = true;
        }
        let idle = !sent || !on.load(Ordering::Relaxed);
        if idle && !got {
            poller.sleep(Some(Duration::from_millis(1))).unwrap();
        }
    }
}

/// Commits a second of one client that does so without pause for a while.
fn rate(honest: &mut TestWriter, span: Duration) -> f64 {
    let (began, mut commits) = (Instant::now(), 0_u32);
    while began.elapsed() < span {
        honest.append(&[7; 128]);
        honest.acked();
        honest.stable = honest.at.lsn;
        commits += 1;
    }
    f64::from(commits) / began.elapsed().as_secs_f64()
}

/// Figures: an honest client's commits beside each kind of noise, compared with those without it in the
/// instants before and after, so that what else the machine does counts for both.
#[test]
#[ignore = "figures, a minute: cargo test -p netram-lender --test all noisy::the_honest -- --ignored --nocapture"]
fn the_honest_client_keeps_its_commits() {
    const SLICE: Duration = Duration::from_millis(100);
    const SLICES: usize = 40;
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        shards: 1,
        memory: 16 << 20,
        ..config(&dir)
    })
    .unwrap();
    let address = lender.addresses()[0].clone();
    let mut honest = TestWriter::join(&address, 1, 1);
    let kinds: [(&str, FrameKind, bool, u128); 5] = [
        ("status, bound", FrameKind::Status, true, 1),
        ("status, not bound", FrameKind::Status, false, 1),
        ("pings", FrameKind::Ping, true, 1),
        ("reads of 60 KiB", FrameKind::Read, true, 1),
        ("pings of 16 journals", FrameKind::Ping, true, 16),
    ];
    for (at, (name, kind, bound, sessions)) in kinds.into_iter().enumerate() {
        let (on, over) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let address = &address;
        let mut shares = std::thread::scope(|scope| {
            for session in 0..sessions {
                let journal = 100 * (at as u128 + 1) + session;
                scope.spawn(move || {
                    let mut noisy = TestWriter::join(address, journal, 1);
                    noisy.append(&vec![1; 60_000]);
                    noisy.acked();
                    let mut header = noisy.header(kind);
                    header.lsn = crate::common::START;
                    let length = (FRAME_BODY_BYTES_MAX as u32).to_le_bytes();
                    let body = if kind == FrameKind::Read { &length[..] } else { &[] };
                    let question = [&header.encode(body.len())[..], body].concat();
                    let mut link = if bound { noisy.link } else { dial(address) };
                    ask_from_afar(&mut link, &question, on, over);
                });
            }
            let slices = (0..SLICES).map(|_| {
                on.store(false, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
                let alone = rate(&mut honest, SLICE);
                on.store(true, Ordering::Relaxed);
                rate(&mut honest, SLICE) / alone
            });
            let shares: Vec<f64> = slices.collect();
            over.store(true, Ordering::Relaxed);
            shares
        });
        shares.sort_by(f64::total_cmp);
        let percent = |part: usize| 100.0 * shares[SLICES * part / 100];
        let _ = writeln!(
            std::io::stderr(),
            "{name}: {:.0} % of the commits (quarter points {:.0} and {:.0})",
            percent(50),
            percent(25),
            percent(75)
        );
    }
}

/// Figures: the time in which a recovering client reads its window, alone and beside a client that commits.
#[test]
#[ignore = "figures: cargo test -p netram-lender --test all noisy::a_recovery -- --ignored --nocapture"]
fn a_recovery_reads_its_window() {
    const WINDOW: u64 = 64 << 20;
    const ROUNDS: usize = 15;
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        shards: 1,
        memory: 160 << 20,
        chunk_bytes: 1 << 20,
        ..config(&dir)
    })
    .unwrap();
    let address = lender.addresses()[0].clone();
    let payload = vec![1; 50_000];
    for beside in [false, true] {
        let over = AtomicBool::new(false);
        let times = std::thread::scope(|scope| {
            let honest = scope.spawn(|| {
                let mut honest = TestWriter::join(&address, 1, 1 + u32::from(beside));
                while !over.load(Ordering::Relaxed) && beside {
                    rate(&mut honest, Duration::from_millis(20));
                }
            });
            let times = (0..ROUNDS).map(|round| {
                let journal = 100 + round as u128 + 50 * u128::from(beside);
                let mut recovering = TestWriter::bind(&address, journal, 1);
                recovering.fence();
                recovering.join_window(WINDOW, 1);
                while recovering.at.lsn.0 + 60_000 < WINDOW {
                    recovering.append(&payload);
                    recovering.acked();
                }
                let length = recovering.at.lsn.since(crate::common::START) as usize;
                let began = Instant::now();
                recovering.read(crate::common::START, length);
                let took = began.elapsed();
                let mut leave = recovering.header(FrameKind::Leave);
                (leave.lsn.0, leave.mark) = (1, 1);
                recovering.ask(leave, &[]);
                took
            });
            let mut times: Vec<Duration> = times.collect();
            over.store(true, Ordering::Relaxed);
            honest.join().unwrap();
            times.sort();
            times
        });
        let _ = writeln!(
            std::io::stderr(),
            "64 MiB read in {:.1?} (median of {ROUNDS}; quickest {:.1?}), beside commits: {beside}",
            times[ROUNDS / 2],
            times[0]
        );
    }
}
