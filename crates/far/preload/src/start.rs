//! The arena of a run. Its threads have a descriptor table of their own. A program that closes all
//! descriptors, as daemons do, or that relies on the next number, meets none of them, and no child inherits
//! one.

use std::error::Error;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use netram_far::process_limits::{self, ProcessLimitError};
use netram_far::run::{RunSettings, RunSettingsError};
use netram_far::{Arena, ArenaError, ArenaSpace, threads};
use netram_log::LogWriter;
use netram_telemetry::{MetricsAddress, MetricsRegistry, MetricsServer};
use tracing::Level;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

use crate::abi;
use crate::cleanup_process;
use crate::heap::PreloadHeap;

/// Maximum time that a process that ends waits for its last lines to be written, in case standard error is
/// not read.
pub(crate) const EXIT_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

static LINES: OnceLock<LogWriter> = OnceLock::new();

/// Why a program cannot be started.
#[derive(Debug)]
pub(crate) enum PreloadStartError {
    /// The settings from `netram run` are invalid: library and program have different versions.
    Settings(RunSettingsError),
    /// The key cannot be read.
    Key(String),
    /// A limit of the process is too low.
    Room(ProcessLimitError),
    /// The arena cannot be opened.
    Arena(ArenaError),
    /// A system call failed that works in every usual process.
    System(&'static str, io::Error),
}

impl std::fmt::Display for PreloadStartError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PreloadStartError::Settings(error) => error.fmt(out),
            PreloadStartError::Key(error) => error.fmt(out),
            PreloadStartError::Room(error) => error.fmt(out),
            PreloadStartError::Arena(error) => match error.source() {
                Some(source) => write!(out, "{error}: {source}"),
                None => error.fmt(out),
            },
            PreloadStartError::System(step, error) => write!(out, "{step}: {error}"),
        }
    }
}

/// Parses the settings from the environment. Checks the limits here, because they may differ from those of
/// `netram run`.
pub(crate) fn settings(text: &str) -> Result<RunSettings, PreloadStartError> {
    let settings = text.parse().map_err(PreloadStartError::Settings)?;
    process_limits::check(&settings).map_err(PreloadStartError::Room)?;
    Ok(settings)
}

/// Opens the heap and its threads. The caller has blocked all signals, which the threads inherit: no handler
/// of the program runs in them.
pub(crate) fn heap(settings: &RunSettings) -> Result<PreloadHeap, PreloadStartError> {
    let (sender, receiver) = sync_channel(1);
    let wanted = settings.clone();
    let body = move || {
        let opened = arena(&wanted);
        // The receiver is the calling function, which is waiting.
        let _ = sender.send(opened);
    };
    let spawned = std::thread::Builder::new()
        .name("netram-run".to_owned())
        .spawn(body);
    spawned.map_err(|error| PreloadStartError::System("starting a thread", error))?;
    let ended = |_| PreloadStartError::System("starting", io::ErrorKind::Other.into());
    let arena = receiver.recv().map_err(ended)??;
    let ground = ArenaSpace::of(&arena).expect("a new arena is unused");
    Ok(PreloadHeap::new(ground, settings.threshold_bytes as usize))
}

/// Logs through a thread of its own, because the program's standard error may be an unread pipe or a full
/// disk. An error is written before the process can die of it.
fn log() -> io::Result<()> {
    let output = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let lines = LogWriter::to(output, |lost| {
        format!("netram run: {lost} log lines were dropped: standard error did not take them\n")
    })?;
    let lines = LINES.get_or_init(|| lines);
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("netram run: a defect: {}", netram_log::panic_lines(panic));
        // This never fails.
        let _ = lines.urgent(EXIT_MESSAGE_TIMEOUT).write_all(text.as_bytes());
    }));
    let errors = || lines.urgent(EXIT_MESSAGE_TIMEOUT);
    let logged = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_writer(errors.with_max_level(Level::ERROR).or_else(|| lines.clone()))
        .with_ansi(false)
        .finish();
    // A program with its own subscriber, in another version of the same library, has two.
    let _ = tracing::subscriber::set_global_default(logged);
    Ok(())
}

/// Writes a message to standard error. Callable from the allocator, and from a child without other threads.
pub(crate) fn remark(sentence: Arguments<'_>) {
    netram_log::try_write_line(
        io::stderr(),
        format_args!("netram run: {sentence}"),
        EXIT_MESSAGE_TIMEOUT,
    );
}

/// Writes the last log lines before the process ends.
pub(crate) fn finish() {
    if let Some(lines) = LINES.get() {
        lines.drain(EXIT_MESSAGE_TIMEOUT);
    }
}

/// Runs first in every thread of the arena: everything allocated now is not needed later, when it could be in
/// the arena.
fn begin_thread() {
    abi::enlist();
    // Allocates the state that the logging library keeps for each thread, with a message that is discarded.
    let unheard = tracing_subscriber::fmt()
        .with_max_level(Level::ERROR)
        .with_writer(io::sink)
        .finish();
    tracing::subscriber::with_default(unheard, || tracing::error!("a thread has begun"));
}

/// Serves the metrics until the process ends. Its thread starts now, before the program has a page in the
/// arena.
fn serve_metrics(address: &MetricsAddress) {
    match MetricsServer::start(address, MetricsRegistry::of_process()) {
        // Never dropped: a child of `fork` would wait for a thread that only its parent has.
        Ok(page) => {
            let _kept = ManuallyDrop::new(page);
        }
        Err(error) => tracing::warn!(%error, "the program runs, and its metrics are not served"),
    }
}

fn arena(settings: &RunSettings) -> Result<Arena, PreloadStartError> {
    threads::on_begin(begin_thread);
    abi::leave_descriptors()
        .map_err(|error| PreloadStartError::System("having descriptors of its own", error))?;
    // Only now, because the log goes to the standard error of these threads. A program without standard error
    // runs without a log.
    drop(log());
    let config = settings
        .arena()
        .map_err(|error| PreloadStartError::Key(error.to_string()))?;
    let arena = Arena::open(config).map_err(PreloadStartError::Arena)?;
    if let Some(address) = &settings.metrics {
        serve_metrics(address);
    }
    if !settings.lenders.is_empty()
        && let Err(error) = cleanup_process::begin(settings, arena.remote_pages().owner())
    {
        tracing::warn!(
            %error,
            "the cleanup process could not be started: lenders will keep this program's pages until their lease ends"
        );
    }
    Ok(arena)
}
