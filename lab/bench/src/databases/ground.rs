//! Where a database is put: on the disk as it is, with its log on a mount, or on a volume.

use std::fs;
use std::path::{Path, PathBuf};

use netram_proto::journal::CommitRule;
use netram_transport::WaitPolicy;

use super::kinds::{Disk, Storage};
use crate::error::{BenchError, Context};
use crate::lnd::device::{self, Attachment};
use crate::mounted::Mount;
use crate::site::{Lender, LenderSpec, Site, Wire};
use crate::slow_disk::SlowDisk;
use crate::tool::tool;
use crate::volume::serve::{Slow, What};
use crate::volume::{Holders, Place};

/// Bytes of a volume.
const VOLUME_BYTES: u64 = 768 << 20;

/// What all of them stand on.
pub(super) struct World<'s> {
    pub(super) site: &'s Site,
    pub(super) lender: Lender,
    slow: Option<SlowDisk>,
}

impl<'s> World<'s> {
    /// Starts the lender; `slow`: a slower disk will be asked for.
    pub(super) fn new(site: &'s Site, wait: WaitPolicy, slow: bool) -> Result<World<'s>, BenchError> {
        let spec = LenderSpec {
            wire: Wire::Tcp,
            secure: true,
            wait,
            core: None,
        };
        Ok(World {
            site,
            lender: site.lender(spec)?,
            slow: slow.then(|| SlowDisk::make(site.folder())).transpose()?,
        })
    }
}

/// A place for one database.
pub(super) struct Ground {
    folder: PathBuf,
    mount: Option<Mount>,
    volume: Option<OnVolume>,
    environment: Vec<(String, String)>,
}

/// Fields go in this order.
struct OnVolume {
    mounted: device::Mounted,
    attachment: Attachment,
    _place: Place,
}

impl Ground {
    /// Makes one; what is neither on a mount nor on a volume is plain.
    pub(super) fn new(world: &World<'_>, storage: Storage, disk: Disk) -> Result<Ground, BenchError> {
        let site = world.site;
        let folder = site.folder().join(format!("database-{}", site.number()));
        fs::create_dir(&folder).context("make a folder for a database")?;
        let mut ground = Ground {
            environment: environment(world, &folder, disk)?,
            folder,
            mount: None,
            volume: None,
        };
        match storage {
            Storage::Mount => {
                let mount = Mount::begin(site, world.lender.address(), disk.slower_us())?;
                ground.mount = Some(mount);
            }
            Storage::Disk => ground.volume = Some(volume(world, disk)?),
            Storage::Plain | Storage::Vfs | Storage::RemoteWrite | Storage::Off => (),
        }
        Ok(ground)
    }

    /// Where its data goes.
    pub(super) fn data(&self) -> &Path {
        match &self.volume {
            Some(volume) => volume.mounted.path(),
            None => &self.folder,
        }
    }

    /// Where its log goes, if it goes elsewhere.
    pub(super) fn log(&self) -> Option<&Path> {
        self.mount.as_ref().map(Mount::dir)
    }

    /// Where all of it goes, when there is but one folder.
    pub(super) fn all(&self) -> &Path {
        self.log().unwrap_or(self.data())
    }

    /// What its program is started with, so that it finds the disk as slow as wanted.
    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Takes it away, once nobody uses it any more.
    pub(super) fn end(self) -> Result<(), BenchError> {
        if let Some(mount) = self.mount {
            mount.end()?;
        }
        if let Some(volume) = self.volume {
            volume.mounted.unmount()?;
            volume.attachment.release()?;
        }
        fs::remove_dir_all(&self.folder).context("remove a database's folder")
    }
}

fn environment(world: &World<'_>, folder: &Path, disk: Disk) -> Result<Vec<(String, String)>, BenchError> {
    let slow = match (&world.slow, disk) {
        (Some(slow), Disk::Modelled) => slow,
        _ => return Ok(Vec::new()),
    };
    let named = slow.environment(folder, disk.slower_us())?;
    Ok(named.map(|(name, value)| (name.to_owned(), value)).into())
}

fn volume(world: &World<'_>, disk: Disk) -> Result<OnVolume, BenchError> {
    let holders = Holders {
        lenders: vec![world.lender.address().clone()],
        rule: Some(CommitRule::Any),
        ..Holders::default()
    };
    let place = Place::new(world.site, VOLUME_BYTES, &holders)?;
    let slow = Slow {
        journal_us: disk.slower_us(),
        files_us: disk.slower_us(),
    };
    let what = What::Volume(place.path().to_owned(), slow);
    let attachment = Attachment::of_volume(world.site, place.path(), what, None)?;
    Ok(OnVolume {
        mounted: device::Mounted::new(world.site, attachment.path(), "ext4")?,
        attachment,
        _place: place,
    })
}

/// Moves what is in a folder into another, which may be on another file system.
pub(super) fn move_contents(from: &Path, to: &Path) -> Result<(), BenchError> {
    let inside = format!("{}/.", from.display());
    tool("cp", &["-a", &inside, &to.to_string_lossy()])?;
    fs::remove_dir_all(from).context(format_args!("remove {}", from.display()))
}
