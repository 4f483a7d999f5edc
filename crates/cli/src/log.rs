//! What the program says about itself while it runs: to standard error, as text or JSON.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use netram_log::LogWriter;
use tracing_subscriber::EnvFilter;

/// How much to log, and how.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log more: -v for information, -vv for details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The form of log lines
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        env = "NETRAM_LOG_FORMAT"
    )]
    log_format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A process that ends waits for its last lines no longer than this: where nobody reads them, it would wait
/// for ever.
const LAST_LINES: Duration = Duration::from_millis(300);

static LINES: OnceLock<LogWriter> = OnceLock::new();

/// A service's lines on standard output, which is a pipe that others fill, or one that nobody reads any more.
static ANNOUNCED: OnceLock<LogWriter> = OnceLock::new();

/// This process serves: it waits for nobody who reads what it says.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Has every sentence from now on written by the log's thread. A command that only answers writes its own:
/// its error must be read.
pub(crate) fn serve() {
    SERVES.store(true, Ordering::Relaxed);
}

/// A line on standard output in a service's name: written as soon as that is taken, and nobody waits for it.
pub(crate) fn announce(line: &str) {
    serve();
    match announced() {
        Ok(lines) => lines.write_line(line.as_bytes()),
        // Without room for a descriptor or a thread nothing is served for long.
        Err(error) => tracing::warn!(%error, "nothing is said on standard output"),
    }
}

fn announced() -> io::Result<&'static LogWriter> {
    if let Some(lines) = ANNOUNCED.get() {
        return Ok(lines);
    }
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // No other sentence stands between the lines: programs read them.
    let lines = LogWriter::to(output, |_| String::new())?;
    Ok(ANNOUNCED.get_or_init(|| lines))
}

/// Starts logging. With `quiet`, warnings are left out too: a demonstration kills lenders on purpose, and
/// what the library says of it would stand in the middle of the results. `NETRAM_LOG` overrides the level, as
/// in `NETRAM_LOG=netram_lender=debug`.
///
/// Lines are written by a thread of their own: whoever serves never waits for standard error, and never ends
/// because of it.
pub(crate) fn start(args: &LogArgs, quiet: bool) {
    let level = match args.verbose {
        0 if quiet => "error",
        0 => "warn,netram_lender=info,fuser=off",
        1 => "info,fuser=warn",
        2 => "debug",
        _ => "trace",
    };
    let said = std::env::var("NETRAM_LOG").ok().filter(|said| !said.is_empty());
    let filter = said.and_then(|said| EnvFilter::try_new(said).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(level));
    let note = match args.log_format {
        LogFormat::Text => text_note,
        LogFormat::Json => json_note,
    };
    let lines = match own_standard_error().and_then(|output| LogWriter::to(output, note)) {
        Ok(lines) => lines,
        // Without room for a descriptor or a thread nothing will be served here, and what says so is no log
        // line.
        Err(_) => return,
    };
    let lines = LINES.get_or_init(|| lines);
    // The process may end of it at once.
    std::panic::set_hook(Box::new(|panic| {
        say_urgently(&format!("\n{}", netram_log::panic_lines(panic).trim_end()));
    }));
    let logged = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| lines.clone());
    match args.log_format {
        LogFormat::Text => logged
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .init(),
        LogFormat::Json => logged.json().flatten_event(true).init(),
    }
}

/// Standard error by a descriptor of its own: a thread that waits for it holds no lock that another one
/// needs.
fn own_standard_error() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// A sentence on standard error, in its place between the log's lines.
pub(crate) fn say(text: &str) {
    match LINES.get() {
        Some(lines) if SERVES.load(Ordering::Relaxed) => lines.write_line(format!("{text}\n").as_bytes()),
        // Nobody is left to be told if this fails.
        _ => drop(writeln!(io::stderr().lock(), "{text}")),
    }
}

/// The same, and it is written before this returns, if standard error takes it in time.
fn say_urgently(text: &str) {
    say(text);
    finish();
}

/// Has the last lines written, before the process ends.
pub(crate) fn finish() {
    for lines in [ANNOUNCED.get(), LINES.get()].into_iter().flatten() {
        lines.drain(LAST_LINES);
    }
}

fn text_note(lost: u64) -> String {
    format!("{lost} log lines were dropped: standard error did not take them\n")
}

fn json_note(lost: u64) -> String {
    let message = format!("{lost} log lines were dropped: standard error did not take them");
    let note =
        serde_json::json!({ "level": "WARN", "message": message, "dropped": lost, "target": "netram" });
    format!("{note}\n")
}
