//! `netram disk create`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_proto::journal::CommitRule;
use netram_transport::Address;
use netram_transport::multicast::Group;
use netram_volume::{Place, Volume, VolumeSettings};
use serde_json::json;

use crate::options::{Size, Span, Usage};
use crate::output;

/// Make a volume
///
/// A new directory with a sparse image of zeros: it takes space as it is written.
/// The journal is allocated in full. What is said of lenders here goes into the
/// volume's settings file (netram.toml in the directory), which may be edited.
///
///   netram disk create /var/lib/netram/db --size 20GiB
///   netram disk create db --size 20GiB --lender tcp://10.0.0.2:7420 \
///       --lender tcp://10.0.0.3:7420 --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Create {
    /// The new directory
    volume: PathBuf,
    /// Bytes of the device, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Bytes of the journal: what may be written before the image has it
    #[arg(long, value_name = "SIZE", default_value_t = Size(netram_volume::JOURNAL_BYTES_DEFAULT))]
    journal_size: Size,
    /// A lender that may hold the newest writes; several may be given, in order of preference
    #[arg(long, value_name = "ADDRESS")]
    lender: Vec<Address>,
    /// The lender that keeps a copy of the volume on its own disk (`netram lend --data`)
    #[arg(long, value_name = "ADDRESS")]
    data_lender: Option<Address>,
    /// The key of its data sessions, if it has one (`netram lend --data-key-file`); otherwise the cluster key
    #[arg(long, value_name = "FILE", requires = "data_lender")]
    data_lender_key_file: Option<PathBuf>,
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
    /// Send writes once for all lenders, to this multicast group: 239.1.2.3:7421%eth1. Every lender must listen to it
    #[arg(long, value_name = "GROUP")]
    multicast: Option<Group>,
    /// Bytes of a datagram to the group, 548 to 61512. Otherwise 1400 on an Ethernet, or what the interface carries
    #[arg(long, value_name = "BYTES", requires = "multicast")]
    datagram: Option<u16>,
    /// How many networks datagrams may pass through, their own included
    #[arg(long, value_name = "COUNT", requires = "multicast")]
    ttl: Option<u8>,
    /// What feeds this machine with power
    #[arg(long, value_name = "LABEL")]
    domain: Option<String>,
    /// Allow all members in this machine's power domain
    #[arg(long)]
    one_domain: bool,
    /// How long an opening waits for lenders that must answer, as 500ms, 30s or 2m; 30s without it
    #[arg(long, value_name = "TIME")]
    patience: Option<Span>,
    /// What a flush waits for: remote (as many lenders as the rule wants, or the disk) or disk
    #[arg(long, value_name = "WHERE", value_parser = ["remote", "disk"])]
    flush: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Create {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.settings()?;
        let what = || format!("making {}", self.volume.display());
        let id = Volume::create(&self.volume, self.size.0, self.journal_size.0).with_context(what)?;
        let place = Place::at(&self.volume);
        if let Err(error) = write_settings(&place.settings_file(), &settings) {
            // Nobody can have written to it yet.
            Volume::delete(&self.volume).with_context(what)?;
            return Err(error.context("the settings are of no use; nothing was made"));
        }
        match self.json {
            true => output::json(&json!({
                "volume": self.volume,
                "id": id.to_string(),
                "bytes": self.size.0,
                "journal_bytes": self.journal_size.0,
            }))?,
            false => output::line(format_args!(
                "volume {}, {}",
                self.volume.display(),
                output::bytes(self.size.0)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The settings file's contents.
    fn settings(&self) -> Result<toml::Table> {
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: Option<toml::Value>| {
            table.extend(value.map(|value| (key.to_owned(), value)));
        };
        let lenders: Vec<toml::Value> = self.lender.iter().map(|one| one.to_string().into()).collect();
        put("lenders", (!lenders.is_empty()).then(|| lenders.into()));
        put(
            "data-lender",
            self.data_lender.as_ref().map(|one| one.to_string().into()),
        );
        let key = self.key_file.as_deref().map(key_path).transpose()?;
        put("key-file", key.map(Into::into));
        let key = self.data_lender_key_file.as_deref().map(key_path).transpose()?;
        put("data-lender-key-file", key.map(Into::into));
        put("insecure", self.insecure.then(|| true.into()));
        let members = self.members.map(i64::try_from).transpose()?;
        put("members", members.map(Into::into));
        put("rule", self.rule.map(|rule| rule.to_string().into()));
        put(
            "multicast",
            self.multicast.as_ref().map(|group| group.to_string().into()),
        );
        put("datagram", self.datagram.map(|bytes| i64::from(bytes).into()));
        put("ttl", self.ttl.map(|count| i64::from(count).into()));
        put("domain", self.domain.clone().map(Into::into));
        put("one-domain", self.one_domain.then(|| true.into()));
        let patience = self
            .patience
            .map(|time| humantime::format_duration(time.0).to_string());
        put("patience", patience.map(Into::into));
        put("flush", self.flush.clone().map(Into::into));
        Ok(table)
    }
}

/// A key's path for the settings file, which counts from the volume's directory; the command line, from where the user is.
pub(super) fn key_path(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let text = path.to_str().map(ToOwned::to_owned);
    Ok(text.ok_or_else(|| Usage(format!("{} is not UTF-8; move the key", path.display())))?)
}

/// Writes them durably, and reads them as an opening will. They name the lenders and the key: a volume that was made, written to and
/// cut off within half a minute came back without them, and could not be recovered.
pub(super) fn write_settings(path: &Path, settings: &toml::Table) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = toml::to_string(settings)?;
    write_durably(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    let settings = VolumeSettings::load(path)?;
    settings.data_security(&settings.journal_config()?.security)?;
    Ok(())
}

/// Makes a file, durable with its name.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
