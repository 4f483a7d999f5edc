//! `netram lender list`: the journals at lenders, and which of them nobody has used for long.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use netram_lender::JournalReport;
use serde::Serialize;

use super::operator::{ToldLender, operator_sockets};
use super::status::{self, LenderAnswer};
use super::status_tables;
use crate::options::{DurationArg, LenderAddresses, SecurityArgs};
use crate::output;

/// List the journals at lenders, those that were used longest ago first
///
/// Says of each what the lender holds, where, for which client, and when that client was
/// connected last. With --abandoned only those with a window whose client has been away for
/// some time: its machine may be gone, or its directory was removed without `netram journal
/// delete`. If it will not come back, free the window with `netram lender forget`.
///
/// A lender with --spill writes such windows to its disk (--spill-after), and lets others
/// have their memory when they need it. It drops none of them by itself.
///
/// Without an address the lenders of this machine are asked that run as this user. Their
/// operator is also told what the clients call their journals: their machine and directory.
/// Root sees the lenders of root and of the system's accounts, and with --user those of
/// another user.
///
///   netram lender list --abandoned
///   netram lender list --abandoned --away 7days tcp://10.0.0.2:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListJournals {
    #[command(flatten)]
    lenders: LenderAddresses,
    #[command(flatten)]
    security: SecurityArgs,
    /// User whose lenders on this machine are asked, by name or number; root only
    #[arg(long, value_name = "USER", conflicts_with_all = ["flags", "plain"])]
    user: Option<String>,
    /// Only windows whose clients have been away for as long as --away says
    #[arg(long)]
    abandoned: bool,
    /// How long the client of an abandoned window has been away
    #[arg(long, value_name = "TIME", default_value = "10min", requires = "abandoned")]
    away: DurationArg,
    /// Print JSON: a list of objects with `lender`, and a journal as in `netram lender status --json`
    #[arg(long)]
    json: bool,
    /// How long to wait for each lender
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: DurationArg,
}

/// A journal at a lender.
#[derive(Serialize)]
struct ListedJournal {
    /// The lender's name.
    lender: String,
    #[serde(flatten)]
    journal: JournalReport,
}

impl ListJournals {
    pub(super) fn run(self) -> Result<ExitCode> {
        let answers = self.answers()?;
        let reports = || answers.iter().filter_map(|answer| answer.report.as_ref());
        let away = self.abandoned.then_some(self.away.0);
        let mut listed: Vec<ListedJournal> = reports()
            .flat_map(|report| {
                report.journals.iter().map(|journal| ListedJournal {
                    lender: report.name.clone(),
                    journal: journal.clone(),
                })
            })
            .filter(|one| away.is_none_or(|away| is_abandoned(&one.journal, away)))
            .collect();
        listed.sort_by_key(|one| std::cmp::Reverse(one.journal.last_heard_age_s));
        if self.json {
            output::json(&listed)?;
        } else {
            show(&listed, self.abandoned)?;
        }
        for report in reports().filter(|report| report.journals_left_out > 0) {
            output::remark(format_args!(
                "lender {} has {} more journals than a report has room for",
                report.name, report.journals_left_out
            ));
        }
        let mut all = true;
        for (address, error) in { answers.iter() }.filter_map(|one| Some((&one.address, one.error.as_ref()?)))
        {
            all = false;
            output::remark(format_args!("{address}: {error}"));
        }
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl ListJournals {
    /// Asks the lenders of this machine as their operator, or those with an address as anyone may.
    fn answers(&self) -> Result<Vec<LenderAnswer>> {
        let named = self.lenders.given();
        if !named.is_empty() {
            let security = self.security.security()?;
            return Ok(status::ask_all(&named, &security, self.timeout.0));
        }
        let sockets = operator_sockets(self.user.as_deref())?;
        if sockets.is_empty() {
            bail!(
                "no lender of {} runs on this machine: name an address, or as root another user (--user)",
                self.user.as_deref().unwrap_or("this user")
            );
        }
        let asked = sockets.into_iter().map(ToldLender::from).map(|lender| {
            let deadline = Instant::now() + self.timeout.0;
            let link = lender.connect(self.timeout.0);
            LenderAnswer::of(
                &lender.address,
                link.and_then(|link| status::ask_over(link, deadline)),
            )
        });
        Ok(asked.collect())
    }
}

/// Whether the journal has a window here, and its client has been away for this long, or nobody knows when it
/// was there.
fn is_abandoned(journal: &JournalReport, away: Duration) -> bool {
    let has_window = journal.window_bytes > 0 || journal.on_disk;
    let age = journal.last_heard_age_s.map(Duration::from_secs);
    has_window && journal.sessions == 0 && age.is_none_or(|age| age >= away)
}

fn show(listed: &[ListedJournal], abandoned: bool) -> Result<()> {
    if listed.is_empty() {
        let nothing = match abandoned {
            true => "no window is abandoned",
            false => "no journal is here",
        };
        return output::line(nothing);
    }
    let heads = [
        "journal",
        "lender",
        "client",
        "name",
        "bytes",
        "window",
        "last heard",
    ];
    let mut table = output::table(&heads, 4);
    let known = |name: &str| match name {
        "" => "-".to_owned(),
        name => name.to_owned(),
    };
    for ListedJournal { lender, journal } in listed {
        table.add_row([
            journal.id.clone(),
            lender.clone(),
            known(&journal.client),
            known(&journal.name),
            output::bytes(journal.used_bytes),
            status_tables::window(journal),
            status_tables::last_contact(journal),
        ]);
    }
    output::line(table)?;
    if abandoned {
        let bytes = listed.iter().map(|one| one.journal.used_bytes).sum();
        output::line(format_args!(
            "{} in windows that may be the only copy of their clients' newest commits; `netram lender forget ID --force` frees one",
            output::bytes(bytes)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_abandoned_once_its_client_has_been_away_for_long() {
        let journal = |window_bytes, on_disk, sessions, last_heard_age_s| JournalReport {
            window_bytes,
            on_disk,
            sessions,
            last_heard_age_s,
            ..JournalReport::default()
        };
        let away = Duration::from_secs(600);
        for (one, is) in [
            (journal(4096, false, 0, Some(600)), true),
            (journal(0, true, 0, Some(600)), true),
            (journal(4096, false, 0, None), true),
            (journal(4096, false, 0, Some(599)), false),
            (journal(4096, false, 1, Some(600)), false),
            (journal(0, false, 0, Some(600)), false),
        ] {
            assert_eq!(is_abandoned(&one, away), is, "{one:?}");
        }
    }
}
