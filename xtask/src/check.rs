//! The one command that checks everything: a list of steps, run in order, stopped at the first failure.
//!
//! The steps that cost nothing come first, so that a misplaced `unsafe` is not reported after ten minutes of
//! tests.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Seeds, layers, links, style, tree};

/// Seeds of the simulator that every change must pass. A nightly run takes many more.
const SEEDS_PER_CHECK: u64 = 200;

/// How much of the check to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything.
    Full,
    /// Without the real-process tests, the Python package and the simulator.
    Quick,
}

/// What a step runs.
enum Work {
    /// One of this program's own gates.
    Gate(fn() -> Result<(), String>),
    /// Cargo with these arguments.
    Cargo(Vec<String>),
    /// A script of the tree.
    Script(&'static str),
}

struct Step {
    name: &'static str,
    work: Work,
    /// What to type to run this step alone.
    rerun: String,
}

/// Runs every step of `extent`; the error names the step that failed and how to rerun it.
pub(crate) fn run(extent: Extent) -> Result<(), String> {
    let steps = steps(extent);
    let count = steps.len();
    let begun = Instant::now();
    for (index, step) in steps.iter().enumerate() {
        say(&format!("[{}/{count}] {}: {}", index + 1, step.name, step.rerun));
        let started = Instant::now();
        let outcome = match &step.work {
            Work::Gate(gate) => gate(),
            Work::Cargo(args) => cargo(args),
            Work::Script(path) => script(path),
        };
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
    }
    let left_out = match extent {
        Extent::Full => "",
        Extent::Quick => " Left out by --quick: real-process tests, Python package, simulator seeds.",
    };
    say(&format!(
        "all {count} steps ok, {}.{left_out}",
        seconds(begun.elapsed())
    ));
    Ok(())
}

/// Runs the simulator over these seeds.
pub(crate) fn sim(seeds: Seeds) -> Result<(), String> {
    cargo(&sim_args(seeds))
}

fn steps(extent: Extent) -> Vec<Step> {
    let clippy = "clippy --workspace --all-targets -- -D warnings";
    let mut steps = vec![
        from_cargo("format", "fmt --all --check"),
        from_gate("layers", layers::run),
        from_gate("style", style::run),
        from_gate("docs", links::run),
        from_cargo("clippy", clippy),
    ];
    match extent {
        Extent::Quick => steps.push(from_cargo("unit tests", "test --workspace --lib --bins")),
        Extent::Full => {
            steps.push(from_cargo("tests", "test --workspace"));
            steps.push(from_script("python", "scripts/test-python.sh"));
            let seeds = Seeds {
                count: SEEDS_PER_CHECK,
                from: None,
                threads: None,
            };
            steps.push(from_cargo("simulator", &sim_args(seeds).join(" ")));
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

fn from_script(name: &'static str, path: &'static str) -> Step {
    Step {
        name,
        work: Work::Script(path),
        rerun: path.to_string(),
    }
}

fn sim_args(seeds: Seeds) -> Vec<String> {
    let threads = seeds.threads.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |cores| u64::try_from(cores.get()).unwrap_or(1))
    });
    let mut line = format!(
        "run --profile sim -p netram-sim -- --seeds {} --threads {threads}",
        seeds.count
    );
    if let Some(from) = seeds.from {
        line.push_str(&format!(" --from {from}"));
    }
    line.split(' ').map(String::from).collect()
}

fn cargo(args: &[String]) -> Result<(), String> {
    let line = args.join(" ");
    let status = tree::cargo(&tree::root()?)
        .args(args)
        .status()
        .map_err(|error| format!("`cargo {line}` could not be started: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo {line}`: {status}"))
    }
}

fn script(path: &str) -> Result<(), String> {
    let root = tree::root()?;
    let status = Command::new(root.join(path))
        .current_dir(&root)
        .status()
        .map_err(|error| format!("`{path}` could not be started: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{path}`: {status}"))
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
                .any(|line| line.contains("netram-sim"))
        );
    }

    #[test]
    fn quick_leaves_out_the_python_package_and_full_does_not() {
        let python = "scripts/test-python.sh".to_string();
        assert!(reruns(Extent::Full).contains(&python));
        assert!(!reruns(Extent::Quick).contains(&python));
        let root = tree::root().expect("the tests run in the tree");
        assert!(root.join(python).is_file());
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
