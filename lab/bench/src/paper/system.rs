//! The compared systems: recoverable memory on a disk alone, or with a member over some link, each on the
//! local disk and on a modelled slow one; and the floors.

use std::time::Duration;

use netram_proto::port::Durability;
use serde::{Serialize, Serializer};

/// Time that a modelled disk adds to every sync: seek and rotation of the paper's disks.
pub const MODELLED_SYNC: Duration = Duration::from_millis(8);

/// A curve: a system, or a floor beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tr190Series {
    /// Recoverable memory.
    System(Tr190System),
    /// The machine without netram.
    Floor(FloorKind),
}

/// One configuration of recoverable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tr190System {
    /// Link over which commits reach a member.
    pub link: MemberLink,
    /// Cost of every sync of log and data file.
    pub disk: Tr190Disk,
}

/// Link to the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberLink {
    /// No member: the paper's RVM.
    Disk,
    /// A Unix socket.
    Unix,
    /// TCP over loopback.
    Tcp,
    /// TCP between two network namespaces.
    Namespaces,
    /// TCP over loopback through a process that adds this many microseconds to each round trip.
    Longer(u32),
}

/// The disk under log and data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tr190Disk {
    /// The local disk as it is.
    Local,
    /// The local disk with [`MODELLED_SYNC`] added to every sync.
    Modelled,
}

/// A floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FloorKind {
    /// Overwriting `fdatasync` of a record's bytes.
    Sync,
    /// Bare exchange of a commit's bytes over TCP on loopback.
    Exchange,
}

impl Tr190Series {
    /// A name for files and programs.
    pub fn id(self) -> String {
        match self {
            Tr190Series::System(system) => system.id(),
            Tr190Series::Floor(FloorKind::Sync) => "floor-fdatasync".to_owned(),
            Tr190Series::Floor(FloorKind::Exchange) => "floor-exchange".to_owned(),
        }
    }

    /// A name for people.
    pub fn label(self) -> String {
        match self {
            Tr190Series::System(system) => system.label(),
            Tr190Series::Floor(FloorKind::Sync) => "floor: bare fdatasync".to_owned(),
            Tr190Series::Floor(FloorKind::Exchange) => "floor: bare TCP exchange".to_owned(),
        }
    }
}

impl Serialize for Tr190Series {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.id())
    }
}

impl Tr190System {
    /// RVM on the local disk.
    pub const RVM: Tr190System = Tr190System {
        link: MemberLink::Disk,
        disk: Tr190Disk::Local,
    };

    /// The systems of every figure; without namespaces if the machine does not allow them.
    pub fn all(namespaces: bool) -> Vec<Tr190System> {
        let mut systems = Vec::new();
        for disk in [Tr190Disk::Local, Tr190Disk::Modelled] {
            for link in [
                MemberLink::Disk,
                MemberLink::Unix,
                MemberLink::Tcp,
                MemberLink::Namespaces,
            ] {
                if namespaces || link != MemberLink::Namespaces {
                    systems.push(Tr190System { link, disk });
                }
            }
        }
        systems
    }

    /// Durability that a commit of this system waits for.
    pub fn durability(self) -> Durability {
        match self.link {
            MemberLink::Disk => Durability::Disk,
            _ => Durability::Remote,
        }
    }

    /// The system with the same link on another disk.
    pub fn on(self, disk: Tr190Disk) -> Tr190System {
        Tr190System { disk, ..self }
    }

    /// The system with another link on the same disk.
    pub fn over(self, link: MemberLink) -> Tr190System {
        Tr190System { link, ..self }
    }

    /// Time added to every sync.
    pub fn sync_delay(self) -> Duration {
        match self.disk {
            Tr190Disk::Local => Duration::ZERO,
            Tr190Disk::Modelled => MODELLED_SYNC,
        }
    }

    fn id(self) -> String {
        let link = match self.link {
            MemberLink::Disk => "rvm".to_owned(),
            MemberLink::Unix => "rrvm-unix".to_owned(),
            MemberLink::Tcp => "rrvm-tcp".to_owned(),
            MemberLink::Namespaces => "rrvm-netns".to_owned(),
            MemberLink::Longer(us) => format!("rrvm-tcp-added-{us}us"),
        };
        match self.disk {
            Tr190Disk::Local => link,
            Tr190Disk::Modelled => format!("{link}-modelled"),
        }
    }

    fn label(self) -> String {
        let link = match self.link {
            MemberLink::Disk => "RVM".to_owned(),
            MemberLink::Unix => "RRVM, Unix socket".to_owned(),
            MemberLink::Tcp => "RRVM, TCP".to_owned(),
            MemberLink::Namespaces => "RRVM, TCP, namespaces".to_owned(),
            MemberLink::Longer(us) => format!("RRVM, TCP, {us} us ADDED"),
        };
        match self.disk {
            Tr190Disk::Local => link,
            Tr190Disk::Modelled => format!("{link}, MODELLED disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn series_have_distinct_names_that_mention_models_and_delays() {
        let mut systems = Tr190System::all(true);
        systems.extend([25, 50].map(|us| Tr190System::RVM.over(MemberLink::Longer(us))));
        let mut series: Vec<Tr190Series> = systems.iter().copied().map(Tr190Series::System).collect();
        series.extend([FloorKind::Sync, FloorKind::Exchange].map(Tr190Series::Floor));
        for name in [Tr190Series::id, Tr190Series::label] {
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
                matches!(system.link, MemberLink::Longer(_))
            );
        }
    }

    #[test]
    fn without_namespaces_the_others_remain() {
        assert_eq!(Tr190System::all(true).len(), 8);
        assert!(
            Tr190System::all(false)
                .iter()
                .all(|system| system.link != MemberLink::Namespaces)
        );
        assert_eq!(Tr190System::all(false).len(), 6);
    }
}
