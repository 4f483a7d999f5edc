//! Settings with which a journal is opened.

use std::time::Duration;

use netram_discover::ClusterFile;
use netram_proto::id::Lsn;
use netram_proto::journal::{CommitRule, MulticastTiming, View, Voter, WriterConfig, WriterTimings};
use netram_proto::limit::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, LOG_ALIGN, MEMBERS_MAX, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN,
};
use netram_telemetry::MetricsAddress;
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{MulticastGroup, NetAddress, Security, WaitPolicy};
use netram_ups::UpsSource;

use crate::membership::Membership;

/// Default bytes of the ring. At 100 MB/s of commits it bridges a disk stall of 80 ms.
pub const WINDOW_BYTES_DEFAULT: u64 = 8 * 1024 * 1024;
/// Default time that a record may wait for the disk thread. Members vote faster; syncing more often only
/// takes processor time from commits (docs/design/journal.md, "The disk's vote").
pub const DISK_DELAY_DEFAULT: Duration = Duration::from_millis(1);

/// The power domain of an unlabelled machine. Lenders use the same, so all unlabelled machines count as one
/// domain.
pub const DOMAIN_DEFAULT: &str = "default";

/// Settings for replication, waiting and recovery. Every field but `security` and `lenders` has a working
/// default.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Lenders that may become members, in order of preference. If empty, every commit waits for the local
    /// disk.
    pub lenders: Vec<NetAddress>,
    /// Where lenders are found. If set, `lenders` are those that an opening finds, and those that earlier
    /// openings found.
    pub auto: Option<ClusterFile>,
    /// The protection of links to lenders.
    pub security: Security,
    /// Number of members that must hold a record before it is acknowledged.
    pub rule: CommitRule,
    /// Number of members wanted. The other lenders are spares.
    pub members: usize,
    /// Minimum number of members; with fewer, commits wait for the disk. `None`: `members` for the rule
    /// `all`, otherwise the number of copies that the rule needs.
    pub members_min: Option<usize>,
    /// This machine's power domain.
    pub domain: String,
    /// Whether all members may be in this machine's power domain. Only for experiments on one machine.
    pub one_domain: bool,
    /// Bytes of the ring, and of the window requested from each member. Rounded up to whole pages.
    pub window_bytes: u64,
    /// Intervals of heartbeats and failure detection.
    pub timing: WriterTimings,
    /// Whether a waiting commit spins, yields or blocks.
    pub wait: WaitPolicy,
    /// Maximum time before the disk thread writes and syncs a record; zero means at once.
    pub disk_delay: Duration,
    /// Whether records are sealed (encrypted and authenticated with the journal's own key) before they leave
    /// this machine. If so, recovery accepts only sealed records from members. To turn sealing on for an
    /// existing journal, close it cleanly first.
    pub seal: bool,
    /// Maximum time that recovery waits for members that must answer.
    pub patience: Duration,
    /// Maximum time that recovery waits for further members.
    pub grace: Duration,
    /// Opens the journal even if acknowledged records may be missing. Must not be set by default.
    pub accept_loss: bool,
    /// The operator's claim that this directory is the newest one of the journal although another writer has
    /// fenced it. Must not be set by default.
    pub newest: Option<NewestClaim>,
    /// Set if the files are a data lender's copy of a journal whose writer had a disk of its own.
    pub replica_origin: Option<ReplicaOrigin>,
    /// The multicast group to which appends are sent once for all members; `None` sends them to each member
    /// over its own link.
    pub multicast: Option<MulticastOptions>,
    /// The voter beside the members. With [`Voter::Server`] the journal belongs to a node of a shared region.
    /// It then opens only if it holds no record that the server may lack ([`crate::OrphanJournal`]). Its head
    /// can be trimmed only up to what the server keeps, and appends wait while the window is full of records
    /// that the server lacks.
    pub voter: Voter,
    /// Where the process serves its metrics while the journal is open. A page that cannot be served is
    /// logged, and the journal opens: data is worth more than numbers.
    pub metrics: Option<MetricsAddress>,
    /// The UPS that feeds this machine: on battery, commits wait for the disk, too.
    pub ups: Option<UpsSource>,
    /// Delay added to every sync of the log, to model a slower disk in benchmarks. Results must say so.
    pub modelled_sync_delay: Duration,
}

/// An operator's claim that a journal's directory is the newest. Recovery uses an epoch above the one that
/// fenced it, unless the records that lenders hold contradict the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestClaim {
    /// The view of a data lender's copy, claimed by a writer that never served.
    pub copy: Option<View>,
}

/// Marks a journal opened from a data lender's copy. Recovery must prove that no acknowledged record was on
/// the writer's disk alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaOrigin {
    /// LSN at which the writer had closed the journal, if the data lender was told so.
    pub closed: Option<Lsn>,
}

/// Settings for multicast appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastOptions {
    /// The group, which the lenders must serve, too.
    pub group: MulticastGroup,
    /// Maximum bytes of a datagram; `None` takes the largest that the network carries unfragmented. A larger
    /// value costs more than a smaller one.
    pub datagram_bytes: Option<usize>,
    /// Time to live: the number of networks that datagrams may pass through, including the first.
    pub ttl: u8,
}

impl MulticastOptions {
    /// Multicast to `group` with default settings.
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
            auto: None,
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
            metrics: None,
            ups: None,
            modelled_sync_delay: Duration::ZERO,
        }
    }
}

impl JournalConfig {
    /// A configuration for `members` members out of `lenders`, with defaults otherwise.
    pub fn with_lenders(lenders: Vec<NetAddress>, security: Security, members: usize) -> JournalConfig {
        JournalConfig {
            lenders,
            security,
            members,
            ..JournalConfig::default()
        }
    }

    /// The number of members below which commits wait for the disk.
    pub fn min(&self) -> usize {
        Membership::from(self).min()
    }

    /// Checks the settings for contradictions and limits; the error says which.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(what);
        let mut wanted = Membership::from(self).wanted();
        if self.auto.is_some() {
            // With fewer lenders than members commits wait for the disk; those found later make up for it.
            let missing = self.members.min(MEMBERS_MAX).saturating_sub(wanted.lenders.len());
            wanted
                .lenders
                .extend((0..missing).map(|number| format!("auto {number}")));
        }
        wanted.check().map_err(|error| error.to_string())?;
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
        Ok(())
    }

    /// Bytes of the ring: whole pages, and no more than the log, since more could never be used.
    pub(crate) fn ring_bytes(&self, capacity: u64) -> u64 {
        self.window_bytes.next_multiple_of(LOG_ALIGN).min(capacity)
    }

    /// The part of the settings that the writer's state machine needs.
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
