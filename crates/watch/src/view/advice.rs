//! Advice to a person about a journal, in sentences: for `netram explain` and for the dashboard.

use serde::{Deserialize, Serialize};

use super::alerts::AlertName;
use super::rows::JournalRow;

/// Age in milliseconds of data at risk in its machine alone from which `netram explain` names it.
const RISK_AGE_MS: u64 = 1000;

/// Age in milliseconds of data on no disk from which its disk hangs. As in `netram.rules.yml`.
const DISK_AGE_MS: u64 = 10_000;

/// An advice to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The alert that fires once the state lasts; `None` for a state that may be meant.
    pub alert: Option<AlertName>,
    /// The part that it is about, if not the journal: the address of a lender.
    pub subject: Option<String>,
    /// The sentence; a command belongs behind it.
    pub sentence: String,
    /// The command to type.
    pub command: Option<String>,
}

impl Advice {
    fn new(alert: impl Into<Option<AlertName>>, sentence: String) -> Advice {
        Advice {
            alert: alert.into(),
            subject: None,
            sentence,
            command: None,
        }
    }

    fn with(self, command: String) -> Advice {
        Advice {
            command: Some(command),
            ..self
        }
    }

    /// The sentence with its command.
    pub fn text(&self) -> String {
        match &self.command {
            Some(command) => format!("{}: {command}", self.sentence),
            None => self.sentence.clone(),
        }
    }
}

/// Advice that `netram explain` gives: without what may pass within moments.
pub fn lasting(path: &str, journal: &JournalRow) -> Vec<Advice> {
    let mut advice = advice(path, journal);
    let alone = journal.risk("this machine");
    let is_old = alone.is_some_and(|risk| risk.age_ms > RISK_AGE_MS);
    advice.retain(|advice| advice.alert != Some(AlertName::AtRisk) || is_old);
    advice
}

/// All advice on a journal, which the user calls `path`.
pub fn advice(path: &str, journal: &JournalRow) -> Vec<Advice> {
    let mut advice = of_disk(journal);
    if journal.lenders.is_empty() && journal.host.is_empty() {
        let sentence = "Add a lender; `netram status` finds some".to_owned();
        advice.push(Advice::new(None, sentence).with(format!("netram journal add-lender {path} ADDRESS")));
        return advice;
    }
    advice.extend(of_lenders(path, journal));
    if journal.risk("this machine").is_some_and(|risk| risk.bytes > 0) {
        advice.push(Advice::new(
            AlertName::AtRisk,
            format!(
                "Keep {} running until the disk of {} has everything: only its memory has the newest commits.",
                machine(journal),
                journal.path
            ),
        ));
    }
    advice
}

fn of_disk(journal: &JournalRow) -> Vec<Advice> {
    let disk = &journal.path;
    let mut advice = Vec::new();
    if let Some(epoch) = journal.fenced {
        let process = match journal.pid {
            0 => "its process".to_owned(),
            pid => format!("process {pid}"),
        };
        let of_epoch = match epoch {
            0 => String::new(),
            epoch => format!(", of epoch {epoch},"),
        };
        let sentence = format!(
            "End {process}: a newer writer{of_epoch} has the journal, and this one can commit nothing."
        );
        advice.push(Advice::new(AlertName::Fenced, sentence));
    }
    if let Some(error) = &journal.disk_error {
        let sentence = format!(
            "Repair the disk of {disk} ({error}), then open the journal again: lenders have what the disk lacks, so keep \
             them running."
        );
        advice.push(Advice::new(AlertName::JournalFailed, sentence));
    }
    if let Some(error) = &journal.disk_refused {
        let sentence = format!(
            "Let the disk of {disk} be written again ({error}); if it is full, free space. It is retried by itself."
        );
        advice.push(Advice::new(AlertName::DiskRefuses, sentence));
    }
    if journal.risk("all").is_some_and(|risk| risk.age_ms > DISK_AGE_MS) {
        let sentence = format!(
            "Look at the disk of {disk}: it hangs or refuses writes, and the newest records are in memory only"
        );
        advice.push(Advice::new(AlertName::DiskBehind, sentence).with(format!("df {disk}; dmesg | tail")));
    }
    // As in `netram.rules.yml`.
    if journal.capacity > 0 && journal.used as f64 / journal.capacity as f64 > 0.9 {
        let sentence = format!(
            "Make room in the log of {disk}, which is nearly full: does its program truncate, and can the image's disk be \
             written? Otherwise make the log larger."
        );
        advice.push(Advice::new(AlertName::LogFull, sentence));
    }
    advice
}

