//! Commits on a machine whose cores compute: a program that yields there must not wait for whole slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use netram_transport::WaitPolicy;

use super::{RatioBound, ScoreboardRow};
use crate::commit::{self, CommitEffort, CommitSpec};
use crate::error::BenchError;
use crate::histogram::{LatencySummary, median};
use crate::testbed::Testbed;

/// Number of times that both policies are measured, one after the other.
const ROUNDS: usize = 3;

/// The median commit with the default wait policy, beside a thread for each core that computes; floor: with
/// the policy that blocks at once.
pub(super) fn commits(site: &Testbed) -> Result<ScoreboardRow, BenchError> {
    let computing = ComputingThreads::start();
    let (mut by_default, mut blocking, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let measure = |wait| {
            let spec = CommitSpec {
                wait,
                ..CommitSpec::default()
            };
            commit::measure(site, &spec, CommitEffort::QUICK).map(|row| row.commit)
        };
        let (yields, blocks) = (measure(WaitPolicy::default())?, measure(WaitPolicy::Block)?);
        ratios.push(yields.p50_us / blocks.p50_us);
        by_default.push(yields);
        blocking.push(blocks);
    }
    let what = format!(
        "commit of 128 B, one member, wait policy {}, beside {} threads that compute; floor: wait policy block",
        WaitPolicy::default(),
        computing.threads.len()
    );
    let (value, floor) = (
        LatencySummary::median(&by_default).p50_us,
        LatencySummary::median(&blocking).p50_us,
    );
    let hold = RatioBound::AtMost(1.5);
    let figure = ScoreboardRow::new("commit-busy", what, "us p50", value, Some(floor), hold);
    Ok(figure.with_ratio(median(ratios)))
}

/// A thread for each core that computes until this is dropped.
struct ComputingThreads {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ComputingThreads {
    fn start() -> ComputingThreads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let done = Arc::new(AtomicBool::new(false));
        let begin = |_| {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..cores).map(begin).collect();
        ComputingThreads { done, threads }
    }
}

impl Drop for ComputingThreads {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
