//! Runs many seeds on threads. It catches and counts panics and broken rules, and makes each replayable.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use netram_proto::planted::FaultSwitch;

use crate::check::RuleViolation;
use crate::coverage::Coverage;
use crate::scenario::{RunOutcome, run};
use crate::trace::{TraceLines, TraceSink};

/// A seed that broke a rule, or panicked.
#[derive(Clone, Debug)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// The rule it broke; zero for liveness, 11 for a panic.
    pub rule: u8,
    /// Observation that contradicts the rule.
    pub what: String,
    /// Trace of the run's last events.
    pub trace_lines: Vec<String>,
}

/// Results of a range of seeds.
#[derive(Clone, Debug, Default)]
pub struct SeedsSummary {
    /// Number of seeds that broke no rule.
    pub passed: u64,
    /// Seeds that broke one.
    pub failures: Vec<SeedFailure>,
    /// Coverage, summed over all passed seeds.
    pub coverage: Coverage,
}

/// Runs one seed. A failing seed is run again to record its trace.
///
/// # Errors
///
/// Fails if the seed breaks a rule or panics.
pub fn run_seed(seed: u64, planted: FaultSwitch) -> Result<RunOutcome, Box<SeedFailure>> {
    let rule = match attempt(seed, planted, None) {
        Ok(outcome) => return Ok(outcome),
        Err(payload) => failure_of(&*payload).0,
    };
    let story: TraceLines = Rc::default();
    let (rule, what) = match attempt(seed, planted, Some(TraceSink::Last(Rc::clone(&story)))) {
        Err(payload) => failure_of(&*payload),
        Ok(_) => (
            rule,
            String::from("the seed failed once and passed when replayed: the world is not deterministic"),
        ),
    };
    let story = core::mem::take::<VecDeque<String>>(&mut story.borrow_mut()).into();
    Err(Box::new(SeedFailure {
        seed,
        rule,
        what,
        trace_lines: story,
    }))
}

/// Runs one seed again, and writes its whole story to `output` while it runs.
pub fn tell_story(seed: u64, planted: FaultSwitch, output: impl Write + 'static) {
    let output = Rc::new(RefCell::new(output));
    // The caller knows how the seed ends.
    let _ = attempt(seed, planted, Some(TraceSink::All(Rc::clone(&output) as _)));
    // If no process reads the story, there is no one to tell.
    let _ = output.borrow_mut().flush();
}

fn attempt(seed: u64, planted: FaultSwitch, story: Option<TraceSink>) -> std::thread::Result<RunOutcome> {
    catch_unwind(AssertUnwindSafe(|| run(seed, planted, story)))
}

fn failure_of(payload: &(dyn std::any::Any + Send)) -> (u8, String) {
    if let Some(violation) = payload.downcast_ref::<RuleViolation>() {
        return (violation.rule, violation.what.clone());
    }
    let text = payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| String::from(*text)));
    (11, format!("panic: {}", text.unwrap_or_default()))
}

/// Runs the `chosen` seeds among `count` from `from` on, on `threads` threads, until `failures_max` have
/// failed. `progress` gets the number of finished seeds now and then.
pub fn run_seeds(
    from: u64,
    count: u64,
    threads: usize,
    planted: FaultSwitch,
    failures_max: usize,
    chosen: &(dyn Fn(u64) -> bool + Sync),
    progress: &(dyn Fn(u64) + Sync),
) -> SeedsSummary {
    let next = AtomicU64::new(0);
    let summary = Mutex::new(SeedsSummary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if !chosen(from + number) {
                        continue;
                    }
                    let result = run_seed(from + number, planted);
                    // A panic inside a seed is caught before this lock is taken.
                    let mut summary = summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match result {
                        Ok(outcome) => {
                            summary.passed += 1;
                            summary.coverage.merge(&outcome.coverage);
                        }
                        Err(failure) => summary.failures.push(*failure),
                    }
                    if summary.failures.len() >= failures_max {
                        next.store(count, Ordering::Relaxed);
                    }
                    let done = summary.passed + summary.failures.len() as u64;
                    drop(summary);
                    progress(done);
                }
            });
        }
    });
    summary
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
