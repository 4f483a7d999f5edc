//! Resources of the systems: lenders, a data lender, and a link to another lender.

use netram_proto::journal::CommitRule;
use netram_transport::{MulticastGroup, WaitPolicy};

use super::fio::{self, FioWrites};
use super::system::{LenderNetwork, LndSystem, MODELLED_SYNC_US};
use super::{DEVICE_BYTES, FILE_BYTES};
use crate::device::{BlockDevice, TestFilesystem, is_here};
use crate::error::BenchError;
use crate::namespaces::NamespacePair;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::volume::serve::{DeviceSource, NbdServerProcess, SyncDelays};
use crate::volume::{VolumeDirectory, VolumeRedundancy, free_group};

const LENDERS: usize = 2;
const LINK_MEGABITS: u32 = 1_000;
const SPEC: LenderSpec = LenderSpec {
    wire: SocketKind::Tcp,
    secure: true,
    wait: WaitPolicy::Yield { us: 50 },
    core: None,
};

/// Lenders, and the networks to them.
pub(super) struct LndTestbed<'s> {
    pub(super) site: &'s Testbed,
    lenders: Vec<LenderProcess>,
    /// The multicast group of appends, if multicast works here.
    pub(super) group: Option<MulticastGroup>,
    data: LenderProcess,
    link: Option<LenderLink>,
}

/// A lender beyond a link. It ends before its network.
struct LenderLink {
    lender: LenderProcess,
    network: NamespacePair,
}

impl LenderLink {
    fn new(site: &Testbed) -> Result<LenderLink, BenchError> {
        if let Some(missing) = ["tc", "nsenter"].into_iter().find(|name| !is_here(name)) {
            return Err(BenchError::InvalidRequest(format!("there is no `{missing}`")));
        }
        let network = NamespacePair::new()?;
        network.shape(LINK_MEGABITS)?;
        Ok(LenderLink {
            lender: site.remote_lender(&network, SPEC)?,
            network,
        })
    }
}

