//! netram beside other programs that store or replicate a small write: all in one run, in turns.
//!
//! Servers are real ones, processes of this machine on loopback or Unix sockets. One client sends one write
//! after the other and times each. A program that is not installed is skipped, and the report says so. At the
//! end each database and log must have as many records as it acknowledged, and each device its first block.
//! netram's journal is not read back here: the kill rounds and the simulator do that.
//!
//! | module | does |
//! |---|---|
//! | [`kinds`] | the peers, and what each may lose |
//! | `floors` | netram, and the floors |
//! | `redis`, `etcd`, `grpc` | Redis, etcd |
//! | `bookkeeper` | BookKeeper, from jars |
//! | `sql` | MariaDB and PostgreSQL, with a replica each |
//! | `embedded` | SQLite, and engines in a C program |
//! | `blocks` | servers of block devices |
//! | [`output`] | files for programs and people |

mod blocks;
mod bookkeeper;
mod embedded;
pub(crate) mod etcd;
mod floors;
pub(crate) mod grpc;
pub mod kinds;
pub mod output;
pub(crate) mod redis;
mod sql;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::child::ChildProcess;
use crate::device::is_here;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
pub use kinds::{PeerKind, PeerLosses, PeerWork};

/// Size of a commit in bytes.
pub(crate) const COMMIT_BYTES: usize = 128;

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// The peers.
    pub peers: Vec<PeerKind>,
    /// Number of rounds; results are their medians.
    pub rounds: usize,
    /// Duration of a peer's round.
    pub time: Duration,
}

/// Results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Number of rounds.
    pub rounds: usize,
    /// The measured peers, in the order of the tables.
    pub rows: Vec<PeerRow>,
    /// Skipped peers, each with its reason.
    pub skipped: Vec<String>,
}

/// A measured peer.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// The peer.
    pub peer: PeerKind,
    /// Medians of the rounds' latencies.
    pub latency: LatencySummary,
    /// Lowest and highest median of a round, in microseconds.
    pub spread_us: [f64; 2],
    /// The data that failures may lose.
    pub losses: PeerLosses,
}

