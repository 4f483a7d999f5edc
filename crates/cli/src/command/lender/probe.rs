//! Whether lenders that a new journal, volume or region names would count: each is asked for its report once,
//! and must have room for the journal's window.

use std::time::Duration;

use netram_journal::JournalSettings;
use netram_journal::config::WINDOW_BYTES_DEFAULT;
use netram_transport::{NetAddress, Security};

use super::status::{LenderAnswer, ask_all};
use crate::output;

/// How long each lender may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns why `what` (commits, writes, syncs) may wait for the disk, a sentence for each reason: lenders
/// that do not answer or have no room for a journal of `journal_bytes`, and lenders that all share the power
/// domain `own`. With `own` `None`, sharing is allowed.
pub(crate) fn reasons_to_wait(
    lenders: &[NetAddress],
    security: &Security,
    what: &str,
    own: Option<&str>,
    journal_bytes: u64,
) -> Vec<String> {
    let answers = ask_all(lenders, security, TIMEOUT);
    let settings = JournalSettings::from_environment().unwrap_or_default();
    let window = settings.window_bytes.unwrap_or(WINDOW_BYTES_DEFAULT);
    sentences(&answers, what, own, window.min(journal_bytes))
}

/// Returns why this lender would not count.
fn why_not(answer: &LenderAnswer, window: u64) -> Option<String> {
    let address = &answer.address;
    if let Some(error) = &answer.error {
        return Some(format!("lender {address} does not count now: {error}"));
    }
    let report = answer.report.as_ref()?;
    if report.journals_max > 0 && report.journals_used >= report.journals_max {
        return Some(format!(
            "lender {address} does not count now: it remembers {} journals, the most it may. `netram lender forget` removes one \
             that is not needed, `netram lender serve --journals-max` allows more",
            report.journals_used
        ));
    }
    let memory = &report.memory;
    let (room, remedy) = match memory.quota < memory.free {
        true => (memory.quota, "--quota"),
        false => (memory.free, "--memory"),
    };
    (room < window).then(|| {
        format!(
            "lender {address} does not count now: it has room for {}, and the journal needs {}. Start the lender with more: \
             `netram lender serve {remedy}`",
            output::bytes(room),
            output::bytes(window)
        )
    })
}

fn sentences(answers: &[LenderAnswer], what: &str, own: Option<&str>, window: u64) -> Vec<String> {
    let mut said: Vec<String> = answers
        .iter()
        .filter_map(|answer| why_not(answer, window))
        .collect();
    let mut domains = answers
        .iter()
        .filter_map(|answer| Some(&answer.report.as_ref()?.domain))
        .peekable();
    if let Some(own) = own
        && domains.peek().is_some()
        && domains.all(|domain| domain == own)
    {
        said.push(format!(
            "{what} wait for this disk: the lenders and this machine all have the power label `{own}`. Label each machine's \
             power supply (`netram lender serve --domain`, and --domain here), or allow it with --one-domain"
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use netram_lender::StatusReport;
    use netram_lender::report::MemoryReport;

    use super::*;

    fn answer(domain: Option<&str>) -> LenderAnswer {
        let report = domain.map(|domain| StatusReport {
            domain: domain.to_owned(),
            memory: MemoryReport {
                free: 8,
                quota: 10,
                ..MemoryReport::default()
            },
            ..StatusReport::default()
        });
        LenderAnswer {
            address: "tcp://a:1".to_owned(),
            error: report.is_none().then(|| "no answer".to_owned()),
            report,
        }
    }

    #[test]
    fn lenders_wait_for_the_disk_only_when_all_share_the_clients_power() {
        let said = |domains: &[Option<&str>], own| {
            let answers: Vec<LenderAnswer> = domains.iter().map(|domain| answer(*domain)).collect();
            sentences(&answers, "writes", own, 8).len()
        };
        assert_eq!(said(&[Some("x"), Some("x")], Some("x")), 1);
        assert_eq!(said(&[Some("x"), Some("y")], Some("x")), 0);
        assert_eq!(said(&[Some("x")], None), 0);
        assert_eq!(said(&[None], Some("x")), 1);
        assert_eq!(said(&[None, Some("x")], Some("x")), 2);
    }

    #[test]
    fn a_lender_without_room_for_the_journal_does_not_count() {
        let answers = [answer(Some("x"))];
        assert!(sentences(&answers, "writes", None, 8).is_empty());
        let said = sentences(&answers, "writes", None, 9);
        assert!(said[0].contains("--memory"), "{said:?}");
        let mut answers = answers;
        if let Some(report) = &mut answers[0].report {
            report.memory.free = 20;
        }
        let said = sentences(&answers, "writes", None, 11);
        assert!(said[0].contains("--quota"), "{said:?}");
    }
}
