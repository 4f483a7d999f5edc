//! The settings file of a new journal, log, volume or database: the lenders given when it is created stay in
//! that file, so that later commands need not name them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::JournalSettings;
use netram_journal::config::DOMAIN_DEFAULT;
use netram_journal::settings::{AUTO, LenderName};
use netram_proto::journal::CommitRule;
use netram_transport::NetAddress;

use crate::command::lender::probe::reasons_to_wait;
use crate::command::play::LENDERS_VARIABLE as PLAY_VARIABLE;
use crate::options::{
    DurationArg, LENDERS_VARIABLE, UsageError, key_file, lenders_in_environment, named_addresses, security,
};
use crate::output;

/// The part of a settings file that concerns lenders.
#[derive(Debug, Args)]
pub(crate) struct LenderArgs {
    /// Lender that may hold the newest writes, in order of preference; repeat it for several.
    /// `auto`: those that each opening finds (netram status shows them)
    #[arg(long, value_name = "ADDRESS", env = LENDERS_VARIABLE, value_delimiter = ',')]
    lender: Vec<LenderName>,
    /// File with the cluster key, the one that the lenders were started with
    /// [default: ~/.config/netram/key if there is one and you are not root, /etc/netram/key]
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Use no key and no encryption; only for lenders on this machine
    #[arg(long)]
    insecure: bool,
    /// Number of lenders that hold a copy; the others are spares [default: 2, or all if fewer]
    #[arg(long, value_name = "COUNT")]
    members: Option<usize>,
    /// Number of them that must hold a write before it is durable: all, any, or a number
    /// [default: all]
    #[arg(long, value_name = "RULE")]
    rule: Option<CommitRule>,
    /// Label of this machine's power supply, such as its rack or UPS. Only lenders with another
    /// label count, because one power cut must not take all copies [default: default]
    #[arg(long, value_name = "LABEL")]
    domain: Option<String>,
    /// Count lenders with this machine's own label too, as for a trial on one machine
    #[arg(long)]
    one_domain: bool,
    /// How long an opening waits for lenders that must answer, as 500ms, 30s or 2m [default: 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
}

fn key_in_environment() -> PathBuf {
    std::env::var_os("NETRAM_KEY_FILE").unwrap_or_default().into()
}

/// Adds a setting, if it was given.
pub(crate) fn put(table: &mut toml::Table, key: &str, value: Option<impl Into<toml::Value>>) {
    table.extend(value.map(|value| (key.to_owned(), value.into())));
}

/// Puts the settings of each owner into its table. An owner without settings gets none.
pub(crate) fn owned<const N: usize>(tables: [(&str, toml::Table); N]) -> toml::Table {
    let filled = tables.into_iter().filter(|(_, table)| !table.is_empty());
    filled
        .map(|(owner, table)| (owner.to_owned(), table.into()))
        .collect()
}

impl LenderArgs {
    /// Returns the journal's settings without the key, which the environment may name for all commands.
    pub(crate) fn table(&self) -> Result<toml::Table> {
        let mut table = toml::Table::new();
        let named = match self.are_of_play()? {
            true => &[][..],
            false => &self.lender,
        };
        put(&mut table, "lenders", written(named)?);
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

    /// Returns the same without lenders that only the environment names: these override the file at each
    /// opening anyway.
    pub(crate) fn typed_table(&self) -> Result<toml::Table> {
        let mut table = self.table()?;
        if self.lender == lenders_in_environment()? {
            table.remove("lenders");
        }
        Ok(table)
    }

    /// Says on standard error why `what` (commits, writes, syncs) would wait for the disk: no lender is
    /// named, or one that is named does not count for a journal of `journal_bytes`. `file` is where lenders
    /// can be added later.
    pub(crate) fn remark_waiting(&self, what: &str, file: &Path, journal_bytes: u64) {
        if self.lender.is_empty() {
            return output::remark(format_args!(
                "no --lender was given: {what} wait for this disk until {} or {LENDERS_VARIABLE} names lenders",
                file.display()
            ));
        }
        let Ok(security) = security(self.key_file.as_ref(), self.insecure) else {
            return;
        };
        let lenders = match self.lenders() {
            Ok(lenders) if lenders.is_empty() => {
                return output::remark(format_args!(
                    "no lender was found: {what} wait for this disk until one is (`netram status` shows what is found)"
                ));
            }
            Ok(lenders) => lenders,
            Err(error) => return output::remark(output::sentence(&error)),
        };
        let domain = (!self.one_domain).then(|| self.domain.as_deref().unwrap_or(DOMAIN_DEFAULT));
        for sentence in reasons_to_wait(&lenders, &security, what, domain, journal_bytes) {
            output::remark(sentence);
        }
    }

    /// Returns the lenders that are named or found.
    fn lenders(&self) -> Result<Vec<NetAddress>> {
        let (auto, lenders) = named_addresses(&self.lender)?;
        let settings = JournalSettings {
            lenders,
            auto,
            key_file: self.key_file.clone(),
            insecure: self.insecure,
            domain: self.domain.clone(),
            one_domain: self.one_domain,
            ..JournalSettings::default()
        };
        Ok(settings.find_lenders()?)
    }

    /// Returns the key's path as it is to stand in the file.
    pub(crate) fn key(&self) -> Result<Option<String>> {
        let of_play = self.are_of_play()? && self.key_file.as_deref() == Some(key_in_environment().as_path());
        // A default file stands in the settings too: another may come before it one day.
        let used = key_file(self.key_file.as_ref(), self.insecure, !self.lender.is_empty());
        used.filter(|_| !of_play).as_deref().map(key_path).transpose()
    }

    /// Whether the lenders are those of `netram play`. They end with its shell, so no settings file names
    /// them.
    fn are_of_play(&self) -> Result<bool> {
        let in_play = std::env::var_os(PLAY_VARIABLE).is_some();
        Ok(in_play && self.lender == lenders_in_environment()?)
    }
}

/// Returns the value of the key `lenders` for these names; `None` without names.
///
/// # Errors
///
/// `auto` stands beside addresses.
pub(crate) fn written(names: &[LenderName]) -> Result<Option<toml::Value>> {
    let (auto, addresses) = named_addresses(names)?;
    let listed = || addresses.iter().map(|one| one.to_string().into()).collect();
    Ok(match (auto, addresses.is_empty()) {
        (true, _) => Some(AUTO.into()),
        (false, true) => None,
        (false, false) => Some(toml::Value::Array(listed())),
    })
}

/// Returns a key's path for a settings file. Such a file takes relative paths from its own directory, the
/// command line from the current one, so the path is made absolute.
pub(crate) fn key_path(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let text = path.to_str().map(ToOwned::to_owned);
    Ok(text.ok_or_else(|| {
        UsageError(format!(
            "{} is not UTF-8; give the key another path",
            path.display()
        ))
    })?)
}

/// Writes settings durably, and has `read` read them as an opening will. They must be on the disk before the
/// first write: without the names of lenders and key, nothing could be recovered from lenders.
pub(crate) fn write(
    path: &Path,
    settings: &toml::Table,
    read: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = toml::to_string(settings)?;
    netram_journal::durable::replace(path, text.as_bytes())
        .with_context(|| format!("writing {}", path.display()))?;
    read(path)
}
