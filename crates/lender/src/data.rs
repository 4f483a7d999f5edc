//! Sessions of another kind: those of volumes whose copy this machine keeps on its disk.
//!
//! The lender lets them in, counts and lists them. What they say, and what is kept, is for whoever offers the
//! service; it needs a thread that may wait for a disk, which no shard may.

use netram_transport::Link;

use crate::report::{CopiesReport, ReplicaReport};
use crate::state::ConnectionPermit;

/// Keeps copies of volumes.
pub trait DataService: Send + Sync {
    /// Takes a session over. Must not wait: the thread that calls it lets strangers in.
    fn take(&self, session: DataSession);

    /// The copies that are kept, for the lender's status. Must not wait for long either.
    fn replicas(&self) -> Vec<ReplicaReport>;

    /// What all of them take, for the lender's status. The same holds.
    fn copies(&self) -> CopiesReport;
}

/// A connection whose first frame asked for a copy of a volume.
pub struct DataSession {
    /// The connection. Its handshake is done.
    pub link: Link,
    /// Its first frame, as it came.
    pub first: Vec<u8>,
    /// Held as long as the connection is.
    pub permit: DataPermit,
}

/// One of the lender's connections, until it is dropped.
pub struct DataPermit {
    pub(crate) _permit: ConnectionPermit,
}

impl std::fmt::Debug for DataPermit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("DataPermit")
    }
}
