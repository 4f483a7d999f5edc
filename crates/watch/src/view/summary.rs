//! The part of a state that is shown at once: worst first, and bounded, however large the cluster is.

use std::collections::BTreeMap;

use serde::Serialize;

use super::alerts::PersonNeeded;
use super::latency::HourLatency;
use super::rows::{ClusterEvent, ClusterView, JournalRow, LenderRow};
use crate::limit::{EVENTS_SHOWN, JOURNALS_SHOWN, LENDERS_SHOWN, PERSON_SHOWN, RISKS_SHOWN, RISKS_SHOWN_MIN};

/// The wish of a viewer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryQuery {
    /// Text that journals and lenders must have in a name, path, address or domain.
    pub search: String,
    /// Page of the list of journals, from zero.
    pub page: usize,
}

/// The part that is shown.
#[derive(Debug, Serialize)]
pub struct ClusterSummary<'a> {
    /// Time of the state, in milliseconds since 1970.
    pub now_ms: u64,
    /// Milliseconds since the state was taken.
    pub age_ms: u64,
    /// Whether all that is known has been asked at least once.
    pub is_complete: bool,
    /// Remarks on the search itself.
    pub remarks: &'a [String],
    /// Numbers of everything.
    pub counts: SummaryCounts,
    /// The states that need a person, the most urgent first.
    pub person: &'a [PersonNeeded],
    /// Failures and what each would take, the worst first.
    pub risks: Vec<SummaryRisk>,
    /// The journals that were asked for.
    pub journals: Vec<&'a JournalRow>,
    /// Lenders by domain.
    pub domains: Vec<SummaryDomain>,
    /// The lenders that were asked for.
    pub lenders: Vec<&'a LenderRow>,
    /// Latencies of the last hour.
    pub hour: &'a HourLatency,
    /// Their course.
    pub curve: &'a [Option<[f64; 3]>],
    /// The last events.
    pub events: &'a [ClusterEvent],
    /// Pages of metrics that do not answer, with the reason.
    pub silent_pages: Vec<(&'a str, &'a str)>,
}

/// Numbers of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SummaryCounts {
    /// All lenders.
    pub lenders: usize,
    /// Those that do not answer.
    pub lenders_silent: usize,
    /// Those that were asked for.
    pub lenders_matched: usize,
    /// All journals.
    pub journals: usize,
    /// Those in whose state something is wrong.
    pub journals_worried: usize,
    /// Those that were asked for.
    pub journals_matched: usize,
    /// The page of journals, from zero.
    pub page: usize,
    /// Number of such pages.
    pub pages: usize,
    /// Entries of what needs a person, and of what may.
    pub person: usize,
    /// Those of them that have lasted.
    pub person_due: usize,
    /// Pages of metrics.
    pub processes: usize,
    /// Failures that are told apart.
    pub failures: usize,
}

/// A failure, and what it would take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SummaryRisk {
    /// The machines that lose their memory.
    pub lost: String,
    /// Whether it is a single machine: then nothing should be at risk.
    pub is_alone: bool,
    /// Acknowledged bytes that would be gone.
    pub bytes: u64,
    /// Time in milliseconds since the oldest of them was acknowledged.
    pub age_ms: u64,
    /// Number of journals that would lose some.
    pub journals: usize,
}

/// The lenders of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SummaryDomain {
    /// The label of the power supply.
    pub domain: String,
    /// Number of lenders.
    pub lenders: usize,
    /// Number of those that do not answer.
    pub silent: usize,
    /// Bytes lent of those that answer.
    pub used: u64,
    /// Bytes of those that answer.
    pub lent: u64,
}

