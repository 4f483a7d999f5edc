//! Settings of a lender.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netram_clients::ClientRegistry;
use netram_far_machine::limit::{DEPOSIT_LEASE, PRESSURE_CALM};
use netram_proto::limit::{DOMAIN_BYTES_MAX, REASSEMBLY_BYTES_MAX, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};
use netram_transport::{ListenSecurity, MulticastGroup, NetAddress, Security, WaitPolicy};

use crate::error::LenderStartError;
use crate::file::{bytes_of, free_path};
use crate::limit::{
    BESIDE_BYTES, BESIDE_PART, CHUNK_BYTES_DEFAULT, CONNECTIONS_MAX_DEFAULT, DEPOSITS_PART,
    FIRST_FRAME_TIMEOUT, IDLE_TIMEOUT_DEFAULT, JOURNALS_MAX_DEFAULT, KEEP_FREE_PART, LINK_BYTES,
    MEMORY_BYTES_DEFAULT, NAME_BYTES_MAX, PENDING_MAX_DEFAULT, PROCESS_BYTES, QUOTA_BYTES_MIN, QUOTA_PART,
    SHARDS_MAX, SLOW_READER_TIMEOUT_DEFAULT, WAITS_DEFAULT,
};
use crate::store::StoreConfig;

/// Settings of a lender. Take the default and change fields.
#[derive(Clone, Debug)]
pub struct LenderConfig {
    /// The lender's name, used in logs, in its report and in the name of its store. Letters, digits, `-`,
    /// `_`, `.`.
    pub name: String,
    /// The power domain of this machine (`mains-a`, `ups-1`).
    pub domain: String,
    /// Addresses to listen at; at least one.
    pub listen: Vec<NetAddress>,
    /// Multicast group on which appends may arrive, for journals that use it.
    pub multicast: Option<MulticastGroup>,
    /// The protection of links. Without a key only local addresses are served. Named clients have keys of
    /// their own; then it counts for nothing.
    pub security: Security,
    /// Named clients; `None`: all clients are one, which may have everything.
    pub clients: Option<Arc<ClientRegistry>>,
    /// Listeners reserved for data sessions; `None` accepts data sessions at `listen`.
    pub data_listener: Option<DataListener>,
    /// Bytes to lend.
    pub memory: u64,
    /// Maximum bytes of one journal's window; `None` leaves only the limits of the memory and the protocol.
    pub quota: Option<u64>,
    /// Maximum bytes of all deposits together, as part of `memory`; 0 refuses deposits; `None` is half of the
    /// memory.
    pub deposits: Option<u64>,
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
    /// Maximum number of journals that are remembered.
    pub journals_max: u32,
    /// Number of threads that serve journals; zero means one on up to two cores, otherwise one for every two
    /// cores.
    pub shards: usize,
    /// Whether an idle shard spins, yields or blocks.
    pub wait: WaitPolicy,
    /// The store's file; `None` is a file in `/dev/shm`, named after the user and the lender.
    pub store: Option<PathBuf>,
    /// Whether the memory is locked, so that it is never swapped out.
    pub mlock: bool,
    /// Whether huge pages are requested.
    pub huge_pages: bool,
    /// The processor that each shard is pinned to, in order; shards beyond the list are not pinned.
    pub pin: Vec<usize>,
    /// When the lender gives memory back.
    pub watch: MemoryWatch,
    /// Limits on clients.
    pub limits: ClientLimits,
    /// Whether a store on a disk is accepted. Only for tests: such a store is never restored.
    pub allow_disk: bool,
    /// Whether windows that clients may still need are discarded when the store cannot be restored or is
    /// given back.
    pub discard_windows: bool,
    /// Directory on a disk in which windows are kept while the machine is off.
    pub spill: Option<PathBuf>,
    /// Silence after which the window of a client is written there, too, and others may have its memory.
    pub spill_after: Option<Duration>,
}

