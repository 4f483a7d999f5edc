//! `netram sqlite`: SQLite databases whose commits lenders hold.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use netram_sqlite::{DatabasePaths, FileRole};
use netram_store::StoreSettings;
use serde_json::json;

use crate::options::SizeArg;
use crate::output;
use crate::settings::{self, LenderArgs, put};

/// Bytes of each journal: what may be committed before the disk has it.
const JOURNAL_BYTES_DEFAULT: u64 = 16 << 20;
/// Processes that commit at the same time through lenders.
const JOURNAL_SLOTS_DEFAULT: u8 = 4;

/// SQLite databases whose commits are held in other machines' memory
///
/// A database that netram holds is opened by programs as file:app.db?vfs=netram, with
/// netram's extension loaded (libnetram_sqlite). Rollback and WAL modes, up to 64
/// processes; SQLite is not changed.
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum SqliteCommand {
    Create(CreateDatabase),
    Status(ShowDatabase),
    Recover(RecoverDatabase),
    Release(ReleaseDatabase),
}

impl SqliteCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            SqliteCommand::Create(create) => create.run(),
            SqliteCommand::Status(status) => status.run(),
            SqliteCommand::Recover(recover) => recover.run(),
            SqliteCommand::Release(release) => release.run(),
        }
    }
}

/// Have netram hold a database, or make an empty one
///
/// The database goes into a directory beside it, app.db-netram; a note stays in its place,
/// so that who opens it without netram finds no database, instead of one that the
/// lenders are ahead of. No program may have it open. What is said of lenders here is
/// in netram.toml in that directory, which may be edited.
///
///   netram sqlite create app.db --lender tcp://10.0.0.2:7420 \
///       --lender tcp://10.0.0.3:7420 --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateDatabase {
    /// The database's file, which need not be there
    database: PathBuf,
    /// Journals: so many processes commit through lenders at the same time, more of them by the disk; 1 to 16
    #[arg(long, value_name = "COUNT", default_value_t = JOURNAL_SLOTS_DEFAULT, value_parser = clap::value_parser!(u8).range(1..=16))]
    seats: u8,
    /// Bytes of each journal: what may be committed before the disk has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(JOURNAL_BYTES_DEFAULT))]
    journal_size: SizeArg,
    #[command(flatten)]
    lenders: LenderArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateDatabase {
    fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        if let Some(user) = netram_mount::users(place.path()).into_iter().next() {
            bail!("{} is in use: {user}; stop it first", place.path().display());
        }
        let mut table = self.lenders.table()?;
        put(&mut table, "key-file", self.lenders.key()?);
        let read = |path: &Path| {
            let settings = StoreSettings::load(path)?;
            settings.journal_config().map(drop).map_err(Into::into)
        };
        let made = place.create(usize::from(self.seats), self.journal_size.0, |path| {
            settings::write(path, &table, read)
        });
        made.with_context(|| format!("holding {}", self.database.display()))?;
        match netram_sqlite::why_lenders_wait(&place) {
            Ok(None) => (),
            Ok(Some(why)) => output::remark(format_args!("commits wait for the disk: {why}")),
            // It is held all the same, and whoever opens it is told.
            Err(error) => output::remark(format_args!("commits wait for the disk: {error}")),
        }
        match self.json {
            true => output::json(&json!({
                "database": place.path(),
                "directory": place.directory(),
                "seats": self.seats,
                "journal_bytes": self.journal_size.0,
            }))?,
            false => output::line(format_args!(
                "netram holds {0}; programs open it as file:{0}?vfs=netram",
                place.path().display()
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Say how a database stands that netram holds
///
///   netram sqlite status app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowDatabase {
    /// The database's file
    database: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowDatabase {
    fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let look = netram_sqlite::database_status(&place)?;
        if self.json {
            output::json(&json!({
                "database": place.path(),
                "file": place.file(FileRole::Main),
                "settings": place.settings(),
                "open": look.open,
                "to_recover": look.to_recover,
                "seats": look.journal_slots,
                "seats_taken": look.slots_in_use,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let stands = match (look.to_recover, look.open) {
            (true, _) => "is recovered by whoever opens it next",
            (false, true) => "is open",
            (false, false) => "is closed",
        };
        output::line(format_args!("{} {stands}", place.path().display()))?;
        output::line(format_args!(
            "  file      {}",
            place.file(FileRole::Main).display()
        ))?;
        output::line(format_args!("  settings  {}", place.settings().display()))?;
        output::line(format_args!(
            "  journals  {} of {} taken",
            look.slots_in_use, look.journal_slots
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Bring what lenders and journals have into a database that no program has open
///
/// Whoever opens the database after a crash of the machine does so by itself; this is for
/// seeing it done, for a disk that lost its newest bytes while the machine went on, and
/// for going on with --accept-loss where lenders are gone for good. What cannot be
/// proven complete is refused, with the lenders that are missing.
///
///   netram sqlite recover app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverDatabase {
    /// The database's file
    database: PathBuf,
    /// Go on although acknowledged commits may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RecoverDatabase {
    fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let again = netram_sqlite::recover_database(&place, self.accept_loss)?;
        match self.json {
            true => output::json(&json!({
                "database": place.path(),
                "records": again.records,
                "bytes": again.bytes,
            }))?,
            false => output::line(format_args!(
                "{}: {} records were done again, {}",
                place.path().display(),
                again.records,
                output::bytes(again.bytes)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Give a database back: all of it is in its file, where it was
///
///   netram sqlite release app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ReleaseDatabase {
    /// The database's file
    database: PathBuf,
    /// Go on although acknowledged commits may be missing
    #[arg(long)]
    accept_loss: bool,
}

impl ReleaseDatabase {
    fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let untold = netram_sqlite::release(&place, self.accept_loss)?;
        output::line(format_args!("{} is where it was", place.path().display()))?;
        super::lender::report_pending_forgets(&untold)?;
        Ok(ExitCode::SUCCESS)
    }
}