fn of_lenders(path: &str, journal: &JournalRow) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut members = journal.lenders.iter().filter(|lender| lender.member);
    let is_short =
        journal.blocked.is_some() || !journal.settled || members.any(|lender| lender.why_not.is_some());
    let named = journal.lenders.iter().filter(|lender| !lender.removed);
    let hindered = named.filter(|lender| is_short && lender.why_not.is_some());
    for lender in hindered {
        let why = lender.why_not.as_deref().unwrap_or_default();
        advice.push(Advice {
            subject: Some(lender.address.clone()),
            ..Advice::new(
                AlertName::LenderDown,
                format!("Look after the lender {}: {why}", lender.address),
            )
        });
    }
    if is_short {
        let blocked = journal.blocked.as_ref().map(|_| AlertName::CommitsWaitForDisk);
        let sentence = "Or give it another lender; `netram status` finds some".to_owned();
        advice.push(Advice::new(blocked, sentence).with(format!("netram journal add-lender {path} ADDRESS")));
    }
    advice
}

fn machine(journal: &JournalRow) -> String {
    match journal.is_here() {
        true => "this machine".to_owned(),
        false => format!("the machine of {}", journal.host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{MemberRow, RiskRow};

    fn lender(address: &str, member: bool, why_not: Option<&str>) -> MemberRow {
        MemberRow {
            address: address.to_owned(),
            member,
            why_not: why_not.map(str::to_owned),
            ..MemberRow::default()
        }
    }

    fn journal(lenders: Vec<MemberRow>) -> JournalRow {
        JournalRow {
            path: "/vm/journal".to_owned(),
            lenders,
            settled: true,
            capacity: 1000,
            ..JournalRow::default()
        }
    }

    fn risk(lost: &str, age_ms: u64) -> RiskRow {
        RiskRow {
            lost: lost.to_owned(),
            bytes: 1,
            age_ms,
        }
    }

    fn alerts(journal: &JournalRow) -> Vec<Option<AlertName>> {
        advice("/vm", journal).iter().map(|advice| advice.alert).collect()
    }

    #[test]
    fn a_healthy_journal_needs_nobody_whatever_spares_wait() {
        let spare = lender("tcp://c:1", false, Some("a spare: enough others are members"));
        let mut well = journal(vec![lender("tcp://a:1", true, None), spare]);
        well.risks = vec![risk("all", DISK_AGE_MS)];
        well.used = 900;
        assert_eq!(alerts(&well), []);
    }

    #[test]
    fn each_state_has_its_alert() {
        let mut bad = journal(vec![lender("tcp://a:1", true, None)]);
        bad.risks = vec![risk("this machine", 0), risk("all", DISK_AGE_MS + 1)];
        bad.fenced = Some(3);
        bad.disk_error = Some("EIO".to_owned());
        bad.disk_refused = Some("ENOSPC".to_owned());
        bad.used = 901;
        let alerts = alerts(&bad);
        for alert in [
            AlertName::Fenced,
            AlertName::JournalFailed,
            AlertName::DiskRefuses,
            AlertName::DiskBehind,
            AlertName::LogFull,
            AlertName::AtRisk,
        ] {
            assert!(alerts.contains(&Some(alert)), "{alert:?}: {alerts:?}");
        }
        let lasts = |advice: Vec<Advice>| {
            advice
                .iter()
                .any(|advice| advice.alert == Some(AlertName::AtRisk))
        };
        assert!(!lasts(lasting("/vm", &bad)), "it may pass");
        bad.risks[0].age_ms = RISK_AGE_MS + 1;
        assert!(lasts(lasting("/vm", &bad)));
    }

    #[test]
    fn a_missing_lender_is_named_and_another_one_is_only_urgent_if_commits_wait() {
        let away = lender("tcp://b:1", true, Some("nothing listens there: start the lender"));
        let mut short = journal(vec![lender("tcp://a:1", true, None), away]);
        assert_eq!(alerts(&short), [Some(AlertName::LenderDown), None]);
        short.blocked = Some("only 1 of the 2 members needed are present".to_owned());
        assert_eq!(
            alerts(&short),
            [Some(AlertName::LenderDown), Some(AlertName::CommitsWaitForDisk)]
        );
        let advice = advice("/vm", &short);
        assert_eq!(advice[0].subject.as_deref(), Some("tcp://b:1"));
        assert!(
            advice[1]
                .text()
                .ends_with(": netram journal add-lender /vm ADDRESS"),
            "{advice:?}"
        );
        let none = journal(Vec::new());
        assert_eq!(alerts(&none), [None]);
    }
}
