//! `netram-lab bash`: random transactions, random crashes, and a comparison of every byte afterwards.
//!
//! | module | is |
//! |---|---|
//! | [`model`] | the changes of a thread's transactions, from a seed |
//! | [`player`], [`worker`] | the process that runs them and is killed, and one of its threads |
//! | [`blocks`], [`thread_blocks`] | operations in the persistent heap |
//! | [`player_message`] | messages through a pipe, and the transactions that must exist according to them |
//! | [`lenders`] | lenders that are killed too |
//! | [`prepare`], [`stress_run`] | one run: its resources; players, crashes, recoveries, comparisons |
//! | [`compare`] | comparison of recovered memory with the model |
//! | [`report`], [`process`] | counts of a run; a child process |

mod blocks;
mod compare;
mod lenders;
mod model;
pub(crate) mod player;
mod player_message;
mod prepare;
mod process;
mod report;
mod stress_run;
mod thread_blocks;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use netram_transport::NetAddress;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use netram_cli::options::{DurationArg, UsageError};
use netram_cli::output;
use prepare::LenderChoice;
use report::StressReport;
use stress_run::StressRun;

/// Default duration of a run.
const DURATION_DEFAULT: Duration = Duration::from_secs(60);
/// Interval of progress messages where no bar is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// The exit code after a signal is this plus its number.
const SIGNALLED: u8 = 128;

/// Commit, crash, recover and compare, at random
///
/// A process runs random transactions on several segments and a persistent heap, in all
/// modes and with several threads, and reports what was acknowledged. It is killed at
/// random moments, or crashes itself; lenders are killed too, with and without their
/// memory. After each recovery every byte is compared with the model: acknowledged
/// transactions are there, each is there whole or not at all, and in order. If not, the
/// exit code is 1, the seed is printed and all files are kept.
///
///   netram-lab bash                              # a minute, two lenders
///   netram-lab bash --for 8h --threads 8 --dir /var/lib/netram
///   netram-lab bash --for 5s --lenders 0 --seed 7
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StressRvm {
    /// How long [default: 1m]
    #[arg(long = "for", value_name = "SPAN")]
    span: Option<DurationArg>,
    /// End after this many transactions
    #[arg(long, value_name = "N")]
    transactions: Option<u64>,
    /// Seed of the random choices; the run also depends on the machine's timing [default: the
    /// time]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the files during the run; choose the disk of interest [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Lender processes to start, and to kill; 0: the local disk alone
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=8))]
    lenders: u8,
    /// Use this lender instead, which will not be killed; may be repeated
    #[arg(long, value_name = "ADDR", conflicts_with = "lenders", requires = "key_file")]
    lender: Vec<NetAddress>,
    /// The cluster key's file, for --lender
    #[arg(long, value_name = "FILE", requires = "lender")]
    key_file: Option<PathBuf>,
    /// Threads that commit
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    threads: u8,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Inject a fault, to see that it is found
    #[arg(long, hide = true)]
    plant: Option<PlantedHarm>,
}

/// Faults that are injected on purpose, to test this command itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlantedHarm {
    /// A byte of a segment changes after a recovery.
    Damage,
    /// A transaction counts as acknowledged that never was.
    Loss,
}

