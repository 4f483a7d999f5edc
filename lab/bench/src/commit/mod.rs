//! Cost of one commit, append and wait, beside a bare exchange of the same bytes and `fdatasync` on the same
//! disk.

pub(crate) mod setup;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use netram_journal::Journal;
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::disk;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{self, LatencyRecorder, LatencySummary, median};
use crate::testbed::{SocketKind, Testbed};
use setup::CommitSetup;

/// Record kind of benchmarks; no other user of a journal has it.
const KIND: RecordKind = RecordKind(127);
/// The log is trimmed when more than one part in this many of its capacity is used.
const TRIM_PART: u64 = 2;

/// Parameters of one row. Start from the default and change fields.
#[derive(Clone, Debug, Serialize)]
pub struct CommitSpec {
    /// Payload size of each record, in bytes.
    pub record_bytes: usize,
    /// Number of members, each a lender process. With none, commits wait for the local disk.
    pub members: usize,
    /// Durability that a commit waits for.
    #[serde(serialize_with = "durability_name")]
    pub durability: Durability,
    /// Threads that commit to one journal.
    pub threads: usize,
    /// How the client waits.
    #[serde(serialize_with = "display")]
    pub wait: WaitPolicy,
    /// Whether links are encrypted and records sealed.
    pub secure: bool,
    /// The kind of socket.
    pub wire: SocketKind,
    /// Modelled longer wire: microseconds added to each round trip of floor and commit.
    pub added_rtt_us: u32,
    /// Modelled slower disk: milliseconds added to each sync.
    pub modelled_sync_ms: u32,
}

/// Duration of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct CommitEffort {
    /// Rounds, each of floor and commits.
    pub rounds: usize,
    /// Time of one round's commits, and of its floor.
    pub round: Duration,
}

/// A measured row.
#[derive(Clone, Debug, Serialize)]
pub struct CommitRow {
    /// Parameters of the row.
    #[serde(flatten)]
    pub spec: CommitSpec,
    /// Latencies of the commits.
    pub commit: LatencySummary,
    /// The bare exchange with one process; `None` without members.
    pub exchange: Option<LatencySummary>,
    /// The bare exchange with one process for each member, on the members' cores; `None` with fewer than two
    /// members.
    pub fan_out: Option<LatencySummary>,
    /// `fdatasync` of as many bytes, overwriting.
    pub sync: LatencySummary,
    /// The commit's median over the exchange's, the median over rounds.
    pub ratio: Option<f64>,
    /// The same over the exchange with one process for each member.
    pub fan_out_ratio: Option<f64>,
    /// The sync's median plus the delay of a modelled disk, in microseconds.
    pub sync_floor_us: f64,
    /// `sync_floor_us` over the commit's median.
    pub faster_than_sync: f64,
}

impl Default for CommitSpec {
    fn default() -> CommitSpec {
        CommitSpec {
            record_bytes: 128,
            members: 1,
            durability: Durability::Remote,
            threads: 1,
            wait: WaitPolicy::Spin,
            secure: true,
            wire: SocketKind::Tcp,
            added_rtt_us: 0,
            modelled_sync_ms: 0,
        }
    }
}

impl CommitEffort {
    /// Seven rounds of half a second.
    pub const FULL: CommitEffort = CommitEffort {
        rounds: 7,
        round: Duration::from_millis(500),
    };
    /// Three short rounds, as a check that everything works.
    pub const QUICK: CommitEffort = CommitEffort {
        rounds: 3,
        round: Duration::from_millis(150),
    };
}

