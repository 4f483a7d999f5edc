//! What `query`, `statistics`, `recovered` and `commit` answer: values, read once.

use netram_journal::{JournalRecovery as JournalRecovered, JournalStatus, QuorumError};
use netram_proto::journal::{LenderRole, LinkPhase, PeerAnswer};
use netram_store::JournaledRvm;
use pyo3::prelude::*;

/// What a commit was known to be held by when it returned.
#[pyclass(frozen, get_all, eq, module = "netram._netram")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Where the log has it; None when there was nothing to log.
    lsn: Option<u64>,
    /// Lenders that had acknowledged it.
    lenders: u8,
    /// Whether they satisfied the commit rule.
    rule: bool,
    /// Whether the local disk had it.
    disk: bool,
}

impl Commit {
    pub(crate) fn of(commit: netram_rvm::CommitReceipt) -> Commit {
        Commit {
            lsn: commit.ticket.map(|ticket| ticket.lsn.0),
            lenders: commit.votes.members,
            rule: commit.votes.rule,
            disk: commit.votes.disk,
        }
    }
}

#[pymethods]
impl Commit {
    fn __repr__(&self) -> String {
        let Commit {
            lsn,
            lenders,
            rule,
            disk,
        } = self;
        let lsn = lsn.map_or_else(|| "None".to_owned(), |lsn| lsn.to_string());
        let (rule, disk) = (truth(*rule), truth(*disk));
        format!("netram.Commit(lsn={lsn}, lenders={lenders}, rule={rule}, disk={disk})")
    }
}

fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// What recovery found and did when the store was opened.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// The number of this reign over the log.
    epoch: u32,
    /// Transactions applied to their segments.
    transactions: u64,
    /// Records that came from lenders rather than from the local disk.
    records_from_lenders: u64,
    /// Bytes that came from lenders.
    bytes_from_lenders: u64,
    /// Bytes among them that repaired a damaged stretch of the local log.
    repaired: u64,
    /// The lenders of the last reign, and how each answered: "complete", "unreachable", "amnesiac" or "no
    /// answer".
    lenders: Vec<(String, String)>,
    /// What may be missing, when that was accepted; None: nothing is.
    loss_accepted: Option<String>,
    /// How long the log's recovery took.
    seconds: f64,
}

impl Recovered {
    pub(crate) fn of(memory: &JournaledRvm, journal: JournalRecovered) -> Recovered {
        let answer = |answer| match answer {
            PeerAnswer::Complete => "complete",
            PeerAnswer::Unreachable => "unreachable",
            PeerAnswer::Amnesiac => "amnesiac",
            PeerAnswer::AheadOfReplica => "beyond the replica",
            PeerAnswer::Overclaims => "overclaims",
            PeerAnswer::Connected | PeerAnswer::Reading => "no answer",
        };
        let lenders = journal.members.into_iter();
        Recovered {
            epoch: journal.epoch.0,
            transactions: memory.recovery().transactions,
            records_from_lenders: journal.records_from_members,
            bytes_from_lenders: journal.bytes_from_members,
            repaired: journal.repaired,
            lenders: lenders
                .map(|(address, said)| (address, answer(said).to_owned()))
                .collect(),
            loss_accepted: journal.loss_accepted,
            seconds: journal.took.as_secs_f64(),
        }
    }
}

#[pymethods]
impl Recovered {
    fn __repr__(&self) -> String {
        format!(
            "<netram.Recovered: {} transactions, {} records from lenders, epoch {}>",
            self.transactions, self.records_from_lenders, self.epoch
        )
    }
}

/// One lender, as the store sees it.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    /// Where it is.
    address: String,
    /// Its power domain; empty until it has been reached.
    domain: String,
    /// Its connection: "down", "connecting" or "ready".
    link: String,
    /// Its part: "spare", "joining" or "member".
    role: String,
    /// Whether its acknowledgements count by the durable view.
    member: bool,
    /// Why it does not count: nothing listens there, another cluster key, no room, no slot, the same memory
    /// as another address, and so on; None: it counts.
    reason: Option<String>,
}

