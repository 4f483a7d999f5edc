//! The systems that are compared: a disk, a disk made slower, and volumes with lenders.

use serde::{Serialize, Serializer};

/// What the modelled disk adds to every sync, in microseconds.
pub const MODELLED_SYNC_US: u32 = 1_000;

/// What is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A loop device on a file of the local disk.
    Disk,
    /// The same kind of file, attached as volumes are, with [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
    /// A volume's device.
    Volume(Kept),
    /// A volume without a device: a client of its NBD server, and no kernel between the two but a socket.
    InProgram,
}

/// Who holds what is written to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Whether all lenders must have a write (the paper's SCP), or one (its LCP).
    pub all: bool,
    /// How they get it.
    pub network: Network,
    /// Whether a data lender keeps a copy (the paper's data server).
    pub twice: bool,
}

/// How lenders get what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Each over its own connection.
    Tcp,
    /// Once for all.
    Multicast,
    /// A single lender beyond a link, and the client's disk modelled as slow as [`System::Modelled`]: else that disk answers
    /// before the link has carried anything, and the link is not what is measured.
    Link,
}

const fn volume(all: bool, network: Network, twice: bool) -> System {
    System::Volume(Kept { all, network, twice })
}

impl System {
    /// All that have a device, in the order in which they are shown.
    pub const DEVICES: [System; 9] = [
        System::Disk,
        System::Modelled,
        volume(true, Network::Tcp, false),
        volume(false, Network::Tcp, false),
        volume(true, Network::Multicast, false),
        volume(false, Network::Multicast, false),
        volume(true, Network::Tcp, true),
        volume(false, Network::Tcp, true),
        volume(false, Network::Link, false),
    ];

    /// How lenders get it; `None`: there are none.
    pub fn network(self) -> Option<Network> {
        match self {
            System::Disk | System::Modelled => None,
            System::Volume(kept) => Some(kept.network),
            System::InProgram => Some(Network::Tcp),
        }
    }

    /// Whether it is fair to hold it against a disk of this kind: its own must not be modelled slower.
    pub fn stands_beside(self, below: System) -> bool {
        self.network()
            .is_some_and(|network| network != Network::Link || below == System::Modelled)
    }

    /// A name for files and programs.
    pub fn id(self) -> &'static str {
        self.names().0
    }

    /// A name for people.
    pub fn label(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        let kept = match self {
            System::Disk => return ("disk", "local disk"),
            System::Modelled => return ("disk-modelled", "MODELLED disk, 1 ms a sync"),
            System::InProgram => return ("volume-lcp-nbd", "volume, any (LCP), TCP; NBD, no device"),
            System::Volume(kept) => kept,
        };
        match (kept.network, kept.all, kept.twice) {
            (Network::Tcp, true, false) => ("volume-scp-tcp", "volume, all (SCP), TCP"),
            (Network::Tcp, false, false) => ("volume-lcp-tcp", "volume, any (LCP), TCP"),
            (Network::Tcp, true, true) => ("volume-scp-data", "volume, all (SCP), TCP, data lender"),
            (Network::Tcp, false, true) => ("volume-lcp-data", "volume, any (LCP), TCP, data lender"),
            (Network::Multicast, true, _) => ("volume-scp-multicast", "volume, all (SCP), multicast"),
            (Network::Multicast, false, _) => ("volume-lcp-multicast", "volume, any (LCP), multicast"),
            (Network::Link, _, _) => (
                "volume-link",
                "volume, one lender beyond 1 Gbit/s, on a MODELLED disk",
            ),
        }
    }
}

impl Serialize for System {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_systems_share_a_name_and_what_is_modelled_says_so() {
        let all: Vec<System> = System::DEVICES.into_iter().chain([System::InProgram]).collect();
        for name in [System::id, System::label] {
            let names: BTreeSet<&str> = all.iter().copied().map(name).collect();
            assert_eq!(names.len(), all.len());
        }
        for system in all {
            let modelled = system == System::Modelled || system.network() == Some(Network::Link);
            assert_eq!(system.label().contains("MODELLED"), modelled);
        }
    }

    #[test]
    fn what_has_a_slow_disk_is_held_against_a_slow_disk_only() {
        let link = volume(false, Network::Link, false);
        assert!(link.stands_beside(System::Modelled) && !link.stands_beside(System::Disk));
        assert!(System::InProgram.stands_beside(System::Disk));
        assert!(!System::Modelled.stands_beside(System::Disk));
    }
}
