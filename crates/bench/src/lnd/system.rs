//! The systems that are compared: a disk, a disk made slower, and volumes with two lenders.

use serde::{Serialize, Serializer};

/// What the modelled disk adds to every sync, in microseconds.
pub const MODELLED_SYNC_US: u32 = 1_000;

/// A block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A loop device on a file of the local disk.
    Disk,
    /// The same kind of file, attached as volumes are, with [`MODELLED_SYNC_US`] added to every sync.
    Modelled,
    /// A volume.
    Volume {
        /// Whether both lenders must have a write (the paper's SCP), or one (its LCP).
        all: bool,
        /// How they get it.
        network: Network,
    },
}

/// How lenders get what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Each over its own connection.
    Tcp,
    /// Once for all.
    Multicast,
}

const fn volume(all: bool, network: Network) -> System {
    System::Volume { all, network }
}

impl System {
    /// All of them, in the order in which they are shown.
    pub const ALL: [System; 6] = [
        System::Disk,
        System::Modelled,
        volume(true, Network::Tcp),
        volume(false, Network::Tcp),
        volume(true, Network::Multicast),
        volume(false, Network::Multicast),
    ];

    /// How lenders get it; `None`: there are none.
    pub fn network(self) -> Option<Network> {
        match self {
            System::Volume { network, .. } => Some(network),
            _ => None,
        }
    }

    /// A name for files and programs.
    pub fn id(self) -> &'static str {
        match self {
            System::Disk => "disk",
            System::Modelled => "disk-modelled",
            System::Volume {
                all: true,
                network: Network::Tcp,
            } => "volume-scp-tcp",
            System::Volume {
                all: false,
                network: Network::Tcp,
            } => "volume-lcp-tcp",
            System::Volume {
                all: true,
                network: Network::Multicast,
            } => "volume-scp-multicast",
            System::Volume {
                all: false,
                network: Network::Multicast,
            } => "volume-lcp-multicast",
        }
    }

    /// A name for people.
    pub fn label(self) -> &'static str {
        match self {
            System::Disk => "local disk",
            System::Modelled => "MODELLED disk, 1 ms a sync",
            System::Volume {
                all: true,
                network: Network::Tcp,
            } => "volume, all (SCP), TCP",
            System::Volume {
                all: false,
                network: Network::Tcp,
            } => "volume, any (LCP), TCP",
            System::Volume {
                all: true,
                network: Network::Multicast,
            } => "volume, all (SCP), multicast",
            System::Volume {
                all: false,
                network: Network::Multicast,
            } => "volume, any (LCP), multicast",
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
    fn no_two_systems_share_a_name_and_the_modelled_one_says_so() {
        for name in [System::id, System::label] {
            let names: BTreeSet<&str> = System::ALL.into_iter().map(name).collect();
            assert_eq!(names.len(), System::ALL.len());
        }
        for system in System::ALL {
            assert_eq!(system.label().contains("MODELLED"), system == System::Modelled);
        }
    }
}