impl StressRvm {
    pub(super) fn run(self) -> Result<ExitCode> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("waiting for signals")?;
        }
        let seed = self.seed.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64
        });
        let span = match (self.span, self.transactions) {
            (Some(DurationArg(span)), _) => Some(span),
            (None, Some(_)) => None,
            (None, None) => Some(DURATION_DEFAULT),
        };
        let parent = self
            .dir
            .clone()
            .unwrap_or_else(|| match PathBuf::from("/var/tmp") {
                disk if disk.is_dir() => disk,
                _ => std::env::temp_dir(),
            });
        let mut bout = StressRun::prepare(&parent, seed, self.threads.into(), self.lending()?, self.plant)?;
        output::remark(format_args!(
            "seed {seed}, files in {}",
            bout.directory().display()
        ));
        let progress = Progress::new(span, self.transactions);
        let began = Instant::now();
        let mut failure = None;
        loop {
            let over = span.is_some_and(|span| began.elapsed() >= span);
            let enough = self
                .transactions
                .is_some_and(|most| bout.report().transactions() >= most);
            if interrupted.load(Ordering::SeqCst) || over || enough {
                break;
            }
            let left = span.map(|span| span.saturating_sub(began.elapsed()));
            let round = bout.round(left);
            progress.show(began.elapsed(), bout.report());
            if let Err(error) = round {
                // The signal goes to the children too, so their failures mean nothing then.
                if !interrupted.load(Ordering::SeqCst) {
                    failure = Some(output::sentence(&error));
                }
                break;
            }
        }
        progress.finish();
        self.conclude(bout, began.elapsed(), failure, interrupted.load(Ordering::SeqCst))
    }

    fn lending(&self) -> Result<LenderChoice> {
        match (self.lender.as_slice(), &self.key_file) {
            ([], None) => Ok(LenderChoice::Own(self.lenders.into())),
            ([], Some(_)) => Err(UsageError("--key-file needs --lender".to_owned()).into()),
            (addresses, key_file) => Ok(LenderChoice::Others {
                addresses: addresses.iter().map(ToString::to_string).collect(),
                key_file: key_file.clone(),
            }),
        }
    }

    fn conclude(
        &self,
        bout: StressRun,
        took: Duration,
        failure: Option<String>,
        interrupted: bool,
    ) -> Result<ExitCode> {
        let (seed, report) = (bout.seed(), bout.report().clone());
        let kept = match &failure {
            Some(violation) => Some(bout.keep_files(violation)?),
            None => None,
        };
        if self.json {
            output::json(&json!({
                "seed": seed,
                "took_s": took.as_secs_f64(),
                "report": report,
                "violation": failure,
                "files": kept,
                "interrupted": interrupted,
            }))?;
        } else {
            output::line(format_args!("{} in {}", report.sentence(), output::age(took)))?;
            match (&failure, &kept) {
                (Some(failure), Some(kept)) => {
                    output::line(format_args!("VIOLATION: {failure}"))?;
                    output::line(format_args!(
                        "seed {seed}; all files are kept in {}: `before` has them as the crash left them, story.txt the \
                         latest events. Please report this",
                        kept.display()
                    ))?;
                }
                _ if report.compared == 0 => output::line("nothing was compared: let it run longer")?,
                _ => output::line("nothing acknowledged was lost, nothing was torn, nothing out of order")?,
            }
        }
        Ok(match (failure, interrupted) {
            (Some(_), _) => ExitCode::FAILURE,
            (None, true) => ExitCode::from(SIGNALLED + SIGINT as u8),
            (None, false) => ExitCode::SUCCESS,
        })
    }
}

/// A progress bar on a terminal, a line now and then in a file.
struct Progress {
    bar: Option<ProgressBar>,
    by_time: bool,
    shown: std::cell::Cell<Duration>,
}

impl Progress {
    fn new(span: Option<Duration>, transactions: Option<u64>) -> Progress {
        let whole = span.map_or(transactions.unwrap_or(0), |span| span.as_millis() as u64);
        let bar = output::is_watched().then(|| {
            let bar = ProgressBar::new(whole);
            if let Ok(style) = ProgressStyle::with_template("{bar:30.green} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress {
            bar,
            by_time: span.is_some(),
            shown: std::cell::Cell::new(Duration::ZERO),
        }
    }

    fn show(&self, elapsed: Duration, report: &StressReport) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(match self.by_time {
                    true => elapsed.as_millis() as u64,
                    false => report.transactions(),
                });
                bar.set_message(report.sentence());
            }
            None if elapsed >= self.shown.get() + PROGRESS_INTERVAL => {
                self.shown.set(elapsed);
                output::remark(report.sentence());
            }
            None => (),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
