//! Rows: all that is known of each part of a cluster.

use std::net::IpAddr;

use netram_journal::orders::JournalReport;
use netram_lender::StatusReport;
use serde::{Deserialize, Serialize};

use super::alerts::PersonNeeded;
use super::latency::HourLatency;
use crate::words::count;

/// An instant, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds of a clock that only runs forward.
    pub mono_ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// A lender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LenderRow {
    /// Its address; or the page of metrics that tells of it.
    pub address: String,
    /// Its name.
    pub name: String,
    /// The label of its power supply.
    pub domain: String,
    /// Sources that name it.
    pub found_by: Vec<String>,
    /// Its state, in words.
    pub state: String,
    /// Why it does not answer; `None` if it does.
    pub error: Option<String>,
    /// Bytes in windows and deposits.
    pub used: u64,
    /// Bytes in neither.
    pub free: u64,
    /// Bytes reserved for lending.
    pub lent: u64,
    /// Bytes that may be lent now.
    pub offered: u64,
    /// Number of journals that it must remember.
    pub journals: u32,
    /// Maximum number of them; zero if unknown.
    pub journals_max: u32,
    /// Seconds since it was started.
    pub up_s: u64,
    /// Whether its machine is on battery.
    pub on_battery: bool,
    /// Longest time in seconds for which the client of a window has been silent.
    pub silent_s: u64,
    /// Number of windows whose client has been silent.
    pub abandoned: u64,
    /// Number of failed attempts to write windows to its disk.
    pub spills_failed: u64,
    /// Number of connections with another key.
    pub wrong_keys: u64,
    /// When it answered last, in milliseconds since 1970; zero: never.
    pub seen_ms: u64,
    /// How bad its state is, from 0 (well) to 4.
    pub worry: u8,
}

/// A lender of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberRow {
    /// Its address.
    pub address: String,
    /// The label of its power supply; empty until it has been reached.
    pub domain: String,
    /// Whether it is a member of the durable view.
    pub member: bool,
    /// Whether it was removed.
    pub removed: bool,
    /// Why it does not count; `None` if it does.
    pub why_not: Option<String>,
}

/// Acknowledged data that a loss of memory would take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RiskRow {
    /// The machines that lose their memory, as in `netram_at_risk_bytes`.
    pub lost: String,
    /// Bytes that would be gone.
    pub bytes: u64,
    /// Time in milliseconds since the oldest of them was acknowledged.
    pub age_ms: u64,
}

/// A journal that a process has open, and what is kept in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalRow {
    /// The machine or page that tells of it; empty: this machine.
    pub host: String,
    /// Its directory.
    pub path: String,
    /// The use of it: `journal`, `volume` or `mount`.
    pub kind: String,
    /// The volume or mounted directory that it serves; otherwise its directory.
    pub name: String,
    /// The process that has it open; zero if unknown.
    pub pid: u32,
    /// Its lenders.
    pub lenders: Vec<MemberRow>,
    /// Whether its membership is as asked for.
    pub settled: bool,
    /// The commit rule in force, and copies, in words.
    pub copies: String,
    /// Number of members.
    pub members: u32,
    /// Number of members wanted.
    pub members_wanted: u32,
    /// Bytes of the log.
    pub capacity: u64,
    /// Bytes of the log in use.
    pub used: u64,
    /// Bytes that the local disk lacks.
    pub unsynced: u64,
    /// LSN up to which everything is acknowledged; zero if unknown.
    pub acked: u64,
    /// Number of appends that waited because a window was full.
    pub window_stalls: u64,
    /// Data that would be lost with memory.
    pub risks: Vec<RiskRow>,
    /// Why commits wait for the disk; `None` if members acknowledge.
    pub blocked: Option<String>,
    /// Why the local disk was given up.
    pub disk_error: Option<String>,
    /// With which error writes are refused now.
    pub disk_refused: Option<String>,
    /// Whether a newer writer has fenced this one, and its epoch; zero if unknown.
    pub fenced: Option<u32>,
    /// Whether commits wait for the disk because the machine is on battery.
    pub on_battery: bool,
    /// Why its process does not answer; `None` if it does.
    pub error: Option<String>,
    /// When its process answered last, in milliseconds since 1970.
    pub seen_ms: u64,
    /// Commits by latency since the opening.
    #[serde(skip)]
    pub commits: Vec<u64>,
    /// Latencies of the last hour.
    pub hour: Option<HourLatency>,
    /// How bad its state is, from 0 (well) to 4.
    pub worry: u8,
}

