//! The settings file of a journal that `netram mount` makes.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use netram_home::Settings;

use super::Lenders;
use crate::options::Usage;

/// The settings file in a journal's directory.
pub(super) const FILE: &str = "netram.toml";

impl Lenders {
    /// The file's contents.
    pub(super) fn table(&self) -> Result<toml::Table> {
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: Option<toml::Value>| {
            table.extend(value.map(|value| (key.to_owned(), value)));
        };
        let lenders: Vec<toml::Value> = self.lender.iter().map(|one| one.to_string().into()).collect();
        put("lenders", (!lenders.is_empty()).then(|| lenders.into()));
        let key = self.key_file.as_deref().map(whole).transpose()?;
        put("key-file", key.map(Into::into));
        put("insecure", self.insecure.then(|| true.into()));
        let members = self.members.map(i64::try_from).transpose()?;
        put("members", members.map(Into::into));
        put("rule", self.rule.map(|rule| rule.to_string().into()));
        put("domain", self.domain.clone().map(Into::into));
        put("one-domain", self.one_domain.then(|| true.into()));
        let patience = { self.patience }.map(|time| humantime::format_duration(time.0).to_string());
        put("patience", patience.map(Into::into));
        Ok(table)
    }
}

/// A key's path for the settings file, which counts from the journal's directory; the command line, from where the user is.
fn whole(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let text = path.to_str().map(ToOwned::to_owned);
    Ok(text.ok_or_else(|| Usage(format!("{} is not UTF-8; move the key", path.display())))?)
}

/// Writes them durably, and reads them as an opening will.
pub(super) fn write(journal: &Path, settings: &toml::Table) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let (path, text) = (journal.join(FILE), toml::to_string(settings)?);
    write_durably(&path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    Settings::load(&path)?.journal_config()?;
    Ok(())
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
