//! Place of a database's files: on the local disk, with the log on a mount, or on a volume.

use std::fs;
use std::path::{Path, PathBuf};

use netram_proto::journal::CommitRule;
use netram_transport::WaitPolicy;

use super::kinds::{DatabaseDisk, DatabaseKind, DatabaseStorage};
use crate::bench_mount::BenchMount;
use crate::device::{self, BlockDevice};
use crate::error::{BenchError, ErrorContext};
use crate::slow_disk::SlowDisk;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::tool;
use crate::volume::serve::{DeviceSource, SyncDelays};
use crate::volume::{VolumeDirectory, VolumeRedundancy};

/// Size of a volume in bytes.
const VOLUME_BYTES: u64 = 768 << 20;

/// Resources that all databases share: lender, key, slow disk.
pub(super) struct DatabaseTestbed<'s> {
    pub(super) site: &'s Testbed,
    pub(super) lender: LenderProcess,
    slow: Option<SlowDisk>,
}

impl<'s> DatabaseTestbed<'s> {
    /// Starts the lender; `slow` says whether a slower disk will be needed.
    pub(super) fn new(
        site: &'s Testbed,
        wait: WaitPolicy,
        slow: bool,
    ) -> Result<DatabaseTestbed<'s>, BenchError> {
        let spec = LenderSpec {
            wire: SocketKind::Tcp,
            secure: true,
            wait,
            core: None,
        };
        Ok(DatabaseTestbed {
            site,
            lender: site.lender(spec)?,
            slow: slow.then(|| SlowDisk::make(site.directory())).transpose()?,
        })
    }
}

/// Place of one database's files.
pub(super) struct DatabasePlacement {
    directory: PathBuf,
    mount: Option<BenchMount>,
    device: Option<DevicePlacement>,
    environment: Vec<(String, String)>,
}

/// A file system on a device. Fields drop in this order.
struct DevicePlacement {
    mounted: device::TestFilesystem,
    attachment: BlockDevice,
    _volume: Option<VolumeDirectory>,
}

impl DatabasePlacement {
    /// Creates a place for a database; a storage on neither mount nor volume is plain.
    pub(super) fn new(
        world: &DatabaseTestbed<'_>,
        database: DatabaseKind,
        storage: DatabaseStorage,
        disk: DatabaseDisk,
    ) -> Result<DatabasePlacement, BenchError> {
        let site = world.site;
        let directory = site.directory().join(format!("database-{}", site.number()));
        fs::create_dir(&directory).context("make a directory for a database")?;
        let mut ground = DatabasePlacement {
            environment: environment(world, &directory, disk)?,
            directory,
            mount: None,
            device: None,
        };
        match storage {
            DatabaseStorage::Mount => {
                let mount = BenchMount::begin(site, world.lender.address(), disk.slower_us())?;
                ground.mount = Some(mount);
            }
            DatabaseStorage::Disk => ground.device = Some(volume(world, disk)?),
            // Go programs call the kernel themselves, past a preloaded library.
            _ if database.is_service() && disk == DatabaseDisk::Modelled => {
                ground.device = Some(slow_device(world, disk)?);
            }
            DatabaseStorage::Plain
            | DatabaseStorage::Vfs
            | DatabaseStorage::RemoteWrite
            | DatabaseStorage::Off => (),
        }
        Ok(ground)
    }

    /// Directory of the database's data.
    pub(super) fn data(&self) -> &Path {
        match &self.device {
            Some(device) => device.mounted.path(),
            None => &self.directory,
        }
    }

    /// Directory of its log, if it is a separate one.
    pub(super) fn log(&self) -> Option<&Path> {
        self.mount.as_ref().map(BenchMount::dir)
    }

    /// Directory of the whole database, where there is only one.
    pub(super) fn all(&self) -> &Path {
        self.log().unwrap_or(self.data())
    }

    /// Environment variables under which its program finds the disk as slow as wanted.
    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Removes the place, once no process uses it.
    pub(super) fn end(self) -> Result<(), BenchError> {
        if let Some(mount) = self.mount {
            mount.end()?;
        }
        if let Some(device) = self.device {
            device.mounted.unmount()?;
            device.attachment.release()?;
        }
        fs::remove_dir_all(&self.directory).context("remove a database's directory")
    }
}

fn environment(
    world: &DatabaseTestbed<'_>,
    directory: &Path,
    disk: DatabaseDisk,
) -> Result<Vec<(String, String)>, BenchError> {
    let slow = match (&world.slow, disk) {
        (Some(slow), DatabaseDisk::Modelled) => slow,
        _ => return Ok(Vec::new()),
    };
    let named = slow.environment(directory, disk.slower_us())?;
    Ok(named.map(|(name, value)| (name.to_owned(), value)).into())
}

fn volume(world: &DatabaseTestbed<'_>, disk: DatabaseDisk) -> Result<DevicePlacement, BenchError> {
    let holders = VolumeRedundancy {
        lenders: vec![world.lender.address().clone()],
        rule: Some(CommitRule::Any),
        ..VolumeRedundancy::default()
    };
    let place = VolumeDirectory::new(world.site, VOLUME_BYTES, &holders)?;
    let slow = SyncDelays {
        journal_us: disk.slower_us(),
        files_us: disk.slower_us(),
    };
    let what = DeviceSource::Volume(place.path().to_owned(), slow);
    let attachment = BlockDevice::of_volume(world.site, place.path(), what, None)?;
    Ok(DevicePlacement {
        mounted: device::TestFilesystem::new(world.site, attachment.path(), "ext4")?,
        attachment,
        _volume: Some(place),
    })
}

/// A device on the local disk that takes longer to flush.
fn slow_device(world: &DatabaseTestbed<'_>, disk: DatabaseDisk) -> Result<DevicePlacement, BenchError> {
    let attachment = BlockDevice::of_modelled_disk(world.site, VOLUME_BYTES, disk.slower_us())?;
    Ok(DevicePlacement {
        mounted: device::TestFilesystem::new(world.site, attachment.path(), "ext4")?,
        attachment,
        _volume: None,
    })
}

/// Moves the contents of a directory into another one, possibly on another file system.
pub(super) fn move_contents(from: &Path, to: &Path) -> Result<(), BenchError> {
    let inside = format!("{}/.", from.display());
    tool("cp", &["-a", &inside, &to.to_string_lossy()])?;
    fs::remove_dir_all(from).context(format_args!("remove {}", from.display()))
}
