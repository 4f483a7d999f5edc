//! `netram-sim --seeds N [--from S] [--threads T] [--fault NAME]
//! [--kept|--shared|--spills|--regions|--deposits|--files|--parties|--intruded|--named|--elastic]
//! [--verbose]`: runs seeds, reports, and exits with 1 if a seed broke a rule.
#![forbid(unsafe_code)]

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_sim::region::REGION_RULES;
use netram_sim::runner::{SeedFailure, SeedsSummary, run_seeds, tell_story};
use netram_sim::scenario::{
    has_data_lender, has_named_clients, has_spills, is_database, is_deposit, is_elastic, is_files,
    is_intruded, is_region, is_shared,
};

const USAGE: &str = "\
netram-sim: runs netram's machines in a simulated world with seeded faults

usage: netram-sim --seeds N [--from S] [--threads T] [--fault NAME] [--kept|--shared|--spills|--regions|--deposits|--files|--parties|--intruded|--named|--elastic] [--verbose]

  --seeds N      number of worlds to run
  --from S       seed of the first world (0)
  --threads T    number of threads (1)
  --fault NAME   plant a fault in the machines; the run should then fail (`--fault list` names them)
  --kept         run only the tenth that contains every world with a data lender
  --spills       run only the worlds whose lenders may write their memory to their disks
  --shared       run only the tenth that contains every world with the journal of a shared region's node
  --regions      run only worlds of nodes that share a region (one in 17)
  --deposits     run only worlds of owners with pages at lenders (one in 26)
  --files        run only worlds of a directory of files (one in 37)
  --intruded     run only worlds in which a client with the cluster's key may mean harm (one in 12)
  --named        run only worlds in which lenders' clients may have names and limits (one in 15)
  --elastic      run only worlds in which lenders, rule and number of members may change (one in 11)
  --parties      run only worlds of processes that have a database open (one in 20)
  --verbose      print the whole trace of a failing seed, and all counters
";
/// Number of failing seeds after which a run stops.
const FAILURES_MAX: usize = 5;
/// Number of trace lines that are printed without `--verbose`.
const TRACE_LINES: usize = 40;
/// Progress is reported after this many seeds.
const PROGRESS_EVERY: u64 = 5000;

struct Arguments {
    seeds: u64,
    from: u64,
    threads: usize,
    fault: Option<PlantedFault>,
    /// Kinds of world to which the run is limited.
    kinds: Vec<IsKind>,
    verbose: bool,
}

/// Tells whether the world of a seed is of one kind.
type IsKind = fn(u64) -> bool;

/// Flags that limit a run to a kind of world.
const KINDS: [(&str, IsKind); 10] = [
    ("--elastic", is_elastic),
    ("--kept", has_data_lender),
    ("--shared", is_shared),
    ("--spills", has_spills),
    ("--regions", is_region),
    ("--deposits", is_deposit),
    ("--files", is_files),
    ("--parties", is_database),
    ("--intruded", is_intruded),
    ("--named", has_named_clients),
];

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            print_line(&message);
            return ExitCode::from(2);
        }
    };
    if !arguments.verbose {
        // A seed's panic is caught and reported with the seed; the default hook would print it once more.
        std::panic::set_hook(Box::new(|_| ()));
    }
    let planted = arguments.fault.map_or(FaultSwitch::NONE, FaultSwitch::with);
    let progress = |done: u64| {
        if done.is_multiple_of(PROGRESS_EVERY) {
            print_line(&format!("{done} of {} seeds", arguments.seeds));
        }
    };
    let summary = run_seeds(
        arguments.from,
        arguments.seeds,
        arguments.threads,
        planted,
        FAILURES_MAX,
        &|seed| arguments.kinds.iter().all(|is_kind| is_kind(seed)),
        &progress,
    );
    report(&summary, &arguments, planted);
    if summary.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(summary: &SeedsSummary, arguments: &Arguments, planted: FaultSwitch) {
    for failure in &summary.failures {
        match arguments.verbose {
            true => tell_story(failure.seed, planted, BufWriter::new(std::io::stdout())),
            false => print_out(&last_lines(failure)),
        }
        print_out(&describe_failure(failure));
    }
    let mut out = String::new();
    let count = |name| summary.coverage.get(name);
    out.push_str(&format!(
        "runs {}, events {}, crashes {}, recoveries {}, acked records {}, refusals {}, lost {}\n",
        summary.passed + summary.failures.len() as u64,
        count("events"),
        count("client crashes") + count("client power cuts"),
        count("recoveries"),
        count("records acknowledged"),
        count("openings refused: members missing") + count("openings refused: damage"),
        summary
            .failures
            .iter()
            .filter(|failure| failure.rule == 5)
            .count(),
    ));
    if arguments.verbose || summary.passed >= 1000 {
        out.push_str(&summary.coverage.table());
    }
    out.push_str(&format!(
        "{} passed, {} failed\n",
        summary.passed,
        summary.failures.len()
    ));
    print_out(&out);
}

fn last_lines(failure: &SeedFailure) -> String {
    let skipped = failure.trace_lines.len().saturating_sub(TRACE_LINES);
    failure.trace_lines[skipped..].join("\n") + "\n"
}

fn describe_failure(failure: &SeedFailure) -> String {
    let rule = match failure.rule {
        0 => String::from("liveness"),
        rule if rule > REGION_RULES => format!("rule {} of docs/design/shared.md", rule - REGION_RULES),
        rule => format!("rule {rule}"),
    };
    format!(
        "seed {} broke {rule}: {}\nreplay: cargo xtask sim --seeds 1 --from {}\n\n",
        failure.seed, failure.what, failure.seed
    )
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seeds: 0,
        from: 0,
        threads: 1,
        fault: None,
        kinds: Vec::new(),
        verbose: false,
    };
    while let Some(word) = words.next() {
        if word == "--verbose" {
            arguments.verbose = true;
            continue;
        }
        if let Some((_, is_kind)) = KINDS.iter().find(|(flag, _)| *flag == word) {
            arguments.kinds.push(*is_kind);
            continue;
        }
        let value = words.next().ok_or_else(|| String::from(USAGE))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{word} needs a number, got `{value}`"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number()?,
            "--from" => arguments.from = number()?,
            "--threads" => arguments.threads = usize::try_from(number()?).unwrap_or(usize::MAX).clamp(1, 256),
            "--fault" => arguments.fault = Some(parse_fault(&value)?),
            _ => return Err(String::from(USAGE)),
        }
    }
    if arguments.seeds == 0 {
        return Err(String::from(USAGE));
    }
    Ok(arguments)
}

fn parse_fault(name: &str) -> Result<PlantedFault, String> {
    let named = PlantedFault::ALL
        .into_iter()
        .find(|fault| format!("{fault:?}") == name);
    named.ok_or_else(|| {
        let names: Vec<String> = PlantedFault::ALL
            .iter()
            .map(|fault| format!("  {fault:?}"))
            .collect();
        format!("faults that can be planted:\n{}", names.join("\n"))
    })
}

fn print_out(text: &str) {
    // If no process reads the report, there is no one to tell.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
