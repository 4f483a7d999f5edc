//! One lender with a growing number of clients: whether the total throughput holds, and whether each client
//! gets its share.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use netram_proto::port::Durability;
use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::commit::commit;
use crate::error::BenchError;
use crate::histogram::{self, LatencyRecorder, LatencySummary};
use crate::machine;
use crate::testbed::{CoreAssignment, LenderSpec, OpenJournal, SocketKind, Testbed};

/// Size of each client's log in bytes.
const LOG_BYTES: u64 = 16 << 20;
/// The clients share one disk with their lender's machine, unlike real ones. A rare background sync keeps the
/// disk out of the measurement.
const DISK_DELAY: Duration = Duration::from_millis(20);
/// One part in this many of the time, at its start, is not measured.
const WARM_UP_PART: u32 = 5;

/// A measured row.
#[derive(Clone, Debug, Serialize)]
pub struct ShareRow {
    /// Number of clients, each with its own journal, sockets and thread.
    pub clients: usize,
    /// Latencies of all commits.
    pub total: LatencySummary,
    /// Commits per second of each client.
    pub per_client: Vec<f64>,
    /// The greatest of those rates over the least.
    pub unfairness: f64,
}

/// Measures `clients` clients that commit records of `bytes` for `time`.
///
/// # Errors
///
/// Fails if the lender or a journal cannot be set up, or a commit fails.
pub fn measure(site: &Testbed, clients: usize, bytes: usize, time: Duration) -> Result<ShareRow, BenchError> {
    if clients == 0 || clients > 64 {
        return Err(BenchError::InvalidRequest(
            "1 to 64 clients can be measured".to_owned(),
        ));
    }
    let seats = CoreAssignment::find();
    // Both sides yield, since there may be more threads than cores, as with many clients anywhere.
    let wait = WaitPolicy::default();
    let lender = site.lender(LenderSpec {
        wire: SocketKind::Tcp,
        secure: true,
        wait,
        core: seats.lender(0),
    })?;
    let journals: Result<Vec<OpenJournal>, BenchError> = (0..clients)
        .map(|_| {
            let mut config = site.config(vec![lender.address().clone()], true, wait);
            config.disk_delay = DISK_DELAY;
            site.journal(LOG_BYTES, config)
        })
        .collect();
    let journals = journals?;
    let start = Arc::new(Barrier::new(clients + 1));
    let (recorder, results) = std::thread::scope(|scope| {
        let workers: Vec<_> = journals
            .iter()
            .map(|open| {
                let (start, seats) = (Arc::clone(&start), seats.clone());
                scope.spawn(move || client(open, bytes, time, &seats, &start))
            })
            .collect();
        start.wait();
        std::thread::sleep(time / WARM_UP_PART);
        let recorder = LatencyRecorder::start(&[lender.child().id()]);
        let results: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().expect("a measuring thread does not panic"))
            .collect();
        (recorder, results)
    });
    let mut recorder = recorder;
    let mut per_client = Vec::with_capacity(clients);
    for result in results {
        let histogram = result?;
        per_client.push(histogram.len() as f64 / time.as_secs_f64());
        recorder.add(&histogram);
    }
    let most = per_client.iter().copied().fold(0.0, f64::max);
    let least = per_client.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(ShareRow {
        clients,
        total: recorder.finish(),
        per_client,
        unfairness: most / least.max(1.0),
    })
}

fn client(
    open: &OpenJournal,
    bytes: usize,
    time: Duration,
    seats: &CoreAssignment,
    start: &Barrier,
) -> Result<hdrhistogram::Histogram<u64>, BenchError> {
    // The lender keeps its core to itself, if there is another.
    let pinned = machine::pin(&[seats.client()]);
    start.wait();
    pinned?;
    let mut histogram = histogram::empty();
    let measured = Instant::now() + time / WARM_UP_PART;
    let end = measured + time;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(histogram);
        }
        commit(&open.journal, bytes, Durability::Remote)?;
        if began >= measured {
            histogram.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
}
