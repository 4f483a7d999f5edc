//! Data sessions: sessions of volumes whose replica this machine keeps on its disk.
//!
//! The lender accepts, counts and lists them. The service behind the trait handles their frames and storage,
//! in a thread that may wait for a disk; a shard may not.

use std::sync::Arc;

use netram_clients::ClientAccount;
use netram_proto::id::JournalId;
use netram_transport::Link;

use crate::accept::ClientVisit;
use crate::report::{CopiesReport, ReplicaReport};
use crate::state::ConnectionPermit;

/// A service that keeps replicas of volumes.
pub trait DataService: Send + Sync {
    /// Takes over a session. Must not block, since the calling thread accepts connections.
    fn take(&self, session: DataSession);

    /// Reports on each replica, for the lender's status. May wait for a disk: the thread that builds reports
    /// calls it, and no other.
    fn replicas(&self) -> Vec<ReplicaReport>;

    /// Reports the space of all replicas, for the lender's status. May wait for a disk, too.
    fn copies(&self) -> CopiesReport;
}

/// A connection whose first frame asked for a replica of a volume.
pub struct DataSession {
    /// The connection, with its handshake complete.
    pub link: Link,
    /// The first frame, as received.
    pub first: Vec<u8>,
    /// The journal that the client has proven to own. A `Follow` for another owned journal does not get here.
    pub owned: Option<JournalId>,
    /// Held for as long as the connection.
    pub permit: DataPermit,
}

/// One of the lender's permitted connections, given back on drop.
pub struct DataPermit {
    /// The account of the session's client.
    pub(crate) account: Option<Arc<ClientAccount>>,
    pub(crate) _visit: Option<ClientVisit>,
    pub(crate) _permit: ConnectionPermit,
}

impl DataPermit {
    /// The account of the session's client.
    pub fn account(&self) -> Option<&Arc<ClientAccount>> {
        self.account.as_ref()
    }
}

impl std::fmt::Debug for DataPermit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("DataPermit")
    }
}
