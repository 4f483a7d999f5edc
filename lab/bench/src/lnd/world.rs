//! What the systems stand on: lenders, a data lender, a link to a lender beyond it.

use netram_proto::journal::CommitRule;
use netram_transport::{Group, WaitPolicy};

use super::device::{Attachment, Mounted, is_here};
use super::fio::{self, Written};
use super::system::{MODELLED_SYNC_US, Network, System};
use super::{DEVICE_BYTES, FILE_BYTES};
use crate::error::BenchError;
use crate::namespaces::Namespaces;
use crate::site::{Lender, LenderSpec, Site, Wire};
use crate::volume::serve::{Served, Slow, What};
use crate::volume::{Holders, Place, free_group};

const LENDERS: usize = 2;
const LINK_MEGABITS: u32 = 1_000;
const SPEC: LenderSpec = LenderSpec {
    wire: Wire::Tcp,
    secure: true,
    wait: WaitPolicy::Yield { us: 50 },
    core: None,
};

/// Lenders, and the networks to them.
pub(super) struct World<'s> {
    pub(super) site: &'s Site,
    lenders: Vec<Lender>,
    /// Where appends are multicast, if that can be done here.
    pub(super) group: Option<Group>,
    data: Lender,
    link: Option<Link>,
}

/// A lender beyond a link. It ends before its network does.
struct Link {
    lender: Lender,
    network: Namespaces,
}

impl Link {
    fn new(site: &Site) -> Result<Link, BenchError> {
        if let Some(missing) = ["tc", "nsenter"].into_iter().find(|name| !is_here(name)) {
            return Err(BenchError::Asked(format!("there is no `{missing}`")));
        }
        let network = Namespaces::new()?;
        network.shape(LINK_MEGABITS)?;
        Ok(Link {
            lender: site.lender_beyond(&network, SPEC)?,
            network,
        })
    }
}

impl<'s> World<'s> {
    /// Starts what can be started; `skipped` is told of the rest.
    pub(super) fn new(site: &'s Site, skipped: &mut Vec<String>) -> Result<World<'s>, BenchError> {
        let group = free_group()?;
        let start = |_| site.lender_of_group(SPEC, &group);
        let (lenders, group) = match (0..LENDERS).map(start).collect() {
            Ok(lenders) => (lenders, Some(group)),
            Err(_) => {
                skipped.push("volumes over multicast: loopback does not carry it here".to_owned());
                let lenders: Result<Vec<Lender>, BenchError> =
                    (0..LENDERS).map(|_| site.lender(SPEC)).collect();
                (lenders?, None)
            }
        };
        let link = Link::new(site).map_err(|error| {
            skipped.push(format!("a volume over a link of {LINK_MEGABITS} Mbit/s: {error}"));
        });
        Ok(World {
            site,
            lenders,
            group,
            data: site.data_lender_at(SPEC, &site.listen(Wire::Tcp), &site.folder().join("kept"))?,
            link: link.ok(),
        })
    }

    /// All that can be had here.
    pub(super) fn devices(&self) -> Vec<System> {
        let can = |system: &System| match system.network() {
            Some(Network::Multicast) => self.group.is_some(),
            Some(Network::Link) => self.link.is_some(),
            Some(Network::Tcp) | None => true,
        };
        System::DEVICES.into_iter().filter(can).collect()
    }

    /// Who holds the writes of a volume of this kind.
    pub(super) fn holders(&self, system: System, stage_bytes: Option<u64>) -> Holders {
        let rule = |all| Some(if all { CommitRule::All } else { CommitRule::Any });
        let (rule, network, twice) = match system {
            System::Disk | System::Modelled => return Holders::default(),
            System::Volume(kept) => (rule(kept.all), kept.network, kept.twice),
            System::InProgram => (rule(false), Network::Tcp, false),
        };
        let link = self.link.as_ref().filter(|_| network == Network::Link);
        let lenders = link.map_or(&self.lenders[..], |link| std::slice::from_ref(&link.lender));
        Holders {
            lenders: lenders.iter().map(|one| one.address().clone()).collect(),
            rule,
            group: self.group.clone().filter(|_| network == Network::Multicast),
            data_lender: twice.then(|| self.data.address().clone()),
            stage_bytes,
            ..Holders::default()
        }
    }

    /// A fresh system of this kind, with a file system on it if wanted.
    pub(super) fn target(&self, system: System, file_system: Option<&str>) -> Result<Target, BenchError> {
        let (way, place) = self.way(system)?;
        let mounted = match (file_system, &way) {
            (Some(kind), Way::Device(device)) => Some(Mounted::new(self.site, device.path(), kind)?),
            _ => None,
        };
        Ok(Target {
            system,
            mounted,
            way,
            _place: place,
        })
    }

    fn way(&self, system: System) -> Result<(Way, Option<Place>), BenchError> {
        let site = self.site;
        let network = match system {
            System::Disk => return Ok((Way::Device(Attachment::of_disk(site, DEVICE_BYTES)?), None)),
            System::Modelled => {
                let device = Attachment::of_modelled_disk(site, DEVICE_BYTES, MODELLED_SYNC_US)?;
                return Ok((Way::Device(device), None));
            }
            System::InProgram => Network::Tcp,
            System::Volume(kept) => kept.network,
        };
        let place = Place::new(site, DEVICE_BYTES, &self.holders(system, None))?;
        let link = self.link.as_ref().filter(|_| network == Network::Link);
        let syncs = if link.is_some() { MODELLED_SYNC_US } else { 0 };
        let slow = Slow {
            journal_us: syncs,
            files_us: syncs,
        };
        let what = What::Volume(place.path().to_owned(), slow);
        let way = match system {
            System::InProgram => Way::Program(Box::new(Served::start(site, what, None)?)),
            _ => Way::Device(Attachment::of_volume(
                site,
                place.path(),
                what,
                link.map(|link| &link.network),
            )?),
        };
        Ok((way, Some(place)))
    }
}

/// How a system is written to.
enum Way {
    Device(Attachment),
    Program(Box<Served>),
}

/// A system under measurement. Fields go in this order.
pub(super) struct Target {
    pub(super) system: System,
    pub(super) mounted: Option<Mounted>,
    way: Way,
    _place: Option<Place>,
}

impl Target {
    /// Writes blocks one after the other, each synced, for `time`: to a file, or to the bare device.
    pub(super) fn write(
        &mut self,
        site: &Site,
        block: u64,
        time: std::time::Duration,
    ) -> Result<Written, BenchError> {
        match (&mut self.way, &self.mounted) {
            (Way::Program(served), _) => {
                let taken = served.client.write_for(time, block as usize, FILE_BYTES, false)?;
                Ok(Written::of(&taken, block))
            }
            (Way::Device(_), Some(mounted)) => fio::write(site, &mounted.file(FILE_BYTES)?, block, time),
            (Way::Device(device), None) => fio::write(site, device.path(), block, time),
        }
    }

    /// Unmounts it, and waits until everything is written.
    pub(super) fn end(self) -> Result<(), BenchError> {
        if let Some(mounted) = self.mounted {
            mounted.unmount()?;
        }
        match self.way {
            Way::Device(device) => device.release(),
            Way::Program(_) => Ok(()),
        }
    }
}