/// When the machine counts as short of memory, so that the lender gives some back.
#[derive(Clone, Debug)]
pub struct MemoryWatch {
    /// Bytes that are lent whatever the machine lacks.
    pub least: u64,
    /// Bytes of the machine's memory that must stay available; 0 disables this check.
    pub keep_free: u64,
    /// Maximum share of time, in hundredths of a percent, for which some program may wait for memory; 0
    /// disables this check.
    pub waits: u32,
    /// Time for which memory must be available before more is lent again.
    pub calm: Duration,
    /// The directory of the kernel's memory statistics (`/proc`).
    pub proc: PathBuf,
}

impl MemoryWatch {
    /// The defaults of `netram lender serve`: a twentieth of the machine's memory stays available, and
    /// programs wait at most a tenth of the time.
    pub fn usual(proc: PathBuf) -> MemoryWatch {
        let meminfo = std::fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
        MemoryWatch {
            keep_free: bytes_of(&meminfo, "MemTotal:").unwrap_or(0) / KEEP_FREE_PART,
            waits: WAITS_DEFAULT,
            proc,
            ..MemoryWatch::default()
        }
    }
}

impl MemoryWatch {
    /// Bytes that the machine can spare now.
    fn idle(&self) -> u64 {
        let meminfo = std::fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        match bytes_of(&meminfo, "MemAvailable:") {
            Some(available) if self.keep_free > 0 => available.saturating_sub(self.keep_free),
            _ => u64::MAX,
        }
    }
}

impl Default for MemoryWatch {
    /// Disables both checks.
    fn default() -> MemoryWatch {
        MemoryWatch {
            least: 0,
            keep_free: 0,
            waits: 0,
            calm: Duration::from_nanos(PRESSURE_CALM.0),
            proc: PathBuf::from("/proc"),
        }
    }
}

/// Listeners for data sessions only, so that holders of the cluster key cannot reach replicas of volumes.
#[derive(Clone, Debug)]
pub struct DataListener {
    /// Addresses to listen at; at least one.
    pub listen: Vec<NetAddress>,
    /// The protection of these links.
    pub security: Security,
}

/// Limits on what clients may occupy.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections that are in their handshake or have not bound yet.
    pub pending_max: usize,
    /// Maximum time from a connection's handshake to its first frame.
    pub first_frame_timeout: Duration,
    /// Maximum silence of a bound session.
    pub idle_timeout: Duration,
    /// Maximum time for which a session may leave its answers unread.
    pub slow_reader_timeout: Duration,
    /// Time for which a deposit outlives its session.
    pub deposit_lease: Duration,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            connections_max: CONNECTIONS_MAX_DEFAULT,
            pending_max: PENDING_MAX_DEFAULT,
            first_frame_timeout: FIRST_FRAME_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT_DEFAULT,
            slow_reader_timeout: SLOW_READER_TIMEOUT_DEFAULT,
            deposit_lease: Duration::from_nanos(DEPOSIT_LEASE.0),
        }
    }
}

impl Default for LenderConfig {
    fn default() -> LenderConfig {
        LenderConfig {
            name: "lender".to_owned(),
            domain: "default".to_owned(),
            listen: Vec::new(),
            multicast: None,
            security: Security::Insecure,
            clients: None,
            data_listener: None,
            memory: MEMORY_BYTES_DEFAULT,
            quota: None,
            deposits: None,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            journals_max: JOURNALS_MAX_DEFAULT,
            shards: 0,
            wait: WaitPolicy::default(),
            store: None,
            mlock: false,
            huge_pages: false,
            pin: Vec::new(),
            watch: MemoryWatch::default(),
            limits: ClientLimits::default(),
            allow_disk: false,
            discard_windows: false,
            spill: None,
            spill_after: None,
        }
    }
}

/// End of the name of a lender's operator socket. Before it stands the name of its store.
pub const OPERATOR_SUFFIX: &str = ".operator";

