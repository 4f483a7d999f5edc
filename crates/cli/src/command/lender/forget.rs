//! `netram lender forget`: freeing the memory of a journal that no client will open again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::forget;
use netram_journal::owner::JournalOwner;
use netram_lender::{JournalReport, OPERATOR_SUFFIX};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::ForgetNotice as Forgetting;
use netram_proto::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, LinkError};

use super::operator::{ToldLender, operator_sockets};
use super::status;
use crate::options::{DurationArg, LenderAddresses, SecurityArgs};
use crate::output;

/// A journal whose client was connected this recently is forgotten only with `--force`.
const RECENT: Duration = Duration::from_secs(3600);
/// Time between two checks whether the lender has noticed that a connection ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Make lenders forget a journal that no client will open again
///
/// For a journal whose directory was removed, or whose machine is gone. Its id, the bytes
/// that lenders hold of it and the time of the last contact are in `netram lender status`.
///
/// A journal belongs to its client, so only the operator of a lender can do this: without an
/// address the lenders of this machine are told that run as this user. Root tells those of root
/// and of the system's accounts, and with --user those of another user.
/// A lender on another machine obeys only for journals of releases before journals had owners.
///
/// A lender refuses while a client is connected. Without --force it also refuses if a client
/// was connected within the last hour, or if it holds bytes of the journal: these may be the
/// only copy of the newest commits, and a journal that was not closed cannot be opened
/// without them.
///
///   netram lender forget 6f77...c1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ForgetJournal {
    /// The journal's id, as `netram lender status` shows it
    journal: String,
    #[command(flatten)]
    lenders: LenderAddresses,
    #[command(flatten)]
    security: SecurityArgs,
    /// User whose lenders on this machine are told, by name or number; root only
    #[arg(long, value_name = "USER", conflicts_with_all = ["flags", "plain"])]
    user: Option<String>,
    /// Forget it even if it was used recently, or if its newest commits may be lost
    #[arg(long)]
    force: bool,
    /// How long to wait for each lender
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: DurationArg,
}

/// A lender's state of the journal.
struct LenderPart {
    epoch: Epoch,
    writer: WriterId,
    has_window: bool,
    bytes: u64,
}

impl ForgetJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        let digits = u128::from_str_radix(&self.journal, 16);
        let journal =
            digits.context("the journal's id is 32 hexadecimal digits; `netram lender status` shows it")?;
        let mut all = true;
        for lender in &self.operated()? {
            let told = self.at(lender, JournalId(journal));
            let lender = &lender.address;
            match told {
                Ok(said) => output::line(format_args!("{lender}: {said}"))?,
                Err(error) => {
                    all = false;
                    output::line(format_args!("{lender}: {}", output::sentence(&error)))?;
                }
            }
        }
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The lenders to tell: those that are named, or those of this machine by their operator's sockets.
    fn operated(&self) -> Result<Vec<ToldLender>> {
        let named = self.lenders.given();
        if !named.is_empty() {
            let security = self.security.security()?;
            return Ok(named
                .into_iter()
                .map(|address| ToldLender {
                    address,
                    security: security.clone(),
                    run_by: None,
                })
                .collect());
        }
        let sockets = operator_sockets(self.user.as_deref())?;
        if sockets.is_empty() {
            bail!(
                "no lender of {} runs on this machine: run this on the lender's machine, as its user, or as root with \
                 --user. A lender with --store elsewhere has the address unix:STORE{OPERATOR_SUFFIX}, with --insecure",
                self.user.as_deref().unwrap_or("this user")
            );
        }
        Ok(sockets.into_iter().map(ToldLender::from).collect())
    }

    fn at(&self, lender: &ToldLender, journal: JournalId) -> Result<String> {
        let report = status::ask_over(lender.connect(self.timeout.0)?, Instant::now() + self.timeout.0)?;
        let id = journal.to_string();
        let listed = report.journals.iter().find(|one| one.id == id);
        let Some(kept) = self.look(lender, journal)? else {
            return Ok("it does not know this journal".to_owned());
        };
        self.check(listed, &kept)?;
        let lenders = [lender.address.to_string()];
        let fence = (kept.epoch, kept.writer);
        // Unless the operator says that nobody needs its records, it had none a moment ago.
        let had = if self.force { Forgetting::ALL } else { Lsn(0) };
        let mut forgetting = Forgetting::deleted(journal, fence, had, &lenders);
        let deadline = Instant::now() + self.timeout.0;
        loop {
            let mut link = lender.connect(self.timeout.0)?;
            forget::talk(
                &mut forgetting,
                &JournalOwner::none(journal),
                0,
                &mut link,
                deadline,
            );
            if forgetting.holds_more(0).is_some() {
                bail!("it received more of the journal a moment ago: a client is using it");
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
        match self.look(lender, journal)? {
            Some(left) if left.bytes > 0 || left.epoch > kept.epoch => {
                bail!("a newer client has opened the journal: it is still in use")
            }
            _ => Ok(format!("forgotten; {} freed", output::bytes(kept.bytes))),
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
                "it holds {bytes} of the journal, which may be the only copy of its newest commits; say --force if it will not be recovered"
            );
        }
        if kept.has_window {
            bail!(
                "it has a window of the journal, without which a journal that was not closed cannot be opened; say --force if it will \
                 not be recovered"
            );
        }
        let heard = listed.and_then(|journal| journal.last_heard_age_s);
        if let Some(age) = heard.map(Duration::from_secs).filter(|age| *age < RECENT) {
            let age = output::age(age);
            bail!("a client of the journal was connected {age} ago; say --force if it is gone for good");
        }
        Ok(())
    }

    /// Asks the lender for its state of the journal, without changing it. A lender that has the window on
    /// its disk asks to come again.
    fn look(&self, lender: &ToldLender, journal: JournalId) -> Result<Option<LenderPart>> {
        let deadline = Instant::now() + self.timeout.0;
        loop {
            let looked = self.look_once(lender, journal, deadline);
            let is_closed = |error: &anyhow::Error| matches!(error.downcast_ref(), Some(LinkError::Closed));
            match looked {
                Err(error) if is_closed(&error) && Instant::now() < deadline => std::thread::sleep(PAUSE),
                looked => return looked,
            }
        }
    }

    fn look_once(
        &self,
        lender: &ToldLender,
        journal: JournalId,
        deadline: Instant,
    ) -> Result<Option<LenderPart>> {
        let mut link = lender.connect(self.timeout.0)?;
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
                .map_err(|_| anyhow::anyhow!("it sent an answer that cannot be read"))?;
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

/// Waits for an answer of this kind.
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
                FrameKind::Refuse
                    if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::NotOwner) =>
                {
                    bail!(
                        "the journal belongs to its client: delete it with its own command, or run `netram lender forget` on \
                     the lender's machine, without an address"
                    )
                }
                FrameKind::Refuse => bail!("it refused the question; is it a lender of this release?"),
                _ => (),
            }
        }
        status::await_bytes(link, deadline)?;
    }
}
