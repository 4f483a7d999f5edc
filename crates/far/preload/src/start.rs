//! The arena of a run. Its threads have descriptors of their own: a program that closes all that it finds, as
//! daemons do, or counts on the next number, meets none of ours; and no child inherits one.

use std::error::Error;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use netram_far::process_limits::{self, ProcessLimitError};
use netram_far::run::{RunSettings, RunSettingsError};
use netram_far::{Arena, ArenaError, ArenaSpace, threads};
use netram_log::LogWriter;
use tracing::Level;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

use crate::abi;
use crate::cleanup_process;
use crate::heap::PreloadHeap;

/// A process that dies, or ends, waits for its last lines no longer than this: where nobody reads them, it
/// would wait for ever.
pub(crate) const EXIT_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

static LINES: OnceLock<LogWriter> = OnceLock::new();

/// Why a program is not run.
#[derive(Debug)]
pub(crate) enum PreloadStartError {
    /// What `netram run` has told makes no sense: library and program are of two versions.
    Settings(RunSettingsError),
    /// The key cannot be read.
    Key(String),
    /// The process may not have enough of something.
    Room(ProcessLimitError),
    /// There is no arena.
    Arena(ArenaError),
    /// The system refused something that every program needs.
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

/// What the environment says. The limits may be others than those that `netram run` had.
pub(crate) fn settings(text: &str) -> Result<RunSettings, PreloadStartError> {
    let settings = text.parse().map_err(PreloadStartError::Settings)?;
    process_limits::check(&settings).map_err(PreloadStartError::Room)?;
    Ok(settings)
}

/// A heap, with the threads that serve it. The caller has blocked all signals, and so they are in all of
/// them: no handler of the program's runs there.
pub(crate) fn heap(settings: &RunSettings) -> Result<PreloadHeap, PreloadStartError> {
    let (sender, receiver) = sync_channel(1);
    let wanted = settings.clone();
    let body = move || {
        let opened = arena(&wanted);
        // Who waits has not gone: it is the function below.
        let _ = sender.send(opened);
    };
    let spawned = std::thread::Builder::new()
        .name("netram-run".to_owned())
        .spawn(body);
    spawned.map_err(|error| PreloadStartError::System("starting a thread", error))?;
    let ended = |_| PreloadStartError::System("starting", io::ErrorKind::Other.into());
    let arena = receiver.recv().map_err(ended)??;
    let ground = ArenaSpace::of(&arena).expect("nobody else has had the new arena");
    Ok(PreloadHeap::new(ground, settings.threshold_bytes as usize))
}

/// Logs by a thread of its own: the program's standard error may be a pipe that nobody reads, or a disk that
/// is full. An error is written before the process can die of it.
fn log() -> io::Result<()> {
    let output = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let lines = LogWriter::to(output, |lost| {
        format!("netram run: {lost} log lines were dropped: standard error did not take them\n")
    })?;
    let lines = LINES.get_or_init(|| lines);
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("netram run: a defect: {}", netram_log::panic_lines(panic));
        // It never fails.
        let _ = lines.urgent(EXIT_MESSAGE_TIMEOUT).write_all(text.as_bytes());
    }));
    let errors = || lines.urgent(EXIT_MESSAGE_TIMEOUT);
    let logged = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_writer(errors.with_max_level(Level::ERROR).or_else(|| lines.clone()))
        .with_ansi(false)
        .finish();
    // In a program that has a subscriber of its own, by the same library of another version, there are two.
    let _ = tracing::subscriber::set_global_default(logged);
    Ok(())
}

/// A sentence on standard error from whoever may be the allocator, or a child with no thread beside it.
pub(crate) fn remark(sentence: Arguments<'_>) {
    netram_log::try_write_line(
        io::stderr(),
        format_args!("netram run: {sentence}"),
        EXIT_MESSAGE_TIMEOUT,
    );
}

/// Has the last lines written, before the process ends.
pub(crate) fn finish() {
    if let Some(lines) = LINES.get() {
        lines.drain(EXIT_MESSAGE_TIMEOUT);
    }
}

/// What every thread of the arena's does first: now it may still need what lies in the arena later.
fn begin_thread() {
    abi::enlist();
    // By this it has what the log keeps for each thread that has said something. Nobody hears it.
    let unheard = tracing_subscriber::fmt()
        .with_max_level(Level::ERROR)
        .with_writer(io::sink)
        .finish();
    tracing::subscriber::with_default(unheard, || tracing::error!("a thread has begun"));
}

fn arena(settings: &RunSettings) -> Result<Arena, PreloadStartError> {
    threads::on_begin(begin_thread);
    abi::leave_descriptors()
        .map_err(|error| PreloadStartError::System("having descriptors of its own", error))?;
    // Only now: what is logged goes to the standard error that these threads have.
    // A program without standard error runs without a log.
    drop(log());
    let config = settings
        .arena()
        .map_err(|error| PreloadStartError::Key(error.to_string()))?;
    let arena = Arena::open(config).map_err(PreloadStartError::Arena)?;
    if !settings.lenders.is_empty()
        && let Err(error) = cleanup_process::begin(settings, arena.remote_pages().id())
    {
        tracing::warn!(
            %error,
            "nobody could be started who gives this program's pages back: lenders will keep them until their lease is over"
        );
    }
    Ok(arena)
}
