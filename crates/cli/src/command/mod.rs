//! The subcommands, one file each.

pub(crate) mod bench;
mod demo;
mod disk;
mod journal;
mod key;
mod lend;
mod manual;
mod mount;
mod pagesim;
mod run;
mod rvm;
mod shared;
mod sqlite;
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
    Disk(disk::Disk),
    Mount(mount::Mount),
    Unmount(mount::Unmount),
    Recover(mount::Recover),
    #[command(subcommand)]
    Sqlite(sqlite::Sqlite),
    #[command(subcommand)]
    Shared(shared::Shared),
    #[command(subcommand)]
    Pagesim(pagesim::Pagesim),
    Run(run::Run),
    #[command(hide = true, name = netram_far::run::GIVE_BACK)]
    GiveBack(run::GiveBack),
    #[command(subcommand)]
    Key(key::Key),
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
    Bash(Box<rvm::bash::player::Player>),
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
        matches!(
            self,
            Command::Bench(_) | Command::Demo(_) | Command::Rvm(rvm::Rvm::Bash(_))
        )
    }

    /// Whether it serves, or works on what others serve, and starts no program of its user's: it may have as many files
    /// open as the system allows.
    pub(crate) fn is_service(&self) -> bool {
        matches!(
            self,
            Command::Lend(_)
                | Command::Journal(_)
                | Command::Disk(_)
                | Command::Mount(_)
                | Command::Unmount(_)
                | Command::Recover(_)
                | Command::Sqlite(_)
                | Command::Shared(_)
        )
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Command::Lend(lend) => lend.run(),
            Command::Status(status) => status.run(),
            Command::Journal(journal) => journal.run(),
            Command::Rvm(rvm) => rvm.run(),
            Command::Disk(disk) => disk.run(),
            Command::Mount(mount) => mount.run(),
            Command::Unmount(unmount) => unmount.run(),
            Command::Recover(recover) => recover.run(),
            Command::Sqlite(sqlite) => sqlite.run(),
            Command::Shared(shared) => shared.run(),
            Command::Pagesim(pagesim) => pagesim.run(),
            Command::Run(run) => run.run(),
            Command::GiveBack(give_back) => give_back.run(),
            Command::Key(key) => key.run(),
            Command::Bench(bench) => bench.run(),
            Command::Demo(demo) => demo.run(),
            Command::Man(man) => man.run(),
            Command::Completions(completions) => completions.run(),
            Command::Play(play) => {
                match serde_json::from_str(&play.role)? {
                    Part::Measurement(role) => netram_bench::child::play(&role)?,
                    Part::Bash(player) => player.run()?,
                    Part::Server(server) => server.run()?,
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
