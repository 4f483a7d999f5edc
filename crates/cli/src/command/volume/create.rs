//! `netram disk create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::forget::WindowRelease;
use netram_transport::NetAddress;
use netram_transport::multicast::MulticastGroup;
use netram_volume::{Volume, VolumePaths, VolumeSettings};
use serde_json::json;

use crate::options::SizeArg;
use crate::output;
use crate::settings::{self, LenderArgs, key_path, put};

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
pub struct CreateVolume {
    /// The new directory
    volume: PathBuf,
    /// Bytes of the device, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: SizeArg,
    /// Bytes of the journal: what may be written before the image has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(netram_volume::JOURNAL_BYTES_DEFAULT))]
    journal_size: SizeArg,
    #[command(flatten)]
    lenders: LenderArgs,
    /// The lender that keeps a copy of the volume on its own disk (`netram lend --data`)
    #[arg(long, value_name = "ADDRESS")]
    data_lender: Option<NetAddress>,
    /// The key of its data sessions, if it has one (`netram lend --data-key-file`); otherwise the cluster key
    #[arg(long, value_name = "FILE", requires = "data_lender")]
    data_lender_key_file: Option<PathBuf>,
    /// Send writes once for all lenders, to this multicast group: 239.1.2.3:7421%eth1. Every lender must
    /// listen to it
    #[arg(long, value_name = "GROUP")]
    multicast: Option<MulticastGroup>,
    /// Bytes of a datagram to the group, 548 to 61512. Otherwise 1400 on an Ethernet, or what the interface
    /// carries
    #[arg(long, value_name = "BYTES", requires = "multicast")]
    datagram: Option<u16>,
    /// How many networks datagrams may pass through, their own included
    #[arg(long, value_name = "COUNT", requires = "multicast")]
    ttl: Option<u8>,
    /// What a flush waits for: remote (as many lenders as the rule wants, or the disk) or disk
    #[arg(long, value_name = "WHERE", value_parser = ["remote", "disk"])]
    flush: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.settings()?;
        let what = || format!("making {}", self.volume.display());
        let id = Volume::create(&self.volume, self.size.0, self.journal_size.0).with_context(what)?;
        let place = VolumePaths::at(&self.volume);
        if let Err(error) = write_settings(&place.settings_file(), &settings) {
            // Nobody can have written to it yet.
            Volume::delete(&self.volume, WindowRelease::Logged).with_context(what)?;
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
        let mut table = self.lenders.table()?;
        put(&mut table, "key-file", self.lenders.key()?);
        let data_lender = self.data_lender.as_ref().map(|one| one.to_string());
        put(&mut table, "data-lender", data_lender);
        let key = self.data_lender_key_file.as_deref().map(key_path).transpose()?;
        put(&mut table, "data-lender-key-file", key);
        let multicast = self.multicast.as_ref().map(|group| group.to_string());
        put(&mut table, "multicast", multicast);
        put(&mut table, "datagram", self.datagram.map(i64::from));
        put(&mut table, "ttl", self.ttl.map(i64::from));
        put(&mut table, "flush", self.flush.clone());
        Ok(table)
    }
}

/// Writes a volume's settings durably, and reads them as an opening will.
pub(super) fn write_settings(path: &Path, settings: &toml::Table) -> Result<()> {
    settings::write(path, settings, |path| {
        let settings = VolumeSettings::load(path)?;
        settings.data_security(&settings.journal_config()?.security)?;
        Ok(())
    })
}
