//! A volume under measurement: served over NBD by its own process, beside servers of the same bytes without
//! netram.
//!
//! | module | contents |
//! |---|---|
//! | [`nbd`] | a small NBD client with a given number of writes in flight |
//! | [`serve`] | the serving process: memory, a plain file, or a volume |
//! | [`flood`] | a process that writes to a volume as fast as possible, and reads its own memory use |
//! | [`sink`] | throughput of the bare link |

pub mod flood;
pub mod nbd;
pub mod serve;
pub mod sink;

use std::path::{Path, PathBuf};

use netram_proto::journal::CommitRule;
use netram_transport::{MulticastGroup, NetAddress};
use netram_volume::Volume;

use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Loopback carries multicast if the interface is named.
const GROUP_HOST: &str = "239.190.4.1";
const GROUP_INTERFACE: &str = "lo";

/// Size in bytes of a measured volume's journal: some stages.
const JOURNAL_BYTES: u64 = 256 << 20;

/// Holders of a volume's newest writes.
#[derive(Clone, Debug, Default)]
pub struct VolumeRedundancy {
    /// The lenders, all of them members. With none, writes wait for the local disk.
    pub lenders: Vec<NetAddress>,
    /// Number of members at a time; `None` for all.
    pub members: Option<usize>,
    /// Commit rule; `None` for the default.
    pub rule: Option<CommitRule>,
    /// Multicast group of appends; `None` if each lender gets them over its own link.
    pub group: Option<MulticastGroup>,
    /// Data lender that keeps a replica on its own disk.
    pub data_lender: Option<NetAddress>,
    /// Bytes after which a stage ends; `None` for the default.
    pub stage_bytes: Option<u64>,
    /// Bytes that may be in lenders' memory only; `None` for the default.
    pub window_bytes: Option<u64>,
}

/// A volume's directory, removed when dropped. Processes that have it open must have ended before.
#[derive(Debug)]
pub struct VolumeDirectory(PathBuf);

impl VolumeDirectory {
    /// Creates a volume of `bytes` zeros at `site`.
    ///
    /// # Errors
    ///
    /// Fails if `netram volume create` does.
    pub fn new(
        site: &Testbed,
        bytes: u64,
        holders: &VolumeRedundancy,
    ) -> Result<VolumeDirectory, BenchError> {
        let path = site.directory().join(format!("volume-{}", site.number()));
        Volume::create(&path, bytes, JOURNAL_BYTES).context("make a volume")?;
        let place = VolumeDirectory(path);
        place.configure(site, holders)?;
        Ok(place)
    }

    /// Sets the holders of its writes from the next opening on.
    ///
    /// # Errors
    ///
    /// Fails if the settings cannot be written.
    pub fn configure(&self, site: &Testbed, holders: &VolumeRedundancy) -> Result<(), BenchError> {
        let (mut table, mut own) = (toml::Table::new(), toml::Table::new());
        if !holders.lenders.is_empty() {
            let names = holders.lenders.iter().map(|one| one.to_string().into());
            table.insert("lenders".to_owned(), toml::Value::Array(names.collect()));
            let members = holders.members.unwrap_or(holders.lenders.len());
            table.insert("members".to_owned(), (members as i64).into());
            let key = site.key_file().display().to_string();
            table.insert("key-file".to_owned(), key.into());
            // All processes are on this machine, whatever their domain labels say.
            table.insert("one-domain".to_owned(), true.into());
            table.insert("domain".to_owned(), "bench".into());
        }
        if let Some(address) = &holders.data_lender {
            own.insert("data-lender".to_owned(), address.to_string().into());
        }
        if let Some(rule) = holders.rule {
            table.insert("rule".to_owned(), rule.to_string().into());
        }
        if let Some(group) = &holders.group {
            table.insert("multicast".to_owned(), group.to_string().into());
        }
        if let Some(bytes) = holders.stage_bytes {
            own.insert("stage".to_owned(), (bytes as i64).into());
        }
        if let Some(bytes) = holders.window_bytes {
            table.insert("window".to_owned(), (bytes as i64).into());
        }
        let owners =
            [("journal", table), ("volume", own)].map(|(owner, table)| (owner.to_owned(), table.into()));
        let file: toml::Table = owners.into_iter().collect();
        let text = toml::to_string(&file).context("write a volume's settings")?;
        let file = netram_volume::VolumePaths::at(&self.0).settings_file();
        std::fs::write(&file, text).context(format_args!("write {}", file.display()))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for VolumeDirectory {
    fn drop(&mut self) {
        // The site's removal takes whatever remains.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A multicast group that no other process on this machine uses.
pub(crate) fn free_group() -> Result<MulticastGroup, BenchError> {
    let free = std::net::UdpSocket::bind(("0.0.0.0", 0)).context("find a free port")?;
    let port = free.local_addr().context("find a free port")?.port();
    let text = format!("{GROUP_HOST}:{port}%{GROUP_INTERFACE}");
    text.parse().context("name a multicast group")
}
