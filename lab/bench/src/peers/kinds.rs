//! The measured peers, and what each of them may lose.

use serde::{Serialize, Serializer};

/// Names a peer in lists, tables and on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// Floor: a bare exchange of a commit's bytes with one process.
    Exchange,
    /// Floor: 128 B overwritten and synced.
    Sync,
    /// netram, one member; client and lender spin.
    NetramSpin,
    /// netram, one member, default wait policy.
    NetramOne,
    /// netram, two members, default wait policy.
    NetramTwo,
    /// Redis with `WAIT 1`.
    Redis,
    /// etcd, one node.
    EtcdOne,
    /// etcd, three nodes.
    EtcdThree,
    /// BookKeeper, two bookies that sync their journals.
    BookkeeperSync,
    /// BookKeeper, two bookies that do not.
    BookkeeperNoSync,
    /// Berkeley DB with its Replication Manager.
    BerkeleyDb,
    /// MariaDB, semisynchronous, with local flush.
    MariadbSync,
    /// MariaDB, semisynchronous, without local flush.
    MariadbNoSync,
    /// PostgreSQL, `synchronous_commit=remote_write`.
    Postgresql,
    /// libpmemobj on a file.
    Pmemobj,
    /// SQLite in WAL mode.
    Sqlite,
    /// LMDB.
    Lmdb,
    /// Floor: an NBD server without storage.
    BlockFloor,
    /// Floor: 4 KiB overwritten and synced.
    BlockSync,
    /// netram's volume over NBD.
    Volume,
    /// nbdkit's memory plugin.
    NbdkitMemory,
    /// nbdkit's file plugin, FUA.
    NbdkitFile,
    /// qemu-nbd, FUA.
    QemuNbd,
    /// DRBD.
    Drbd,
}

/// Groups peers by the size and kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerWork {
    /// A commit of 128 B.
    Commit,
    /// A write of a block of 4 KiB.
    Block,
}

/// Acknowledged data that a failure may lose. Processes are started again by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeerLosses {
    /// Loss when the acknowledging process is killed.
    pub process: &'static str,
    /// Loss when its machine crashes and restarts.
    pub machine: &'static str,
    /// Loss when its machine and one other lose power at once.
    pub both: &'static str,
}

const NOTHING: &str = "nothing";
const ALL_OF_IT: &str = "all of it";
const FLOOR: PeerLosses = losses("–", "–", "–");
const DISK: PeerLosses = losses(NOTHING, NOTHING, NOTHING);

const fn losses(process: &'static str, machine: &'static str, both: &'static str) -> PeerLosses {
    PeerLosses {
        process,
        machine,
        both,
    }
}

impl PeerWork {
    /// Both works.
    pub const ALL: [PeerWork; 2] = [PeerWork::Commit, PeerWork::Block];

    /// Title of the work's table.
    pub fn title(self) -> &'static str {
        match self {
            PeerWork::Commit => "a commit of 128 B",
            PeerWork::Block => "a block of 4 KiB, written over NBD",
        }
    }
}

impl PeerKind {
    /// All peers, in the order of the tables.
    pub const ALL: [PeerKind; 24] = [
        PeerKind::Exchange,
        PeerKind::Sync,
        PeerKind::NetramSpin,
        PeerKind::NetramOne,
        PeerKind::NetramTwo,
        PeerKind::Redis,
        PeerKind::EtcdOne,
        PeerKind::EtcdThree,
        PeerKind::BookkeeperSync,
        PeerKind::BookkeeperNoSync,
        PeerKind::BerkeleyDb,
        PeerKind::MariadbSync,
        PeerKind::MariadbNoSync,
        PeerKind::Postgresql,
        PeerKind::Pmemobj,
        PeerKind::Sqlite,
        PeerKind::Lmdb,
        PeerKind::BlockFloor,
        PeerKind::BlockSync,
        PeerKind::Volume,
        PeerKind::NbdkitMemory,
        PeerKind::NbdkitFile,
        PeerKind::QemuNbd,
        PeerKind::Drbd,
    ];

