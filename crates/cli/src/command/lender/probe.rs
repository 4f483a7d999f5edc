//! Whether lenders that a new journal, volume or region names would count: each is asked for its report once.

use std::time::Duration;

use netram_transport::{NetAddress, Security};

use super::status::{LenderAnswer, ask_all};

/// How long each lender may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns why `what` (commits, writes, syncs) may wait for the disk, a sentence for each reason: lenders
/// that do not answer, and lenders that all share the power domain `own`. With `own` `None`, sharing is
/// allowed.
pub(crate) fn reasons_to_wait(
    lenders: &[NetAddress],
    security: &Security,
    what: &str,
    own: Option<&str>,
) -> Vec<String> {
    let answers = ask_all(lenders, security, TIMEOUT);
    sentences(&answers, what, own)
}

fn sentences(answers: &[LenderAnswer], what: &str, own: Option<&str>) -> Vec<String> {
    let mut said: Vec<String> = answers
        .iter()
        .filter_map(|answer| {
            let error = answer.error.as_ref()?;
            Some(format!("lender {} does not count now: {error}", answer.address))
        })
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

    use super::*;

    fn answer(domain: Option<&str>) -> LenderAnswer {
        let report = domain.map(|domain| StatusReport {
            domain: domain.to_owned(),
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
            sentences(&answers, "writes", own).len()
        };
        assert_eq!(said(&[Some("x"), Some("x")], Some("x")), 1);
        assert_eq!(said(&[Some("x"), Some("y")], Some("x")), 0);
        assert_eq!(said(&[Some("x")], None), 0);
        assert_eq!(said(&[None], Some("x")), 1);
        assert_eq!(said(&[None, Some("x")], Some("x")), 2);
    }
}
