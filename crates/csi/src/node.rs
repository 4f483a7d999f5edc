//! What a machine does with its volumes: attach, mount, show to a pod or container, and back.
//!
//! Nothing of it is remembered here. Each step looks at what there is, in netram's records of attachments and
//! in the kernel's table of mounts, and does what is missing. So it can be repeated, and a driver that was
//! killed goes on where it was.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::file_system::{self, KIND_DEFAULT, KINDS};
use crate::metrics::DriverMetrics;
use crate::mount_table::{self, TableMount};
use crate::pending::PendingRequests;
use crate::refusal::{VolumeRefusal, failed};
use crate::volume_id::VolumeId;
use crate::volumes::{SizeRange, VolumeDirectory};
use netram_telemetry::MetricsRegistration;

/// How a volume is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeUse {
    /// As a block device.
    Block,
    /// By its file system.
    Mount {
        /// The file system; `None`: as asked for at the creation, or ext4.
        kind: Option<String>,
        /// Options of its mount.
        options: Vec<String>,
    },
}

/// How a volume is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishMode {
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether there may be no second publication.
    pub alone: bool,
}

/// Space of a published volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeSpace {
    /// Bytes of a block device.
    Block(u64),
    /// Space of a file system: all, used and free.
    FileSystem {
        /// In bytes.
        bytes: [u64; 3],
        /// In inodes.
        inodes: [u64; 3],
    },
}

/// The volumes of this machine, and where they are used.
#[derive(Clone, Debug)]
pub(crate) struct VolumeNode {
    /// The volumes.
    pub volumes: VolumeDirectory,
    /// The volumes that requests work on.
    pub pending: PendingRequests,
    /// Times of requests.
    pub metrics: Arc<MetricsRegistration<DriverMetrics>>,
}

impl VolumeNode {
    /// Attaches a volume, makes its file system if it has none yet, and mounts it at `staging`.
    pub(crate) fn stage(
        &self,
        id: &VolumeId,
        staging: &Path,
        usage: &VolumeUse,
    ) -> Result<(), VolumeRefusal> {
        let _alone = self.pending.enter(id)?;
        let device = self.volumes.attach(id)?;
        let VolumeUse::Mount { kind, options } = usage else {
            return Ok(());
        };
        let host = &self.volumes.host;
        match mount_table::at(&file_system::table(host)?, staging) {
            Some(there) if mount_table::shows(there, &device) => return Ok(()),
            // The volume's device before its server gave up, or before it was detached by force.
            Some(_) => file_system::unmount(host, staging)?,
            None => (),
        }
        let kind = self.file_system(id, &device, kind.as_deref())?;
        file_system::mount(host, &device, (&kind, options), staging)
    }

    /// Returns the kind of the volume's file system, which is made if it never had one.
    fn file_system(&self, id: &VolumeId, device: &Path, kind: Option<&str>) -> Result<String, VolumeRefusal> {
        let mut record = self.volumes.records.read(id)?.unwrap_or_default();
        let of_class = record.parameters.get(crate::class::FILE_SYSTEM).cloned();
        let wanted = kind.map(str::to_owned).or(of_class);
        let host = &self.volumes.host;
        let found = file_system::found_on(host, device)?;
        match (found, &wanted, &record.file_system) {
            (Some(found), Some(wanted), _) if found != *wanted => Err(VolumeRefusal::Invalid(format!(
                "volume {id} has the file system {found}, and {wanted} was asked for"
            ))),
            (Some(found), _, made) => {
                // A driver that was killed after it had made the file system did not record it.
                if made.is_none() {
                    record.file_system = Some(found.clone());
                    self.volumes.records.write(id, &record)?;
                }
                Ok(found)
            }
            (None, _, Some(made)) => Err(VolumeRefusal::Precondition(format!(
                "volume {id} had the file system {made}, and none is found on {} now. No other is made: look with \
                 `netram volume check` and fsck what happened to it",
                device.display()
            ))),
            (None, wanted, None) => {
                let kind = wanted.as_deref().unwrap_or(KIND_DEFAULT);
                check_kind(kind)?;
                file_system::make(host, device, kind)?;
                record.file_system = Some(kind.to_owned());
                self.volumes.records.write(id, &record)?;
                Ok(kind.to_owned())
            }
        }
    }

    /// Unmounts a volume from `staging`, and detaches it.
    pub(crate) fn unstage(&self, id: &VolumeId, staging: &Path) -> Result<(), VolumeRefusal> {
        let _alone = self.pending.enter(id)?;
        let host = &self.volumes.host;
        let state = match self.volumes.state(id) {
            Err(VolumeRefusal::NotFound(_)) => None,
            state => Some(state?),
        };
        if let Some(device) = state.as_ref().and_then(|state| state.device()) {
            let elsewhere = self
                .shown(device)?
                .into_iter()
                .find(|mount| mount.target != staging);
            if let Some(mount) = elsewhere {
                return Err(VolumeRefusal::Precondition(format!(
                    "volume {id} is still published at {}: unpublish it there first",
                    mount.target.display()
                )));
            }
        }
        file_system::unmount(host, staging)?;
        match state {
            Some(_) => self.volumes.detach(id),
            None => Ok(()),
        }
    }

