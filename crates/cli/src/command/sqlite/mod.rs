//! `netram sqlite`: SQLite databases whose commits lenders hold. A file for each subcommand.

mod create;
mod detach;
mod recover;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Put SQLite databases under netram: commits are held in other machines' memory
///
/// SQLite is not changed. Programs load netram's extension (libnetram_sqlite) and open the
/// database as file:app.db?vfs=netram. Rollback and WAL modes work, with up to 64 processes.
///
///   netram sqlite create app.db --lender tcp://10.0.0.2:7420
///   netram sqlite status app.db
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum SqliteCommand {
    Create(create::CreateDatabase),
    Status(status::ShowDatabase),
    Recover(recover::RecoverDatabase),
    Detach(detach::DetachDatabase),
}

impl SqliteCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            SqliteCommand::Create(create) => create.run(),
            SqliteCommand::Status(status) => status.run(),
            SqliteCommand::Recover(recover) => recover.run(),
            SqliteCommand::Detach(detach) => detach.run(),
        }
    }
}
