//! What a journal is opened with.

use std::time::Duration;

use netram_proto::id::Lsn;
use netram_proto::journal::{CommitRule, MulticastTiming, View, Voter, WriterConfig, WriterTimings};
use netram_proto::limit::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, LENDERS_MAX, LOG_ALIGN, MEMBERS_MAX, WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
};
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{MulticastGroup, NetAddress, Security, WaitPolicy};

/// Bytes of the ring by default: at 100 MB/s of commits it bridges a disk that stalls for 80 ms.
pub const WINDOW_BYTES_DEFAULT: u64 = 8 * 1024 * 1024;
/// How long a record may wait for the disk thread by default. The members are the fast vote; syncing more
/// often than this only takes the processor from commits (docs/journal.md, "The disk's vote").
pub const DISK_DELAY_DEFAULT: Duration = Duration::from_millis(1);

/// The power domain of a machine that nobody labelled. Lenders use the same, so that what nobody labelled
/// counts as one.
pub const DOMAIN_DEFAULT: &str = "default";

/// How a journal replicates, waits and recovers. Every field has a working default but `security` and
/// `lenders`.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Lenders that may become members, in order of preference. None: every commit waits for the local disk.
    pub lenders: Vec<NetAddress>,
    /// How links to them are protected.
    pub security: Security,
    /// How many members must hold a record before it is acknowledged.
    pub rule: CommitRule,
    /// Members to have. The other lenders are spares.
    pub members: usize,
    /// With fewer members than this, commits wait for the disk until members are back. `None`: as many as
    /// `members` for the rule `all`, else as many as the rule needs copies.
    pub members_min: Option<usize>,
    /// This machine's power domain.
    pub domain: String,
    /// Whether all members may be in this machine's power domain. Only for trying things out on one machine.
    pub one_domain: bool,
    /// Bytes of the ring, and of the window that each member is asked for. Rounded up to whole pages.
    pub window_bytes: u64,
    /// Heartbeats and failure detection.
    pub timing: WriterTimings,
    /// What a waiting commit does with its core.
    pub wait: WaitPolicy,
    /// How long a record may wait before the disk thread writes and syncs it; zero: at once.
    pub disk_delay: Duration,
    /// Whether records are sealed (encrypted and authenticated with the journal's own key) before they leave.
    /// If so, recovery takes sealed records only from members: to seal a journal that was not, close it
    /// cleanly first.
    pub seal: bool,
    /// How long recovery waits for members that must answer.
    pub patience: Duration,
    /// How long recovery waits for members beyond those that must answer.
    pub grace: Duration,
    /// Open even if acknowledged records may be missing. Never set this by default.
    pub accept_loss: bool,
    /// The operator says that no other directory of this journal is newer, although somebody has fenced it.
    /// Never set this by default.
    pub newest: Option<NewestClaim>,
    /// The files are a data lender's copy of a journal whose writer had a disk of its own.
    pub replica_origin: Option<ReplicaOrigin>,
    /// Appends are sent once for all members, to this multicast group; `None`: to each over its own link.
    pub multicast: Option<MulticastOptions>,
    /// Who acknowledges beside the members. [`Voter::ServerEntry`]: the journal is a node's of a shared
    /// region. It opens only when nothing is left in it that the server may lack ([`crate::OrphanJournal`]);
    /// its head can be trimmed only up to what the server keeps; appends wait while the window is full of
    /// what the server lacks.
    pub voter: Voter,
    /// A delay added to every sync of the log, to model a slower disk in benchmarks. Always label its
    /// results.
    pub modelled_sync_delay: Duration,
}

/// An operator's word that a journal's directory is the newest: it claims above whatever fenced it, if what
/// lenders hold does not speak against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestClaim {
    /// The view that a data lender keeps, claimed by somebody who never served.
    pub copy: Option<View>,
}

/// A journal opened from a data lender's copy: it must be proven that nothing acknowledged was on the
/// writer's disk alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaOrigin {
    /// The writer had closed the journal, ending here, as far as the copy was told.
    pub closed: Option<Lsn>,
}

