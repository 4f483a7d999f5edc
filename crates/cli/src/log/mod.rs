//! The program's log, on standard error, as text or JSON.

mod json;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use netram_log::LogWriter;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Place of these flags in help: behind those of the command.
const LAST: usize = 900;

/// Flags that concern the log.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log more: -v information, -vv details, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = LAST)]
    verbose: u8,
    /// Form of log lines
    #[arg(
        long,
        global = true,
        display_order = LAST,
        value_enum,
        default_value = "text",
        env = "NETRAM_LOG_FORMAT"
    )]
    log_format: LogFormat,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Text, for people.
    Text,
    /// A JSON object for each line.
    Json,
}

impl LogArgs {
    fn arguments(&self) -> Vec<String> {
        let form = self.log_format.to_possible_value();
        let form = form.map(|form| format!("--log-format={}", form.get_name()));
        let verbose = std::iter::repeat_n("-v".to_owned(), self.verbose.into());
        verbose.chain(form).collect()
    }
}

/// Returns the flags by which another process of this program logs as this one does.
pub(crate) fn own_arguments() -> &'static [String] {
    ARGUMENTS.get().map_or(&[], Vec::as_slice)
}

/// How long a process that ends waits until its last lines are written: if the pipe is full and not read, it
/// would wait forever.
const LAST_LINES: Duration = Duration::from_millis(300);

/// Writer of the log.
static LINES: OnceLock<LogWriter> = OnceLock::new();

/// Writer of a service's lines on standard output, which may be a pipe that is full or not read any more.
static ANNOUNCED: OnceLock<LogWriter> = OnceLock::new();

/// Whether this process serves, and so never waits until its lines are read.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Flags of this process's own command line that concern the log.
static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();

/// Whether every line on standard error is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Has all lines written by the log's thread from now on. A command that only answers writes them itself, so
/// that its error is not lost.
pub(crate) fn serve() {
    SERVES.store(true, Ordering::Relaxed);
}

/// Writes a line of a service to standard output without waiting for it.
pub(crate) fn announce(line: &str) {
    serve();
    match announced() {
        Ok(lines) => lines.write_line(line.as_bytes()),
        // Without room for a descriptor or a thread, the service will soon fail elsewhere.
        Err(error) => tracing::warn!(%error, "nothing can be written to standard output"),
    }
}

fn announced() -> io::Result<&'static LogWriter> {
    if let Some(lines) = ANNOUNCED.get() {
        return Ok(lines);
    }
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // Programs read these lines, so there is no note about dropped ones.
    let lines = LogWriter::to(output, |_| String::new())?;
    Ok(ANNOUNCED.get_or_init(|| lines))
}

/// Starts logging. With `quiet`, warnings are left out too: a demonstration kills lenders on purpose, and
/// warnings about it would appear among the results. `NETRAM_LOG` overrides the level, as in
/// `NETRAM_LOG=netram_lender=debug`.
///
/// A thread writes the lines, so that a service never waits for standard error, and does not end if it is
/// closed.
pub(crate) fn start(args: &LogArgs, quiet: bool) {
    let _ = ARGUMENTS.set(args.arguments());
    let level = match args.verbose {
        0 if quiet => "error",
        0 => "warn,netram_lender=info,netram_cli::clients=info",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let said = std::env::var("NETRAM_LOG").ok().filter(|said| !said.is_empty());
    // Levels by target, and no patterns over fields: a filter with those would bring a machine for regular
    // expressions.
    let filter = said.and_then(|said| said.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| level.parse().unwrap_or_default());
    let note = match args.log_format {
        LogFormat::Text => text_note,
        LogFormat::Json => json::dropped,
    };
    IS_JSON.store(matches!(args.log_format, LogFormat::Json), Ordering::Relaxed);
    let lines = match own_standard_error().and_then(|output| LogWriter::to(output, note)) {
        Ok(lines) => lines,
        // Without room for a descriptor or a thread the command fails later, with an error that is not a log
        // line.
        Err(_) => return,
    };
    let lines = LINES.get_or_init(|| lines);
    // The process may end at once because of it.
    std::panic::set_hook(Box::new(|panic| {
        say_urgently(&format!("\n{}", netram_log::panic_lines(panic).trim_end()));
    }));
    let layer = tracing_subscriber::fmt::layer().with_writer(|| lines.clone());
    let filtered = tracing_subscriber::registry().with(filter);
    match args.log_format {
        LogFormat::Text => filtered
            .with(layer.with_ansi(io::IsTerminal::is_terminal(&io::stderr())))
            .init(),
        LogFormat::Json => filtered.with(layer.event_format(json::JsonEvents)).init(),
    }
}

/// Returns a second descriptor of standard error: a thread that waits for it holds no lock that others need.
fn own_standard_error() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// Writes a sentence to standard error, in order with the log's lines, and in their form.
pub(crate) fn say(level: Level, text: &str) {
    let line = IS_JSON
        .load(Ordering::Relaxed)
        .then(|| json::sentence(level, text.trim()));
    relay(line.as_deref().unwrap_or(text));
}

/// Writes a line of another process of this program to standard error: it has the log's form already.
pub(crate) fn relay(text: &str) {
    match LINES.get() {
        Some(lines) if SERVES.load(Ordering::Relaxed) => lines.write_line(format!("{text}\n").as_bytes()),
        // A failure cannot be reported anywhere.
        _ => drop(writeln!(io::stderr().lock(), "{text}")),
    }
}

/// Writes a line to standard error before it returns, if standard error takes it in time.
fn say_urgently(text: &str) {
    say(Level::ERROR, text);
    finish();
}

/// Waits until the last lines are written, before the process ends.
pub(crate) fn finish() {
    for lines in [ANNOUNCED.get(), LINES.get()].into_iter().flatten() {
        lines.drain(LAST_LINES);
    }
}

/// Returns the sentence of a line that a failed process has written, in whatever form.
pub(crate) fn said_by(line: &str, prefix: &str) -> Option<String> {
    match json::said(line) {
        Some(sentence) => sentence.strip_prefix(prefix).map(str::to_owned),
        None => line.strip_prefix(prefix).map(str::to_owned),
    }
}

fn text_note(lost: u64) -> String {
    format!("{lost} log lines were dropped: standard error did not take them\n")
}
