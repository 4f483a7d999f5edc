//! All tests of the workspace, each in a process of its own, several at a time.
//!
//! `cargo test` runs one program after the other, and the tests of a program as threads of one process. Most
//! tests here wait for processes and disks, so a machine of two cores idles; and tests that fork, change
//! limits or lock files disturb their neighbours. Here each test is a process with its own time limit and
//! end. `cargo nextest` does the same, but building it takes longer than running all tests.

mod compiled;
mod plan;
mod python;
mod report;
mod slots;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::tree;

pub(crate) use plan::built;

/// Kind of command that runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A program of tests, for one of them.
    Harness,
    /// A script, for all that it tests.
    Script,
    /// Cargo.
    Cargo,
    /// Cargo, on what was built for testing.
    Checked,
}

/// One test, and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Crate and program, as `netram-volume all`.
    program: String,
    /// The name that the program gives it.
    name: String,
    kind: Kind,
    executable: PathBuf,
    /// Arguments of a command that is no harness.
    arguments: Vec<String>,
    /// The package's directory, in which tests run.
    directory: PathBuf,
}

impl Test {
    fn title(&self) -> String {
        format!("{} {}", self.program, self.name)
    }
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// The test ran longer than [`slots::LIMIT`] and was killed.
    TooLong,
}

/// A test that was run.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    title: String,
    outcome: Outcome,
    time: Duration,
    /// Everything that the test printed.
    output: String,
}

/// Runs every test whose crate, program or name contains one of `filters`, or all tests if there are none.
///
/// # Errors
/// Names the tests that failed, after printing what they printed.
pub(crate) fn run(filters: &[String]) -> Result<(), String> {
    let root = tree::root()?;
    let mut tests = plan::tests(&plan::build(&root)?)?;
    tests.push(python::test(&root));
    tests.extend(compiled::tests(&root));
    if !filters.is_empty() {
        tests.retain(|test| {
            filters
                .iter()
                .any(|filter| test.title().contains(filter.as_str()))
        });
        if tests.is_empty() {
            return Err(format!("tests: none contains `{}`", filters.join("` or `")));
        }
    }
    let times = report::times(&root);
    plan::longest_first(&mut tests, &times);
    let (begun, before) = (Instant::now(), report::processor_time());
    let ran = slots::run(&tests);
    report::remember(&root, times, &ran);
    let busy = report::processor_time().saturating_sub(before);
    println!(
        "tests: {:.0} s, and at least {:.0} s of the processors",
        begun.elapsed().as_secs_f64(),
        busy.as_secs_f64()
    );
    report::print(&ran)
}