/// How appends are multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastOptions {
    /// The group, which the lenders must serve too.
    pub group: MulticastGroup,
    /// Bytes of a datagram; `None`: as many as the network there carries whole. More than that is worse than
    /// less.
    pub datagram_bytes: Option<usize>,
    /// How many networks datagrams may pass through, their own included.
    pub ttl: u8,
}

impl MulticastOptions {
    /// To `group`, as its network has it.
    pub fn to(group: MulticastGroup) -> MulticastOptions {
        MulticastOptions {
            group,
            datagram_bytes: None,
            ttl: TTL_DEFAULT,
        }
    }
}

impl Default for JournalConfig {
    fn default() -> JournalConfig {
        JournalConfig {
            lenders: Vec::new(),
            security: Security::Insecure,
            rule: CommitRule::All,
            members: 0,
            members_min: None,
            domain: DOMAIN_DEFAULT.to_string(),
            one_domain: false,
            window_bytes: WINDOW_BYTES_DEFAULT,
            timing: WriterTimings::default(),
            wait: WaitPolicy::default(),
            disk_delay: DISK_DELAY_DEFAULT,
            seal: true,
            patience: Duration::from_secs(30),
            grace: Duration::from_millis(500),
            accept_loss: false,
            newest: None,
            replica_origin: None,
            multicast: None,
            voter: Voter::Disk,
            modelled_sync_delay: Duration::ZERO,
        }
    }
}

impl JournalConfig {
    /// A configuration for `members` members out of `lenders`, the rest at their defaults.
    pub fn with_lenders(lenders: Vec<NetAddress>, security: Security, members: usize) -> JournalConfig {
        JournalConfig {
            lenders,
            security,
            members,
            ..JournalConfig::default()
        }
    }

    /// Members below which commits wait for the disk.
    pub fn min(&self) -> usize {
        self.members_min.unwrap_or(self.rule.copies(self.members)).max(1)
    }

    /// Why the configuration contradicts itself or a limit, if it does.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(what);
        if self.lenders.len() > LENDERS_MAX {
            return wrong(format!(
                "{} lenders are configured; at most {LENDERS_MAX} are possible",
                self.lenders.len()
            ));
        }
        if self.members > MEMBERS_MAX || self.members > self.lenders.len() {
            return wrong(format!(
                "{} members are asked for, of {} lenders; give at least as many lenders as members, and at most {MEMBERS_MAX} members",
                self.members,
                self.lenders.len()
            ));
        }
        if self.members > 0 && self.rule.copies(self.members) > self.members {
            return wrong(format!(
                "the commit rule {} cannot be met by {} members",
                self.rule, self.members
            ));
        }
        if self.members_min.is_some_and(|min| min > self.members) {
            return wrong(format!(
                "the minimum of members exceeds the {} members asked for",
                self.members
            ));
        }
        if !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&self.window_bytes) {
            return wrong(format!(
                "a window of {} bytes is out of bounds; choose {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX}",
                self.window_bytes
            ));
        }
        let sizes = DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX;
        if let Some(bytes) = self
            .multicast
            .as_ref()
            .and_then(|multicast| multicast.datagram_bytes)
            && !sizes.contains(&bytes)
        {
            return wrong(format!(
                "a datagram of {bytes} bytes is out of bounds; choose {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}"
            ));
        }
        let mut seen: Vec<&NetAddress> = Vec::new();
        for address in &self.lenders {
            if seen.contains(&address) {
                return wrong(format!(
                    "{address} is named twice; two copies at one lender are one copy"
                ));
            }
            seen.push(address);
        }
        Ok(())
    }

    /// The ring in whole pages, and no larger than the log: what is beyond could never be used.
    pub(crate) fn ring_bytes(&self, capacity: u64) -> u64 {
        self.window_bytes.next_multiple_of(LOG_ALIGN).min(capacity)
    }

    /// What the machine needs to know.
    pub(crate) fn writer_config(&self, window_bytes: u64) -> WriterConfig {
        WriterConfig {
            lenders: self.lenders.iter().map(NetAddress::to_string).collect(),
            rule: self.rule,
            wanted: self.members,
            min: self.min(),
            domain: self.domain.clone(),
            one_domain: self.one_domain,
            window_bytes,
            timing: self.timing,
            cast: self.multicast.as_ref().map(|_| MulticastTiming::default()),
            voter: self.voter,
        }
    }
}
