//! Results of `query`, `statistics`, `recovered` and `commit`: values that do not change.

use netram_journal::{JournalRecovery as JournalRecovered, JournalStatus, QuorumError};
use netram_proto::journal::{LenderRole, LinkPhase, PeerAnswer};
use netram_store::JournaledRvm;
use pyo3::prelude::*;

/// The result of a commit: the copies known when it returned.
#[pyclass(frozen, get_all, eq, module = "netram._netram")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Position in the log; None if nothing was logged.
    lsn: Option<u64>,
    /// Number of lenders that had acknowledged it.
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

/// Report of the recovery when the store was opened.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// Number of this opening of the log.
    epoch: u32,
    /// Transactions applied to their segments.
    transactions: u64,
    /// Records that came from lenders rather than from the local disk.
    records_from_lenders: u64,
    /// Bytes that came from lenders.
    bytes_from_lenders: u64,
    /// Bytes from lenders that repaired damaged parts of the local log.
    repaired: u64,
    /// The lenders of the previous opening with their answers: "complete", "unreachable", "amnesiac" or "no
    /// answer".
    lenders: Vec<(String, String)>,
    /// Data that may be missing, if that was accepted; None otherwise.
    loss_accepted: Option<String>,
    /// Duration of the log's recovery.
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

/// State of one lender.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    /// Address.
    address: String,
    /// Power domain of the lender; empty until it has been reached.
    domain: String,
    /// State of its connection: "down", "connecting" or "ready".
    link: String,
    /// Role: "spare", "joining" or "member".
    role: String,
    /// Whether its acknowledgements count according to the durable view.
    member: bool,
    /// Why it does not acknowledge, for example: nothing listens there, another cluster key, no room, no
    /// slot, the same memory as another address. None if it does.
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
    /// Offset in the segment.
    offset: u64,
    /// Bytes mapped.
    length: usize,
    /// Number of open transactions with ranges in it.
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

/// A snapshot of a store.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// Id of the log's journal.
    journal: String,
    /// Number of this opening of the log.
    epoch: u32,
    /// LSN of the oldest record in the log.
    head: u64,
    /// LSN below which every record is on the local disk.
    stable: u64,
    /// LSN below which every record is held according to the commit rule, or on the local disk.
    acked: u64,
    /// LSN of the next record.
    tail: u64,
    /// Bytes of records that the log can hold between head and tail.
    capacity: u64,
    /// Most bytes that one transaction can log.
    transaction_bytes_max: usize,
    /// Path and size of each segment that the log knows.
    segments: Vec<(String, u64)>,
    /// Mapped regions.
    regions: Vec<RegionInfo>,
    /// Transactions begun and not ended.
    open_transactions: usize,
    /// Configured lenders.
    lenders: Vec<Lender>,
    /// Why commits wait for the disk; None if lenders acknowledge them.
    blocked: Option<String>,
    /// Acknowledged data that would be gone if memory were lost now: the machines that lose it ("this
    /// machine", "domain NAME", "this machine and domain NAME" or "all"), bytes, and age of the oldest in
    /// seconds.
    at_risk: Vec<(String, u64, f64)>,
    /// Failure of the local disk, if it failed.
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
            at_risk,
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
            at_risk: at_risk
                .into_iter()
                .map(|risk| (risk.lost.to_string(), risk.bytes, risk.age.0 as f64 / 1e9))
                .collect(),
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

/// Message for why lenders do not acknowledge.
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
        /// Counters since the store was opened.
        ///
        /// Ranges and bytes are counted at three points. Declared: ranges given to set_range and write by
        /// transactions that committed. Committed: after duplicate, overlapping and adjacent ranges of one
        /// transaction were merged. Logged: ranges in records, after the spool dropped those that later
        /// commits replaced.
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
    /// Bytes that merging within transactions kept out of records: duplicates, overlaps, and at least 4 bytes
    /// of header for each merged range.
    bytes_saved_within,
    /// Lazy commits that were spooled.
    spooled_commits,
    /// Records that carried spooled commits.
    spool_records,
    /// Spooled commits that needed no record of their own: those logged so far minus spool_records.
    commits_merged,
    /// Ranges of spooled commits that later ones replaced, or that were merged into another.
    ranges_dropped,
    /// Bytes that merging spooled commits kept out of records: replaced values, and the headers of ranges and
    /// payloads. Headers of the records that were never made are not included.
    bytes_saved_between,
    /// Number of times that a full spool was sorted and merged to make room in it.
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
    /// Commits that found the log full and waited for truncation.
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