impl ClusterView {
    /// The part that a viewer asks for.
    pub fn summary(&self, query: &SummaryQuery, age_ms: u64) -> ClusterSummary<'_> {
        let search = query.search.trim().to_lowercase();
        let journals: Vec<&JournalRow> = self.journals.iter().filter(|row| row.matches(&search)).collect();
        let lenders: Vec<&LenderRow> = self.lenders.iter().filter(|row| row.matches(&search)).collect();
        let pages = journals.len().div_ceil(JOURNALS_SHOWN).max(1);
        let page = query.page.min(pages - 1);
        let mut risks = self.risks();
        let counts = SummaryCounts {
            lenders: self.lenders.len(),
            lenders_silent: self.lenders.iter().filter(|row| row.error.is_some()).count(),
            lenders_matched: lenders.len(),
            journals: self.journals.len(),
            journals_worried: self.journals.iter().filter(|row| row.worry > 0).count(),
            journals_matched: journals.len(),
            page,
            pages,
            person: self.person.len(),
            person_due: self.person.iter().filter(|one| one.due).count(),
            processes: self.processes.len(),
            failures: risks.len(),
        };
        // A few that would take nothing show that they are looked at.
        let harmful = risks.iter().filter(|row| row.bytes > 0).count();
        risks.truncate(harmful.clamp(RISKS_SHOWN_MIN, RISKS_SHOWN));
        let silent_pages = self
            .processes
            .iter()
            .filter_map(|row| Some((row.page.as_str(), row.error.as_deref()?)));
        ClusterSummary {
            now_ms: self.now.unix_ms,
            age_ms,
            is_complete: self.is_complete,
            remarks: &self.remarks,
            counts,
            person: first(&self.person, PERSON_SHOWN),
            risks,
            journals: journals
                .into_iter()
                .skip(page * JOURNALS_SHOWN)
                .take(JOURNALS_SHOWN)
                .collect(),
            domains: self.domains(),
            lenders: lenders.into_iter().take(LENDERS_SHOWN).collect(),
            hour: &self.hour,
            curve: &self.curve,
            events: first(&self.events, EVENTS_SHOWN),
            silent_pages: silent_pages.take(PERSON_SHOWN).collect(),
        }
    }

    /// Failures and what each would take: those of single machines that would take something first.
    fn risks(&self) -> Vec<SummaryRisk> {
        let mut risks: BTreeMap<String, SummaryRisk> = BTreeMap::new();
        for journal in &self.journals {
            for risk in &journal.risks {
                let lost = lost_in_words(journal, &risk.lost);
                let row = risks.entry(lost).or_default();
                row.is_alone = risk.lost == "this machine";
                row.bytes += risk.bytes;
                row.age_ms = row.age_ms.max(risk.age_ms);
                row.journals += usize::from(risk.bytes > 0);
            }
        }
        let mut risks: Vec<SummaryRisk> = risks
            .into_iter()
            .map(|(lost, row)| SummaryRisk { lost, ..row })
            .collect();
        risks.sort_by_key(|row| {
            let is_bad = row.is_alone && row.bytes > 0;
            (!is_bad, u64::MAX - row.bytes, !row.is_alone, row.lost.clone())
        });
        risks
    }

    fn domains(&self) -> Vec<SummaryDomain> {
        let mut domains: BTreeMap<&str, SummaryDomain> = BTreeMap::new();
        for lender in &self.lenders {
            let row = domains.entry(&lender.domain).or_default();
            row.lenders += 1;
            match lender.error {
                Some(_) => row.silent += 1,
                None => {
                    row.used += lender.used;
                    row.lent += lender.lent;
                }
            }
        }
        let named = domains.into_iter().map(|(domain, row)| SummaryDomain {
            domain: domain.to_owned(),
            ..row
        });
        named.collect()
    }
}

fn first<T>(rows: &[T], max: usize) -> &[T] {
    &rows[..rows.len().min(max)]
}

/// A failure in words, of a journal.
fn lost_in_words(journal: &JournalRow, lost: &str) -> String {
    match lost.strip_prefix("this machine") {
        _ if lost == "all" => "all machines at once".to_owned(),
        Some(rest) if !journal.is_here() => format!("the machine of {}{rest}", journal.host),
        _ => lost.to_owned(),
    }
}

impl JournalRow {
    fn matches(&self, search: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(search);
        search.is_empty()
            || [&self.path, &self.name, &self.host, &self.kind]
                .into_iter()
                .any(|text| has(text))
            || self
                .lenders
                .iter()
                .any(|lender| has(&lender.address) || has(&lender.domain))
    }
}

