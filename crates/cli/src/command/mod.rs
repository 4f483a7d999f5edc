//! The subcommands: a directory for each noun, a file for each verb.

mod dashboard;
mod explain;
mod init;
pub mod journal;
pub(crate) mod key;
mod laboratory;
pub(crate) mod lender;
pub(crate) mod manual;
#[cfg(feature = "products")]
mod mount;
pub(crate) mod open_check;
pub(crate) mod play;
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
mod top;
#[cfg(feature = "products")]
mod volume;
mod watching;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::{Netram, Program};

/// Name of the hidden subcommand by which the program starts itself as a helper.
pub const PART: &str = "part";

/// The commands of `netram`.
#[derive(Debug, Subcommand)]
pub enum NetramCommand {
    #[command(subcommand)]
    Lender(lender::LenderCommand),
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Rvm(rvm::RvmCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    #[cfg(feature = "products")]
    #[command(subcommand)]
    Mount(mount::MountCommand),
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
    Status(status::ShowCluster),
    Dashboard(dashboard::ServeDashboard),
    #[cfg(feature = "products")]
    Top(top::ShowTop),
    Explain(explain::ExplainJournal),
    #[command(subcommand)]
    Key(key::KeyCommand),
    Init(init::InitCluster),
    Play(play::OpenPlayShell),
    Man(manual::WriteManPages),
    Completions(manual::PrintCompletions),
}

/// The parts of processes that this program starts.
#[cfg(feature = "products")]
#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "one value a process")]
enum ProcessPart {
    Volume(volume::server::VolumeServerPart),
    Mount(mount::server::MountServerPart),
    Unmount(mount::supervisor::UnmountPart),
}

/// Serve what another process of this program supervises; only that starts it.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct PlayPart {
    /// The part, as JSON
    role: String,
}

impl PlayPart {
    /// Plays the part until its end.
    ///
    /// # Errors
    ///
    /// The part is not one of this release, or failed.
    #[cfg_attr(
        not(feature = "products"),
        allow(clippy::unused_self, reason = "no product, no part")
    )]
    pub fn run(self) -> Result<ExitCode> {
        #[cfg(feature = "products")]
        {
            let role: ProcessPart = serde_json::from_str(&self.role)?;
            crate::signals::take_meaningless()?;
            match role {
                ProcessPart::Volume(server) => server.run()?,
                ProcessPart::Mount(server) => return server.run(),
                ProcessPart::Unmount(unmount) => return Ok(unmount.run()),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the part, as JSON.
    pub fn role(&self) -> &str {
        &self.role
    }
}

/// Commands of the laboratory, which is another program.
#[derive(Debug, Subcommand)]
pub enum Laboratory {
    /// Measure netram beside what the hardware can do (runs `netram-lab bench`)
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
    /// Whether the command serves, or works on what is served, and starts no program of the user: then it may
    /// have as many files open as the system allows.
    pub fn is_service(&self) -> bool {
        match self {
            NetramCommand::Lender(lender) => lender.is_service(),
            NetramCommand::Journal(_) | NetramCommand::Dashboard(_) => true,
            #[cfg(feature = "products")]
            NetramCommand::Volume(_)
            | NetramCommand::Mount(_)
            | NetramCommand::Sqlite(_)
            | NetramCommand::Shared(_) => true,
            _ => false,
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// The command failed; the caller prints the error.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            NetramCommand::Lender(lender) => lender.run(),
            NetramCommand::Journal(journal) => journal.run(),
            #[cfg(feature = "products")]
            NetramCommand::Rvm(rvm) => rvm.run(),
            #[cfg(feature = "products")]
            NetramCommand::Volume(volume) => volume.run(),
            #[cfg(feature = "products")]
            NetramCommand::Mount(mount) => mount.run(),
            #[cfg(feature = "products")]
            NetramCommand::Sqlite(sqlite) => sqlite.run(),
            #[cfg(feature = "products")]
            NetramCommand::Shared(shared) => shared.run(),
            #[cfg(feature = "products")]
            NetramCommand::Run(run) => run.run(),
            #[cfg(feature = "products")]
            NetramCommand::GiveBack(give_back) => give_back.run(),
            NetramCommand::Status(status) => status.run(),
            NetramCommand::Dashboard(dashboard) => dashboard.run(),
            #[cfg(feature = "products")]
            NetramCommand::Top(top) => top.run(),
            NetramCommand::Explain(explain) => explain.run(),
            NetramCommand::Key(key) => key.run(),
            NetramCommand::Init(init) => init.run(),
            NetramCommand::Play(play) => play.run(),
            NetramCommand::Man(man) => man.run(&Netram::grammar(), "1"),
            NetramCommand::Completions(completions) => completions.run(Netram::grammar()),
        }
    }
}