    /// Name on the command line and in files.
    pub const fn id(self) -> &'static str {
        match self {
            PeerKind::Exchange => "exchange",
            PeerKind::Sync => "fdatasync",
            PeerKind::NetramSpin => "netram-spin",
            PeerKind::NetramOne => "netram",
            PeerKind::NetramTwo => "netram-two",
            PeerKind::Redis => "redis",
            PeerKind::EtcdOne => "etcd",
            PeerKind::EtcdThree => "etcd-three",
            PeerKind::BookkeeperSync => "bookkeeper",
            PeerKind::BookkeeperNoSync => "bookkeeper-nosync",
            PeerKind::BerkeleyDb => "berkeley-db",
            PeerKind::MariadbSync => "mariadb",
            PeerKind::MariadbNoSync => "mariadb-nosync",
            PeerKind::Postgresql => "postgresql",
            PeerKind::Pmemobj => "pmemobj",
            PeerKind::Sqlite => "sqlite",
            PeerKind::Lmdb => "lmdb",
            PeerKind::BlockFloor => "nbd-memory",
            PeerKind::BlockSync => "fdatasync-4k",
            PeerKind::Volume => "netram-volume",
            PeerKind::NbdkitMemory => "nbdkit-memory",
            PeerKind::NbdkitFile => "nbdkit-file",
            PeerKind::QemuNbd => "qemu-nbd",
            PeerKind::Drbd => "drbd",
        }
    }

    /// Name in tables.
    pub fn label(self) -> &'static str {
        match self {
            PeerKind::Exchange => "floor: bare exchange, spinning",
            PeerKind::Sync => "floor: fdatasync, 128 B",
            PeerKind::NetramSpin => "netram, one member, spinning",
            PeerKind::NetramOne => "netram, one member",
            PeerKind::NetramTwo => "netram, two members",
            PeerKind::Redis => "Redis, WAIT 1",
            PeerKind::EtcdOne => "etcd, one node",
            PeerKind::EtcdThree => "etcd, three nodes",
            PeerKind::BookkeeperSync => "BookKeeper, two bookies",
            PeerKind::BookkeeperNoSync => "BookKeeper, journals not synced",
            PeerKind::BerkeleyDb => "Berkeley DB, replicated",
            PeerKind::MariadbSync => "MariaDB, semisync",
            PeerKind::MariadbNoSync => "MariaDB, semisync, no flush",
            PeerKind::Postgresql => "PostgreSQL, remote_write",
            PeerKind::Pmemobj => "libpmemobj on a file",
            PeerKind::Sqlite => "SQLite, WAL, FULL",
            PeerKind::Lmdb => "LMDB",
            PeerKind::BlockFloor => "floor: NBD without storage",
            PeerKind::BlockSync => "floor: fdatasync, 4 KiB",
            PeerKind::Volume => "netram volume, one member",
            PeerKind::NbdkitMemory => "nbdkit memory",
            PeerKind::NbdkitFile => "nbdkit file, FUA",
            PeerKind::QemuNbd => "qemu-nbd, FUA",
            PeerKind::Drbd => "DRBD, protocol C",
        }
    }

    /// The work that it is measured with.
    pub fn work(self) -> PeerWork {
        match self {
            PeerKind::BlockFloor
            | PeerKind::BlockSync
            | PeerKind::Volume
            | PeerKind::NbdkitMemory
            | PeerKind::NbdkitFile
            | PeerKind::QemuNbd
            | PeerKind::Drbd => PeerWork::Block,
            _ => PeerWork::Commit,
        }
    }

    /// Whether it is a floor: least cost of a part that others consist of.
    pub fn is_floor(self) -> bool {
        self.losses() == FLOOR
    }

    /// Whether it is netram.
    pub fn is_netram(self) -> bool {
        matches!(
            self,
            PeerKind::NetramSpin | PeerKind::NetramOne | PeerKind::NetramTwo | PeerKind::Volume
        )
    }

    /// The data that failures may lose.
    pub fn losses(self) -> PeerLosses {
        match self {
            PeerKind::Exchange | PeerKind::Sync | PeerKind::BlockFloor | PeerKind::BlockSync => FLOOR,
            PeerKind::NetramSpin | PeerKind::NetramOne | PeerKind::Volume => {
                losses(NOTHING, NOTHING, "what the disk lagged behind, ms; it is told")
            }
            PeerKind::Redis => losses(
                "nothing, if the replica takes over; else all",
                "nothing, if the replica takes over; else all",
                ALL_OF_IT,
            ),
            PeerKind::BookkeeperNoSync => losses(NOTHING, NOTHING, "what neither kernel wrote, silently"),
            PeerKind::BerkeleyDb => losses(
                NOTHING,
                "nothing, if the replica takes over",
                "what neither kernel wrote, silently",
            ),
            PeerKind::MariadbNoSync => losses(
                NOTHING,
                "nothing, if the replica takes over",
                "up to 1 s, silently",
            ),
            PeerKind::NbdkitMemory => losses(ALL_OF_IT, ALL_OF_IT, ALL_OF_IT),
            PeerKind::NetramTwo
            | PeerKind::EtcdOne
            | PeerKind::EtcdThree
            | PeerKind::BookkeeperSync
            | PeerKind::MariadbSync
            | PeerKind::Postgresql
            | PeerKind::Pmemobj
            | PeerKind::Sqlite
            | PeerKind::Lmdb
            | PeerKind::NbdkitFile
            | PeerKind::QemuNbd
            | PeerKind::Drbd => DISK,
        }
    }
}

impl Serialize for PeerKind {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_peer_has_its_own_names_and_each_work_a_floor_and_netram() {
        let ids: BTreeSet<&str> = PeerKind::ALL.iter().map(|kind| kind.id()).collect();
        let labels: BTreeSet<&str> = PeerKind::ALL.iter().map(|kind| kind.label()).collect();
        assert_eq!(
            (ids.len(), labels.len()),
            (PeerKind::ALL.len(), PeerKind::ALL.len())
        );
        for work in PeerWork::ALL {
            let of = || PeerKind::ALL.into_iter().filter(|kind| kind.work() == work);
            assert!(of().any(PeerKind::is_floor));
            assert!(of().any(PeerKind::is_netram));
        }
    }
}
