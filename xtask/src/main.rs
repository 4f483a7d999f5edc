//! The project's own commands: `cargo xtask check` is the one that checks everything, and the one CI runs.
//!
//! Each gate is a module whose rules are functions over text, tested without the tree; this file only reads
//! the arguments. What the gates mean is in `CONTRIBUTING.md`.
#![allow(clippy::print_stdout, reason = "a command's output is its product")]

mod check;
mod code;
mod deny;
mod layers;
mod links;
mod named_tests;
mod package;
mod prose;
mod sbom;
mod style;
mod suite;
mod tree;

use std::process::ExitCode;

use check::Extent;

const HELP: &str = "\
netram's own commands

Usage: cargo xtask <command>

Commands:
  check [--quick]   everything: format, layers, style, docs, dependencies, clippy, tests, the Python package, simulator
                    seeds. Stops at the first failure and names the command to rerun.
                    --quick leaves out the real-process tests, the Python package and the simulator
  test [TEXT...]    all tests, each in a process of its own, or those that contain one of these texts in their crate,
                    program or name, as in `cargo xtask test 'volume all restore::'`
  build             what tests need, judged by clippy
  deny              licences, sources and advisories of dependencies, by cargo-deny
  layers            dependencies between crates point down only
  style             file and function length, leftovers, where unsafe may stand
  prose             openings of doc comments, names of types defined twice, long lines: counted, and limited
  package           what is published can be packaged, and says what it is; with the bill of materials
  sbom              the bill of materials of a release: target/package/netram.cdx.json
  docs              links in *.md resolve; paths and tests named in ARCHITECTURE.md and docs/ exist
  sim --seeds N [--from S] [--threads T]
                    run N seeds of the simulator, from seed S on, on T threads
  help              this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = match parse(&args) {
        Ok(command) => command,
        Err(reason) => {
            eprintln!("xtask: {reason}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let outcome = match command {
        Command::Help => {
            print!("{HELP}");
            Ok(())
        }
        Command::Check(extent) => check::run(extent),
        Command::Layers => layers::run(),
        Command::Style => style::run(),
        Command::Test(filters) => suite::run(&filters),
        Command::Build => suite::built(),
        Command::Deny => deny::run(),
        Command::Docs => links::run(),
        Command::Package => package::run(),
        Command::Prose => prose::run(),
        Command::Sbom => sbom::run(),
        Command::Sim(seeds) => check::sim(seeds),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    Check(Extent),
    Layers,
    Style,
    Docs,
    Package,
    Prose,
    Sbom,
    /// Those that contain one of these texts, or all.
    Test(Vec<String>),
    Build,
    Deny,
    Sim(Seeds),
}

/// Which worlds the simulator is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seeds {
    count: u64,
    from: Option<u64>,
    threads: Option<u64>,
}

fn parse(args: &[String]) -> Result<Command, String> {
    let (name, rest) = args.split_first().ok_or("no command given")?;
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(Command::Help);
    }
    let command = match name.as_str() {
        "help" | "--help" | "-h" => Command::Help,
        "check" => return parse_check(rest),
        "sim" => return parse_seeds(rest).map(Command::Sim),
        "test" => return Ok(Command::Test(rest.to_vec())),
        "build" => Command::Build,
        "deny" => Command::Deny,
        "layers" => Command::Layers,
        "style" => Command::Style,
        "docs" => Command::Docs,
        "package" => Command::Package,
        "prose" => Command::Prose,
        "sbom" => Command::Sbom,
        other => return Err(format!("no command `{other}`")),
    };
    match rest.first() {
        None => Ok(command),
        Some(extra) => Err(format!("`{name}` takes no argument, got `{extra}`")),
    }
}

fn parse_check(rest: &[String]) -> Result<Command, String> {
    match rest {
        [] => Ok(Command::Check(Extent::Full)),
        [flag] if flag == "--quick" => Ok(Command::Check(Extent::Quick)),
        [other, ..] => Err(format!("`check` takes only --quick, got `{other}`")),
    }
}

fn parse_seeds(rest: &[String]) -> Result<Seeds, String> {
    let (mut count, mut from, mut threads) = (None, None, None);
    let mut args = rest.iter();
    while let Some(arg) = args.next() {
        let (flag, value) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (arg.as_str(), args.next().map(String::as_str)),
        };
        let slot = match flag {
            "--seeds" => &mut count,
            "--from" => &mut from,
            "--threads" => &mut threads,
            other => return Err(format!("`sim` has no flag `{other}`")),
        };
        let value = value.ok_or_else(|| format!("{flag} needs a number"))?;
        *slot = Some(
            value
                .parse()
                .map_err(|_| format!("{flag} needs a number, got `{value}`"))?,
        );
    }
    let count = count.ok_or("`sim` needs --seeds N")?;
    Ok(Seeds { count, from, threads })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        let args: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&args)
    }

    #[test]
    fn a_seed_range_is_read_in_both_spellings() {
        let wanted = Ok(Command::Sim(Seeds {
            count: 9,
            from: Some(3),
            threads: Some(2),
        }));
        assert_eq!(parsed("sim --seeds 9 --from 3 --threads 2"), wanted);
        assert_eq!(parsed("sim --seeds=9 --from=3 --threads=2"), wanted);
    }

    #[test]
    fn a_misspelt_argument_is_refused_and_never_ignored() {
        for line in [
            "",
            "chek",
            "check --quik",
            "layers now",
            "sim",
            "sim --seeds",
            "sim --seeds x",
            "sim --seed 1",
        ] {
            assert!(parsed(line).is_err(), "`{line}` was accepted");
        }
    }
}
