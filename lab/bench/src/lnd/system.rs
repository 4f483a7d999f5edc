//! The compared systems: a disk, a disk made slower, and volumes with lenders.

use serde::{Serialize, Serializer};

/// Time that the modelled disk adds to every sync, in microseconds.
pub const MODELLED_SYNC_US: u32 = 1_000;

/// Target of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LndSystem {
    /// A loop device on a file of the local disk.
    Disk,
    /// A file of the same kind, attached as volumes are, with [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
    /// A volume's device.
    Volume(LndRedundancy),
    /// A volume without a device: a client of its NBD server, with only a socket in between.
    InProgram,
}

/// Holders of a volume's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LndRedundancy {
    /// Whether all lenders must have a write (the paper's SCP), or one (its LCP).
    pub all: bool,
    /// Transport of the writes to lenders.
    pub network: LenderNetwork,
    /// Whether a data lender keeps a copy (the paper's data server).
    pub twice: bool,
}

/// Transport of the writes to lenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderNetwork {
    /// Over each lender's own connection.
    Tcp,
    /// Once for all lenders.
    Multicast,
    /// To a single lender beyond a link, with the client's disk modelled as slow as [`LndSystem::Modelled`].
    /// Otherwise the disk would answer before the link has carried anything.
    Link,
}

const fn volume(all: bool, network: LenderNetwork, twice: bool) -> LndSystem {
    LndSystem::Volume(LndRedundancy { all, network, twice })
}

impl LndSystem {
    /// All systems with a device, in the order of the tables.
    pub const DEVICES: [LndSystem; 10] = [
        LndSystem::Disk,
        LndSystem::Modelled,
        volume(true, LenderNetwork::Tcp, false),
        volume(false, LenderNetwork::Tcp, false),
        volume(true, LenderNetwork::Multicast, false),
        volume(false, LenderNetwork::Multicast, false),
        volume(true, LenderNetwork::Tcp, true),
        volume(false, LenderNetwork::Tcp, true),
        // The paper's whole configuration.
        volume(false, LenderNetwork::Multicast, true),
        volume(false, LenderNetwork::Link, false),
    ];

    /// Transport to lenders; `None` if there are none.
    pub fn network(self) -> Option<LenderNetwork> {
        match self {
            LndSystem::Disk | LndSystem::Modelled => None,
            LndSystem::Volume(kept) => Some(kept.network),
            LndSystem::InProgram => Some(LenderNetwork::Tcp),
        }
    }

    /// Whether a comparison with a disk of this kind is fair: the system's own disk must not be modelled
    /// slower.
    pub fn stands_beside(self, below: LndSystem) -> bool {
        self.network()
            .is_some_and(|network| network != LenderNetwork::Link || below == LndSystem::Modelled)
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
            LndSystem::Disk => return ("disk", "local disk"),
            LndSystem::Modelled => return ("disk-modelled", "MODELLED disk, 1 ms a sync"),
            LndSystem::InProgram => return ("volume-lcp-nbd", "volume, any (LCP), TCP; NBD, no device"),
            LndSystem::Volume(kept) => kept,
        };
        match (kept.network, kept.all, kept.twice) {
            (LenderNetwork::Tcp, true, false) => ("volume-scp-tcp", "volume, all (SCP), TCP"),
            (LenderNetwork::Tcp, false, false) => ("volume-lcp-tcp", "volume, any (LCP), TCP"),
            (LenderNetwork::Tcp, true, true) => ("volume-scp-data", "volume, all (SCP), TCP, data lender"),
            (LenderNetwork::Tcp, false, true) => ("volume-lcp-data", "volume, any (LCP), TCP, data lender"),
            (LenderNetwork::Multicast, true, _) => ("volume-scp-multicast", "volume, all (SCP), multicast"),
            (LenderNetwork::Multicast, false, false) => {
                ("volume-lcp-multicast", "volume, any (LCP), multicast")
            }
            (LenderNetwork::Multicast, false, true) => (
                "volume-lcp-multicast-data",
                "volume, any (LCP), multicast, data lender",
            ),
            (LenderNetwork::Link, _, _) => (
                "volume-link",
                "volume, one lender beyond 1 Gbit/s, on a MODELLED disk",
            ),
        }
    }
}

impl Serialize for LndSystem {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn systems_have_distinct_names_that_mention_models() {
        let all: Vec<LndSystem> = LndSystem::DEVICES
            .into_iter()
            .chain([LndSystem::InProgram])
            .collect();
        for name in [LndSystem::id, LndSystem::label] {
            let names: BTreeSet<&str> = all.iter().copied().map(name).collect();
            assert_eq!(names.len(), all.len());
        }
        for system in all {
            let modelled = system == LndSystem::Modelled || system.network() == Some(LenderNetwork::Link);
            assert_eq!(system.label().contains("MODELLED"), modelled);
        }
    }

    #[test]
    fn the_papers_configuration_is_measured_whole() {
        let whole = volume(false, LenderNetwork::Multicast, true);
        assert!(LndSystem::DEVICES.contains(&whole));
        assert_eq!(whole.label(), "volume, any (LCP), multicast, data lender");
    }

    #[test]
    fn systems_with_a_slow_disk_are_compared_only_with_a_slow_disk() {
        let link = volume(false, LenderNetwork::Link, false);
        assert!(link.stands_beside(LndSystem::Modelled) && !link.stands_beside(LndSystem::Disk));
        assert!(LndSystem::InProgram.stands_beside(LndSystem::Disk));
        assert!(!LndSystem::Modelled.stands_beside(LndSystem::Disk));
    }
}
