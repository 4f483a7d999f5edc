//! What the program says about itself while it runs: to standard error, as text or JSON.

use std::io;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How much to log, and how.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
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

/// Starts logging. With `quiet`, warnings are left out too: a demonstration kills lenders on purpose, and what the
/// library says of it would stand in the middle of the results. `NETRAM_LOG` overrides the level, as in `NETRAM_LOG=netram_lender=debug`.
pub(crate) fn start(args: &LogArgs, quiet: bool) {
    let level = match args.verbose {
        0 if quiet => "error",
        0 => "warn,netram_lender=info,fuser=off",
        1 => "info,fuser=warn",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("NETRAM_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
