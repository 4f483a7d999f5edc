//! Counters that reports read while shards write them. Each has one writer, so adding needs no locked
//! instruction.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use netram_proto::id::{DepositId, Epoch, JournalId, Lsn, WriterId};
use netram_proto::member::MemberState;
use netram_proto::wire::{FrameKind, RefusalReason};
use netram_telemetry::SingleWriterCounter as Counter;
use netram_transport::{DropCounts, HandshakeError};

use crate::report::{
    CounterReport, DepositReport, EarlierFields, JournalReport, JournalStateReport, StatusReport,
};
use crate::slot::JournalNames;
use crate::sys::seconds_of_run;

/// Number of refusal kinds, including one for unknown kinds.
const REFUSALS: usize = 24;

/// Kinds of dropped datagrams; see [`DropCounts`].
const DROPPED_KINDS: [&str; 3] = ["strange", "doubled", "forged"];

/// The counters of one shard.
#[derive(Default)]
pub(crate) struct ShardCounters {
    pub(crate) frames: Counter,
    pub(crate) appends: Counter,
    pub(crate) bytes: Counter,
    pub(crate) acks: Counter,
    /// Appends that arrived by multicast.
    pub(crate) datagrams: Counter,
    /// Gaps in multicast appends that were reported to writers.
    pub(crate) missing: Counter,
    dropped: [Counter; DROPPED_KINDS.len()],
    refusals: [Counter; REFUSALS],
}

impl ShardCounters {
    pub(crate) fn refused(&self, byte: u8) {
        self.refusals[usize::from(byte).min(REFUSALS - 1)].add(1);
    }

    /// Adds the drops of a multicast receiver since the last call.
    pub(crate) fn dropped(&self, new: DropCounts) {
        let counts = [new.unknown, new.duplicate, new.forged];
        for (counter, count) in self.dropped.iter().zip(counts) {
            counter.add(count);
        }
    }

    pub(crate) fn add_to(&self, report: &mut CounterReport) {
        report.frames += self.frames.get();
        report.appends += self.appends.get();
        report.bytes += self.bytes.get();
        report.acks += self.acks.get();
        report.datagrams += self.datagrams.get();
        report.datagrams_missing += self.missing.get();
        for (kind, counter) in DROPPED_KINDS.iter().zip(&self.dropped) {
            let count = counter.get();
            if count > 0 {
                *report.datagrams_dropped.entry((*kind).to_owned()).or_default() += count;
            }
        }
        for (byte, counter) in self.refusals.iter().enumerate() {
            add_refusals(byte, counter.get(), report);
        }
    }
}

/// Counters and reports of deposits. Written by the deposit thread.
#[derive(Default)]
pub(crate) struct DepositStats {
    puts: Counter,
    gets: Counter,
    refusals: [Counter; REFUSALS],
    limit: AtomicU64,
    list: Mutex<BTreeMap<DepositId, DepositReport>>,
}

impl DepositStats {
    /// Counts a frame.
    pub(crate) fn count(&self, kind: FrameKind) {
        match kind {
            FrameKind::Put => self.puts.add(1),
            FrameKind::Get | FrameKind::Gather => self.gets.add(1),
            _ => (),
        }
    }

    pub(crate) fn refused(&self, byte: u8) {
        self.refusals[usize::from(byte).min(REFUSALS - 1)].add(1);
    }

