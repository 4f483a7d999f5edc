//! `netram lender drain` and `netram lender undrain`: emptying a lender before it is stopped.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_lender::{DepositReport, JournalReport, LeftReport, OPERATOR_SUFFIX, StatusReport};
use netram_proto::wire::{Flag, FrameHeader, FrameKind};
use netram_transport::{NetAddress, NetHost, Security};

use super::operator::{ToldLender, operator_sockets};
use super::status;
use crate::options::DurationArg;
use crate::output;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Move clients away from a lender, so that it can be stopped
///
/// The lender serves on, but takes no new windows and pages. It asks its clients to move theirs
/// to other lenders. This waits until the lender holds nothing that a client may still need,
/// and prints a line for each change.
///
/// A journal leaves a lender only when another has taken its place. So where one lender of
/// three is away, the drain of a second waits for it. A journal whose settings name no further
/// lender leaves at once, and its commits wait for the disk.
///
/// The order ends with the lender's process, or with `netram lender undrain`. Only the
/// lender's operator may give it: on its machine and as its user, or as root.
///
/// Exit code: 0 safe to stop, 1 not yet, 2 wrong usage.
///
///   netram lender drain && systemctl restart netram-lender
///   netram lender drain --check
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DrainLender {
    #[command(flatten)]
    operated: OperatedArgs,
    /// How long to wait until it is safe to stop
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: DurationArg,
    /// Only ask whether it is drained and safe to stop
    #[arg(long, conflicts_with = "timeout")]
    check: bool,
}

/// Let a drained lender take windows and pages again
///
/// Its clients reconnect, and those that lack a lender return.
///
///   netram lender undrain
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct UndrainLender {
    #[command(flatten)]
    operated: OperatedArgs,
}

/// The lenders of this machine that are given an order.
#[derive(Debug, Args)]
pub(super) struct OperatedArgs {
    /// Lender of this machine: an address that it listens at, or unix:STORE.operator; `local`
    /// for all that run as this user
    #[arg(long, value_name = "ADDRESS|local", default_value = "local")]
    lender: LenderChoice,
    /// User whose lenders on this machine are meant, by name or number; root only
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "5s")]
    patience: DurationArg,
}

#[derive(Clone, Debug)]
enum LenderChoice {
    Local,
    At(NetAddress),
}

impl FromStr for LenderChoice {
    type Err = <NetAddress as FromStr>::Err;

    fn from_str(text: &str) -> Result<LenderChoice, Self::Err> {
        match text {
            "local" => Ok(LenderChoice::Local),
            address => address.parse().map(LenderChoice::At),
        }
    }
}

/// A lender that is being drained, and what was last said of it.
struct Drained {
    lender: ToldLender,
    report: StatusReport,
    said: Option<(bool, LeftReport)>,
}

impl DrainLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let began = Instant::now();
        let order = FrameHeader::new(if self.check {
            FrameKind::Status
        } else {
            FrameKind::Drain
        });
        let mut drained = Vec::new();
        for lender in self.operated.lenders()? {
            let report = self.operated.tell(&lender, order)?;
            drained.push(Drained {
                lender,
                report,
                said: None,
            });
        }
        loop {
            for one in &mut drained {
                one.say_change()?;
            }
            if drained.iter().all(|one| one.report.safe_to_stop) {
                return Ok(ExitCode::SUCCESS);
            }
            if self.check || began.elapsed() >= self.timeout.0 {
                break;
            }
            let left = self.timeout.0.saturating_sub(began.elapsed());
            std::thread::sleep(left.min(ASK_EVERY));
            for one in &mut drained {
                one.report = self
                    .operated
                    .tell(&one.lender, FrameHeader::new(FrameKind::Status))?;
            }
        }
        for one in drained.iter().filter(|one| !one.report.safe_to_stop) {
            one.list_left()?;
        }
        Ok(ExitCode::FAILURE)
    }
}