#[pymethods]
impl Lender {
    fn __repr__(&self) -> String {
        let reason = self
            .reason
            .as_ref()
            .map_or(String::new(), |why| format!(": {why}"));
        format!(
            "<netram.Lender {}, {}, {}{reason}>",
            self.address, self.link, self.role
        )
    }
}

/// One mapped region.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct RegionInfo {
    /// The segment's path.
    path: String,
    /// Where in the segment it begins.
    offset: u64,
    /// Bytes mapped.
    length: usize,
    /// Open transactions with ranges in it.
    transactions: usize,
}

#[pymethods]
impl RegionInfo {
    fn __repr__(&self) -> String {
        format!(
            "<netram.RegionInfo of {:?}, {} bytes from {}>",
            self.path, self.length, self.offset
        )
    }
}

/// Where a store stands now.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// The log's identity.
    journal: String,
    /// The number of this reign over the log.
    epoch: u32,
    /// LSN of the oldest record kept.
    head: u64,
    /// Everything below is on the local disk.
    stable: u64,
    /// Everything below is held as the commit rule demands, or on the local disk.
    acked: u64,
    /// Where the next record goes.
    tail: u64,
    /// Bytes of records that the log can hold between head and tail.
    capacity: u64,
    /// Bytes that one transaction can log.
    transaction_bytes_max: usize,
    /// Path and size of each segment that the log knows.
    segments: Vec<(String, u64)>,
    /// The regions mapped.
    regions: Vec<RegionInfo>,
    /// Transactions begun and not ended.
    open_transactions: usize,
    /// The lenders configured.
    lenders: Vec<Lender>,
    /// Why commits wait for the disk; None: lenders acknowledge them.
    blocked: Option<String>,
    /// The local disk's failure, if it failed.
    disk_error: Option<String>,
}

impl Query {
    pub(crate) fn of(memory: &JournaledRvm) -> Query {
        let rvm = memory.query();
        let status = memory.log().status();
        let blocked = status.quorum_error().map(|why| blocked(&why));
        let JournalStatus {
            journal,
            writer,
            reasons,
            disk_error,
            ..
        } = status;
        let regions = rvm.regions.into_iter().map(|region| RegionInfo {
            path: region.path,
            offset: region.offset,
            length: region.length,
            transactions: region.transactions,
        });
        let lenders = writer
            .lenders
            .into_iter()
            .zip(reasons)
            .map(|(lender, reason)| Lender {
                address: lender.address,
                domain: lender.domain,
                link: link(lender.link).to_owned(),
                role: role(lender.role).to_owned(),
                member: lender.member,
                reason: reason.map(|reason| reason.to_string()),
            });
        Query {
            journal: journal.to_string(),
            epoch: writer.epoch.0,
            head: rvm.log.head.0,
            stable: rvm.log.stable.0,
            acked: rvm.log.acked.0,
            tail: rvm.log.tail.0,
            capacity: rvm.log.capacity,
            transaction_bytes_max: rvm.log.payload_max,
            segments: rvm.segments,
            regions: regions.collect(),
            open_transactions: rvm.open_transactions,
            lenders: lenders.collect(),
            blocked,
            disk_error: disk_error.map(|cause| cause.to_string()),
        }
    }
}

#[pymethods]
impl Query {
    fn __repr__(&self) -> String {
        format!(
            "<netram.Query: log {}..{} of {} bytes, {} segments, {} regions, {} open transactions>",
            self.head,
            self.tail,
            self.capacity,
            self.segments.len(),
            self.regions.len(),
            self.open_transactions
        )
    }
}

fn link(phase: LinkPhase) -> &'static str {
    match phase {
        LinkPhase::Down(_) => "down",
        LinkPhase::Connecting | LinkPhase::Binding | LinkPhase::Fencing => "connecting",
        LinkPhase::Ready => "ready",
    }
}