/// A volume, mount, database or region, as its page of metrics has it beyond its journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceRow {
    /// The page that tells of it.
    pub host: String,
    /// Its directory or file.
    pub path: String,
    /// Whether a volume's writes cannot be applied to the image.
    pub failing: bool,
    /// Number of requests that were answered with an error.
    pub front_errors: u64,
    /// Number of blocks that did not match their checksum when they were read.
    pub corrupt_reads: u64,
    /// Whether its data lender does not follow.
    pub copy_out: bool,
    /// Whether a mount's or database's checkpoints fail.
    pub checkpoints_fail: bool,
    /// Number of a region's dead nodes whose journals cannot be read to their end.
    pub stuck_nodes: u64,
}

/// A page of metrics that an operator names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessRow {
    /// The page.
    pub page: String,
    /// Why it does not answer; `None` if it does.
    pub error: Option<String>,
    /// When it answered last, in milliseconds since 1970.
    pub seen_ms: u64,
    /// Number of journals that it names.
    pub journals: usize,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterEvent {
    /// Time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The journal or lender that it is about.
    pub subject: String,
    /// The event, as a clause without a full stop.
    pub what: String,
}

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterView {
    /// The instant of the state.
    pub now: Moment,
    /// Whether all that is known has been asked at least once.
    pub is_complete: bool,
    /// The lenders, the worst first.
    pub lenders: Vec<LenderRow>,
    /// The journals, the worst first.
    pub journals: Vec<JournalRow>,
    /// Pages that are read.
    pub processes: Vec<ProcessRow>,
    /// Volumes, as their pages have them.
    pub services: Vec<ServiceRow>,
    /// The last events, the newest first.
    pub events: Vec<ClusterEvent>,
    /// The states that need a person, the most urgent first.
    pub person: Vec<PersonNeeded>,
    /// Latencies of all commits of the last hour.
    pub hour: HourLatency,
    /// Percentiles of each step of it, oldest first; `None` without commits.
    pub curve: Vec<Option<[f64; 3]>>,
    /// Remarks on the search itself.
    pub remarks: Vec<String>,
}

impl LenderRow {
    /// The row of a lender's report.
    pub fn of_report(address: &str, report: &StatusReport) -> LenderRow {
        let on_battery = report.power.as_ref();
        let on_battery =
            on_battery.is_some_and(|power| matches!(power.state.as_str(), "on-battery" | "low-battery"));
        let silent = report
            .journals
            .iter()
            .filter(|journal| journal.window_bytes > 0 && journal.sessions == 0);
        let silent: Vec<u64> = silent.filter_map(|journal| journal.last_heard_age_s).collect();
        LenderRow {
            address: address.to_owned(),
            name: report.name.clone(),
            domain: report.domain.clone(),
            state: state_of(report),
            used: report.memory.used,
            free: report.memory.free,
            lent: report.memory.reserved,
            offered: report.memory.offered.unwrap_or(report.memory.reserved),
            journals: match report.journals_max {
                // An earlier release does not say.
                0 => report.journals.len() as u32,
                _ => report.journals_used,
            },
            journals_max: report.journals_max,
            up_s: report.uptime_s,
            on_battery,
            silent_s: silent.iter().copied().max().unwrap_or_default(),
            abandoned: silent.len() as u64,
            wrong_keys: report
                .counters
                .handshakes_failed
                .get("wrong_key")
                .copied()
                .unwrap_or_default(),
            ..LenderRow::default()
        }
    }