/// The Unix socket beside a lender's store at which its user and root may end any journal.
pub fn operator_path(store: &Path) -> PathBuf {
    let mut path = store.to_path_buf().into_os_string();
    path.push(OPERATOR_SUFFIX);
    path.into()
}

/// Removes a store that no process uses any more, and its operator's socket.
///
/// # Errors
///
/// The store cannot be removed, for instance because it is gone.
pub fn remove_store(store: &Path) -> std::io::Result<()> {
    // A lender that ended in good order has removed it.
    let _ = std::fs::remove_file(operator_path(store));
    std::fs::remove_file(store)
}

impl LenderConfig {
    /// The store's file: the configured one, or the one named after the user and the lender.
    pub fn store_path(&self) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        let named = || PathBuf::from(format!("/dev/shm/netram-{user}-{}.mem", self.name));
        self.store.clone().unwrap_or_else(named)
    }

    /// Whether links are encrypted.
    pub fn is_secure(&self) -> bool {
        self.clients.is_some() || matches!(self.security, Security::Key(_))
    }

    /// The protection of the listeners.
    pub(crate) fn listen_security(&self) -> ListenSecurity {
        match &self.clients {
            Some(clients) => clients.listen_security(&self.security),
            None => self.security.clone().into(),
        }
    }

    /// Number of threads that will serve journals.
    pub fn shard_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = if self.shards == 0 {
            cores() / 2
        } else {
            self.shards
        };
        count.clamp(1, SHARDS_MAX)
    }

    /// Maximum bytes of all deposits together.
    pub fn deposits_bytes(&self) -> u64 {
        self.deposits
            .unwrap_or(self.memory / DEPOSITS_PART)
            .min(self.memory)
    }

    /// Maximum bytes of one journal.
    pub fn quota_bytes(&self) -> u64 {
        let usual = (self.memory / QUOTA_PART).max(QUOTA_BYTES_MIN);
        self.quota.unwrap_or(usual.min(WINDOW_BYTES_MAX))
    }

    /// Maximum number of connections: as many as the limits allow, and as their buffers fit beside the lent
    /// memory in what an administrator is told to leave for this process.
    pub fn connections_max(&self) -> usize {
        let beside = self.memory / BESIDE_PART + BESIDE_BYTES - PROCESS_BYTES;
        let listening = self.multicast.as_ref().map_or(0, |_| REASSEMBLY_BYTES_MAX as u64);
        let fitting = usize::try_from(beside / (LINK_BYTES + listening)).unwrap_or(usize::MAX);
        self.limits.connections_max.min(fitting)
    }

    pub(crate) fn check(&self) -> Result<(), LenderStartError> {
        let bad = |what, must| Err(LenderStartError::BadConfig { what, must });
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.bytes().all(plain) {
            return bad("the lender's name", "1 to 64 letters, digits, '-', '_' or '.'");
        }
        if self.domain.len() > DOMAIN_BYTES_MAX || self.domain.chars().any(char::is_control) {
            return bad("the power domain", "a label of at most 64 bytes");
        }
        if self.clients.is_some() && self.data_listener.is_some() {
            return bad(
                "the separate address for data sessions",
                "left out with named clients, whose right `data` replaces it",
            );
        }
        if self.listen.is_empty() {
            return bad("the list of addresses", "one address at least");
        }
        if self
            .data_listener
            .as_ref()
            .is_some_and(|door| door.listen.is_empty())
        {
            return bad("the list of addresses for data sessions", "one address at least");
        }
        if self.memory < WINDOW_BYTES_MIN || self.quota.is_some_and(|quota| quota < WINDOW_BYTES_MIN) {
            return bad("the memory and the quota", "16 KiB at least, the smallest window");
        }
        if self.watch.least > self.memory {
            return bad("the memory that is always lent", "at most all that is lent");
        }
        if self.shards > SHARDS_MAX {
            return bad("the number of shards", "at most 64");
        }
        if self.watch.waits > 10_000 {
            return bad(
                "the part of the time for which programs may wait for memory",
                "at most all of it",
            );
        }
        if self.limits.connections_max == 0 || self.limits.pending_max == 0 {
            return bad("the limits on connections", "one at least");
        }
        Ok(())
    }

    pub(crate) fn store_config(&self) -> StoreConfig {
        StoreConfig {
            path: match self.store {
                Some(_) => self.store_path(),
                None => free_path(&self.store_path()),
            },
            memory: self.memory,
            set_aside: self
                .watch
                .idle()
                .clamp(self.watch.least.min(self.memory), self.memory),
            chunk_bytes: self.chunk_bytes,
            quota: self.quota_bytes(),
            journals_max: self.journals_max,
            mlock: self.mlock,
            huge_pages: self.huge_pages,
            discard_windows: self.discard_windows,
            allow_disk: self.allow_disk,
            spill: self.spill.clone().map(|directory| (directory, self.name.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One journal could take all of the memory, and keep it with its session closed.
    #[test]
    fn one_journal_gets_half_of_the_memory_unless_a_quota_says_otherwise() {
        let with = |memory, quota| LenderConfig {
            memory,
            quota,
            ..LenderConfig::default()
        };
        assert_eq!(with(256 << 20, None).quota_bytes(), 128 << 20);
        assert_eq!(with(8 << 30, None).quota_bytes(), WINDOW_BYTES_MAX);
        assert_eq!(with(12 << 20, None).quota_bytes(), 8 << 20, "a usual window");
        assert_eq!(with(256 << 20, Some(200 << 20)).quota_bytes(), 200 << 20);
    }

    /// Nine hundred clients that did not read their answers took 223 MiB beside the lent 64 MiB.
    #[test]
    fn the_buffers_of_all_connections_fit_beside_the_lent_memory() {
        for memory in [1 << 20, 64 << 20, 256 << 20, 4 << 30, 64 << 30] {
            let config = LenderConfig {
                memory,
                ..LenderConfig::default()
            };
            let connections = config.connections_max();
            assert!(
                (100..=CONNECTIONS_MAX_DEFAULT).contains(&connections),
                "{connections}"
            );
            let beside = connections as u64 * LINK_BYTES + PROCESS_BYTES;
            assert!(beside <= memory / BESIDE_PART + BESIDE_BYTES);
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        let good = LenderConfig {
            listen: vec!["unix:/a".parse().unwrap()],
            ..LenderConfig::default()
        };
        assert!(good.check().is_ok());
        let bad = [
            LenderConfig {
                name: "../store".to_owned(),
                ..good.clone()
            },
            LenderConfig {
                name: String::new(),
                ..good.clone()
            },
            LenderConfig {
                domain: "x".repeat(65),
                ..good.clone()
            },
            LenderConfig {
                listen: Vec::new(),
                ..good.clone()
            },
            LenderConfig {
                memory: 0,
                ..good.clone()
            },
            LenderConfig {
                quota: Some(4096),
                ..good.clone()
            },
            LenderConfig {
                watch: MemoryWatch {
                    waits: 10_001,
                    ..MemoryWatch::default()
                },
                ..good.clone()
            },
            LenderConfig {
                watch: MemoryWatch {
                    least: good.memory + 1,
                    ..MemoryWatch::default()
                },
                ..good.clone()
            },
            LenderConfig {
                shards: SHARDS_MAX + 1,
                ..good.clone()
            },
            LenderConfig {
                limits: ClientLimits {
                    pending_max: 0,
                    ..ClientLimits::default()
                },
                ..good.clone()
            },
        ];
        for config in bad {
            assert!(
                matches!(config.check(), Err(LenderStartError::BadConfig { .. })),
                "{config:?}"
            );
        }
        assert!(good.store_path().to_string_lossy().ends_with("-lender.mem"));
    }
}
