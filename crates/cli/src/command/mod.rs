//! The subcommands, one file each.

#[cfg(feature = "experiments")]
pub(crate) mod bench;
pub(crate) mod check;
mod demo;
#[cfg(feature = "products")]
mod disk;
mod journal;
mod key;
mod lend;
mod lender;
mod manual;
#[cfg(feature = "products")]
mod mount;
#[cfg(feature = "products")]
mod pagesim;
#[cfg(feature = "products")]
mod run;
#[cfg(feature = "products")]
mod rvm;
#[cfg(feature = "products")]
mod shared;
pub(crate) mod site;
#[cfg(feature = "products")]
mod sqlite;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// What the program can be asked to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Lend(lend::Lend),
    #[command(subcommand)]
    Lender(lender::Lender),
    Status(status::Status),
    #[command(subcommand)]
    Journal(journal::Journal),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Rvm(rvm::Rvm),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Disk(disk::Disk),
    #[cfg(feature = "products")]
    Mount(mount::Mount),
    #[cfg(feature = "products")]
    Unmount(mount::Unmount),
    #[cfg(feature = "products")]
    Recover(mount::Recover),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Sqlite(sqlite::Sqlite),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Shared(shared::Shared),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Pagesim(pagesim::Pagesim),
    #[cfg(feature = "products")]
    Run(run::Run),
    #[cfg(feature = "products")]
    #[command(hide = true, name = netram_far::run::GIVE_BACK)]
    GiveBack(run::GiveBack),
    #[command(subcommand)]
    Key(key::Key),
    #[cfg(feature = "experiments")]
    #[command(subcommand)]
    Bench(bench::Bench),
    Demo(demo::Demo),
    Man(manual::Man),
    Completions(manual::Completions),
    Play(Play),
}

/// What a child of this program may be asked to be.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Part {
    #[cfg(feature = "products")]
    Bash(Box<rvm::bash::player::Player>),
    #[cfg(feature = "products")]
    Server(disk::server::Server),
    Measurement(netram_bench::child::Role),
}

/// Plays a part in a measurement or a test; started by `netram bench`, `netram demo`, `netram rvm bash` and `netram disk attach` only.
#[derive(Debug, clap::Args)]
#[command(hide = true, name = netram_bench::child::PLAY)]
pub(crate) struct Play {
    /// The part, as JSON
    role: String,
}

impl Command {
    /// Whether lenders are killed and paused on purpose, so that warnings about it are no news.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            #[cfg(feature = "experiments")]
            Command::Bench(_) => true,
            #[cfg(feature = "products")]
            Command::Rvm(rvm::Rvm::Bash(_)) => true,
            Command::Demo(_) => true,
            _ => false,
        }
    }

    /// Whether it serves, or works on what others serve, and starts no program of its user's: it may have as many files
    /// open as the system allows.
    pub(crate) fn is_service(&self) -> bool {
        match self {
            Command::Lend(_) | Command::Journal(_) => true,
            #[cfg(feature = "products")]
            Command::Disk(_)
            | Command::Mount(_)
            | Command::Unmount(_)
            | Command::Recover(_)
            | Command::Sqlite(_)
            | Command::Shared(_) => true,
            _ => false,
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Command::Lend(lend) => lend.run(),
            Command::Lender(lender) => lender.run(),
            Command::Status(status) => status.run(),
            Command::Journal(journal) => journal.run(),
            #[cfg(feature = "products")]
            Command::Rvm(rvm) => rvm.run(),
            #[cfg(feature = "products")]
            Command::Disk(disk) => disk.run(),
            #[cfg(feature = "products")]
            Command::Mount(mount) => mount.run(),
            #[cfg(feature = "products")]
            Command::Unmount(unmount) => unmount.run(),
            #[cfg(feature = "products")]
            Command::Recover(recover) => recover.run(),
            #[cfg(feature = "products")]
            Command::Sqlite(sqlite) => sqlite.run(),
            #[cfg(feature = "products")]
            Command::Shared(shared) => shared.run(),
            #[cfg(feature = "products")]
            Command::Pagesim(pagesim) => pagesim.run(),
            #[cfg(feature = "products")]
            Command::Run(run) => run.run(),
            #[cfg(feature = "products")]
            Command::GiveBack(give_back) => give_back.run(),
            Command::Key(key) => key.run(),
            #[cfg(feature = "experiments")]
            Command::Bench(bench) => bench.run(),
            Command::Demo(demo) => demo.run(),
            Command::Man(man) => man.run(),
            Command::Completions(completions) => completions.run(),
            Command::Play(play) => {
                match serde_json::from_str(&play.role)? {
                    Part::Measurement(role) => netram_bench::child::play(&role)?,
                    #[cfg(feature = "products")]
                    Part::Bash(player) => player.run()?,
                    #[cfg(feature = "products")]
                    Part::Server(server) => {
                        crate::signals::take_meaningless()?;
                        server.run()?;
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
