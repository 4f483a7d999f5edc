//! The program `netram` as a library, so that `netram-lab` has the same commands.
//!
//! Every subcommand is a file in [`command`]; its flags, help, man page and completions come from one type
//! there.
#![deny(unsafe_code)]
#![allow(
    missing_docs,
    reason = "the comment on a type of arguments is the help of its subcommand"
)]
#![cfg_attr(
    not(feature = "products"),
    allow(dead_code, reason = "a lender needs less of what the commands share")
)]

mod background;
mod clients;
pub mod command;
mod descriptors;
mod lender_program;
pub mod log;
mod notify;
pub mod options;
pub mod output;
mod rights;
mod settings;
pub mod signals;
mod tips;
mod ups;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use crate::command::{Laboratory, NetramCommand, PlayPart};
pub use crate::lender_program::LenderProgram;
use crate::log::LogArgs;
use crate::options::UsageError;

/// Exit code of a failed operation.
const FAILED: u8 = 1;
/// Exit code of a command line that cannot be carried out; clap uses the same.
const USAGE: u8 = 2;
/// Exit code that Rust gives a process whose first thread panicked.
const PANICKED: u8 = 101;

/// Other machines' memory as durable, fast storage.
///
/// A write is durable as soon as lenders hold it: processes that lend the RAM of other machines.
/// The local disk follows in the background. Make a key, start a lender on each of two machines,
/// and give their addresses to what should be fast: volume, mount, sqlite, rvm, shared, or run.
///
///   netram key create cluster.key             # once; copy it to all machines
///   netram lender serve --domain ups-1
///   netram lender status tcp://10.0.0.2:7420
#[derive(Debug, Parser)]
#[command(name = "netram", version, verbatim_doc_comment, max_term_width = 100)]
pub struct Netram {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Top,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value a process")]
enum Top {
    #[command(flatten)]
    Command(NetramCommand),
    #[command(flatten)]
    Laboratory(Laboratory),
    #[command(name = command::PART, hide = true)]
    Part(PlayPart),
}

/// A program with netram's commands among its own.
pub trait Program: Parser + 'static {
    /// The noun whose verbs are this program's own commands, if it has such.
    const NOUN: Option<&'static str> = None;

    /// Returns how the program logs.
    fn log(&self) -> &LogArgs;

    /// Whether the program kills and pauses lenders on purpose, so that warnings about them are not shown.
    fn is_quiet(&self) -> bool;

    /// Whether the program serves, or works on what is served, and starts no program of the user: then it may
    /// have as many files open as the system allows.
    fn is_service(&self) -> bool;

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// The command failed; the caller prints the error.
    fn run(self) -> Result<ExitCode>;

    /// Returns the grammar of its command line, as its help and man pages show it.
    fn grammar() -> clap::Command {
        Self::command()
    }
}

impl Program for Netram {
    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_quiet(&self) -> bool {
        false
    }

    fn is_service(&self) -> bool {
        matches!(&self.command, Top::Command(command) if command.is_service())
    }

    fn run(self) -> Result<ExitCode> {
        match self.command {
            Top::Command(command) => command.run(),
            Top::Laboratory(laboratory) => laboratory.run(),
            Top::Part(part) => part.run(),
        }
    }
}

/// Bytes of the stack that the command runs on if this process has less.
const STACK_BYTES: usize = 8 << 20;

/// Parses the command line, runs the command, and reports its failure.
pub fn main<P: Program>() -> ExitCode {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= STACK_BYTES as u64) {
        return run::<P>();
    }
    // A shell or a service manager may limit the stack of the first thread (`ulimit -s 64`), but not that of
    // others.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    match thread.spawn(run::<P>).map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic was logged.
        Ok(Err(_)) => ExitCode::from(PANICKED),
        Err(error) => {
            output::complain(&anyhow::anyhow!(
                "no room for a stack of {STACK_BYTES} bytes: {error}; raise `ulimit -s` or `ulimit -v`"
            ));
            ExitCode::from(FAILED)
        }
    }
}

/// Returns the grammar of the command line. A variable that is empty counts as unset, because a service's
/// file cannot unset one.
fn grammar<P: Program>() -> clap::Command {
    fn unset_empty(command: clap::Command) -> clap::Command {
        let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let command = command.mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
            true => arg.env(clap::builder::Resettable::<clap::builder::OsStr>::Reset),
            false => arg,
        });
        command.mut_subcommands(unset_empty)
    }
    unset_empty(P::grammar())
}

fn run<P: Program>() -> ExitCode {
    let matches = grammar::<P>().try_get_matches();
    let matches = matches.unwrap_or_else(|error| tips::with_tip(error).exit());
    let parsed = P::from_arg_matches(&matches);
    let program = parsed.unwrap_or_else(|error| error.format(&mut grammar::<P>()).exit());
    // Before any other thread has started, and anything but this program's own files is open.
    if let Err(error) = rights::take(P::NOUN, &matches) {
        output::complain(&error);
        return ExitCode::from(FAILED);
    }
    log::start(program.log(), program.is_quiet());
    if program.is_service() {
        descriptors::raise();
        if let Err(error) = signals::take_meaningless() {
            tracing::warn!(%error, "a signal without meaning here may end this process");
        }
    }
    let code = match program.run() {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::from(if error.is::<UsageError>() { USAGE } else { FAILED })
        }
    };
    log::finish();
    code
}

/// Whether the error is that the reader of the output has seen enough, as in `netram lender status | head
/// -1`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(closed)
}
