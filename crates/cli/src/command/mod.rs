//! The subcommands, one file each.

pub(crate) mod bench;
mod demo;
mod journal;
mod key;
mod lend;
mod manual;
mod rvm;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// What the program can be asked to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Lend(lend::Lend),
    Status(status::Status),
    #[command(subcommand)]
    Journal(journal::Journal),
    #[command(subcommand)]
    Rvm(rvm::Rvm),
    #[command(subcommand)]
    Key(key::Key),
    #[command(subcommand)]
    Bench(bench::Bench),
    Demo(demo::Demo),
    Man(manual::Man),
    Completions(manual::Completions),
    Play(Play),
}

/// Plays a part in a measurement; started by `netram bench` and `netram demo` only.
#[derive(Debug, clap::Args)]
#[command(hide = true, name = netram_bench::child::PLAY)]
pub(crate) struct Play {
    /// The part, as JSON
    role: String,
}

impl Command {
    /// Whether lenders are killed and paused on purpose, so that warnings about it are no news.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Command::Bench(_) | Command::Demo(_))
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Command::Lend(lend) => lend.run(),
            Command::Status(status) => status.run(),
            Command::Journal(journal) => journal.run(),
            Command::Rvm(rvm) => rvm.run(),
            Command::Key(key) => key.run(),
            Command::Bench(bench) => bench.run(),
            Command::Demo(demo) => demo.run(),
            Command::Man(man) => man.run(),
            Command::Completions(completions) => completions.run(),
            Command::Play(play) => {
                netram_bench::child::play(&serde_json::from_str(&play.role)?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
