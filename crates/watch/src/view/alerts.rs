//! The states that need a person: the conditions of Prometheus's rules that ship, judged without Prometheus.

mod conditions;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::conditions::{Condition, conditions};
use super::rows::{ClusterView, Moment};

/// An alert; its name in the rules begins with `Netram`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the rules say what each means")]
pub enum AlertName {
    Fenced,
    JournalFailed,
    AtRisk,
    DiskBehind,
    DiskRefuses,
    SpillFailed,
    LogFull,
    VolumeFailing,
    VolumeErrors,
    VolumeCorrupt,
    CheckpointsFail,
    NodeStuck,
    CommitsWaitForDisk,
    LenderDown,
    ProcessDown,
    WindowFull,
    LenderFull,
    LenderShortOfMemory,
    OnBattery,
    WindowAbandoned,
    WrongKey,
    CopyOutOfService,
}

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlertSeverity {
    /// Acknowledged data is at risk, or is refused.
    Page,
    /// Within the day.
    Warning,
}

/// When an alert fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertRule {
    /// How urgent it is.
    pub severity: AlertSeverity,
    /// Seconds for which its condition must hold.
    pub hold_s: u64,
    /// Seconds within which a count must have grown; `None` if it is no count.
    pub grown_within_s: Option<u64>,
}

impl AlertName {
    /// All alerts.
    pub const ALL: [AlertName; 22] = [
        AlertName::Fenced,
        AlertName::JournalFailed,
        AlertName::AtRisk,
        AlertName::DiskBehind,
        AlertName::DiskRefuses,
        AlertName::SpillFailed,
        AlertName::LogFull,
        AlertName::VolumeFailing,
        AlertName::VolumeErrors,
        AlertName::VolumeCorrupt,
        AlertName::CheckpointsFail,
        AlertName::NodeStuck,
        AlertName::CommitsWaitForDisk,
        AlertName::LenderDown,
        AlertName::ProcessDown,
        AlertName::WindowFull,
        AlertName::LenderFull,
        AlertName::LenderShortOfMemory,
        AlertName::OnBattery,
        AlertName::WindowAbandoned,
        AlertName::WrongKey,
        AlertName::CopyOutOfService,
    ];

    /// When it fires. A test compares this with the rules that ship.
    pub fn rule(self) -> AlertRule {
        use AlertName as N;
        use AlertSeverity::{Page, Warning};
        let (severity, hold_s, grown_within_s) = match self {
            N::Fenced | N::JournalFailed | N::DiskBehind | N::VolumeFailing => (Page, 0, None),
            N::AtRisk => (Page, 10, None),
            N::DiskRefuses | N::CheckpointsFail | N::NodeStuck => (Page, 60, None),
            N::LogFull => (Page, 300, None),
            N::SpillFailed => (Page, 0, Some(3600)),
            N::VolumeErrors => (Page, 0, Some(600)),
            N::VolumeCorrupt => (Page, 0, Some(86_400)),
            N::CommitsWaitForDisk | N::LenderDown | N::ProcessDown => (Warning, 60, None),
            N::WindowFull => (Warning, 600, Some(300)),
            N::LenderFull => (Warning, 600, None),
            N::LenderShortOfMemory => (Warning, 1800, None),
            N::OnBattery | N::WindowAbandoned => (Warning, 0, None),
            N::WrongKey => (Warning, 0, Some(600)),
            N::CopyOutOfService => (Warning, 300, None),
        };
        AlertRule {
            severity,
            hold_s,
            grown_within_s,
        }
    }
}

/// A state that needs a person, or will if it lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonNeeded {
    /// The alert.
    pub alert: AlertName,
    /// How urgent it is.
    pub severity: AlertSeverity,
    /// The journal, lender or page.
    pub subject: String,
    /// Number of further journals with the same advice.
    pub others: usize,
    /// The sentence that says what to do.
    pub sentence: String,
    /// The command to type.
    pub command: Option<String>,
    /// Seconds since it began.
    pub for_s: u64,
    /// Whether it has lasted long enough for the alert to fire; until then it may mend itself.
    pub due: bool,
}

impl PersonNeeded {
    /// How bad it is, from 1 to 4.
    pub fn worry(&self) -> u8 {
        match (self.severity, self.due) {
            (AlertSeverity::Page, true) => 4,
            (AlertSeverity::Page, false) => 3,
            (AlertSeverity::Warning, true) => 2,
            (AlertSeverity::Warning, false) => 1,
        }
    }
}

/// Conditions and when they began.
#[derive(Debug, Default)]
pub struct AlertTracker {
    since: BTreeMap<(AlertName, String), u64>,
    counts: BTreeMap<(AlertName, String), CountSeen>,
}

#[derive(Clone, Copy, Debug)]
struct CountSeen {
    last: u64,
    grew_ms: Option<u64>,
}

impl AlertTracker {
    /// Judges a state: sets what needs a person, and how bad each lender and journal is.
    pub fn judge(&mut self, view: &mut ClusterView) {
        let now = view.now;
        let mut held = Vec::new();
        for condition in conditions(view) {
            if self.holds(&condition, now) {
                held.push(condition);
            }
        }
        let keys: BTreeSet<_> = held.iter().map(|one| (one.alert, one.subject.clone())).collect();
        self.since.retain(|key, _| keys.contains(key));
        let mut worries: BTreeMap<String, u8> = BTreeMap::new();
        view.person.clear();
        for condition in held {
            let key = (condition.alert, condition.subject.clone());
            let since = *self.since.entry(key).or_insert(now.mono_ms);
            let for_s = now.mono_ms.saturating_sub(since) / 1000;
            let rule = condition.alert.rule();
            let needed = PersonNeeded {
                alert: condition.alert,
                severity: rule.severity,
                subject: condition.subject,
                others: condition.worries.len().saturating_sub(1),
                sentence: condition.sentence,
                command: condition.command,
                for_s,
                due: for_s >= rule.hold_s,
            };
            for key in condition.worries {
                let worry = worries.entry(key).or_default();
                *worry = needed.worry().max(*worry);
            }
            view.person.push(needed);
        }
        view.person.sort_by(|a, b| {
            (b.worry(), a.alert, b.for_s, &a.subject).cmp(&(a.worry(), b.alert, a.for_s, &b.subject))
        });
        for lender in &mut view.lenders {
            lender.worry = worries.get(&lender.address).copied().unwrap_or_default();
        }
        for journal in &mut view.journals {
            journal.worry = worries.get(&journal.key()).copied().unwrap_or_default();
        }
    }

    /// Whether a condition holds: that of a count, if the count grew lately.
    fn holds(&mut self, condition: &Condition, now: Moment) -> bool {
        let (Some(count), Some(within_s)) = (condition.count, condition.alert.rule().grown_within_s) else {
            return true;
        };
        let key = (condition.alert, condition.subject.clone());
        let seen = self.counts.entry(key).or_insert(CountSeen {
            last: count,
            grew_ms: None,
        });
        if count > seen.last {
            seen.grew_ms = Some(now.mono_ms);
        }
        seen.last = count;
        seen.grew_ms
            .is_some_and(|grew| now.mono_ms - grew <= within_s * 1000)
    }
}

#[cfg(test)]
mod tests;
