//! The one command that checks everything: a list of steps, run in order, stopped at the first failure.
//!
//! The steps that cost nothing come first, so that a misplaced `unsafe` is not reported after ten minutes of
//! tests.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Seeds, deny, layers, links, package, prose, style, suite, tree};

/// Number of the simulator's seeds that every change must pass. A nightly run takes many more.
const SEEDS_PER_CHECK: u64 = 200;

/// How much of the check to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything.
    Full,
    /// Without the real-process tests, the Python package and the simulator.
    Quick,
}

/// Command of a step.
enum Work {
    /// One of this program's own gates.
    Gate(fn() -> Result<(), String>),
    /// Cargo with these arguments.
    Cargo(Vec<String>),
    /// A program that was built for testing, with these arguments.
    Built(Vec<String>),
}

struct Step {
    name: &'static str,
    work: Work,
    /// Command line that runs this step alone.
    rerun: String,
}

/// Runs every step of `extent`; the error names the step that failed and how to rerun it.
pub(crate) fn run(extent: Extent) -> Result<(), String> {
    let steps = steps(extent);
    let count = steps.len();
    let begun = Instant::now();
    let mut times = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        say(&format!("[{}/{count}] {}: {}", index + 1, step.name, step.rerun));
        let started = Instant::now();
        let outcome = perform(&step.work);
        let taken = seconds(started.elapsed());
        if let Err(reason) = outcome {
            return Err(format!(
                "{reason}\n[{}/{count}] {} FAILED after {taken}. Rerun: {}",
                index + 1,
                step.name,
                step.rerun
            ));
        }
        say(&format!("[{}/{count}] {} ok, {taken}", index + 1, step.name));
        times.push(format!("{} {taken}", step.name));
    }
    let left_out = match extent {
        Extent::Full => "",
        Extent::Quick => " Left out by --quick: real-process tests, Python package, simulator seeds.",
    };
    say(&format!("steps: {}", times.join(", ")));
    say(&format!(
        "all {count} steps ok, {}.{left_out}",
        seconds(begun.elapsed())
    ));
    Ok(())
}

fn perform(work: &Work) -> Result<(), String> {
    match work {
        Work::Gate(gate) => gate(),
        Work::Cargo(args) => cargo(args),
        Work::Built(line) => built(line),
    }
}

/// Runs the simulator over these seeds.
pub(crate) fn sim(seeds: Seeds) -> Result<(), String> {
    cargo(&sim_args(seeds))
}

fn steps(extent: Extent) -> Vec<Step> {
    let mut steps = vec![
        from_cargo("format", "fmt --all --check"),
        from_gate("layers", layers::run),
        from_gate("style", style::run),
        from_gate("prose", prose::run),
        from_gate("docs", links::run),
        from_gate("deny", deny::run),
        from_gate("build", suite::built),
        // After the build, which has fetched what packages depend on.
        from_gate("package", package::run),
    ];
    match extent {
        Extent::Quick => steps.push(Step {
            name: "unit tests",
            work: Work::Gate(|| suite::run(&[" unit ".to_string()])),
            rerun: "cargo xtask test ' unit '".to_string(),
        }),
        Extent::Full => {
            steps.push(Step {
                name: "tests",
                work: Work::Gate(|| suite::run(&[])),
                rerun: "cargo xtask test".to_string(),
            });
            let seeds = format!("--seeds {SEEDS_PER_CHECK} --threads {}", cores());
            steps.push(Step {
                name: "simulator",
                work: Work::Built(
                    format!("netram-sim {seeds}")
                        .split(' ')
                        .map(String::from)
                        .collect(),
                ),
                rerun: format!("cargo xtask sim {seeds}"),
            });
        }
    }
    steps
}

fn from_gate(name: &'static str, gate: fn() -> Result<(), String>) -> Step {
    Step {
        name,
        work: Work::Gate(gate),
        rerun: format!("cargo xtask {name}"),
    }
}

fn from_cargo(name: &'static str, line: &str) -> Step {
    let args = line.split(' ').map(String::from).collect();
    Step {
        name,
        work: Work::Cargo(args),
        rerun: format!("cargo {line}"),
    }
}

fn sim_args(seeds: Seeds) -> Vec<String> {
    let threads = seeds.threads.unwrap_or_else(cores);
    let mut line = format!(
        "run --profile sim -p netram-sim -- --seeds {} --threads {threads}",
        seeds.count
    );
    if let Some(from) = seeds.from {
        line.push_str(&format!(" --from {from}"));
    }
    line.split(' ').map(String::from).collect()
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| u64::try_from(cores.get()).unwrap_or(1))
}

fn cargo(args: &[String]) -> Result<(), String> {
    let line = args.join(" ");
    ended(tree::cargo(&tree::root()?).args(args), &format!("cargo {line}"))
}

fn built(line: &[String]) -> Result<(), String> {
    let root = tree::root()?;
    let [program, args @ ..] = line else {
        return Err("no program was named".to_string());
    };
    let mut command = Command::new(tree::built(&root).join(program));
    ended(command.args(args).current_dir(&root), &line.join(" "))
}

fn ended(command: &mut Command, line: &str) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("`{line}` could not be started: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}`: {status}"))
    }
}

fn seconds(taken: Duration) -> String {
    format!("{:.1} s", taken.as_secs_f64())
}

/// A line of progress, flushed: the child that follows writes to the same pipe.
fn say(line: &str) {
    println!("{line}");
    // A closed pipe is no reason to stop checking: the exit code is the answer.
    let _ = std::io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reruns(extent: Extent) -> Vec<String> {
        steps(extent).into_iter().map(|step| step.rerun).collect()
    }

    #[test]
    fn quick_leaves_out_the_seeds_and_full_does_not() {
        assert!(
            reruns(Extent::Full)
                .iter()
                .any(|line| line.contains("--seeds 200"))
        );
        assert!(
            !reruns(Extent::Quick)
                .iter()
                .any(|line| line.contains("xtask sim"))
        );
    }

    #[test]
    fn quick_runs_some_tests_and_full_all_the_python_package_among_them() {
        let all = "cargo xtask test".to_string();
        assert!(reruns(Extent::Full).contains(&all));
        assert!(!reruns(Extent::Quick).contains(&all));
    }

    #[test]
    fn a_replayed_seed_range_reaches_the_simulator() {
        let args = sim_args(Seeds {
            count: 1,
            from: Some(77),
            threads: Some(3),
        });
        assert_eq!(
            args.join(" "),
            "run --profile sim -p netram-sim -- --seeds 1 --threads 3 --from 77"
        );
    }
}
