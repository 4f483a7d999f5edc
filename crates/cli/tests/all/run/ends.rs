//! However a program ends, its pages at lenders are freed at once, and not after a lease of 30 s.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{RunTestbed, compiled, start};

/// Longer than anything takes, and shorter than the lease.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_programs_pages_at_lenders_are_freed_however_it_ends() {
    let Some(site) = RunTestbed::new("ends", 2, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("ends", &[]);
    for end in ["returns", "leaves", "dies", "becomes"] {
        gives_back(&site, end, site.run("1MiB", &[], &program).arg(end));
    }
}

/// The process that frees pages is then no child of the program any more, so the program does not wait for
/// it.
#[test]
fn a_program_that_ignores_the_end_of_children_is_run_and_gives_back_too() {
    let Some(site) = RunTestbed::new("ignores", 1, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("ends", &[]);
    let run = site.run("1MiB", &["--copies=1"], &program);
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(run.get_program());
    command.args(run.get_args()).arg("returns");
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    gives_back(&site, "returns", &mut command);
}

/// Runs a program until lenders have pages of it, has it end so, and waits until they have none.
fn gives_back(site: &RunTestbed, end: &str, command: &mut Command) {
    let mut child = start(
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit()),
    );
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "written\n", "{end}");
    wait(site, end, |held| held > Some(0));
    let mut word = child.stdin.take().unwrap();
    word.write_all(b"\n").unwrap();
    wait(site, end, |held| held.is_none());
    if end == "becomes" {
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "what it has become ends with its input: {ended:?}"
        );
    }
    drop(word);
    let ended = child.wait().unwrap();
    assert_eq!(ended.success(), end != "dies", "{end}: {ended}");
}

/// Waits until it is so at each lender: how many pages it holds, if it knows a deposit at all.
fn wait(site: &RunTestbed, end: &str, so: impl Fn(Option<u64>) -> bool) {
    let until = Instant::now() + PATIENCE;
    for lender in 0..site.lenders.len() {
        loop {
            let report = site.status(lender);
            let deposits = report["deposits"].as_array().unwrap();
            let held = deposits
                .iter()
                .filter_map(|deposit| deposit["held"].as_u64())
                .max();
            if so(held) {
                break;
            }
            assert!(Instant::now() < until, "{end}: {held:?} at lender {lender}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
