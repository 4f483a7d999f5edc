#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

/// A redo log whose tail is durable in lenders' memory, record by record.
///
/// # Examples
///
/// ```
/// use netram::journal::{Journal, JournalConfig, RecordKind, RecordLog};
/// use netram::Durability;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let parent = tempfile::tempdir()?;
/// # let directory = parent.path().join("journal");
/// Journal::create(&directory, 1 << 20)?;
/// let (journal, recovered) = Journal::open(&directory, JournalConfig::default())?;
/// assert!(recovered.end == recovered.head);
///
/// let ticket = journal.append(RecordKind(32), 5, &mut |payload| payload.copy_from_slice(b"hello"))?;
/// journal.wait(ticket, Durability::Remote)?; // without lenders: the local disk
/// # Ok(())
/// # }
/// ```
pub mod journal {
    pub use netram_journal::*;
    pub use netram_proto::id::{Epoch, JournalId, Lsn};
    pub use netram_proto::journal::{CommitRule, MembershipError};
    pub use netram_proto::port::{AppendError, CommitTicket, CommitVotes, RecordKind, RecordLog};
}

/// Addresses, keys and links: what a journal reaches its lenders with.
pub mod transport {
    pub use netram_transport::{
        ClusterKey, KeyError, MulticastGroup, NetAddress, NetAddressError, Security, WaitPolicy,
    };
}

/// Recoverable virtual memory: transactions on memory-mapped files.
///
/// # Examples
///
/// ```
/// use netram::rvm::RestoreMode;
/// use netram::{Durability, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
/// let store = Store::open_or_create(path("bank.log"), 1 << 20)?;
/// let accounts = store.map_or_create(&path("bank.data"), 1 << 16)?;
/// let mut transaction = store.begin(RestoreMode::Restore);
/// transaction.set(&accounts, 0, &7_u64)?;
/// transaction.abort(); // memory is as before
/// assert_eq!(accounts.get::<u64>(0)?, 0);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "rvm")]
pub mod rvm {
    pub use netram_rvm::*;
    pub use netram_store::*;
}

/// A persistent heap inside recoverable memory: blocks that come and go, roots to find them by.
///
/// # Examples
///
/// ```
/// use netram::heap::Heap;
/// use netram::rvm::RestoreMode;
/// use netram::{Durability, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
/// let store = Store::open_or_create(path("plan.log"), 1 << 20)?;
/// let region = store.map_or_create(&path("plan.data"), 1 << 20)?;
/// let heap = Heap::format(&store, region)?; // the first time; then Heap::open(region)
///
/// let mut transaction = store.begin(RestoreMode::Restore);
/// let balance = heap.alloc(&mut transaction, &100_u64)?;
/// heap.set_root(&mut transaction, 0, balance)?;
/// transaction.commit(Durability::Remote)?;
/// assert_eq!(heap.get(heap.root::<u64>(0)?)?, 100);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "heap")]
pub mod heap {
    pub use netram_heap::*;
}

/// One persistent memory on several machines, kept coherent by the redo log.
///
/// # Examples
///
/// ```no_run
/// use netram::Durability;
/// use netram::rvm::RestoreMode;
/// use netram::shared::{LockId, LockMode, Node, NodeOptions};
/// use netram::transport::Security;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = NodeOptions::new("tcp://10.0.0.2:7440".parse()?, Security::Insecure, "/var/tmp/plan".into());
/// let node = Node::join(options)?;
/// let mut transaction = node.begin(RestoreMode::Restore)?;
/// transaction.acquire(LockId(7), LockMode::Exclusive)?;
/// transaction.write(7 * 65536, b"moved")?;
/// transaction.commit(Durability::Remote)?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "shared")]
pub mod shared {
    pub use netram_shared::*;
    pub use netram_shared_machine::{LockId, LockMode, NodeId, RegionId};
}

/// Memory beyond this machine's: vectors whose cold pages lie at lenders.
///
/// # Examples
///
/// ```no_run
/// use netram::far::{Arena, ArenaConfig, FarVec, RemotePagesConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let lenders = RemotePagesConfig {
///     lenders: vec!["tcp://10.0.0.2:7420".parse()?, "tcp://10.0.0.3:7420".parse()?],
///     ..RemotePagesConfig::default()
/// };
/// let arena = Arena::open(ArenaConfig {
///     bytes: 8 << 30,
///     local_bytes: 1 << 30,
///     remote_pages: lenders,
///     ..ArenaConfig::default()
/// })?;
/// let mut numbers = FarVec::<u64>::zeros(&arena, 1 << 29)?; // 4 GiB, of which at most 1 GiB is here
/// numbers.set(7, 1)?;
/// assert_eq!(numbers.get(7)?, 1);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "far")]
pub mod far {
    pub use netram_far::*;
}

/// Block devices whose writes are in lenders' memory at once, and on a data lender's disk soon.
///
/// # Examples
///
/// ```
/// use netram::volume::{BlockDevice, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let parent = tempfile::tempdir()?;
/// # let directory = parent.path().join("mail");
/// Volume::create(&directory, 1 << 20, 1 << 20)?;
/// let (volume, _) = Volume::open(&directory)?;
/// let pending = volume.write(0, &[7; 4096])?;
/// volume.wait(pending)?;
/// volume.flush()?; // at the lenders; without any, on the local disk
/// volume.close()?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "volume")]
pub mod volume {
    pub use netram_volume::*;
}

pub use netram_journal::{Journal, JournalConfig};
pub use netram_proto::port::Durability;
#[cfg(feature = "rvm")]
pub use netram_store::{OpenStore, Store, StoreError, StoreSettings};
