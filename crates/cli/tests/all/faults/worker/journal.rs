//! Numbered records: each has its number and a salt, from which its length and every byte follow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netram_journal::Journal;
use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, CommitTicket, LogError, Record, RecordKind, RecordLog};

use super::{WorkerEnd, WorkerMessage, WorkerSettings, say, say_acked, setup};
use crate::faults::harness::random::FaultsRandom;

const KIND: RecordKind = RecordKind(20);
const FRONT_BYTES: usize = 16;
/// Number of attempts after a failure: a fenced or poisoned journal must go on refusing.
const ATTEMPTS_AFTER_FAILURE: u32 = 50;
/// Trimming begins when the log is fuller than this, and stops at half of it.
const TRIM_PERCENT: u64 = 60;
/// The thread that trims.
const TRIMMER: usize = 0;

/// State that the threads of one client share.
struct Shared<'w> {
    work: &'w WorkerSettings,
    journal: Journal,
    /// The number of the newest record appended.
    number: AtomicU64,
    failed: AtomicBool,
    done: AtomicBool,
}

pub(super) fn run(work: &WorkerSettings, trim: bool) -> WorkerEnd {
    let (journal, mut report) = match setup::open(work) {
        Ok(opened) => opened,
        Err(end) => return end,
    };
    let known = match check(work, &journal, report.loss.is_some()) {
        Ok(known) => known,
        Err(end) => return end,
    };
    let last = known.back().map_or(0, |(number, _)| *number);
    report.last = vec![last];
    say(&WorkerMessage::Recovered(report));
    setup::await_members(work, &journal);
    let shared = Shared {
        work,
        journal,
        number: AtomicU64::new(last),
        failed: AtomicBool::new(false),
        done: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            setup::tell_standing(&|| shared.journal.status(), &|| {
                !shared.done.load(Ordering::Relaxed)
            });
        });
        let mut threads = Vec::new();
        for thread in 0..work.threads {
            let trims = (trim && thread == TRIMMER).then(|| known.clone());
            let shared = &shared;
            threads.push(scope.spawn(move || write(shared, thread, trims)));
        }
        for thread in threads {
            let _ = thread.join();
        }
        // The last state of the lenders must be reported too: it says why commits failed.
        std::thread::sleep(Duration::from_millis(30));
        shared.done.store(true, Ordering::Relaxed);
    });
    let failed = shared.failed.load(Ordering::Relaxed);
    match (shared.journal.close(), failed) {
        (_, true) => WorkerEnd::Failed,
        (Ok(()), false) => WorkerEnd::Done,
        (Err(error), false) => {
            say(&WorkerMessage::Failed {
                thread: TRIMMER,
                text: error.to_string(),
            });
            WorkerEnd::Failed
        }
    }
}

/// Every record there is, by number and place; or why they are not what they must be.
fn check(work: &WorkerSettings, journal: &Journal, lossy: bool) -> Result<VecDeque<(u64, Lsn)>, WorkerEnd> {
    let mut known: VecDeque<(u64, Lsn)> = VecDeque::new();
    let mut wrong = None;
    let mut each = |record: Record<'_>| {
        wrong = judge(work, &record, known.back().map(|(number, _)| *number)).err();
        if let (None, Ok(number)) = (&wrong, number_of(record.payload)) {
            known.push_back((number, record.lsn));
        }
        wrong.is_none()
    };
    let read = journal.read(journal.state().head, &mut each);
    if let Some(text) = wrong {
        return Err(WorkerEnd::Wrong(text));
    }
    match read {
        Ok(_) => (),
        // A disk that gives nothing has lost nothing yet.
        Err(error @ LogError::Io(_)) => return Err(WorkerEnd::Refused(error.to_string())),
        Err(error) => return Err(WorkerEnd::Wrong(error.to_string())),
    }
    let acked = work.acked.first().copied().unwrap_or(0);
    let (first, last) = match (known.front(), known.back()) {
        (Some((first, _)), Some((last, _))) => (*first, *last),
        _ => (1, 0),
    };
    if first > work.trimmed.max(1) {
        return Err(WorkerEnd::Wrong(format!(
            "the log begins with record {first}; nothing above {} was given up",
            work.trimmed
        )));
    }
    if last < acked && !lossy {
        return Err(WorkerEnd::Wrong(format!(
            "record {acked} was acknowledged; the log ends with record {last}"
        )));
    }
    Ok(known)
}

fn number_of(payload: &[u8]) -> Result<u64, String> {
    let front = payload.first_chunk::<8>().ok_or("a record is too short")?;
    Ok(u64::from_le_bytes(*front))
}