impl LenderRow {
    fn matches(&self, search: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(search);
        search.is_empty()
            || [&self.address, &self.name, &self.domain]
                .into_iter()
                .any(|text| has(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::RiskRow;

    fn journal(number: u32) -> JournalRow {
        let risk = |lost: &str, bytes| RiskRow {
            lost: lost.to_owned(),
            bytes,
            age_ms: bytes,
        };
        JournalRow {
            host: format!("db{}:9465", number % 3),
            path: format!("/srv/vm{number}"),
            name: format!("/srv/vm{number}"),
            worry: u8::from(number == 4242) * 4,
            risks: vec![
                risk("this machine", u64::from(number == 4242)),
                risk("domain ups-1", 0),
                risk("all", 10),
            ],
            ..JournalRow::default()
        }
    }

    fn cluster() -> ClusterView {
        let lender = |number: u32| LenderRow {
            address: format!("tcp://10.0.0.{number}:7420"),
            name: format!("ram-{number}"),
            domain: format!("ups-{}", number % 4),
            lent: 100,
            used: 25,
            error: (number == 7).then(|| "no answer in time".to_owned()),
            ..LenderRow::default()
        };
        let mut view = ClusterView {
            lenders: (0..200).map(lender).collect(),
            journals: (0..5000).map(journal).collect(),
            events: vec![ClusterEvent::default(); 512],
            ..ClusterView::default()
        };
        view.sort();
        view
    }

    #[test]
    fn a_large_cluster_is_shown_in_pages_the_worst_first() {
        let view = cluster();
        let query = |search: &str, page| SummaryQuery {
            search: search.to_owned(),
            page,
        };
        let all = view.summary(&SummaryQuery::default(), 0);
        assert_eq!((all.counts.journals_matched, all.counts.pages), (5000, 100));
        assert_eq!(all.journals[0].name, "/srv/vm4242");
        assert_eq!(all.lenders[0].name, "ram-7");
        assert_eq!(all.events.len(), EVENTS_SHOWN);
        // Three machines, a domain, and all at once.
        assert_eq!((all.counts.failures, all.risks.len()), (5, 5));
        assert!(serde_json::to_vec(&all).unwrap().len() < 250_000);
        let found = view.summary(&query(" VM4999 ", 7), 0);
        assert_eq!(
            (found.journals.len(), found.counts.page),
            (1, 0),
            "the last page that there is"
        );
        assert_eq!(found.counts.journals, 5000);
        let last = view.summary(&query("db1:", 33), 0);
        assert_eq!((last.journals.len(), last.counts.journals_matched), (17, 1667));
        assert_eq!(view.summary(&query("ups-3", 0), 0).lenders.len(), 50);
        assert_eq!(view.summary(&query("<script>", 0), 0).counts.journals_matched, 0);
    }

    #[test]
    fn risks_add_up_over_journals_and_the_failure_of_one_machine_comes_first() {
        let risks = cluster().risks();
        // 4242 is divisible by three.
        assert_eq!(risks[0].lost, "the machine of db0:9465");
        assert_eq!(
            (risks[0].bytes, risks[0].journals, risks[0].is_alone),
            (1, 1, true)
        );
        assert_eq!(
            (risks[1].lost.as_str(), risks[1].bytes, risks[1].age_ms),
            ("all machines at once", 50_000, 10)
        );
        assert_eq!(risks[1].journals, 5000);
        assert!(
            risks
                .iter()
                .any(|row| row.lost == "domain ups-1" && row.bytes == 0)
        );
        assert_eq!(
            lost_in_words(&JournalRow::default(), "this machine and domain a"),
            "this machine and domain a"
        );
    }

    #[test]
    fn a_domain_counts_the_memory_of_lenders_that_answer() {
        let domains = cluster().domains();
        assert_eq!(domains.len(), 4);
        assert_eq!(
            (
                domains[3].lenders,
                domains[3].silent,
                domains[3].lent,
                domains[3].used
            ),
            (50, 1, 4900, 1225)
        );
    }
}
