//! `netram status`: who lends, who uses how much, how far everybody is.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::LinkFailure;
use netram_lender::{CopiesReport, JournalReport, StatusReport};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, NetAddress, Security, connect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::options::{DurationArg, SecurityArgs};
use crate::output;

/// Time between two looks with `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Show what lenders lend, and to whom
///
/// One line a lender, one line a journal. A lender that does not answer is a line too, and makes the exit
/// code 1. `journals` are those that it must remember, of as many as it can: a journal that is closed or
/// deleted makes room. In a journal's line, a lender holds the bytes from TRIM to HELD; what is below TRIM is
/// on the client's own disk. One line a lender that was multicast to: appends that came so, holes in them,
/// and what was dropped because it came twice, did not open, or was of no channel heard here. A lender whose
/// machine is short of memory says so, with how much it lends to far memory meanwhile, and how many slots it
/// has asked back.
///
///   netram status tcp://10.0.0.2:7420 tcp://10.0.0.3:7420 --key-file /etc/netram/key
///   netram status unix:/run/netram.sock --insecure --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowLenders {
    /// The lenders: tcp://host:port or unix:/path
    #[arg(
        required = true,
        value_name = "ADDR",
        env = "NETRAM_LENDERS",
        value_delimiter = ','
    )]
    lenders: Vec<NetAddress>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Print JSON: a list with `address`, and `report` or `error`
    #[arg(long)]
    json: bool,
    /// Look again every second until interrupted
    #[arg(long)]
    watch: bool,
    /// How long to wait for each lender
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: DurationArg,
}

/// What one lender answered.
#[derive(Debug, Serialize)]
struct LenderAnswer {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<StatusReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ShowLenders {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let security = self.security.security()?;
        loop {
            let answers = self.ask_all(&security);
            if self.json {
                output::json(&answers)?;
            } else {
                show(&answers)?;
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

    /// Asks all lenders at once, so that a dead one does not hold up the others.
    fn ask_all(&self, security: &Security) -> Vec<LenderAnswer> {
        std::thread::scope(|scope| {
            let timeout = self.timeout.0;
            let asked: Vec<_> = self
                .lenders
                .iter()
                .map(|address| (address, scope.spawn(move || ask(address, security, timeout))))
                .collect();
            asked
                .into_iter()
                .map(|(address, answer)| {
                    let answer = answer.join().unwrap_or_else(|_| bail!("asking it panicked"));
                    let (report, error) = match answer {
                        Ok(report) => (Some(report), None),
                        Err(error) => (None, Some(output::sentence(&error))),
                    };
                    LenderAnswer {
                        address: address.to_string(),
                        report,
                        error,
                    }
                })
                .collect()
        })
    }
}

/// Connects, or says why there is no link, as its clients do.
pub(super) fn connect_lender(
    address: &NetAddress,
    security: &Security,
    timeout: Duration,
) -> Result<Link, LinkFailure> {
    connect(address, security, timeout).map_err(|error| LinkFailure::from(&error))
}

/// Asks one lender for its report.
pub(super) fn ask(address: &NetAddress, security: &Security, timeout: Duration) -> Result<StatusReport> {
    let deadline = Instant::now() + timeout;
    let mut link = connect_lender(address, security, timeout)?;
    link.send(&[&FrameHeader::new(FrameKind::Status).encode(0)])?;
    loop {
        link.flush()?;
        if let Some(packet) = link.receive()? {
            let frame = Frame::parse(packet)?;
            match frame.header.kind {
                FrameKind::Report => {
                    return StatusReport::from_frame_body(frame.body)
                        .context("it sent a report that makes no sense");
                }
                FrameKind::Refuse
                    if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::DataOnly) =>
                {
                    bail!("it takes data sessions only at this address: ask at another of its addresses")
                }
                // A lender says neither.
                FrameKind::ShareAck => {
                    bail!("it is the server of a shared region: ask it with `netram shared status`")
                }
                FrameKind::Refuse
                    if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::RegionOnly) =>
                {
                    bail!(
                        "it belongs to a shared region, and lends nothing: ask the region's server with `netram shared status`"
                    )
                }
                FrameKind::Refuse => bail!("it refused to report"),
                _ => continue,
            }
        }
        await_bytes(&link, deadline)?;
    }
}

pub(super) fn await_bytes(link: &Link, deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(
        &mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)],
        Some(&timeout),
    ) {
        Ok(0) => Err(LinkFailure::NoAnswer.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn show(answers: &[LenderAnswer]) -> Result<()> {
    let mut lenders = output::table(
        &[
            "lender", "address", "domain", "state", "used", "free", "lent", "journals", "up",
        ],
        4,
    );
    let mut journals = output::table(
        &[
            "journal",
            "lender",
            "epoch",
            "trim",
            "held",
            "bytes",
            "window",
            "last append",
            "last heard",
        ],
        2,
    );
    let mut any = false;
    for answer in answers {
        let Some(report) = &answer.report else {
            let error = answer.error.as_deref().unwrap_or_default();
            lenders.add_row(["-", &answer.address, "-", error, "-", "-", "-", "-", "-"]);
            continue;
        };
        let memory = &report.memory;
        lenders.add_row([
            report.name.clone(),
            answer.address.clone(),
            report.domain.clone(),
            state(report),
            output::bytes(memory.used),
            output::bytes(memory.free),
            output::bytes(memory.reserved),
            match report.journals_max {
                // An earlier release does not say.
                0 => (report.journals.len() + report.journals_left_out).to_string(),
                max => format!("{} of {max}", report.journals_used),
            },
            output::age(Duration::from_secs(report.uptime_s)),
        ]);
        for journal in &report.journals {
            any = true;
            let age = journal
                .last_append_age_ms
                .map(|ms| output::age(Duration::from_millis(ms)));
            journals.add_row([
                journal.id.clone(),
                report.name.clone(),
                journal.epoch.to_string(),
                journal.trim.to_string(),
                journal.held.to_string(),
                output::bytes(journal.used_bytes),
                if journal.window_bytes == 0 {
                    "none".to_owned()
                } else {
                    output::bytes(journal.window_bytes)
                },
                age.map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
                last_contact(journal),
            ]);
        }
    }
    output::line(lenders)?;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        if let Some(copies) = report.copies.filter(|copies| copies.copies > 0) {
            output::line(copies_line(&report.name, &copies))?;
        }
    }
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        if let Some(line) = pressure_line(report) {
            output::line(line)?;
        }
    }
    if any {
        output::line(journals)?;
    }
    for table in [deposits(answers), multicast(answers)].into_iter().flatten() {
        output::line(table)?;
    }
    Ok(())
}