fn judge(work: &WorkerSettings, record: &Record<'_>, before: Option<u64>) -> Result<(), String> {
    let place = record.lsn;
    let number = number_of(record.payload)?;
    if before.is_some_and(|before| number != before + 1) {
        return Err(format!(
            "record {number} at LSN {place} follows record {}",
            before.unwrap_or(0)
        ));
    }
    let salt = record
        .payload
        .get(8..FRONT_BYTES)
        .and_then(|bytes| bytes.try_into().ok());
    let salt = u64::from_le_bytes(salt.ok_or("a record is too short")?);
    let mut expected = vec![0; length(work, salt)];
    fill(&mut expected, number, salt);
    match expected == record.payload && record.kind == KIND {
        true => Ok(()),
        false => Err(format!("record {number} at LSN {place} is not what was appended")),
    }
}

fn length(work: &WorkerSettings, salt: u64) -> usize {
    FRONT_BYTES + (salt % work.bytes_max.max(1)) as usize
}

fn fill(into: &mut [u8], number: u64, salt: u64) {
    into[..8].copy_from_slice(&number.to_le_bytes());
    into[8..FRONT_BYTES].copy_from_slice(&salt.to_le_bytes());
    FaultsRandom(number ^ salt.rotate_left(17)).fill(&mut into[FRONT_BYTES..]);
}

fn write(shared: &Shared<'_>, thread: usize, mut trims: Option<VecDeque<(u64, Lsn)>>) {
    let work = shared.work;
    let mut random = FaultsRandom::here();
    let mut failures = 0;
    let mut left = work.commits.unwrap_or(u64::MAX);
    let mut slowest = Duration::ZERO;
    while left > 0 && failures < ATTEMPTS_AFTER_FAILURE {
        if let Some(trims) = &mut trims {
            trim(shared, trims);
        }
        let began = Instant::now();
        match append(shared, random.next()) {
            Ok((number, ticket)) => {
                if let Some(trims) = &mut trims {
                    trims.push_back((number, ticket.lsn));
                }
                match shared.journal.wait(ticket, setup::durability(work)) {
                    Ok(votes) => {
                        let took = began.elapsed();
                        say_acked(thread, number, votes);
                        if took > slowest {
                            slowest = took;
                            say(&WorkerMessage::Slowest {
                                us: took.as_micros() as u64,
                            });
                        }
                    }
                    Err(error) => failures += fail(shared, thread, failures, &error.to_string()),
                }
                left -= 1;
            }
            // Another thread trims, which makes room.
            Err(AppendError::Full { .. })
                if matches!(work.task, super::WorkerTask::Journal { trim: true }) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => failures += fail(shared, thread, failures, &error.to_string()),
        }
    }
}

fn fail(shared: &Shared<'_>, thread: usize, failures: u32, text: &str) -> u32 {
    if failures == 0 {
        say(&WorkerMessage::Failed {
            thread,
            text: text.to_owned(),
        });
        shared.failed.store(true, Ordering::Relaxed);
    }
    std::thread::sleep(Duration::from_millis(2));
    1
}

fn append(shared: &Shared<'_>, salt: u64) -> Result<(u64, CommitTicket), AppendError> {
    let mut number = 0;
    let ticket = shared
        .journal
        .append(KIND, length(shared.work, salt), &mut |into| {
            // Under the journal's lock: the number is the record's place.
            number = shared.number.fetch_add(1, Ordering::Relaxed) + 1;
            fill(into, number, salt);
        })?;
    Ok((number, ticket))
}

/// Gives up the oldest records of a log that is fuller than it should be.
fn trim(shared: &Shared<'_>, known: &mut VecDeque<(u64, Lsn)>) {
    let state = shared.journal.state();
    if state.tail.since(state.head) < state.capacity * TRIM_PERCENT / 100 {
        return;
    }
    let target = state.tail.0 - state.capacity * TRIM_PERCENT / 200;
    let reached = |lsn: Lsn| lsn <= state.stable && lsn.0 <= target;
    while known.len() > 1 && reached(known[1].1) {
        known.pop_front();
    }
    if let Some((first, lsn)) = known
        .front()
        .filter(|(_, lsn)| *lsn > state.head && reached(*lsn))
    {
        say(&WorkerMessage::Trimming { first: *first });
        if let Err(error) = shared.journal.trim(*lsn) {
            fail(shared, TRIMMER, 0, &error.to_string());
        }
    }
}
