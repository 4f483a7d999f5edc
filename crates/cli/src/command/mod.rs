//! The subcommands, one file each.

pub(crate) mod check;
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
#[cfg(feature = "products")]
mod volume;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The hidden subcommand by which the program starts itself in another part.
pub const PLAY: &str = "play";

/// What the program can be asked to do.
#[derive(Debug, Subcommand)]
pub enum NetramCommand {
    Lend(lend::LendMemory),
    #[command(subcommand)]
    Lender(lender::LenderCommand),
    Status(status::ShowLenders),
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Rvm(rvm::RvmCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Disk(volume::VolumeCommand),
    #[cfg(feature = "products")]
    Mount(mount::MountDirectory),
    #[cfg(feature = "products")]
    Unmount(mount::UnmountDirectory),
    #[cfg(feature = "products")]
    Recover(mount::RecoverDirectory),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Sqlite(sqlite::SqliteCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Shared(shared::SharedCommand),
    #[cfg(feature = "products")]
    Run(run::RunProgram),
    #[cfg(feature = "products")]
    #[command(hide = true, name = netram_far::run::GIVE_BACK)]
    GiveBack(run::ReturnDeposits),
    #[command(subcommand)]
    Key(key::KeyCommand),
    Man(manual::WriteManPages),
    Completions(manual::PrintCompletions),
}

/// Serves an attached volume; started by `netram disk attach` only.
#[derive(Debug, clap::Args)]
#[command(hide = true, name = PLAY)]
pub struct PlayPart {
    /// The part, as JSON
    role: String,
}

impl PlayPart {
    /// Plays the part; returns when its end has come.
    #[cfg_attr(
        not(feature = "products"),
        allow(clippy::unused_self, reason = "no product, no part")
    )]
    pub fn run(self) -> Result<ExitCode> {
        #[cfg(feature = "products")]
        {
            let server: volume::server::VolumeServerPart = serde_json::from_str(&self.role)?;
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

impl NetramCommand {
    /// Whether it serves, or works on what others serve, and starts no program of its user's: it may have as
    /// many files open as the system allows.
    pub fn is_service(&self) -> bool {
        match self {
            NetramCommand::Lend(_) | NetramCommand::Journal(_) => true,
            #[cfg(feature = "products")]
            NetramCommand::Disk(_)
            | NetramCommand::Mount(_)
            | NetramCommand::Unmount(_)
            | NetramCommand::Recover(_)
            | NetramCommand::Sqlite(_)
            | NetramCommand::Shared(_) => true,
            _ => false,
        }
    }

    /// Does what it was asked for.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            NetramCommand::Lend(lend) => lend.run(),
            NetramCommand::Lender(lender) => lender.run(),
            NetramCommand::Status(status) => status.run(),
            NetramCommand::Journal(journal) => journal.run(),
            #[cfg(feature = "products")]
            NetramCommand::Rvm(rvm) => rvm.run(),
            #[cfg(feature = "products")]
            NetramCommand::Disk(disk) => disk.run(),
            #[cfg(feature = "products")]
            NetramCommand::Mount(mount) => mount.run(),
            #[cfg(feature = "products")]
            NetramCommand::Unmount(unmount) => unmount.run(),
            #[cfg(feature = "products")]
            NetramCommand::Recover(recover) => recover.run(),
            #[cfg(feature = "products")]
            NetramCommand::Sqlite(sqlite) => sqlite.run(),
            #[cfg(feature = "products")]
            NetramCommand::Shared(shared) => shared.run(),
            #[cfg(feature = "products")]
            NetramCommand::Run(run) => run.run(),
            #[cfg(feature = "products")]
            NetramCommand::GiveBack(give_back) => give_back.run(),
            NetramCommand::Key(key) => key.run(),
            NetramCommand::Man(man) => man.run(),
            NetramCommand::Completions(completions) => completions.run(),
        }
    }
}