impl CommitSpec {
    /// The rows of the standard table: one parameter varied at a time around the default.
    pub fn table(quick: bool) -> Vec<CommitSpec> {
        let base = CommitSpec::default;
        // The disk thread needs a core, so spinning would slow the disk down.
        let disk = CommitSpec {
            members: 0,
            durability: Durability::Disk,
            wait: WaitPolicy::default(),
            ..base()
        };
        let mut rows = vec![
            base(),
            CommitSpec { members: 2, ..base() },
            CommitSpec {
                secure: false,
                ..base()
            },
            CommitSpec {
                wire: SocketKind::Unix,
                ..base()
            },
            CommitSpec {
                wait: WaitPolicy::default(),
                ..base()
            },
            CommitSpec {
                threads: 8,
                wait: WaitPolicy::default(),
                ..base()
            },
            disk.clone(),
        ];
        if !quick {
            rows.extend(CommitSpec::rows_of_full_table(disk));
        }
        rows
    }

    /// Rows that only the full table has.
    fn rows_of_full_table(disk: CommitSpec) -> Vec<CommitSpec> {
        let base = CommitSpec::default;
        let mut rows = vec![
            CommitSpec { members: 3, ..base() },
            CommitSpec {
                wait: WaitPolicy::Block,
                ..base()
            },
            CommitSpec {
                threads: 2,
                wait: WaitPolicy::default(),
                ..base()
            },
            CommitSpec {
                threads: 4,
                wait: WaitPolicy::default(),
                ..base()
            },
            CommitSpec {
                durability: Durability::Both,
                wait: WaitPolicy::default(),
                ..base()
            },
            CommitSpec {
                threads: 8,
                wait: WaitPolicy::default(),
                ..disk
            },
        ];
        rows.extend([16, 512, 4096, 32 * 1024].map(|record_bytes| CommitSpec {
            record_bytes,
            ..base()
        }));
        rows.extend([25, 50, 100].map(|added_rtt_us| CommitSpec {
            added_rtt_us,
            ..base()
        }));
        rows.extend([1, 8].map(|modelled_sync_ms| CommitSpec {
            modelled_sync_ms,
            ..base()
        }));
        rows
    }
}

/// Measures one row.
///
/// # Errors
///
/// Fails if the processes cannot be set up, or a commit fails.
pub fn measure(site: &Testbed, spec: &CommitSpec, effort: CommitEffort) -> Result<CommitRow, BenchError> {
    if !(1..=64).contains(&spec.threads) || spec.members > 8 {
        return Err(BenchError::InvalidRequest(
            "1 to 64 threads and 0 to 8 members can be measured".to_owned(),
        ));
    }
    let setup = CommitSetup::new(site, spec)?;
    let (mut commits, mut exchanges, mut syncs) = (vec![], vec![], vec![]);
    let (mut fan_outs, mut ratios, mut fan_out_ratios) = (vec![], vec![], vec![]);
    // The first round warms up caches, sockets and the branch predictor; it is thrown away.
    for round in 0..=effort.rounds {
        let sync = disk::sync_overwrites(site.directory(), spec.record_bytes, syncs_a_round(effort))?;
        let exchange = setup.floor(&setup.single, effort)?;
        let fan_out = setup.floor(&setup.fan_out, effort)?;
        let commit = setup.commits(spec, effort)?;
        if round > 0 {
            ratios.extend(exchange.map(|exchange| commit.p50_us / exchange.p50_us));
            fan_out_ratios.extend(fan_out.map(|fan_out| commit.p50_us / fan_out.p50_us));
            commits.push(commit);
            fan_outs.extend(fan_out);
            exchanges.extend(exchange);
            syncs.push(sync);
        }
    }
    let (commit, sync) = (LatencySummary::median(&commits), LatencySummary::median(&syncs));
    let sync_floor_us = sync.p50_us + f64::from(spec.modelled_sync_ms) * 1e3;
    Ok(CommitRow {
        spec: spec.clone(),
        exchange: (!exchanges.is_empty()).then(|| LatencySummary::median(&exchanges)),
        fan_out: (!fan_outs.is_empty()).then(|| LatencySummary::median(&fan_outs)),
        ratio: (!ratios.is_empty()).then(|| median(ratios)),
        fan_out_ratio: (!fan_out_ratios.is_empty()).then(|| median(fan_out_ratios)),
        sync_floor_us,
        faster_than_sync: sync_floor_us / commit.p50_us,
        commit,
        sync,
    })
}

