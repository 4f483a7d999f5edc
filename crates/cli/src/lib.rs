//! The program `netram`, as a library: so that `netram-lab` runs the same commands.
//!
//! Every subcommand is a file of [`command`]; its flags, help, man page and completions come from one table
//! there.
#![deny(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a subcommand's help stands on the type of its arguments"
)]
#![cfg_attr(
    not(feature = "products"),
    allow(dead_code, reason = "a lender needs less of what the commands share")
)]

pub mod command;
mod descriptors;
pub mod log;
mod notify;
pub mod options;
pub mod output;
mod settings;
pub mod signals;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use crate::command::{Laboratory, NetramCommand, PlayPart};
use crate::log::LogArgs;
use crate::options::UsageError;

/// The exit code of a failed operation; clap's own for a command line that makes no sense is 2.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
/// The exit code that Rust gives a process whose first thread panicked.
const PANICKED: u8 = 101;

/// Other machines' memory as durable, fast storage.
///
/// A commit is durable as soon as lenders (other machines that lend their RAM)
/// hold it; the local disk follows in the background. Start a lender on each of
/// two machines, then open journals with them:
///
///   netram key new cluster.key       # once; copy it to all machines
///   netram lend --listen tcp://0.0.0.0:7420 --key-file cluster.key --domain ups-1
///   netram status tcp://10.0.0.2:7420 --key-file cluster.key
///   netram-lab demo                      # shows all of it on this machine
#[derive(Debug, Parser)]
#[command(
    name = "netram",
    version,
    verbatim_doc_comment,
    max_term_width = 100,
    disable_help_subcommand = true
)]
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
    Play(PlayPart),
}

/// A program with netram's commands among its own.
pub trait Program: Parser + 'static {
    /// How it logs.
    fn log(&self) -> &LogArgs;

    /// Whether lenders are killed and paused on purpose, so that warnings about them are not shown.
    fn is_quiet(&self) -> bool;

    /// Whether it serves, or works on what others serve, and starts no program of its user's: it may have as
    /// many files open as the system allows.
    fn is_service(&self) -> bool;

    /// Does what it was asked for.
    ///
    /// # Errors
    ///
    /// Whatever the command reports; the caller prints it.
    fn run(self) -> Result<ExitCode>;
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
            Top::Play(play) => play.run(),
        }
    }
}

/// Bytes of the stack that the command runs on where this process was given less.
const STACK_BYTES: usize = 8 << 20;

/// Parses the command line, runs the command, and reports its failure.
pub fn main<P: Program>() -> ExitCode {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= STACK_BYTES as u64) {
        return run::<P>();
    }
    // A shell or a service manager may bound the stack of a process so (`ulimit -s 64`). That of a thread is
    // not bound.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    match thread.spawn(run::<P>).map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // It has said why.
        Ok(Err(_)) => ExitCode::from(PANICKED),
        Err(error) => {
            output::complain(&anyhow::anyhow!(
                "this process gets no stack of {STACK_BYTES} bytes: {error}; raise `ulimit -s` or `ulimit -v`"
            ));
            ExitCode::from(FAILED)
        }
    }
}

/// The command line's commands, as if variables that are empty were not set: so a service's file leaves one
/// out.
fn grammar<P: Program>() -> clap::Command {
    fn unset_empty(command: clap::Command) -> clap::Command {
        let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let command = command.mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
            true => arg.env(clap::builder::Resettable::<clap::builder::OsStr>::Reset),
            false => arg,
        });
        command.mut_subcommands(unset_empty)
    }
    unset_empty(P::command())
}

fn run<P: Program>() -> ExitCode {
    let parsed = P::from_arg_matches(&grammar::<P>().get_matches());
    let program = parsed.unwrap_or_else(|error| error.format(&mut grammar::<P>()).exit());
    log::start(program.log(), program.is_quiet());
    if program.is_service() {
        descriptors::raise();
        if let Err(error) = signals::take_meaningless() {
            tracing::warn!(%error, "a signal that means nothing may end this");
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

/// Whoever read our output has seen enough, as in `netram status ... | head -1`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(closed)
}