impl<'s> LndTestbed<'s> {
    /// Starts what can be started; `skipped` gets the rest, with reasons.
    pub(super) fn new(site: &'s Testbed, skipped: &mut Vec<String>) -> Result<LndTestbed<'s>, BenchError> {
        let group = free_group()?;
        let start = |_| site.multicast_lender(SPEC, &group);
        let (lenders, group) = match (0..LENDERS).map(start).collect() {
            Ok(lenders) => (lenders, Some(group)),
            Err(_) => {
                skipped.push("volumes over multicast: loopback does not carry it here".to_owned());
                let lenders: Result<Vec<LenderProcess>, BenchError> =
                    (0..LENDERS).map(|_| site.lender(SPEC)).collect();
                (lenders?, None)
            }
        };
        let link = LenderLink::new(site).map_err(|error| {
            skipped.push(format!("a volume over a link of {LINK_MEGABITS} Mbit/s: {error}"));
        });
        Ok(LndTestbed {
            site,
            lenders,
            group,
            data: site.data_lender_at(
                SPEC,
                &site.listen(SocketKind::Tcp),
                &site.directory().join("kept"),
            )?,
            link: link.ok(),
        })
    }

    /// All systems that are possible here.
    pub(super) fn devices(&self) -> Vec<LndSystem> {
        let can = |system: &LndSystem| match system.network() {
            Some(LenderNetwork::Multicast) => self.group.is_some(),
            Some(LenderNetwork::Link) => self.link.is_some(),
            Some(LenderNetwork::Tcp) | None => true,
        };
        LndSystem::DEVICES.into_iter().filter(can).collect()
    }

    /// Holders of the writes of such a volume.
    pub(super) fn holders(&self, system: LndSystem, stage_bytes: Option<u64>) -> VolumeRedundancy {
        let rule = |all| Some(if all { CommitRule::All } else { CommitRule::Any });
        let (rule, network, twice) = match system {
            LndSystem::Disk | LndSystem::Modelled => return VolumeRedundancy::default(),
            LndSystem::Volume(kept) => (rule(kept.all), kept.network, kept.twice),
            LndSystem::InProgram => (rule(false), LenderNetwork::Tcp, false),
        };
        let link = self.link.as_ref().filter(|_| network == LenderNetwork::Link);
        let lenders = link.map_or(&self.lenders[..], |link| std::slice::from_ref(&link.lender));
        VolumeRedundancy {
            lenders: lenders.iter().map(|one| one.address().clone()).collect(),
            rule,
            group: self.group.clone().filter(|_| network == LenderNetwork::Multicast),
            data_lender: twice.then(|| self.data.address().clone()),
            stage_bytes,
            ..VolumeRedundancy::default()
        }
    }

    /// A new system of this kind, with a file system on it if wanted.
    pub(super) fn target(
        &self,
        system: LndSystem,
        file_system: Option<&str>,
    ) -> Result<LndTarget, BenchError> {
        let (way, place) = self.write_method(system)?;
        let mounted = match (file_system, &way) {
            (Some(kind), WriteMethod::Device(device)) => {
                Some(TestFilesystem::new(self.site, device.path(), kind)?)
            }
            _ => None,
        };
        Ok(LndTarget {
            system,
            mounted,
            method: way,
            _place: place,
        })
    }

    fn write_method(&self, system: LndSystem) -> Result<(WriteMethod, Option<VolumeDirectory>), BenchError> {
        let site = self.site;
        let network = match system {
            LndSystem::Disk => {
                return Ok((
                    WriteMethod::Device(BlockDevice::of_disk(site, DEVICE_BYTES)?),
                    None,
                ));
            }
            LndSystem::Modelled => {
                let device = BlockDevice::of_modelled_disk(site, DEVICE_BYTES, MODELLED_SYNC_US)?;
                return Ok((WriteMethod::Device(device), None));
            }
            LndSystem::InProgram => LenderNetwork::Tcp,
            LndSystem::Volume(kept) => kept.network,
        };
        let place = VolumeDirectory::new(site, DEVICE_BYTES, &self.holders(system, None))?;
        let link = self.link.as_ref().filter(|_| network == LenderNetwork::Link);
        let syncs = if link.is_some() { MODELLED_SYNC_US } else { 0 };
        let slow = SyncDelays {
            journal_us: syncs,
            files_us: syncs,
        };
        let what = DeviceSource::Volume(place.path().to_owned(), slow);
        let way = match system {
            LndSystem::InProgram => {
                WriteMethod::Program(Box::new(NbdServerProcess::start(site, what, None)?))
            }
            _ => WriteMethod::Device(BlockDevice::of_volume(
                site,
                place.path(),
                what,
                link.map(|link| &link.network),
            )?),
        };
        Ok((way, Some(place)))
    }
}

/// Ways to write to a system.
enum WriteMethod {
    Device(BlockDevice),
    Program(Box<NbdServerProcess>),
}

/// A system under measurement. Fields drop in this order.
pub(super) struct LndTarget {
    pub(super) system: LndSystem,
    pub(super) mounted: Option<TestFilesystem>,
    method: WriteMethod,
    _place: Option<VolumeDirectory>,
}

impl LndTarget {
    /// Writes blocks one after the other, each synced, for `time`: to a file, or to the bare device.
    pub(super) fn write(
        &mut self,
        site: &Testbed,
        block: u64,
        time: std::time::Duration,
    ) -> Result<FioWrites, BenchError> {
        match (&mut self.method, &self.mounted) {
            (WriteMethod::Program(served), _) => {
                let taken = served.client.write_for(time, block as usize, FILE_BYTES, false)?;
                Ok(FioWrites::of(&taken, block))
            }
            (WriteMethod::Device(_), Some(mounted)) => {
                fio::write(site, &mounted.file(FILE_BYTES)?, block, time)
            }
            (WriteMethod::Device(device), None) => fio::write(site, device.path(), block, time),
        }
    }

    /// Unmounts the system, and waits until everything is written.
    pub(super) fn end(self) -> Result<(), BenchError> {
        if let Some(mounted) = self.mounted {
            mounted.unmount()?;
        }
        match self.method {
            WriteMethod::Device(device) => device.release(),
            WriteMethod::Program(_) => Ok(()),
        }
    }
}