fn role(role: LenderRole) -> &'static str {
    match role {
        LenderRole::Spare => "spare",
        LenderRole::Joining | LenderRole::CatchingUp(_) => "joining",
        LenderRole::Member => "member",
    }
}

/// Why lenders do not count, as a sentence.
pub(crate) fn blocked(why: &QuorumError) -> String {
    match why.configured == 0 {
        true => {
            "no lenders are configured, so commits wait for the local disk; name them with lenders=[...], \
                 NETRAM_LENDERS or in the settings file"
                .to_owned()
        }
        false => why.to_string(),
    }
}

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened since the store was opened.
        ///
        /// Ranges and bytes count at three places. Declared: what transactions that committed gave to
        /// set_range and write. Committed: after duplicate, overlapping and adjacent ranges of one
        /// transaction were merged. Logged: what records carry, after the spool dropped what later commits
        /// replaced.
        #[pyclass(frozen, get_all, module = "netram._netram")]
        #[derive(Clone, Debug)]
        pub(crate) struct Statistics {
            $($(#[$doc])* $name: u64,)*
        }

        impl Statistics {
            pub(crate) fn of(from: netram_rvm::Statistics) -> Statistics {
                Statistics { $($name: from.$name,)* }
            }
        }

        #[pymethods]
        impl Statistics {
            fn __repr__(&self) -> String {
                let fields = [$(format!(concat!(stringify!($name), "={}"), self.$name)),*];
                format!("netram.Statistics({})", fields.join(", "))
            }
        }
    };
}

statistics! {
    /// Transactions begun.
    begun,
    /// Commits that waited for safety.
    flush_commits,
    /// Commits that did not wait (lazy), spooled ones too.
    lazy_commits,
    /// Commits without a range: nothing was logged.
    empty_commits,
    /// Transactions aborted.
    aborts,
    /// Commits whose outcome stayed unknown.
    unknown_commits,
    /// Ranges declared by transactions that committed.
    ranges_declared,
    /// Bytes of those ranges, duplicates and overlaps counted each time.
    bytes_declared,
    /// Declared ranges that merging within their transaction made part of another:
    /// ranges_declared less those committed.
    ranges_merged,
    /// Bytes of committed ranges: each byte of a transaction once.
    bytes_committed,
    /// Bytes that merging within transactions kept out of records: duplicates, overlaps, and the 24 bytes of
    /// header of each merged range.
    bytes_saved_within,
    /// Lazy commits that were spooled.
    spooled_commits,
    /// Records that carried spooled commits.
    spool_records,
    /// Spooled commits that took no record of their own: those logged so far less spool_records.
    commits_merged,
    /// Ranges of spooled commits that later ones replaced, or that became part of another.
    ranges_dropped,
    /// Bytes that merging spooled commits kept out of records: replaced values, and the headers of ranges
    /// and payloads. The header of each record that was never made comes on top.
    bytes_saved_between,
    /// Times that a full spool was sorted and merged to make room in it.
    spool_compactions,
    /// Ranges that records carry.
    ranges_logged,
    /// Payload bytes of records: values, and headers of ranges and payloads.
    bytes_logged,
    /// Calls of Store.flush.
    flush_calls,
    /// Calls of Store.truncate.
    truncate_calls,
    /// Truncations by the thread in the background.
    background_truncations,
    /// Commits that met a full log and waited for truncation.
    full_stalls,
    /// Nanoseconds spent in those waits.
    full_stall_ns,
    /// Rounds of truncation (each ends with a trimmed log), recovery's included.
    rounds,
    /// Nanoseconds spent in steps of truncation.
    truncation_ns,
    /// Steps of truncation that failed.
    truncation_failures,
    /// Transactions read back from the log by truncation; spooled commits that share a record are one.
    transactions_applied,
    /// Bytes of ranges read back from the log by truncation.
    bytes_read,
    /// Bytes written to segments: less than bytes_read when later values replaced earlier ones.
    bytes_applied,
}
