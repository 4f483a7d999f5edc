//! Disk quota for all copies of a data lender.
//!
//! Each copy counts with its full size: image, checksums and log. Images are sparse and use less until they
//! are written. But the data lender cannot control when a volume is written. A quota on present use would
//! admit more copies than the disk can hold, and all of them would fail together when it is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use netram_block::BLOCK_BYTES;
use netram_clients::{ClientAccount, OverLimit};
use netram_lender::CopiesReport;
use netram_proto::id::Lsn;
use netram_proto::wire::{ClientResource, FrameHeader, RefusalReason};

use super::failure::refusal;
use super::header_file::ReplicaHeaderFile;
use super::replica_host::lock;
use crate::paths::VolumePaths;

/// Copies may take one part in this many of their disk by default. The rest is for others who write there.
const QUOTA_PART: u64 = 2;
/// The file in a copy's directory with the name of the client that it is kept for.
const PAYER: &str = "client";
/// Bytes of one checksum.
const SUM_BYTES: u64 = 4;

/// Failure to admit a copy that needs more than the quota has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a copy of {asked} bytes would exceed the quota of {quota} bytes for all copies: raise --data-quota, or remove unneeded copies"
)]
pub(super) struct OverQuota {
    asked: u64,
    quota: u64,
}

/// Why a copy is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuotaRefusal {
    #[error("{0}")]
    All(#[from] OverQuota),
    /// The client may not have so many bytes of copies.
    #[error("{0}")]
    Client(#[from] OverLimit),
}

impl QuotaRefusal {
    pub(super) fn refusal(&self) -> FrameHeader {
        match self {
            QuotaRefusal::All(over) => over.refusal(),
            QuotaRefusal::Client(over) => FrameHeader {
                stable: Lsn(over.limit),
                ..refusal(RefusalReason::OverClientLimit, over.resource as u64)
            },
        }
    }
}

impl OverQuota {
    fn refusal(&self) -> FrameHeader {
        FrameHeader {
            stable: Lsn(self.quota),
            ..refusal(RefusalReason::OverQuota, self.asked)
        }
    }
}

/// The quota, and the directory that it limits.
pub(super) struct Quota {
    pub(super) directory: PathBuf,
    bytes: Option<u64>,
    /// Held while a copy is created or grows, so that two at once do not take the same room.
    taking: Mutex<()>,
}

/// Bytes that a copy uses on disk.
#[derive(Clone, Copy, Default)]
pub(super) struct CopyUsage {
    /// Bytes at full size.
    pub(super) promised: u64,
    /// Bytes used now.
    pub(super) taken: u64,
}

impl Quota {
    pub(super) fn new(directory: PathBuf, bytes: Option<u64>) -> Quota {
        Quota {
            directory,
            bytes,
            taking: Mutex::default(),
        }
    }

    /// Runs `take`, which creates or enlarges the copy at `root` for a client, unless a volume of `bytes`
    /// with a log of `log_bytes` would exceed the quota of all copies, or that of the client's.
    pub(super) fn admit<T>(
        &self,
        root: &Path,
        (bytes, log_bytes): (u64, u64),
        client: Option<&ClientAccount>,
        take: impl FnOnce() -> T,
    ) -> Result<T, QuotaRefusal> {
        let quota = self.bytes.unwrap_or(u64::MAX);
        let limit = client.map_or(u64::MAX, |client| client.limit(ClientResource::Data));
        if (quota, limit) == (u64::MAX, u64::MAX) {
            return Ok(take());
        }
        let _alone = lock(&self.taking);
        let asked = promise(bytes, log_bytes);
        let (mut all, mut own) = (asked, asked);
        for copy in self.copies().into_iter().filter(|copy| copy != root) {
            let promised = usage(&copy).promised;
            all = all.saturating_add(promised);
            if client.is_some_and(|client| payer(&copy) == client.name()) {
                own = own.saturating_add(promised);
            }
        }
        match client {
            _ if all > quota => Err(OverQuota { asked, quota }.into()),
            Some(client) if own > limit => Err(client.over(ClientResource::Data, own).into()),
            _ => Ok(take()),
        }
    }

    /// Directories of all copies. The leftovers of an interrupted creation have another kind of name and do
    /// not count.
    pub(super) fn copies(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return Vec::new();
        };
        let mut copies: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_named(path) && ReplicaHeaderFile::path(path).exists())
            .collect();
        copies.sort();
        copies
    }

    /// Use of the quota, for the lender's status.
    pub(super) fn report(&self) -> CopiesReport {
        let mut report = CopiesReport {
            quota: self.bytes,
            ..CopiesReport::default()
        };
        for copy in self.copies() {
            let usage = usage(&copy);
            report.copies += 1;
            report.promised_bytes = report.promised_bytes.saturating_add(usage.promised);
            report.taken_bytes = report.taken_bytes.saturating_add(usage.taken);
            let own = report.by_client.entry(payer(&copy)).or_default();
            *own = own.saturating_add(usage.promised);
        }
        report
    }
}

/// The quota for copies in `directory` that nobody has chosen one for: half of its disk. `None` if the disk
/// does not say how large it is.
pub fn usual_quota(directory: &Path) -> Option<u64> {
    // The directory may not exist yet.
    let there = directory.ancestors().find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(there).ok()?;
    let bytes = disk.f_blocks.checked_mul(disk.f_frsize)?;
    (bytes > 0).then_some(bytes / QUOTA_PART)
}

/// Name of the client that a copy is kept for; empty without named clients.
pub(super) fn payer(root: &Path) -> String {
    let name = fs::read_to_string(root.join(PAYER)).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Notes the client that a copy is kept for. If the disk refuses, the copy counts for none.
pub(super) fn note_payer(root: &Path, client: &ClientAccount) {
    if client.name().is_empty() || payer(root) == client.name() {
        return;
    }
    if let Err(error) = fs::write(root.join(PAYER), format!("{}\n", client.name())) {
        tracing::warn!(replica = %root.display(), %error, "cannot note which client a copy is kept for");
    }
}

fn is_named(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.len() == 32 && u128::from_str_radix(name, 16).is_ok())
}

/// Maximum bytes of a volume of `bytes` with a log of `log_bytes`, except for its small files.
fn promise(bytes: u64, log_bytes: u64) -> u64 {
    let sums = bytes / BLOCK_BYTES * SUM_BYTES;
    bytes.saturating_add(sums).saturating_add(log_bytes)
}

/// Bytes that a copy uses, taken from the lengths of its files, so that damaged copies count too.
pub(super) fn usage(root: &Path) -> CopyUsage {
    use std::os::unix::fs::MetadataExt;
    const UNIT: u64 = 512;
    let place = VolumePaths::at(root);
    let mut usage = CopyUsage::default();
    for file in [place.image(), place.sums(), place.journal().join("log")] {
        if let Ok(found) = fs::metadata(file) {
            usage.promised = usage.promised.saturating_add(found.len());
            usage.taken = usage.taken.saturating_add(found.blocks() * UNIT);
        }
    }
    usage
}
