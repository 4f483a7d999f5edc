//! The settings file of a journal or a volume that is made: which lenders it has, said once on the command
//! line and in the file from then on.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use netram_proto::journal::CommitRule;
use netram_transport::NetAddress;

use crate::options::{DurationArg, UsageError};

/// What it says of lenders.
#[derive(Debug, Args)]
pub(crate) struct LenderArgs {
    /// A lender that may hold the newest writes; several may be given, in order of preference
    #[arg(long, value_name = "ADDRESS")]
    lender: Vec<NetAddress>,
    /// The cluster key's file, for the lenders
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// No key and no encryption; only for lenders on this machine
    #[arg(long)]
    insecure: bool,
    /// How many lenders hold a copy; the others are spares
    #[arg(long, value_name = "COUNT")]
    members: Option<usize>,
    /// How many of them must hold a write: all, any, or a number
    #[arg(long, value_name = "RULE")]
    rule: Option<CommitRule>,
    /// What feeds this machine with power
    #[arg(long, value_name = "LABEL")]
    domain: Option<String>,
    /// Allow all members in this machine's power domain
    #[arg(long)]
    one_domain: bool,
    /// How long an opening waits for lenders that must answer, as 500ms, 30s or 2m; 30s without it
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
}

/// Adds a setting that was made.
pub(crate) fn put(table: &mut toml::Table, key: &str, value: Option<impl Into<toml::Value>>) {
    table.extend(value.map(|value| (key.to_owned(), value.into())));
}

impl LenderArgs {
    /// The file's contents. A key alone, which the environment may name for whatever is done, says nothing of
    /// lenders.
    pub(crate) fn table(&self) -> Result<toml::Table> {
        let mut table = toml::Table::new();
        let lenders: Vec<toml::Value> = self.lender.iter().map(|one| one.to_string().into()).collect();
        put(&mut table, "lenders", (!lenders.is_empty()).then_some(lenders));
        put(&mut table, "insecure", self.insecure.then_some(true));
        let members = self.members.map(i64::try_from).transpose()?;
        put(&mut table, "members", members);
        put(&mut table, "rule", self.rule.map(|rule| rule.to_string()));
        put(&mut table, "domain", self.domain.clone());
        put(&mut table, "one-domain", self.one_domain.then_some(true));
        let patience = { self.patience }.map(|time| humantime::format_duration(time.0).to_string());
        put(&mut table, "patience", patience);
        Ok(table)
    }

    /// The key's path in the file.
    pub(crate) fn key(&self) -> Result<Option<String>> {
        self.key_file.as_deref().map(key_path).transpose()
    }
}

/// A key's path for a settings file, which counts from its own directory; the command line, from where the
/// user is.
pub(crate) fn key_path(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let text = path.to_str().map(ToOwned::to_owned);
    Ok(text.ok_or_else(|| UsageError(format!("{} is not UTF-8; move the key", path.display())))?)
}

/// Writes them durably, and has them read as an opening will. They name the lenders and the key: a volume
/// that was made, written to and cut off within half a minute came back without them, and could not be
/// recovered.
pub(crate) fn write(
    path: &Path,
    settings: &toml::Table,
    read: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = toml::to_string(settings)?;
    write_durably(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    read(path)
}

/// Makes a file, durable with its name.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