/// Commits from one thread and from `threads` to one journal, in alternating rounds. Returns the medians, and
/// the median ratio of the rounds' throughputs.
///
/// # Errors
///
/// Fails if the processes cannot be set up, or a commit fails.
pub fn scaling(
    site: &Testbed,
    spec: &CommitSpec,
    threads: usize,
    effort: CommitEffort,
) -> Result<(LatencySummary, LatencySummary, f64), BenchError> {
    let one = CommitSpec {
        threads: 1,
        ..spec.clone()
    };
    let many = CommitSpec {
        threads,
        ..spec.clone()
    };
    let setup = CommitSetup::new(site, &one)?;
    let (mut ones, mut manies, mut ratios) = (vec![], vec![], vec![]);
    for round in 0..=effort.rounds {
        let (of_one, of_many) = (setup.commits(&one, effort)?, setup.commits(&many, effort)?);
        if round > 0 {
            ratios.push(of_many.per_second / of_one.per_second);
            ones.push(of_one);
            manies.push(of_many);
        }
    }
    Ok((
        LatencySummary::median(&ones),
        LatencySummary::median(&manies),
        median(ratios),
    ))
}

fn syncs_a_round(effort: CommitEffort) -> usize {
    (effort.round.as_millis() as usize).clamp(50, 500)
}

/// Commits from the requested number of threads for the requested time.
///
/// # Errors
///
/// Fails if a commit fails.
pub fn commits(
    journal: &Journal,
    spec: &CommitSpec,
    time: Duration,
    children: &[u32],
) -> Result<LatencySummary, BenchError> {
    let mut recorder = LatencyRecorder::start(children);
    let start = Barrier::new(spec.threads);
    let worker = || -> Result<Histogram<u64>, BenchError> {
        let mut histogram = histogram::empty();
        start.wait();
        let end = Instant::now() + time;
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(histogram);
            }
            commit(journal, spec.record_bytes, spec.durability)?;
            histogram.saturating_record(began.elapsed().as_nanos() as u64);
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        // This thread is one of them, so with one thread no thread has to be woken.
        let others: Vec<_> = (1..spec.threads).map(|_| scope.spawn(worker)).collect();
        let own = worker();
        let joined = others
            .into_iter()
            .map(|other| other.join().expect("a measuring thread does not panic"));
        std::iter::once(own).chain(joined).collect()
    });
    for result in results {
        recorder.add(&result?);
    }
    Ok(recorder.finish())
}

/// One commit. Trims the log when it is half full, which is part of a commit's cost.
///
/// # Errors
///
/// Fails if the journal refuses the record, or the wait for it fails.
pub fn commit(journal: &Journal, bytes: usize, durability: Durability) -> Result<(), BenchError> {
    let ticket = journal
        .append(KIND, bytes, &mut |payload| payload.fill(0x5a))
        .context("append a record")?;
    journal.wait(ticket, durability).context("wait for a commit")?;
    let state = journal.state();
    if state.tail.since(state.head) > state.capacity / TRIM_PART && state.stable > state.head {
        // Several threads may find the log half full; a position that is already trimmed is no failure.
        let _ = journal.trim(state.stable);
    }
    Ok(())
}

fn display<S: serde::Serializer>(value: &impl std::fmt::Display, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(value)
}

/// Name of a durability in flags and results.
pub fn name_of(durability: Durability) -> &'static str {
    match durability {
        Durability::Remote => "remote",
        Durability::Disk => "disk",
        Durability::Both => "both",
        Durability::Lazy => "lazy",
    }
}

fn durability_name<S: serde::Serializer>(value: &Durability, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(name_of(*value))
}
