//! A journal that a process has open, as that process reports it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netram_journal::JournalEvent;
use netram_journal::orders::{JournalReport, RiskReport};
use netram_watch::view::JournalRow;
use netram_watch::view::advice::{Advice, lasting};

use super::explanation::Explanation;
use crate::output;

/// Maximum number of events that are shown.
const EVENTS_SHOWN: usize = 12;

/// Explains the journal in `journal`, which the user calls `path`.
pub(super) fn explain(path: &Path, journal: &Path, report: &JournalReport) -> Explanation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let events = report.events.iter().rev().take(EVENTS_SHOWN).rev();
    Explanation {
        state: state(journal, report),
        risks: report.at_risk.iter().map(risk).collect(),
        lately: events.map(|event| lately(event, now)).collect(),
        todo: todo(path, journal, report),
    }
}

fn state(journal: &Path, report: &JournalReport) -> Vec<String> {
    let membership = &report.membership;
    let mut said = vec![format!(
        "Process {} has the journal {} open.",
        membership.pid,
        journal.display()
    )];
    said.push(match &membership.blocked {
        Some(why) if membership.lenders.is_empty() => {
            format!("It has no lenders, so commits wait for the local disk ({why}).")
        }
        Some(why) => format!("Commits wait for the local disk: {why}."),
        None if report.on_battery => {
            "This machine is on battery: commits wait for the local disk as well.".to_owned()
        }
        None => format!(
            "A commit is safe once its lenders have it (commit rule {}; {}).",
            membership.rule_in_force, membership.copies
        ),
    });
    for lender in &membership.lenders {
        let domain = match lender.domain.is_empty() {
            true => String::new(),
            false => format!(" (power domain `{}`)", lender.domain),
        };
        let part = match (lender.member, &lender.why_not) {
            (true, None) => "a member".to_owned(),
            (true, Some(why)) => format!("a member that does not count: {why}"),
            (false, why) => why.clone().unwrap_or_default(),
        };
        said.push(format!("  {}{domain}: {part}", lender.address));
    }
    said.push(format!(
        "The log holds {} of {}; the local disk lacks {}. Since the opening: {} and {}.",
        output::bytes(report.tail - report.head),
        output::bytes(report.capacity),
        output::bytes(report.tail.saturating_sub(report.stable)),
        output::count(report.records, "record"),
        output::count(report.syncs, "sync"),
    ));
    if report.window_stalls > 0 {
        said.push(format!(
            "{} waited for the disk because the lenders' windows ({}) were full.",
            output::count(report.window_stalls, "append"),
            output::bytes(report.window_bytes)
        ));
    }
    said
}

fn risk(risk: &RiskReport) -> (String, String) {
    let outcome = match risk.bytes {
        0 => "nothing would be lost".to_owned(),
        bytes => format!(
            "{} that were acknowledged would be lost, the oldest {} ago",
            output::bytes(bytes),
            output::age(Duration::from_micros(risk.age_us))
        ),
    };
    let lost = match risk.lost.as_str() {
        "all" => "this machine and all lenders".to_owned(),
        lost => lost.to_owned(),
    };
    (lost, outcome)
}

fn lately(event: &JournalEvent, now: Duration) -> String {
    let ago = Duration::from_secs(now.as_secs().saturating_sub(event.unix_seconds));
    format!("{} ago: {}", output::age(ago), event.what)
}

fn todo(path: &Path, journal: &Path, report: &JournalReport) -> Vec<String> {
    let row = JournalRow {
        path: journal.display().to_string(),
        ..JournalRow::of_report(report)
    };
    let advice = lasting(&path.display().to_string(), &row);
    advice.iter().map(Advice::text).collect()
}

#[cfg(test)]
mod tests {
    use netram_journal::orders::{LenderReport, MembershipReport};

    use super::*;

    fn lender(address: &str, member: bool, why_not: Option<&str>) -> LenderReport {
        LenderReport {
            address: address.to_owned(),
            domain: "ups-1".to_owned(),
            member,
            removed: false,
            why_not: why_not.map(str::to_owned),
        }
    }

    fn report(lenders: Vec<LenderReport>) -> JournalReport {
        JournalReport {
            journal: "07".to_owned(),
            path: String::new(),
            commits: Vec::new(),
            membership: MembershipReport {
                pid: 7,
                lenders,
                rule: "all".to_owned(),
                rule_in_force: "all".to_owned(),
                members: 2,
                members_min: 2,
                copies: "2 copies, 2 domains".to_owned(),
                blocked: None,
                settled: true,
            },
            head: 0,
            stable: 4096,
            acked: 8192,
            tail: 8192,
            capacity: 1 << 20,
            window_bytes: 1 << 20,
            records: 1,
            syncs: 2,
            window_stalls: 0,
            disk_error: None,
            disk_refused: None,
            fenced: None,
            on_battery: false,
            at_risk: vec![RiskReport {
                lost: "all".to_owned(),
                bytes: 4096,
                age_us: 2_000_000,
            }],
            events: vec![JournalEvent {
                unix_seconds: 0,
                what: "the lender tcp://a:1 was connected".to_owned(),
            }],
        }
    }

    fn explained(report: &JournalReport) -> Explanation {
        explain(Path::new("/vm"), Path::new("/vm/journal"), report)
    }

    #[test]
    fn a_healthy_journal_needs_nobody_whatever_spares_wait() {
        let spare = lender("tcp://c:1", false, Some("a spare: enough others are members"));
        let members = [lender("tcp://a:1", true, None), lender("tcp://b:1", true, None)];
        let said = explained(&report([&members[..], &[spare]].concat()));
        assert!(said.todo.is_empty(), "{said:?}");
        let loss = ("this machine and all lenders", "4.0 KiB that were acknowledged");
        assert!(said.risks[0].0 == loss.0 && said.risks[0].1.starts_with(loss.1));
        assert!(said.lately[0].ends_with("the lender tcp://a:1 was connected"));
    }

    #[test]
    fn each_trouble_has_its_advice_with_a_command() {
        let away = lender("tcp://b:1", true, Some("nothing listens there: start the lender"));
        let mut troubled = report(vec![lender("tcp://a:1", true, None), away]);
        troubled.membership.settled = false;
        troubled.disk_refused = Some("ENOSPC".to_owned());
        let todo = explained(&troubled).todo.join("\n");
        for named in [
            "tcp://b:1: nothing listens there",
            "netram journal add-lender /vm ADDRESS",
            "/vm/journal",
            "free space",
        ] {
            assert!(todo.contains(named), "{named}: {todo}");
        }
        assert!(!todo.contains("tcp://a:1"), "{todo}");
        let none = explained(&report(Vec::new()));
        assert_eq!(none.todo.len(), 1, "{none:?}");
        let mut alone = report(vec![lender("tcp://a:1", true, None)]);
        alone.at_risk[0].lost = "this machine".to_owned();
        assert_eq!(explained(&alone).todo.len(), 1);
    }
}