    /// Current maximum bytes of all deposits.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    pub(crate) fn list(&self, id: DepositId, report: DepositReport) {
        self.lock().insert(id, report);
    }

    pub(crate) fn unlist(&self, id: DepositId) {
        self.lock().remove(&id);
    }

    pub(crate) fn add_to(&self, report: &mut StatusReport) {
        report.counters.deposit_puts = self.puts.get();
        report.counters.deposit_gets = self.gets.get();
        for (byte, counter) in self.refusals.iter().enumerate() {
            add_refusals(byte, counter.get(), &mut report.counters);
        }
        report.deposits = self.lock().values().cloned().collect();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DepositId, DepositReport>> {
        // Each operation is one call on the map, so a panic elsewhere leaves it consistent.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_refusals(byte: usize, count: u64, report: &mut CounterReport) {
    if count > 0
        && let Some(refusal) = RefusalReason::from_byte(byte as u8)
    {
        *report.refusals.entry(format!("{refusal:?}")).or_default() += count;
    }
}

/// Failed handshakes by kind. Written by the acceptor.
#[derive(Default)]
pub(crate) struct HandshakeFailures([Counter; HANDSHAKE_KINDS.len()]);

const HANDSHAKE_KINDS: [&str; 10] = [
    "wrong_key",
    "wrong_version",
    "secure_required",
    "insecure_required",
    "busy",
    "cut_off",
    "timed_out",
    "not_netram",
    "failed",
    "silent",
];

impl HandshakeFailures {
    pub(crate) fn failed(&self, error: &HandshakeError) {
        let kind = match error {
            HandshakeError::WrongKey => 0,
            HandshakeError::WrongVersion { .. } => 1,
            HandshakeError::SecureRequired => 2,
            HandshakeError::InsecureRequired => 3,
            HandshakeError::Busy => 4,
            HandshakeError::CutOff => 5,
            HandshakeError::TimedOut => 6,
            HandshakeError::NotNetram => 7,
            HandshakeError::Failed(_) => 8,
        };
        self.0[kind].add(1);
    }

    /// Counts a connection that sent no request after its handshake.
    pub(crate) fn silent(&self) {
        self.0[9].add(1);
    }

    pub(crate) fn by_kind(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(Counter::get);
        let named = HANDSHAKE_KINDS.iter().zip(counts).filter(|(_, count)| *count > 0);
        named.map(|(kind, count)| ((*kind).to_owned(), count)).collect()
    }
}

/// The report values of one journal. Written by its shard; values may be read an instant apart.
#[derive(Default)]
pub(crate) struct JournalStats {
    writer: AtomicU64,
    epoch: AtomicU32,
    generation: AtomicU32,
    window_bytes: AtomicU64,
    trim: AtomicU64,
    held: AtomicU64,
    joined: AtomicBool,
    spilled: AtomicBool,
    on_disk: AtomicBool,
    /// Whether the journal is asked to take its window elsewhere, since the machine lacks memory. Written by
    /// the thread that watches that.
    pub(crate) asked_back: AtomicBool,
    /// Milliseconds from the lender's start to the last append, plus one; zero if there was none.
    last_append: AtomicU64,
    /// The machine's uptime in seconds when a client last connected or disconnected; zero if unknown.
    pub(crate) last_contact: AtomicU64,
    pub(crate) sessions: AtomicU32,
    /// The client that pays, and the journal's name.
    names: Mutex<JournalNames>,
}

impl JournalStats {
    pub(crate) fn set_names(&self, names: JournalNames) {
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    pub(crate) fn publish(&self, state: &MemberState, window_bytes: u64) {
        self.writer.store(state.writer.0, Relaxed);
        self.epoch.store(state.epoch.0, Relaxed);
        self.generation.store(state.generation, Relaxed);
        self.window_bytes.store(window_bytes, Relaxed);
        self.trim.store(state.trim.0, Relaxed);
        self.held.store(state.held.0, Relaxed);
        self.joined.store(state.joined, Relaxed);
        self.spilled.store(state.joined && state.spilled, Relaxed);
    }

    /// Notes whether the window is in a file of its own.
    pub(crate) fn set_on_disk(&self, is_on_disk: bool) {
        self.on_disk.store(is_on_disk, Relaxed);
    }

    /// Bytes of its window; zero without one.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.window_bytes.load(Relaxed)
    }

    pub(crate) fn appended(&self, started: Instant, now: Instant) {
        self.last_append
            .store(now.duration_since(started).as_millis() as u64 + 1, Relaxed);
    }

    pub(crate) fn report(&self, id: JournalId, started: Instant, now: Instant) -> JournalReport {
        let elapsed = now.duration_since(started).as_millis() as u64 + 1;
        let (trim, held) = (self.trim.load(Relaxed), self.held.load(Relaxed));
        let window_bytes = self.window_bytes.load(Relaxed);
        let last_append = self.last_append.load(Relaxed);
        let names = { self.names.lock().unwrap_or_else(PoisonError::into_inner) }.clone();
        JournalReport {
            id: id.to_string(),
            spilled: self.spilled.load(Relaxed),
            on_disk: self.on_disk.load(Relaxed),
            earlier: EarlierFields::default(),
            client: names.payer,
            name: names.name,
            state: Some(JournalStateReport {
                writer: WriterId(self.writer.load(Relaxed)),
                epoch: Epoch(self.epoch.load(Relaxed)),
                trim: Lsn(trim),
                held: Lsn(held),
                generation: self.generation.load(Relaxed),
            }),
            window_bytes,
            used_bytes: match self.joined.load(Relaxed) {
                true => held.saturating_sub(trim),
                false => 0,
            },
            last_append_age_ms: (last_append > 0).then(|| elapsed.saturating_sub(last_append)),
            last_heard_age_s: match (self.sessions.load(Relaxed), self.last_contact.load(Relaxed)) {
                (0, 0) => None,
                (0, contact) => Some(seconds_of_run().saturating_sub(contact)),
                _ => Some(0),
            },
            sessions: self.sessions.load(Relaxed),
        }
    }
}
