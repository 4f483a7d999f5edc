//! `netram volume create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::forget::WindowRelease;
use netram_transport::multicast::MulticastGroup;
use netram_transport::{NetAddress, Security};
use netram_volume::replica::restore::replicas;
use netram_volume::{Volume, VolumePaths, VolumeSettings};
use serde_json::json;

use super::recovery_key::{self, check_absent, give};
use crate::options::SizeArg;
use crate::output;
use crate::settings::{self, LenderArgs, key_path, owned, put};

/// Create a volume
///
/// A volume is a directory. Its image is sparse: it takes space on the disk as it is written. Its
/// journal is allocated in full. Lenders given here are written to netram.toml in the directory,
/// which may be edited; without any, writes wait for this disk.
///
/// With a data lender the volume gets a recovery key, which is shown once: its copy is restored
/// only with that key. Keep it away from this machine. `netram volume rekey` makes another one.
///
///   netram volume create /var/lib/netram/db --size 20GiB \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateVolume {
    /// The new directory
    volume: PathBuf,
    /// Bytes of the device, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: SizeArg,
    /// Bytes of the journal: how much can be written before the image has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(netram_volume::JOURNAL_BYTES_DEFAULT))]
    journal_size: SizeArg,
    #[command(flatten)]
    lenders: LenderArgs,
    /// Lender that keeps a copy of the volume on its own disk (`netram lender serve --data`)
    #[arg(long, value_name = "ADDRESS")]
    data_lender: Option<NetAddress>,
    /// File with the key for that copy, if the lender was started with --data-key-file
    /// [default: the cluster key]
    #[arg(long, value_name = "FILE", requires = "data_lender")]
    data_lender_key_file: Option<PathBuf>,
    /// New file for the recovery key; keep it elsewhere than the volume [default: print the key]
    #[arg(long, value_name = "FILE", requires = "data_lender")]
    recovery_key_file: Option<PathBuf>,
    /// Send writes once for all lenders, to this multicast group: 239.1.2.3:7421%eth1. All lenders
    /// must have been started with the same --multicast [default: to each lender]
    #[arg(long, value_name = "GROUP")]
    multicast: Option<MulticastGroup>,
    /// Bytes of a datagram to the group, 548 to 61512 [default: 1400 on an Ethernet, or what the
    /// interface carries]
    #[arg(long, value_name = "BYTES", requires = "multicast")]
    datagram: Option<u16>,
    /// How many networks a datagram may pass through, including its own [default: 1]
    #[arg(long, value_name = "COUNT", requires = "multicast")]
    ttl: Option<u8>,
    /// Copies that a flush waits for: remote (lenders as --rule says, or the disk if too few count) or disk
    /// [default: remote]
    #[arg(long, value_name = "WHERE", value_parser = ["remote", "disk"])]
    flush: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.settings()?;
        let what = || format!("creating {}", self.volume.display());
        check_absent(self.recovery_key_file.as_deref())?;
        let id = Volume::create(&self.volume, self.size.0, self.journal_size.0).with_context(what)?;
        let place = VolumePaths::at(&self.volume);
        if let Err(error) = write_settings(&place.settings_file(), &settings) {
            // Nothing can have been written to it yet.
            Volume::delete(&self.volume, WindowRelease::Logged).with_context(what)?;
            return Err(error.context("the settings are of no use; nothing was created"));
        }
        let recovery_key = self.recovery_key(&place).with_context(what)?;
        match self.json {
            true => output::json(&json!({
                "volume": self.volume,
                "id": id.to_string(),
                "bytes": self.size.0,
                "journal_bytes": self.journal_size.0,
                "recovery_key": recovery_key.flatten(),
            }))?,
            false => {
                output::line(format_args!(
                    "volume {}, {}",
                    self.volume.display(),
                    output::bytes(self.size.0)
                ))?;
                if let Some(shown) = recovery_key {
                    recovery_key::print(shown.as_deref(), self.recovery_key_file.as_deref())?;
                }
            }
        }
        let bytes = self.journal_size.0;
        self.lenders
            .remark_waiting("writes", &place.settings_file(), bytes);
        if let Err(error) = remark_data_lender(&place) {
            output::remark(format_args!(
                "the volume cannot be opened with these settings: {error}"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Gives the new volume its recovery key, if its data lender's links are protected or a file for the key
    /// is named. Returns the text to print, unless the key is in the file.
    fn recovery_key(&self, place: &VolumePaths) -> Result<Option<Option<String>>> {
        let settings = place.settings()?;
        let needed = match (&settings.data_lender, &self.recovery_key_file) {
            (None, _) => false,
            (Some(_), Some(_)) => true,
            (Some(_), None) => {
                let security = settings.journal_config().map(|config| config.security);
                // Settings that cannot be used yet are remarked on below; they name a key.
                let security = security.and_then(|lenders| settings.data_security(&lenders));
                !matches!(security, Ok(Security::Insecure))
            }
        };
        match needed {
            true => Ok(Some(give(&place.rekey()?, self.recovery_key_file.as_deref())?)),
            false => Ok(None),
        }
    }

    /// Returns the contents of the settings file.
    fn settings(&self) -> Result<toml::Table> {
        let mut table = self.lenders.table()?;
        put(&mut table, "key-file", self.lenders.key()?);
        let data_lender = self.data_lender.as_ref().map(|one| one.to_string());
        let mut own = toml::Table::new();
        put(&mut own, "data-lender", data_lender);
        let key = self.data_lender_key_file.as_deref().map(key_path).transpose()?;
        put(&mut own, "data-lender-key-file", key);
        let multicast = self.multicast.as_ref().map(|group| group.to_string());
        put(&mut table, "multicast", multicast);
        put(&mut table, "datagram", self.datagram.map(i64::from));
        put(&mut table, "ttl", self.ttl.map(i64::from));
        put(&mut own, "flush", self.flush.clone());
        Ok(owned([("journal", table), ("volume", own)]))
    }
}

/// Says on standard error why the data lender of a new volume would keep no copy.
fn remark_data_lender(place: &VolumePaths) -> Result<()> {
    let settings = place.settings()?;
    if let Some(address) = &settings.data_lender {
        let security = settings.data_security(&settings.journal_config()?.security)?;
        if let Err(error) = replicas(address, &security) {
            output::remark(format_args!("data lender {address} keeps no copy now: {error}"));
        }
    }
    Ok(())
}

/// Writes a volume's settings durably, and reads them as an opening will.
pub(super) fn write_settings(path: &Path, settings: &toml::Table) -> Result<()> {
    settings::write(path, settings, |path| {
        let settings = VolumeSettings::load(path)?.with_environment(&|name| std::env::var(name).ok())?;
        settings.data_security(&settings.journal_config()?.security)?;
        Ok(())
    })
}
