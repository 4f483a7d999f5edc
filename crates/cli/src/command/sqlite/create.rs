//! `netram sqlite create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::settings::JournalSettings;
use netram_sqlite::DatabasePaths;
use serde_json::json;

use crate::options::SizeArg;
use crate::output;
use crate::settings::{self, LenderArgs, owned, put};

/// Default bytes of each journal.
const JOURNAL_BYTES_DEFAULT: u64 = 16 << 20;
/// Default number of processes that commit through lenders at the same time.
const JOURNAL_SLOTS_DEFAULT: u8 = 4;

/// Put a database under netram, or create an empty one
///
/// No program may have the database open. Its file moves into a new directory beside it,
/// app.db-netram, and a note takes its place: a program that opens it without netram is told
/// that it is not a database, instead of finding an old state. `netram sqlite detach` moves it
/// back. Lenders given here are written to netram.toml in that directory, which may be edited.
///
///   netram sqlite create app.db --lender tcp://10.0.0.2:7420 \
///       --lender tcp://10.0.0.3:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateDatabase {
    /// The database's file, which need not exist
    database: PathBuf,
    /// Number of journals: as many processes commit through lenders at the same time, further ones
    /// through the disk; 1 to 16
    #[arg(long, value_name = "COUNT", default_value_t = JOURNAL_SLOTS_DEFAULT, value_parser = clap::value_parser!(u8).range(1..=16))]
    seats: u8,
    /// Bytes of each journal: how much can be committed before the disk has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(JOURNAL_BYTES_DEFAULT))]
    journal_size: SizeArg,
    #[command(flatten)]
    lenders: LenderArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateDatabase {
    pub(super) fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        if let Some(user) = netram_mount::users(place.path()).into_iter().next() {
            bail!("{} is in use: {user}; stop it first", place.path().display());
        }
        let mut table = self.lenders.table()?;
        put(&mut table, "key-file", self.lenders.key()?);
        let table = owned([("journal", table)]);
        let read = |path: &Path| {
            let settings = JournalSettings::load(path)?;
            settings.journal_config().map(drop).map_err(Into::into)
        };
        let made = place.create(usize::from(self.seats), self.journal_size.0, |path| {
            settings::write(path, &table, read)
        });
        made.with_context(|| format!("taking {}", self.database.display()))?;
        match netram_sqlite::why_lenders_wait(&place) {
            Ok(None) => (),
            Ok(Some(why)) => output::remark(format_args!("commits wait for the disk: {why}")),
            // The database is created all the same; programs that open it get the error.
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
                "netram has {0}; programs open it as file:{0}?vfs=netram",
                place.path().display()
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
