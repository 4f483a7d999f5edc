//! The systems that are compared: recoverable memory on a disk alone, or with a member over some link, each on the local
//! disk and on a modelled slow one; and the floors.

use std::time::Duration;

use netram_proto::port::Durability;
use serde::{Serialize, Serializer};

/// What a modelled disk adds to every sync: seek and rotation of the paper's disks.
pub const MODELLED_SYNC: Duration = Duration::from_millis(8);

/// A curve: a system, or a floor beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Recoverable memory.
    System(System),
    /// What the machine does without netram.
    Floor(Floor),
}

/// One configuration of recoverable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct System {
    /// How commits reach a member, if they do.
    pub link: Link,
    /// What every sync costs, of the log and of the data file.
    pub disk: Disk,
}

/// The way to the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// No member: the paper's RVM.
    Disk,
    /// A Unix socket.
    Unix,
    /// TCP over loopback.
    Tcp,
    /// TCP between two network namespaces.
    Namespaces,
    /// TCP over loopback through a process that adds so many microseconds to each round trip.
    Longer(u32),
}

/// The disk below log and data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// As it is.
    Local,
    /// With [`MODELLED_SYNC`] added to every sync.
    Modelled,
}

/// A floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Floor {
    /// `fdatasync` of a record's bytes, overwriting.
    Sync,
    /// A bare exchange of a commit's bytes over TCP on loopback.
    Exchange,
}

impl Series {
    /// A name for files and programs.
    pub fn id(self) -> String {
        match self {
            Series::System(system) => system.id(),
            Series::Floor(Floor::Sync) => "floor-fdatasync".to_owned(),
            Series::Floor(Floor::Exchange) => "floor-exchange".to_owned(),
        }
    }

    /// A name for people.
    pub fn label(self) -> String {
        match self {
            Series::System(system) => system.label(),
            Series::Floor(Floor::Sync) => "floor: bare fdatasync".to_owned(),
            Series::Floor(Floor::Exchange) => "floor: bare TCP exchange".to_owned(),
        }
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.id())
    }
}

impl System {
    /// RVM on the local disk.
    pub const RVM: System = System {
        link: Link::Disk,
        disk: Disk::Local,
    };

    /// The systems of every figure. Without namespaces when the machine does not let us make them.
    pub fn all(namespaces: bool) -> Vec<System> {
        let mut systems = Vec::new();
        for disk in [Disk::Local, Disk::Modelled] {
            for link in [Link::Disk, Link::Unix, Link::Tcp, Link::Namespaces] {
                if namespaces || link != Link::Namespaces {
                    systems.push(System { link, disk });
                }
            }
        }
        systems
    }

    /// When a commit of this system is done.
    pub fn durability(self) -> Durability {
        match self.link {
            Link::Disk => Durability::Disk,
            _ => Durability::Remote,
        }
    }

    /// The same link on the other disk.
    pub fn on(self, disk: Disk) -> System {
        System { disk, ..self }
    }

    /// The same disk over another link.
    pub fn over(self, link: Link) -> System {
        System { link, ..self }
    }

    /// What is added to every sync.
    pub fn sync_delay(self) -> Duration {
        match self.disk {
            Disk::Local => Duration::ZERO,
            Disk::Modelled => MODELLED_SYNC,
        }
    }

    fn id(self) -> String {
        let link = match self.link {
            Link::Disk => "rvm".to_owned(),
            Link::Unix => "rrvm-unix".to_owned(),
            Link::Tcp => "rrvm-tcp".to_owned(),
            Link::Namespaces => "rrvm-netns".to_owned(),
            Link::Longer(us) => format!("rrvm-tcp-added-{us}us"),
        };
        match self.disk {
            Disk::Local => link,
            Disk::Modelled => format!("{link}-modelled"),
        }
    }

    fn label(self) -> String {
        let link = match self.link {
            Link::Disk => "RVM".to_owned(),
            Link::Unix => "RRVM, Unix socket".to_owned(),
            Link::Tcp => "RRVM, TCP".to_owned(),
            Link::Namespaces => "RRVM, TCP, namespaces".to_owned(),
            Link::Longer(us) => format!("RRVM, TCP, {us} us ADDED"),
        };
        match self.disk {
            Disk::Local => link,
            Disk::Modelled => format!("{link}, MODELLED disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_series_share_a_name_and_whatever_is_modelled_or_added_says_so() {
        let mut systems = System::all(true);
        systems.extend([25, 50].map(|us| System::RVM.over(Link::Longer(us))));
        let mut series: Vec<Series> = systems.iter().copied().map(Series::System).collect();
        series.extend([Floor::Sync, Floor::Exchange].map(Series::Floor));
        for name in [Series::id, Series::label] {
            let names: BTreeSet<String> = series.iter().map(|series| name(*series)).collect();
            assert_eq!(names.len(), series.len());
        }
        for system in systems {
            assert_eq!(
                system.label().contains("MODELLED"),
                !system.sync_delay().is_zero()
            );
            assert_eq!(
                system.label().contains("ADDED"),
                matches!(system.link, Link::Longer(_))
            );
        }
    }

    #[test]
    fn without_namespaces_the_others_remain() {
        assert_eq!(System::all(true).len(), 8);
        assert!(
            System::all(false)
                .iter()
                .all(|system| system.link != Link::Namespaces)
        );
        assert_eq!(System::all(false).len(), 6);
    }
}
