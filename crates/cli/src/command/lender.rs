//! `netram lender`: what an operator does about journals that nobody will end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use netram_journal::forget::{self, ForgetList, UnfreedWindow, WindowRelease};
use netram_lender::JournalReport;
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::ForgetNotice as Forgetting;
use netram_proto::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind};
use netram_transport::{Link, NetAddress, Security};

use super::status;
use crate::options::{DurationArg, SecurityArgs};
use crate::output;

/// A journal whose client was connected this recently is not forgotten by mistake.
const RECENT: Duration = Duration::from_secs(3600);
/// Between two looks whether the lender has noticed that a connection ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Free what lenders keep for journals that are no more
///
///   netram lender forget 4f2a...c1 tcp://10.0.0.2:7420 --key-file /etc/netram/key
///   netram lender tell
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum LenderCommand {
    Forget(ForgetJournal),
    Tell(TellLenders),
}

/// Have lenders forget a journal that nobody will open again
///
/// For journals whose directory was removed, or whose machine is gone. `netram status`
/// shows their ids, the bytes held, and when a client was connected last. Refused
/// while a client is connected. Refused without --force if one was within the last
/// hour, or if the lender has a window of it: that may be all that is left of the
/// newest commits, and what was not closed does not open without it.
///
///   netram lender forget 4f2a...c1 tcp://10.0.0.2:7420 --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ForgetJournal {
    /// The journal's id, as `netram status` shows it
    journal: String,
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
    /// Although the journal was used of late, or its newest commits may be lost by it
    #[arg(long)]
    force: bool,
    /// How long to wait for each lender
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: DurationArg,
}

/// Tell lenders of deleted journals that were away when they were deleted
///
/// Whatever opens a journal does so, too. Lenders that are still away are listed, and
/// make the exit code 1.
///
///   netram lender tell
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct TellLenders {
    /// How long to wait for them in all
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: DurationArg,
}

/// Which windows of a deleted journal lenders may free.
pub(crate) fn windows(force: bool) -> WindowRelease {
    match force {
        true => WindowRelease::All,
        false => WindowRelease::Logged,
    }
}

/// Names the lenders that have not freed everything, and says why.
pub(crate) fn report_pending_forgets(untold: &[UnfreedWindow]) -> Result<()> {
    for UnfreedWindow {
        journal,
        lender,
        bytes_held: holds,
    } in untold
    {
        match holds {
            None => output::line(format_args!(
                "{lender} is away; it will be told later that journal {journal} is over"
            ))?,
            Some(holds) => output::line(format_args!(
                "{lender} keeps {} of journal {journal} that the deleted directory lacked: if that was a copy, its \
                 original needs them. If nobody will recover them: netram lender forget {journal} {lender} --force",
                output::bytes(*holds)
            ))?,
        }
    }
    Ok(())
}

/// The same as JSON: the lenders that will be told later, and those that keep bytes.
pub(crate) fn pending_forgets_json(untold: &[UnfreedWindow]) -> (Vec<&str>, Vec<serde_json::Value>) {
    let away = untold.iter().filter(|one| one.bytes_held.is_none());
    let keeps = untold.iter().filter_map(|one| {
        let bytes = one.bytes_held?;
        Some(serde_json::json!({ "lender": one.lender, "bytes": bytes }))
    });
    (away.map(|one| one.lender.as_str()).collect(), keeps.collect())
}

impl LenderCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            LenderCommand::Forget(forget) => forget.run(),
            LenderCommand::Tell(tell) => tell.run(),
        }
    }
}

impl TellLenders {
    fn run(self) -> Result<ExitCode> {
        let untold = ForgetList::usual().map_or_else(Vec::new, |list| list.tell(self.timeout.0));
        report_pending_forgets(&untold)?;
        match untold.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        }
    }
}

/// A lender's part of the journal.
struct LenderPart {
    epoch: Epoch,
    writer: WriterId,
    has_window: bool,
    bytes: u64,
}

