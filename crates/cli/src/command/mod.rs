//! The subcommands, one file each.

pub(crate) mod check;
#[cfg(feature = "products")]
mod disk;
pub mod journal;
mod key;
mod laboratory;
mod lend;
mod lender;
mod manual;
#[cfg(feature = "products")]
mod mount;
#[cfg(feature = "products")]
mod run;
#[cfg(feature = "products")]
pub mod rvm;
#[cfg(feature = "products")]
mod shared;
#[cfg(feature = "products")]
mod sqlite;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The hidden subcommand by which the program starts itself in another part.
pub const PLAY: &str = "play";

/// What the program can be asked to do.
#[derive(Debug, Subcommand)]
pub enum Command {
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
    Run(run::Run),
    #[cfg(feature = "products")]
    #[command(hide = true, name = netram_far::run::GIVE_BACK)]
    GiveBack(run::GiveBack),
    #[command(subcommand)]
    Key(key::Key),
    Man(manual::Man),
    Completions(manual::Completions),
}

/// Serves an attached volume; started by `netram disk attach` only.
#[derive(Debug, clap::Args)]
#[command(hide = true, name = PLAY)]
pub struct Play {
    /// The part, as JSON
    role: String,
}

impl Play {
    /// Plays the part; returns when its end has come.
    #[cfg_attr(
        not(feature = "products"),
        allow(clippy::unused_self, reason = "no product, no part")
    )]
    pub fn run(self) -> Result<ExitCode> {
        #[cfg(feature = "products")]
        {
            let server: disk::server::Server = serde_json::from_str(&self.role)?;
            crate::signals::take_meaningless()?;
            server.run()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The part, as JSON.
    pub fn role(&self) -> &str {
        &self.role
    }
}

/// Commands of the laboratory, which is a program of its own.
#[derive(Debug, Subcommand)]
pub enum Laboratory {
    /// Measure netram beside its floors (runs `netram-lab bench`)
    #[command(disable_help_flag = true)]
    Bench(laboratory::Words),
    /// Show netram at work on this machine (runs `netram-lab demo`)
    #[command(disable_help_flag = true)]
    Demo(laboratory::Words),
    /// Study paging policies on a program (runs `netram-lab pagesim`)
    #[command(disable_help_flag = true)]
    Pagesim(laboratory::Words),
}

impl Laboratory {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Laboratory::Bench(words) => words.run("bench"),
            Laboratory::Demo(words) => words.run("demo"),
            Laboratory::Pagesim(words) => words.run("pagesim"),
        }
    }
}

impl Command {
    /// Whether it serves, or works on what others serve, and starts no program of its user's: it may have as many files
    /// open as the system allows.
    pub fn is_service(&self) -> bool {
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

    /// Does what it was asked for.
    pub fn run(self) -> Result<ExitCode> {
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
            Command::Run(run) => run.run(),
            #[cfg(feature = "products")]
            Command::GiveBack(give_back) => give_back.run(),
            Command::Key(key) => key.run(),
            Command::Man(man) => man.run(),
            Command::Completions(completions) => completions.run(),
        }
    }
}