impl UndrainLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut order = FrameHeader::new(FrameKind::Drain);
        order.flags = Flag::UNDRAIN;
        for lender in self.operated.lenders()? {
            let report = self.operated.tell(&lender, order)?;
            output::line(format_args!("{}: lending", report.name))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl OperatedArgs {
    /// Sends an order or a question, and returns the report that answers it.
    pub(super) fn tell(&self, lender: &ToldLender, order: FrameHeader) -> Result<StatusReport> {
        let deadline = Instant::now() + self.patience.0;
        let asked = || status::request_report(lender.connect(self.patience.0)?, order, deadline);
        let at = || format!("asking the lender at {}", lender.address);
        match order.kind {
            FrameKind::Drain | FrameKind::Offer => asked()
                .context("a lender of an earlier release takes no such order")
                .with_context(at),
            _ => asked().with_context(at),
        }
    }

    pub(super) fn lenders(&self) -> Result<Vec<ToldLender>> {
        let local: Vec<ToldLender> = operator_sockets(self.user.as_deref())?
            .into_iter()
            .map(ToldLender::from)
            .collect();
        let wanted = match &self.lender {
            LenderChoice::Local if local.is_empty() => bail!(
                "no lender of {} runs on this machine: a lender is drained on its own machine and as its user, or by \
                 root with --user. One with --store elsewhere has the address unix:STORE{OPERATOR_SUFFIX}",
                self.user.as_deref().unwrap_or("this user")
            ),
            LenderChoice::Local => return Ok(local),
            LenderChoice::At(address) => address,
        };
        let question = FrameHeader::new(FrameKind::Status);
        let listens = |lender: &ToldLender| {
            let report = self.tell(lender, question);
            report.is_ok_and(|report| listens_at(&report, wanted))
        };
        if let Some(lender) = local.into_iter().find(listens) {
            return Ok(vec![lender]);
        }
        match wanted {
            NetAddress::Unix(_) => Ok(vec![ToldLender {
                address: wanted.clone(),
                security: Security::Insecure,
                run_by: None,
            }]),
            _ => bail!(
                "no lender of {} on this machine listens at {wanted}: a lender is drained on its own machine and as its user",
                self.user.as_deref().unwrap_or("this user")
            ),
        }
    }
}

/// Whether the lender listens at `wanted`. One that listens at all addresses of its machine has that port.
fn listens_at(report: &StatusReport, wanted: &NetAddress) -> bool {
    let mut addresses = report.addresses.iter().filter_map(|text| text.parse().ok());
    addresses.any(|address: NetAddress| match (&address, wanted) {
        (
            NetAddress::Tcp {
                host: NetHost::Ip(ip),
                port,
            },
            NetAddress::Tcp { port: asked, .. },
        ) if ip.is_unspecified() => port == asked,
        _ => address == *wanted,
    })
}

impl Drained {
    /// Prints a line if something has changed.
    fn say_change(&mut self) -> Result<()> {
        let report = &self.report;
        let now = (report.safe_to_stop, report.left);
        if self.said == Some(now) {
            return Ok(());
        }
        self.said = Some(now);
        let name = &report.name;
        match (report.safe_to_stop, report.draining) {
            (true, _) => output::line(format_args!("{name}: safe to stop")),
            (false, true) => output::line(format_args!("{name}: draining, {} left", amount(&report.left))),
            (false, false) => output::line(format_args!(
                "{name}: not drained, {}; `netram lender drain` moves its clients away",
                amount(&report.left)
            )),
        }
    }

    /// Prints what keeps the lender from being stopped, and the remedy for each.
    fn list_left(&self) -> Result<()> {
        let report = &self.report;
        output::line(format_args!("{}: not yet safe to stop", report.name))?;
        for journal in report.journals.iter().filter(|journal| journal.window_bytes > 0) {
            output::line(format_args!("  {}", window_line(journal)))?;
        }
        for deposit in report.deposits.iter().filter(|deposit| deposit.left() > 0) {
            output::line(format_args!("  {}", deposit_line(deposit)))?;
        }
        match report.journals_left_out + report.deposits_left_out {
            0 => Ok(()),
            more => output::line(format_args!("  and of {more} more journals or deposits some")),
        }
    }
}

fn amount(left: &LeftReport) -> String {
    let windows = output::count(left.windows as u64, "window");
    let bytes = output::bytes(left.bytes);
    match left.pages {
        0 => format!("{windows} with {bytes}"),
        pages => format!("{windows} with {bytes}, {}", output::count(pages, "page")),
    }
}

fn window_line(journal: &JournalReport) -> String {
    let (id, bytes) = (&journal.id, output::bytes(journal.used_bytes));
    if journal.sessions > 0 {
        let append = journal.last_append_age_ms.map(Duration::from_millis);
        let append = append.map_or_else(String::new, |age| {
            format!(", last append {} ago", output::age(age))
        });
        return format!(
            "journal {id}: {bytes}{append}. Its client is connected, and has no other lender yet that takes its place, \
             or hangs; the client's status says why"
        );
    }
    let heard = journal.last_heard_age_s.map(Duration::from_secs);
    let heard = heard.map_or_else(
        || "at an unknown time".to_owned(),
        |age| format!("{} ago", output::age(age)),
    );
    format!(
        "journal {id}: {bytes}. Its client was last heard {heard}, and cannot move it: open the journal once. A stop \
         keeps the window in memory, and with --spill on the disk. If the journal will not be opened again: \
         `netram lender forget {id}`"
    )
}

fn deposit_line(deposit: &DepositReport) -> String {
    let pages = output::count(deposit.left(), "page");
    match deposit.connected {
        true => format!(
            "deposit {}: {pages}. Its owner is connected, and has no other place for them",
            deposit.id
        ),
        false => format!(
            "deposit {}: {pages}. Its owner is away; they are freed if it does not return in time",
            deposit.id
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_is_chosen_by_an_address_that_it_listens_at() {
        let report = |address: &str| StatusReport {
            addresses: vec![address.to_owned()],
            ..StatusReport::default()
        };
        let wanted: NetAddress = "tcp://10.0.0.2:7420".parse().unwrap();
        assert!(listens_at(&report("tcp://0.0.0.0:7420"), &wanted));
        assert!(listens_at(&report("tcp://10.0.0.2:7420"), &wanted));
        assert!(!listens_at(&report("tcp://10.0.0.3:7420"), &wanted));
        assert!(!listens_at(&report("tcp://0.0.0.0:7421"), &wanted));
        assert!(!listens_at(&report("unix:/run/lender"), &wanted));
    }
}