/// A running peer.
trait PeerSubject {
    /// Writes for `time`, one write after the other.
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError>;
    /// Fails if acknowledged records are found to be missing; then stops the peer.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// Runs the comparison that `spec` describes.
///
/// # Errors
///
/// Fails if an installed peer fails, or does not have what it acknowledged.
pub fn compare(
    site: &Testbed,
    spec: &PeerSpec,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<PeerReport, BenchError> {
    let mut report = PeerReport {
        machine: MachineInfo::probe(),
        rounds: spec.rounds,
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    let mut subjects = Vec::new();
    for &peer in &spec.peers {
        if let Some(missing) = missing(peer) {
            let why = format!("{}: {missing}", peer.label());
            tell(ProgressEvent::Skipped(&why));
            report.skipped.push(why);
            continue;
        }
        tell(ProgressEvent::Next(&format!("starting {}", peer.label())));
        subjects.push((peer, start(site, peer)?, Vec::new()));
    }
    // The first round warms up caches and connections; it is thrown away.
    for round in 0..=spec.rounds {
        let what = format!("measuring, round {round} of {}", spec.rounds);
        tell(ProgressEvent::Next(&what));
        for (_, subject, rounds) in &mut subjects {
            let summary = subject.round(spec.time)?;
            if round > 0 {
                rounds.push(summary);
            }
        }
    }
    for (peer, subject, rounds) in subjects {
        subject.end()?;
        let medians = || rounds.iter().map(|round| round.p50_us);
        report.rows.push(PeerRow {
            peer,
            latency: LatencySummary::median(&rounds),
            spread_us: [
                medians().fold(f64::INFINITY, f64::min),
                medians().fold(0.0, f64::max),
            ],
            losses: peer.losses(),
        });
    }
    Ok(report)
}

/// Name of what is missing here for a peer.
fn missing(peer: PeerKind) -> Option<String> {
    let absent = |commands: &[&str], package: &str| {
        let absent = commands.iter().find(|name| !is_here(name))?;
        Some(format!("there is no `{absent}` (package {package})"))
    };
    let no_header = |header: &str, package: &str| {
        if let Some(why) = absent(&["cc"], "gcc") {
            return Some(why);
        }
        let is_there = Path::new("/usr/include").join(header).exists();
        (!is_there).then(|| format!("there is no {header} (package {package})"))
    };
    match peer {
        PeerKind::Redis => absent(&["redis-server", "setpriv"], "redis-server"),
        PeerKind::EtcdOne | PeerKind::EtcdThree => absent(&["etcd", "setpriv"], "etcd-server"),
        PeerKind::BookkeeperSync | PeerKind::BookkeeperNoSync => {
            absent(&["java", "setpriv"], "default-jdk-headless").or_else(bookkeeper::missing)
        }
        PeerKind::BerkeleyDb => no_header("db.h", "libdb5.3-dev"),
        PeerKind::MariadbSync | PeerKind::MariadbNoSync => absent(
            &["mariadbd", "mariadb", "mariadb-install-db", "setpriv"],
            "mariadb-server",
        ),
        PeerKind::Postgresql => sql::postgres_missing(),
        PeerKind::Pmemobj => no_header("libpmemobj.h", "libpmemobj-dev"),
        PeerKind::Lmdb => no_header("lmdb.h", "liblmdb-dev"),
        PeerKind::NbdkitMemory | PeerKind::NbdkitFile => absent(&["nbdkit", "setpriv"], "nbdkit"),
        PeerKind::QemuNbd => absent(&["qemu-nbd", "setpriv"], "qemu-utils"),
        PeerKind::Drbd => {
            Some("it replicates inside the kernels of two machines; this command runs on one".to_owned())
        }
        _ => None,
    }
}

fn start(site: &Testbed, peer: PeerKind) -> Result<Box<dyn PeerSubject>, BenchError> {
    match peer {
        PeerKind::Exchange | PeerKind::NetramSpin | PeerKind::NetramOne | PeerKind::NetramTwo => {
            floors::netram(site, peer)
        }
        PeerKind::Sync => Ok(floors::sync(site, COMMIT_BYTES)),
        PeerKind::BlockSync => Ok(floors::sync(site, blocks::BLOCK_BYTES)),
        PeerKind::Redis => redis::start(site),
        PeerKind::EtcdOne => etcd::start(site, 1),
        PeerKind::EtcdThree => etcd::start(site, 3),
        PeerKind::BerkeleyDb => embedded::berkeley_db(site),
        PeerKind::MariadbSync => sql::mariadb(site, true),
        PeerKind::MariadbNoSync => sql::mariadb(site, false),
        PeerKind::Postgresql => sql::postgres(site),
        PeerKind::Pmemobj => embedded::pmemobj(site),
        PeerKind::Sqlite => embedded::sqlite(site),
        PeerKind::Lmdb => embedded::lmdb(site),
        PeerKind::BlockFloor | PeerKind::Volume => blocks::served(site, peer),
        PeerKind::NbdkitMemory | PeerKind::NbdkitFile | PeerKind::QemuNbd => blocks::other(site, peer),
        PeerKind::BookkeeperSync => bookkeeper::start(site, true),
        PeerKind::BookkeeperNoSync => bookkeeper::start(site, false),
        PeerKind::Drbd => {
            let why = format!("{} cannot be measured here", peer.label());
            Err(BenchError::InvalidRequest(why))
        }
    }
}

/// Starts a server of another project, which the kernel kills with this process at the latest.
pub(crate) fn server(
    site: &Testbed,
    role: &'static str,
    environment: &[(&str, String)],
    words: &[String],
) -> Result<ChildProcess, BenchError> {
    let environment: Vec<String> = environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let before = ["--pdeathsig", "KILL", "env"].into_iter();
    let words = environment.iter().chain(words).map(String::as_str);
    ChildProcess::start(Path::new("setpriv"), before.chain(words), role, site.directory())
}

/// Ports of the loopback interface that no process listens on.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N], BenchError> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("find a free port")?;
        *port = listener.local_addr().context("find a free port")?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Times one write after the other for a while; `write` is told how many were acknowledged before.
fn timed(
    time: Duration,
    acknowledged: &mut u64,
    mut write: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<LatencySummary, BenchError> {
    let mut recorder = LatencyRecorder::start(&[]);
    let end = Instant::now() + time;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(recorder.finish());
        }
        write(*acknowledged)?;
        recorder.record(began.elapsed());
        *acknowledged += 1;
    }
}

/// Fails unless a peer has as many records as it acknowledged.
fn must_have(peer: PeerKind, site: &Testbed, found: u64, acknowledged: u64) -> Result<(), BenchError> {
    if found == acknowledged {
        return Ok(());
    }
    Err(BenchError::WrongData {
        place: site.directory().to_owned(),
        why: format!(
            "{} has {found} records, and acknowledged {acknowledged}",
            peer.label()
        ),
    })
}
