//! Several tests at a time, each a process with a time limit.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{self, BUILD_LINE, BUILT};
use super::{Kind, Outcome, Ran, Test};
use crate::tree;

/// A test that takes longer is stuck. The longest take a minute alone on a machine of two cores.
pub(super) const LIMIT: Duration = Duration::from_secs(400);

/// Tests at a time for each core: most of them wait for processes and disks. One after the other they take
/// twice their processor time, so with two for each core it idles whenever both wait.
const TESTS_PER_CORE: usize = 3;

/// How often a running test is looked at.
const LOOK: Duration = Duration::from_millis(3);

/// Runs all of `tests` in their order.
pub(super) fn run(tests: &[Test]) -> Vec<Ran> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicUsize::new(0);
    let ran = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..cores * TESTS_PER_CORE {
            scope.spawn(|| {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = attempt(test);
                    let mut ran = ran.lock().expect("no slot panics");
                    ran.push(one);
                    say(&ran, tests.len());
                }
            });
        }
    });
    ran.into_inner().expect("no slot panics")
}

/// A line for each test that failed, and one now and then.
fn say(ran: &[Ran], all: usize) {
    let Some(last) = ran.last() else { return };
    if last.outcome != Outcome::Passed {
        println!("tests: {} FAILED, {:.1} s", last.title, last.time.as_secs_f64());
    } else if ran.len().is_multiple_of(200) {
        println!("tests: {} of {all} ran", ran.len());
    }
    // A closed pipe is no reason to stop: the exit code is the answer.
    let _ = std::io::stdout().flush();
}

fn attempt(test: &Test) -> Ran {
    let started = Instant::now();
    let (outcome, output) = match start(test).and_then(|(child, output)| Ok((wait(child, started)?, output)))
    {
        Ok((ended, mut output)) => {
            let outcome = match ended {
                None => Outcome::TooLong,
                Some(status) if status.success() => Outcome::Passed,
                Some(_) => Outcome::Failed,
            };
            let said = read(&mut output).unwrap_or_else(|error| format!("what it printed is lost: {error}"));
            verified(test.kind, outcome, said)
        }
        Err(error) => (Outcome::Failed, format!("{}: {error}", test.executable.display())),
    };
    Ran {
        title: test.title(),
        outcome,
        time: started.elapsed(),
        output,
    }
}

/// A program that finds no test of the name succeeds, too.
fn verified(kind: Kind, outcome: Outcome, said: String) -> (Outcome, String) {
    if kind == Kind::Harness && outcome == Outcome::Passed && !said.contains("1 passed") {
        return (Outcome::Failed, format!("{said}\nthe program ran no such test"));
    }
    (outcome, said)
}

fn start(test: &Test) -> std::io::Result<(Child, File)> {
    let output = tree::unnamed_file()?;
    let mut command = tree::without_cargos_words(Command::new(&test.executable));
    match test.kind {
        Kind::Harness => {
            command
                .args(["--exact", &test.name])
                .env("CARGO_MANIFEST_DIR", &test.directory);
        }
        Kind::Script => {
            tree::checked(&mut command);
            command.env(BUILD_LINE, plan::build_line());
        }
        Kind::Checked => tree::checked(&mut command),
        Kind::Cargo => (),
    }
    let child = command
        .args(&test.arguments)
        .current_dir(&test.directory)
        .env(BUILT, "1")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()?;
    Ok((child, output))
}

/// `None`: the test was killed because it took too long.
fn wait(mut child: Child, started: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

fn read(output: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_this_program(name: &str) -> Ran {
        attempt(&Test {
            program: "xtask unit".into(),
            name: name.into(),
            kind: Kind::Harness,
            executable: std::env::current_exe().expect("this test has a path"),
            arguments: Vec::new(),
            directory: std::env::current_dir().expect("it runs somewhere"),
        })
    }

    #[test]
    fn a_test_that_passes_passes_and_one_that_is_not_there_fails() {
        let module = "suite::plan::tests";
        let passed = of_this_program(&format!("{module}::benchmarks_and_empty_lines_are_no_tests"));
        assert_eq!(passed.outcome, Outcome::Passed, "{}", passed.output);
        let missing = of_this_program(&format!("{module}::nothing_of_this_name"));
        assert_eq!(missing.outcome, Outcome::Failed);
        assert!(missing.output.contains("no such test"), "{}", missing.output);
    }
}
