//! `netram lender status`: the lenders, their clients' journals, and how far each has got.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use netram_discover::ProbeError;
use netram_discover::probe::request;
use netram_journal::LinkFailure;
use netram_lender::StatusReport;
use netram_proto::wire::{FrameHeader, FrameKind};
use netram_transport::{Link, NetAddress, Security, connect};
use serde::Serialize;

use super::status_tables;
use crate::options::{DurationArg, LenderAddresses, SecurityArgs};
use crate::output;

/// Time between two reports with `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Show what lenders lend, and to whom
///
/// Prints a line for each lender, then a line for each journal. A lender that does not answer
/// has a line too, and makes the exit code 1.
///
///   domain    label of the lender's power supply
///   journals  journals that the lender must remember, of as many as it can
///   bytes     bytes of the journal that its client may not have on its own disk yet
///   window    bytes lent to the journal; `from disk`: kept while the machine was off, and
///             waiting until its client has recovered; `on disk`: that of a client that has
///             been away for long
///
/// Further tables appear where there is something to show: pages of programs under
/// `netram run`, copies of volumes, and appends that came by multicast.
///
/// Without an address it is the lender of this machine, at port 7420.
///
///   netram lender status
///   netram lender status tcp://10.0.0.2:7420 tcp://10.0.0.3:7420
///   netram lender status --lender unix:/run/netram.sock --insecure --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowLenders {
    #[command(flatten)]
    lenders: LenderAddresses,
    #[command(flatten)]
    security: SecurityArgs,
    /// Print JSON: a list of objects with `address`, and `report` or `error`
    #[arg(long)]
    json: bool,
    /// Repeat every second until interrupted
    #[arg(long)]
    watch: bool,
    /// How long to wait for each lender
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: DurationArg,
}

/// One lender's answer.
#[derive(Debug, Serialize)]
pub(crate) struct LenderAnswer {
    pub(crate) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) report: Option<StatusReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl LenderAnswer {
    pub(super) fn of(address: &NetAddress, answer: Result<StatusReport>) -> LenderAnswer {
        let (report, error) = match answer {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(output::sentence(&error))),
        };
        LenderAnswer {
            address: address.to_string(),
            report,
            error,
        }
    }
}

impl ShowLenders {
    pub(super) fn run(self) -> Result<ExitCode> {
        let security = self.security.security()?;
        let lenders = self.lenders.all_or_local(&self.security)?;
        loop {
            let answers = ask_all(&lenders, &security, self.timeout.0);
            if self.json {
                output::json(&answers)?;
            } else {
                status_tables::show(&answers)?;
            }
            if !self.watch {
                let all = answers.iter().all(|answer| answer.error.is_none());
                return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            std::thread::sleep(WATCH_EVERY);
            if !self.json {
                output::line("")?;
            }
        }
    }
}

/// Asks all lenders at once, so that one that does not answer delays no other.
pub(crate) fn ask_all(lenders: &[NetAddress], security: &Security, timeout: Duration) -> Vec<LenderAnswer> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = lenders
            .iter()
            .map(|address| (address, scope.spawn(move || ask(address, security, timeout))))
            .collect();
        asked
            .into_iter()
            .map(|(address, answer)| {
                let answer = answer.join().unwrap_or_else(|_| bail!("asking it panicked"));
                LenderAnswer::of(address, answer)
            })
            .collect()
    })
}

/// Connects to a lender. The error has the same sentences as a client's.
pub(super) fn connect_lender(
    address: &NetAddress,
    security: &Security,
    timeout: Duration,
) -> Result<Link, LinkFailure> {
    connect(address, security, timeout).map_err(|error| LinkFailure::from(&error))
}

/// Asks one lender for its report.
pub(crate) fn ask(address: &NetAddress, security: &Security, timeout: Duration) -> Result<StatusReport> {
    let deadline = Instant::now() + timeout;
    let link = connect_lender(address, security, timeout)?;
    ask_over(link, deadline)
}

/// Asks for a report over this link.
pub(super) fn ask_over(link: Link, deadline: Instant) -> Result<StatusReport> {
    request_report(link, FrameHeader::new(FrameKind::Status), deadline)
}

/// Sends an order or a question that a report answers.
pub(super) fn request_report(link: Link, order: FrameHeader, deadline: Instant) -> Result<StatusReport> {
    let body = request(link, order, deadline).map_err(|error| explained(&error))?;
    StatusReport::from_frame_body(&body).context("it sent a report that cannot be read")
}

/// Returns an error with the same sentences as a client's.
pub(crate) fn explained(error: &ProbeError) -> anyhow::Error {
    match error {
        ProbeError::Connect(error) => LinkFailure::from(error).into(),
        ProbeError::NoAnswer => LinkFailure::NoAnswer.into(),
        other => anyhow!("{other}"),
    }
}

/// Waits until the link has bytes to read. Fails after the deadline even if it has some.
pub(super) fn await_bytes(link: &Link, deadline: Instant) -> Result<()> {
    netram_discover::probe::await_bytes(link, deadline).map_err(|error| explained(&error))
}
