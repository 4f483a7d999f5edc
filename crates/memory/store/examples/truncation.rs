//! Shows that truncation does not stall commits. It measures the latency of commits with and without
//! truncation, on real files, waiting for a lender in this process and for the disk:
//! `cargo run --release -p netram-store --example truncation -- [directory]`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, SegmentAllocation};
use netram_store::{JournalLayout, JournalSettings, Store, StoreSettings};
use netram_transport::Security;

/// Large enough that no run fills it, so that truncation can be avoided.
const LOG_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 100 << 20;
const BYTES: usize = 128;
/// Quantiles of the latencies that are printed, in permille.
const QUANTILES: [(&str, usize); 5] = [
    ("p50", 500),
    ("p90", 900),
    ("p99", 990),
    ("p99.9", 999),
    ("max", 1000),
];
/// Upper bounds of the histogram's classes, in microseconds.
const CLASSES_US: [u64; 12] = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000];

struct Run {
    name: &'static str,
    durability: Durability,
    commits: usize,
    /// Percentage of the log at which truncation begins; 95 is never reached.
    threshold: u8,
}

/// Latencies of one run in nanoseconds; and how often truncation completed a round, a commit waited for
/// truncation because the log was full, and a commit waited for the disk because the window was full.
struct Measured {
    latencies: Vec<u64>,
    rounds: u64,
    stalls: u64,
    window_stalls: u64,
}

fn measure(directory: &Path, socket: &str, run: &Run) -> Result<Measured, Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir_in(directory)?;
    let store = Store::create(&directory.path().join("log"), JournalLayout::Beside, LOG_BYTES)?;
    let lenders = match run.durability {
        Durability::Disk => Vec::new(),
        _ => vec![socket.parse()?],
    };
    let opened = store.open(&StoreSettings {
        journal: JournalSettings {
            insecure: !lenders.is_empty(),
            lenders,
            one_domain: true,
            ..JournalSettings::default()
        },
        truncation_threshold_percent: Some(run.threshold),
        ..StoreSettings::default()
    })?;
    let memory = opened.memory;
    if run.durability != Durability::Disk {
        memory
            .log()
            .wait_for_members(Duration::from_secs(20))
            .map_err(|blocked| format!("no member joined: {blocked:?}"))?;
    }
    let path = directory.path().join("segment");
    let path = path.to_str().ok_or("the directory's name is not UTF-8")?;
    memory.create_segment(path, SEGMENT_BYTES, SegmentAllocation::Preallocated)?;
    let region = memory.map(path, 0, 0)?;
    // Every page belongs to the process before the clock starts: first touches are not measured.
    {
        let bytes = region.read();
        assert!(bytes.iter().step_by(4096).all(|byte| *byte == 0));
    }
    let mut seed = 1u64;
    let mut latencies = Vec::with_capacity(run.commits);
    for number in 0..run.commits {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let offset = (seed >> 33) as usize % (SEGMENT_BYTES as usize - BYTES);
        let mut transaction = memory.begin(RestoreMode::Restore);
        transaction.write(&region, offset, &[number as u8; BYTES])?;
        let began = Instant::now();
        transaction.commit(run.durability)?;
        latencies.push(began.elapsed().as_nanos() as u64);
    }
    let statistics = memory.statistics();
    Ok(Measured {
        latencies,
        rounds: statistics.rounds,
        stalls: statistics.full_stalls,
        window_stalls: memory.log().status().window_stalls,
    })
}

fn tell(out: &mut impl Write, name: &str, mut measured: Measured) -> std::io::Result<()> {
    let Measured {
        latencies,
        rounds,
        stalls,
        window_stalls,
    } = &mut measured;
    latencies.sort_unstable();
    write!(out, "{name:<34}{rounds:>8}{stalls:>8}{window_stalls:>8}")?;
    for (_, permille) in QUANTILES {
        let at = (latencies.len() * permille / 1000).min(latencies.len() - 1);
        write!(out, "{:>10.1}", latencies[at] as f64 / 1000.0)?;
    }
    writeln!(out)?;
    write!(out, "  commits up to ..us:")?;
    let mut before = 0;
    for bound in CLASSES_US {
        let within = latencies.partition_point(|latency| *latency <= bound * 1000);
        if within > before {
            write!(out, "  {bound}: {}", within - before)?;
        }
        before = within;
    }
    match latencies.len() - before {
        0 => writeln!(out),
        more => writeln!(out, "  more: {more}"),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    // Checked before a lender exists, whose memory would remain after a failure.
    if !directory.is_dir() {
        return Err(format!("the directory {} does not exist", directory.display()).into());
    }
    let lender_directory = tempfile::tempdir()?;
    let socket = format!("unix:{}", lender_directory.path().join("lend.sock").display());
    let _lender = Lender::start(LenderConfig {
        listen: vec![socket.parse()?],
        security: Security::Insecure,
        memory: 64 << 20,
        ..LenderConfig::default()
    })?;
    let runs = [
        ("remote, no truncation", Durability::Remote, 200_000, 95),
        ("remote, truncation at 10 %", Durability::Remote, 200_000, 10),
        ("remote, truncation all the time", Durability::Remote, 200_000, 1),
        ("disk, no truncation", Durability::Disk, 10_000, 95),
        ("disk, truncation all the time", Durability::Disk, 10_000, 1),
    ];
    let mut out = std::io::stdout().lock();
    write!(
        out,
        "{:<34}{:>8}{:>8}{:>8}",
        "microseconds a commit", "rounds", "full", "window"
    )?;
    for (quantile, _) in QUANTILES {
        write!(out, "{quantile:>10}")?;
    }
    writeln!(out)?;
    for (name, durability, commits, threshold) in runs {
        let run = Run {
            name,
            durability,
            commits,
            threshold,
        };
        let measured = measure(&directory, &socket, &run)?;
        tell(&mut out, run.name, measured)?;
    }
    Ok(())
}
