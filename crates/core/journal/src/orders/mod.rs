//! Orders of other processes of this machine to the process that has a journal open.
//!
//! That process listens on an abstract Unix socket, which its maintenance thread looks at. The socket's name
//! has the writer's id, which each opening draws and the view file tells: so it belongs to this opening
//! alone, leaves no file behind, and is found by whoever may read the journal. Only the process's own user
//! and root are answered.
//!
//! ```text
//! request:   {"ask":"status"}                                        one line, then nothing more
//!            {"ask":"report"}
//!            {"ask":"metrics"}
//!            {"ask":"change","lenders":["tcp://a:7420"],"rule":"all","members":1,"members_min":1,"check":false}
//! reply:     {"status":{…}}, {"report":{…}} or {"metrics":"…"}       one line; or {"refused":"why"}
//! ```
//!
//! A network namespace of its own hides the socket.

mod client;
mod open;
mod report;
mod server;

pub use client::{OrderError, metrics, order, report};
pub use open::{OpenJournalSocket, open_journals};
pub use report::{JournalReport, RiskReport};
pub(crate) use server::OrderListener;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::time::Duration;

use netram_proto::id::WriterId;
use netram_proto::journal::WriterStatus;
use netram_transport::NetAddress;
use serde::{Deserialize, Serialize};

use crate::membership::Membership;
use crate::reason::UncountedReason;

/// Prefix of the sockets' names; the writer's id follows.
const SOCKET_PREFIX: &str = "netram-journal-";
/// Maximum bytes of a request: 16 addresses, and the rest.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// Maximum bytes of a reply.
const REPLY_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of metrics in a reply, which JSON makes longer.
const METRICS_BYTES_MAX: usize = REPLY_BYTES_MAX / 2;
/// Maximum time of a client to send its request, and to take the reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of the process to answer. It looks every few hundredths of a second, and may stand still.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A request to the process that has a journal open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum JournalOrder {
    /// Return the status.
    Status,
    /// Return the whole state.
    Report,
    /// Return the metrics of the process.
    Metrics,
    /// Change the membership, and return the status.
    Change {
        /// Addresses of the lenders.
        lenders: Vec<String>,
        /// The commit rule.
        rule: String,
        /// Number of members wanted.
        members: usize,
        /// Minimum number of members.
        members_min: usize,
        /// Only tell whether the change is possible.
        check: bool,
    },
}

impl JournalOrder {
    /// The order for `membership`; with `check` nothing changes.
    pub fn change(membership: &Membership, check: bool) -> JournalOrder {
        JournalOrder::Change {
            lenders: membership.lenders.iter().map(NetAddress::to_string).collect(),
            rule: membership.rule.to_string(),
            members: membership.members,
            members_min: membership.min(),
            check,
        }
    }
}

/// The reply to a [`JournalOrder`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OrderReply {
    Status(Box<MembershipReport>),
    Report(Box<JournalReport>),
    /// In the text format of Prometheus.
    Metrics(String),
    Refused(String),
}

/// One lender of a [`MembershipReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LenderReport {
    /// Its address.
    pub address: String,
    /// Its power domain; empty until it has been reached.
    pub domain: String,
    /// Whether it is a member of the durable view.
    pub member: bool,
    /// Whether it was removed. A member stays until another lender has taken its place.
    pub removed: bool,
    /// Why it does not count; `None` if it does.
    pub why_not: Option<String>,
}

/// Lenders, rule and members of an open journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipReport {
    /// The process that has the journal open.
    pub pid: u32,
    /// The lenders that are named, and those that are being removed.
    pub lenders: Vec<LenderReport>,
    /// The commit rule that is asked for.
    pub rule: String,
    /// The commit rule in force, that of the durable view.
    pub rule_in_force: String,
    /// Number of members wanted.
    pub members: usize,
    /// Minimum number of members.
    pub members_min: usize,
    /// Copies and power domains, in words.
    pub copies: String,
    /// Why commits wait for the disk; `None` if members acknowledge.
    pub blocked: Option<String>,
    /// Whether everything is as asked for.
    pub settled: bool,
}

impl MembershipReport {
    fn of(
        membership: &Membership,
        status: &WriterStatus,
        reasons: &[Option<UncountedReason>],
    ) -> MembershipReport {
        let lenders = status.lenders.iter().zip(reasons);
        MembershipReport {
            pid: std::process::id(),
            lenders: lenders
                .map(|(lender, why_not)| LenderReport {
                    address: lender.address.clone(),
                    domain: lender.domain.clone(),
                    member: lender.member,
                    removed: lender.removed,
                    why_not: why_not.as_ref().map(ToString::to_string),
                })
                .collect(),
            rule: membership.rule.to_string(),
            rule_in_force: status.rule.to_string(),
            members: membership.members,
            members_min: membership.min(),
            copies: status.copies.to_string(),
            blocked: status.blocked.as_ref().map(ToString::to_string),
            settled: status.settled,
        }
    }

    /// The membership that is asked for. Addresses and rules that this release cannot read are left out.
    pub fn membership(&self) -> Membership {
        let named = self.lenders.iter().filter(|lender| !lender.removed);
        Membership::with_min(
            named.filter_map(|lender| lender.address.parse().ok()).collect(),
            self.rule.parse().unwrap_or_default(),
            self.members,
            self.members_min,
        )
    }
}

/// The address of the socket of the opening by `writer`.
fn socket(writer: WriterId) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}{writer}"))
}
