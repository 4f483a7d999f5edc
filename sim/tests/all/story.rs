//! The story of a failing seed, as the program tells it.

use std::process::Command;

use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_sim::runner::run_seed;
use netram_sim::scenario::has_copy;

/// A fault that is found late in long worlds.
const FAULT: PlantedFault = PlantedFault::StampIgnored;
/// Number of the last lines of a story that a failure is reported with.
const KEPT: usize = 400;

/// A seed that finds the fault, and whose story has more lines than are kept.
fn long_seed() -> u64 {
    let failing = (0..).filter(|&seed| has_copy(seed)).filter_map(|seed| {
        let failure = run_seed(seed, FaultSwitch::with(FAULT)).err()?;
        (failure.trace_lines.len() == KEPT).then_some(seed)
    });
    failing.take(1).next().unwrap()
}

/// The story of a seed, as the program tells it before it says which rule was broken.
fn story(seed: u64, more: &[&str]) -> Vec<String> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_netram-sim"));
    program.args(["--seeds", "1", "--from", &seed.to_string()]);
    program.args(["--fault", &format!("{FAULT:?}")]).args(more);
    let output = program.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "seed {seed} finds the fault");
    let told = String::from_utf8(output.stdout).unwrap();
    let lines = told.lines().map(str::to_owned);
    let broke = format!("seed {seed} broke ");
    lines.take_while(|line| !line.starts_with(&broke)).collect()
}

/// The program kept 400 lines of a story, though `--verbose` promises the whole of it.
#[test]
fn a_failing_seeds_whole_story_is_told_on_request() {
    let seed = long_seed();
    let (whole, end) = (story(seed, &["--verbose"]), story(seed, &[]));
    assert!(whole.len() > KEPT, "{} lines", whole.len());
    assert!(
        whole[0].contains(&format!("seed {seed}: ")),
        "the world itself comes first"
    );
    let (first, last) = (&whole[1], &whole[whole.len() - KEPT]);
    let time = |line: &str| -> f64 { line.trim_start().split(' ').next().unwrap().parse().unwrap() };
    assert!(time(first) <= time(last), "then its first event: {first}");
    assert_eq!(time(&whole[0]), 1000.0, "when the clock starts");
    assert!(
        !end.is_empty() && whole.ends_with(&end),
        "the last lines are those of a short report"
    );
}