/// When a client of the journal was connected last.
fn last_contact(journal: &JournalReport) -> String {
    match journal.last_heard_age_s {
        _ if journal.sessions > 0 => "connected".to_owned(),
        Some(age) => format!("{} ago", output::age(Duration::from_secs(age))),
        None => "-".to_owned(),
    }
}

/// Pages of far memory, by owner; `None`: there are none.
fn deposits(answers: &[LenderAnswer]) -> Option<String> {
    let mut table = output::table(
        &[
            "deposit",
            "lender",
            "owner",
            "slots",
            "with a page",
            "asked back",
            "bytes",
        ],
        3,
    );
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        for deposit in &report.deposits {
            any = true;
            let owner = if deposit.connected { "connected" } else { "away" };
            table.add_row([
                deposit.id.clone(),
                report.name.clone(),
                owner.to_owned(),
                deposit.slots.to_string(),
                deposit.held.to_string(),
                deposit.asked_back.to_string(),
                output::bytes(deposit.bytes),
            ]);
        }
    }
    any.then(|| table.to_string())
}

/// What came by multicast to whom; `None`: nothing did.
fn multicast(answers: &[LenderAnswer]) -> Option<String> {
    let mut table = output::table(
        &[
            "multicast",
            "group",
            "datagrams",
            "missing",
            "doubled",
            "forged",
            "strange",
        ],
        2,
    );
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        let counters = &report.counters;
        let dropped = |kind| counters.datagrams_dropped.get(kind).copied().unwrap_or(0);
        let counts = [
            counters.datagrams,
            counters.datagrams_missing,
            dropped("doubled"),
            dropped("forged"),
            dropped("strange"),
        ];
        if counts.iter().all(|count| *count == 0) {
            continue;
        }
        any = true;
        let group = report.multicast.clone().unwrap_or_else(|| "-".to_owned());
        let row = [report.name.clone(), group];
        table.add_row(row.into_iter().chain(counts.map(|count| count.to_string())));
    }
    any.then(|| table.to_string())
}

/// What a lender does whose machine is short of memory.
fn pressure_line(report: &StatusReport) -> Option<String> {
    let memory = report.memory;
    let limit = memory.deposits_limit.filter(|_| memory.is_short())?;
    let asked = report
        .deposits
        .iter()
        .map(|deposit| u64::from(deposit.asked_back));
    Some(format!(
        "{} is short of memory: deposits may have {} of {}, {} asked back, and {} given back to the machine",
        report.name,
        output::bytes(limit),
        output::bytes(memory.deposits_max),
        output::counted(asked.sum(), "slot is", "slots are"),
        output::bytes(memory.given_back),
    ))
}

/// What a data lender's copies take.
fn copies_line(name: &str, copies: &CopiesReport) -> String {
    let quota = copies.quota.map_or_else(String::new, |quota| {
        format!(", of a quota of {}", output::bytes(quota))
    });
    format!(
        "{name} keeps {}: they take {}, and {} once they are written in full{quota}",
        output::counted(copies.copies, "copy of a volume", "copies of volumes"),
        output::bytes(copies.taken_bytes),
        output::bytes(copies.promised_bytes),
    )
}

fn state(report: &StatusReport) -> String {
    if report.stopping {
        return "stopping".to_owned();
    }
    let insecure = if report.secure { "" } else { ", insecure" };
    let short = if report.memory.is_short() {
        ", short of memory"
    } else {
        ""
    };
    format!("lending{insecure}{short}")
}
