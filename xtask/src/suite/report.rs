//! Output after all tests have run: skips, the slowest tests, failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Outcome, Ran, slots};
use crate::tree;

/// Number of the slowest tests that are listed.
const SLOWEST: usize = 20;

/// Tests write this, past their harness, before the reason why they cannot be made on this machine.
const SKIPPED: &str = "SKIPPED";

/// Times of earlier runs, to begin long tests first.
pub(super) fn times(root: &Path) -> BTreeMap<String, Duration> {
    let text = fs::read_to_string(file(root)).unwrap_or_default();
    text.lines().filter_map(parsed).collect()
}

fn parsed(line: &str) -> Option<(String, Duration)> {
    let (seconds, title) = line.split_once(' ')?;
    Some((
        title.to_string(),
        Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
    ))
}

fn file(root: &Path) -> PathBuf {
    tree::target(root).join("test-times")
}

/// Keeps the times for the next run. Without them it takes a little longer, and nothing else.
pub(super) fn remember(root: &Path, mut times: BTreeMap<String, Duration>, ran: &[Ran]) {
    times.extend(ran.iter().map(|one| (one.title.clone(), one.time)));
    let lines: String = times
        .iter()
        .map(|(title, time)| format!("{:.3} {title}\n", time.as_secs_f64()))
        .collect();
    let _ = fs::write(file(root), lines);
}

/// Processor time of all children that have ended, and of theirs: user and system. Zero where `/proc` does
/// not tell.
pub(super) fn processor_time() -> Duration {
    processor_time_of(&fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// Fields 16 and 17 of `/proc/PID/stat`, in hundredths of a second. The second field, a name, is in
/// parentheses and may have spaces.
fn processor_time_of(stat: &str) -> Duration {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind_name.split_whitespace().skip(13).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Prints all of it; the error names the failures.
pub(super) fn print(ran: &[Ran]) -> Result<(), String> {
    for (reason, count) in skipped(ran) {
        println!("tests: {count} {SKIPPED}: {reason}");
    }
    let mut slowest: Vec<&Ran> = ran.iter().collect();
    slowest.sort_by_key(|one| std::cmp::Reverse(one.time));
    println!("tests: the {SLOWEST} slowest, in seconds:");
    for one in slowest.iter().take(SLOWEST) {
        println!("{:8.1} {}", one.time.as_secs_f64(), one.title);
    }
    let total: Duration = ran.iter().map(|one| one.time).sum();
    println!(
        "tests: {} ran, {:.0} s one after the other",
        ran.len(),
        total.as_secs_f64()
    );
    let failed: Vec<&Ran> = ran.iter().filter(|one| one.outcome != Outcome::Passed).collect();
    for one in &failed {
        println!("\n---- {} ----\n{}", one.title, one.output.trim_end());
        if one.outcome == Outcome::TooLong {
            println!("killed: it ran for more than {} s", slots::LIMIT.as_secs());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = failed.iter().map(|one| one.title.as_str()).collect();
    Err(format!(
        "tests: {} of {} failed:\n  {}\nrun one alone: cargo xtask test '{}'",
        failed.len(),
        ran.len(),
        names.join("\n  "),
        names[0]
    ))
}

/// Why tests were not made, and how many were not for that reason.
fn skipped(ran: &[Ran]) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for one in ran.iter().filter(|one| one.outcome == Outcome::Passed) {
        for line in one.output.lines().filter(|line| line.contains(SKIPPED)) {
            *reasons.entry(line.trim()).or_default() += 1;
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(title: &str, outcome: Outcome, output: &str) -> Ran {
        Ran {
            title: title.into(),
            outcome,
            time: Duration::from_millis(1500),
            output: output.into(),
        }
    }

    #[test]
    fn one_failure_fails_all_and_is_named() {
        let passed = ran("a unit one", Outcome::Passed, "");
        assert_eq!(print(std::slice::from_ref(&passed)), Ok(()));
        for outcome in [Outcome::Failed, Outcome::TooLong] {
            let error = print(&[passed.clone(), ran("b all two", outcome, "")]).expect_err("one failed");
            assert!(error.contains("1 of 2") && error.contains("b all two"), "{error}");
        }
    }

    #[test]
    fn skips_of_one_kind_are_counted_together() {
        let skip = |title| ran(title, Outcome::Passed, "running 1 test\nSKIPPED: no `fio`\nok\n");
        let all = [skip("a"), skip("b"), ran("c", Outcome::Failed, "SKIPPED: x")];
        assert_eq!(skipped(&all), BTreeMap::from([("SKIPPED: no `fio`", 2)]));
    }

    #[test]
    fn the_processor_time_of_children_is_read_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 8 0 0 11 12 130 14 20 0 1 0 5 6 7";
        assert_eq!(processor_time_of(stat), Duration::from_millis(1440));
        assert_eq!(processor_time_of(""), Duration::ZERO);
    }

    #[test]
    fn a_time_is_read_as_it_is_written_and_other_lines_are_passed_over() {
        assert_eq!(
            parsed("1.500 a unit one"),
            Some(("a unit one".into(), Duration::from_millis(1500)))
        );
        assert_eq!(parsed("x a unit one"), None);
        assert_eq!(parsed(""), None);
    }
}