    /// Shows a staged volume at `target`, for a pod or a container.
    pub(crate) fn publish(
        &self,
        id: &VolumeId,
        (staging, target): (&Path, &Path),
        usage: &VolumeUse,
        mode: PublishMode,
    ) -> Result<(), VolumeRefusal> {
        let _alone = self.pending.enter(id)?;
        let (host, device) = (&self.volumes.host, self.device(id)?);
        let table = file_system::table(host)?;
        if let Some(there) = mount_table::at(&table, target) {
            return match (
                mount_table::shows(there, &device),
                there.read_only,
                mode.read_only,
            ) {
                (true, false, true) => file_system::make_read_only(host, target),
                (true, is, wanted) if is == wanted => Ok(()),
                _ => Err(VolumeRefusal::Exists(format!(
                    "something else, or volume {id} in another way, is mounted at {}: unpublish that first",
                    target.display()
                ))),
            };
        }
        let shown = self.shown(&device)?;
        let other = shown
            .iter()
            .find(|mount| mount.target != staging && mount.target != target);
        if let (true, Some(other)) = (mode.alone, other) {
            return Err(VolumeRefusal::Precondition(format!(
                "volume {id} is for one publication at a time, and is published at {}",
                other.target.display()
            )));
        }
        let source = match usage {
            VolumeUse::Block => {
                file_system::make_file(&host.reach(target))?;
                device.as_path()
            }
            VolumeUse::Mount { .. } => {
                if !mount_table::at(&table, staging).is_some_and(|there| mount_table::shows(there, &device)) {
                    return Err(VolumeRefusal::Precondition(format!(
                        "volume {id} is not mounted at {}: stage it there first",
                        staging.display()
                    )));
                }
                file_system::make_directory(&host.reach(target))?;
                staging
            }
        };
        file_system::bind(host, source, target, mode.read_only)
    }

    /// Ends what [`publish`](VolumeNode::publish) did, and removes `target`.
    pub(crate) fn unpublish(&self, id: &VolumeId, target: &Path) -> Result<(), VolumeRefusal> {
        let _alone = self.pending.enter(id)?;
        let host = &self.volumes.host;
        file_system::unmount(host, target)?;
        file_system::remove_target(&host.reach(target))
    }

    /// Enlarges a volume and the file system on it. Returns its bytes.
    pub(crate) fn expand(&self, id: &VolumeId, path: &Path, size: SizeRange) -> Result<u64, VolumeRefusal> {
        let _alone = self.pending.enter(id)?;
        let device = self.device(id)?;
        let place = self.place(id, &device, path)?;
        let bytes = self.volumes.grow(id, size)?;
        if !mount_table::is_node(&place, &device) {
            file_system::grow(&self.volumes.host, &device, &place)?;
        }
        Ok(bytes)
    }

    /// Returns the space of a volume that is mounted or published at `path`.
    pub(crate) fn space(&self, id: &VolumeId, path: &Path) -> Result<VolumeSpace, VolumeRefusal> {
        let device = self.device(id)?;
        let place = self.place(id, &device, path)?;
        if mount_table::is_node(&place, &device) {
            return Ok(VolumeSpace::Block(
                self.volumes.state(id)?.bytes.unwrap_or_default(),
            ));
        }
        let reached = self.volumes.host.reach(path);
        let found = rustix::fs::statvfs(&reached).map_err(|error| failed(path)(error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(VolumeSpace::FileSystem {
            bytes: [
                bytes(found.f_blocks),
                bytes(found.f_blocks.saturating_sub(found.f_bfree)),
                bytes(found.f_bavail),
            ],
            inodes: [
                found.f_files,
                found.f_files.saturating_sub(found.f_ffree),
                found.f_favail,
            ],
        })
    }

    /// Returns where a volume is mounted and published.
    pub(crate) fn shown(&self, device: &Path) -> Result<Vec<TableMount>, VolumeRefusal> {
        let table = file_system::table(&self.volumes.host)?;
        Ok(table
            .into_iter()
            .filter(|mount| mount_table::shows(mount, device))
            .collect())
    }

    fn device(&self, id: &VolumeId) -> Result<PathBuf, VolumeRefusal> {
        let state = self.volumes.state(id)?;
        let device = state.device().map(Path::to_path_buf);
        device.ok_or_else(|| {
            VolumeRefusal::Precondition(format!("volume {id} is not attached: stage it first"))
        })
    }

    /// Returns the mount of the volume at `path`.
    fn place(&self, id: &VolumeId, device: &Path, path: &Path) -> Result<TableMount, VolumeRefusal> {
        let table = file_system::table(&self.volumes.host)?;
        if let Some(there) = mount_table::at(&table, path)
            && mount_table::shows(there, device)
        {
            return Ok(there.clone());
        }
        Err(VolumeRefusal::NotFound(format!("{id} at {}", path.display())))
    }
}

/// Refuses a file system that cannot be made.
pub(crate) fn check_kind(kind: &str) -> Result<(), VolumeRefusal> {
    match KINDS.contains(&kind) {
        true => Ok(()),
        false => Err(VolumeRefusal::Invalid(format!(
            "no file system {kind} can be made on a volume: use {}",
            KINDS.join(", ")
        ))),
    }
}