impl ForgetJournal {
    fn run(self) -> Result<ExitCode> {
        let security = self.security.security()?;
        let digits = u128::from_str_radix(&self.journal, 16);
        let journal =
            digits.context("the journal's id is 32 hexadecimal digits; `netram status` shows it")?;
        let mut all = true;
        for lender in &self.lenders {
            match self.at(lender, JournalId(journal), &security) {
                Ok(said) => output::line(format_args!("{lender}: {said}"))?,
                Err(error) => {
                    all = false;
                    output::line(format_args!("{lender}: {}", output::sentence(&error)))?;
                }
            }
        }
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn at(&self, lender: &NetAddress, journal: JournalId, security: &Security) -> Result<String> {
        let report = status::ask(lender, security, self.timeout.0)?;
        let id = journal.to_string();
        let listed = report.journals.iter().find(|one| one.id == id);
        let Some(kept) = self.look(lender, journal, security)? else {
            return Ok("it knows no such journal".to_owned());
        };
        self.check(listed, &kept)?;
        let lenders = [lender.to_string()];
        let fence = (kept.epoch, kept.writer);
        // Unless the operator says that nobody needs its records, it had none a moment ago.
        let had = if self.force { Forgetting::ALL } else { Lsn(0) };
        let mut forgetting = Forgetting::deleted(journal, fence, had, &lenders);
        let deadline = Instant::now() + self.timeout.0;
        loop {
            let mut link = status::connect_lender(lender, security, self.timeout.0)?;
            forget::talk(&mut forgetting, 0, &mut link, deadline);
            if forgetting.holds_more(0).is_some() {
                bail!("it has got more of the journal a moment ago: a client uses it");
            }
            match Instant::now() < deadline && !forgetting.is_done(0) {
                // It may not have noticed yet that our last connection ended.
                true => std::thread::sleep(PAUSE),
                false => break,
            }
        }
        if !forgetting.is_done(0) {
            bail!(
                "a client of the journal is connected: stop it, or delete its journal with its own command"
            );
        }
        match self.look(lender, journal, security)? {
            Some(left) if left.bytes > 0 || left.epoch > kept.epoch => {
                bail!("a newer client has taken the journal: it is not over")
            }
            _ => Ok(format!("forgotten, with {}", output::bytes(kept.bytes))),
        }
    }

    fn check(&self, listed: Option<&JournalReport>, kept: &LenderPart) -> Result<()> {
        if listed.is_some_and(|journal| journal.sessions > 0) {
            bail!(
                "a client of the journal is connected: stop it, or delete its journal with its own command"
            );
        }
        if self.force {
            return Ok(());
        }
        if kept.bytes > 0 {
            let bytes = output::bytes(kept.bytes);
            bail!(
                "it holds {bytes} of the journal, which may be the only copy of its newest commits; say --force if nobody will recover it"
            );
        }
        if kept.has_window {
            bail!(
                "it has a window of the journal, without which a journal that was not closed does not open; say --force if nobody will \
                 recover it"
            );
        }
        let heard = listed.and_then(|journal| journal.last_heard_age_s);
        if let Some(age) = heard.map(Duration::from_secs).filter(|age| *age < RECENT) {
            let age = output::age(age);
            bail!("a client of the journal was connected {age} ago; say --force if it is gone for good");
        }
        Ok(())
    }

    /// Asks what the lender has, and changes nothing.
    fn look(
        &self,
        lender: &NetAddress,
        journal: JournalId,
        security: &Security,
    ) -> Result<Option<LenderPart>> {
        let deadline = Instant::now() + self.timeout.0;
        let mut link = status::connect_lender(lender, security, self.timeout.0)?;
        link.send(&[
            &FrameHeader::new(FrameKind::Bind).encode(16),
            &journal.0.to_le_bytes(),
        ])?;
        ask(&mut link, FrameKind::Bound, deadline, |_| Ok(()))?;
        let mut question = FrameHeader::new(FrameKind::Ping);
        question.flags = Flag::PROBE;
        link.send(&[&question.encode(0)])?;
        ask(&mut link, FrameKind::ProbeReply, deadline, |frame| {
            let writer = ByteReader::new(frame.body)
                .u64()
                .map_err(|_| anyhow::anyhow!("it sent nonsense"))?;
            let window = frame.header.flags & Flag::KNOWN != 0;
            let held = frame.header.lsn.since(frame.header.stable);
            Ok((frame.header.epoch > Epoch(0)).then_some(LenderPart {
                epoch: frame.header.epoch,
                writer: WriterId(writer),
                has_window: window,
                bytes: if window { held } else { 0 },
            }))
        })
    }
}

/// Waits for the answer.
fn ask<T>(
    link: &mut Link,
    kind: FrameKind,
    deadline: Instant,
    read: impl FnOnce(&Frame<'_>) -> Result<T>,
) -> Result<T> {
    loop {
        link.flush()?;
        if let Some(packet) = link.receive()? {
            let frame = Frame::parse(packet)?;
            match frame.header.kind {
                found if found == kind => return read(&frame),
                FrameKind::Refuse => bail!("it refused the question; is it a lender of this release?"),
                _ => continue,
            }
        }
        status::await_bytes(link, deadline)?;
    }
}