    /// Its name, or its address if it has none.
    pub fn title(&self) -> &str {
        if self.name.is_empty() {
            &self.address
        } else {
            &self.name
        }
    }
}

/// Returns a lender's state, in words.
pub fn state_of(report: &StatusReport) -> String {
    if report.stopping {
        return "stopping".to_owned();
    }
    if report.safe_to_stop {
        return "drained, safe to stop".to_owned();
    }
    if report.draining {
        let windows = count(report.left.windows as u64, "window");
        return match report.left.pages {
            0 => format!("draining, {windows} left"),
            pages => format!("draining, {windows}, {} left", count(pages, "page")),
        };
    }
    let insecure = if report.secure { "" } else { ", insecure" };
    let short = if report.memory.is_short() {
        ", offers less"
    } else {
        ""
    };
    format!("lending{insecure}{short}")
}

impl JournalRow {
    /// The row of a journal, from the report of the process that has it open.
    pub fn of_report(report: &JournalReport) -> JournalRow {
        let membership = &report.membership;
        let lenders = membership.lenders.iter().map(|lender| MemberRow {
            address: lender.address.clone(),
            domain: lender.domain.clone(),
            member: lender.member,
            removed: lender.removed,
            why_not: lender.why_not.clone(),
        });
        let risks = report.at_risk.iter().map(|risk| RiskRow {
            lost: risk.lost.clone(),
            bytes: risk.bytes,
            age_ms: risk.age_us / 1000,
        });
        let counts =
            |lender: &&netram_journal::orders::LenderReport| lender.member && lender.why_not.is_none();
        JournalRow {
            path: report.path.clone(),
            kind: "journal".to_owned(),
            name: report.path.clone(),
            pid: membership.pid,
            settled: membership.settled,
            copies: format!("rule {}, {}", membership.rule_in_force, membership.copies),
            members: membership.lenders.iter().filter(counts).count() as u32,
            members_wanted: membership.members as u32,
            lenders: lenders.collect(),
            capacity: report.capacity,
            used: report.tail.saturating_sub(report.head),
            unsynced: report.tail.saturating_sub(report.stable),
            acked: report.acked,
            window_stalls: report.window_stalls,
            risks: risks.collect(),
            // Without lenders it is meant to wait for the disk.
            blocked: membership
                .blocked
                .clone()
                .filter(|_| !membership.lenders.is_empty()),
            disk_error: report.disk_error.clone(),
            disk_refused: report.disk_refused.clone(),
            fenced: report.fenced,
            on_battery: report.on_battery,
            commits: report.commits.clone(),
            ..JournalRow::default()
        }
    }

    /// Whether it is of this machine.
    pub fn is_here(&self) -> bool {
        self.host.is_empty() || is_this_machine(&self.host)
    }

    /// The text that tells it from all others.
    pub fn key(&self) -> String {
        match self.host.is_empty() {
            true => self.path.clone(),
            false => format!("{}:{}", self.host, self.path),
        }
    }

    /// The risk if `lost` lost its memory.
    pub fn risk(&self, lost: &str) -> Option<&RiskRow> {
        self.risks.iter().find(|risk| risk.lost == lost)
    }
}

/// Whether a page is served by a process of this machine.
pub(super) fn is_this_machine(page: &str) -> bool {
    let host = page.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let ip = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    page.starts_with("unix:") || name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_known_by_their_address() {
        for (page, is_here) in [
            ("127.0.0.1:9465", true),
            ("[::1]:9465/metrics", true),
            ("localhost:1", true),
            ("unix:/run/m", true),
            ("10.0.0.1:9465", false),
            ("localhost.example.org:1", false),
        ] {
            assert_eq!(is_this_machine(page), is_here, "{page}");
        }
    }
}
