//! Changing lenders, rule and number of members of journals, open or not: finding the journals of a path,
//! telling the processes that have them open, and changing the settings file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::orders::{self, JournalOrder, MembershipReport};
use netram_journal::{JournalPaths, Membership};
use netram_transport::NetAddress;

use super::membership_file::{MembershipEdit, MembershipFile};
use crate::options::DurationArg;
use crate::output;

/// Time between two looks at a change that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Options of every change.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// Change only what is open now, and leave the settings file as it is
    #[arg(long)]
    until_closed: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Option of every order.
#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// Wait until the change is complete, at most this long
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "60s")]
    wait: Option<DurationArg>,
}

/// The journals of what a user names, and the settings that they are opened with.
#[derive(Debug)]
pub(crate) struct MembershipTarget {
    pub(crate) journals: Vec<PathBuf>,
    pub(super) settings: PathBuf,
}

/// A journal that a process has open, and what that process answered.
pub(super) struct OpenJournal {
    pub(super) journal: PathBuf,
    pub(super) report: MembershipReport,
}

impl MembershipTarget {
    /// The journals of `path`: a journal, a volume, a database, or a mounted directory.
    ///
    /// # Errors
    /// The path is none of these, or cannot be read.
    pub(crate) fn of(path: &Path) -> Result<MembershipTarget> {
        #[cfg(feature = "products")]
        if let Some(target) = MembershipTarget::of_product(path)? {
            return Ok(target);
        }
        super::refuse_missing(path)?;
        let paths = JournalPaths::at(path);
        if !paths.log().exists() {
            bail!(
                "{} is neither a journal nor a log, volume, database or mounted directory of netram's",
                path.display()
            );
        }
        Ok(MembershipTarget {
            journals: vec![path.to_path_buf()],
            settings: paths.settings(),
        })
    }

    #[cfg(feature = "products")]
    fn of_product(path: &Path) -> Result<Option<MembershipTarget>> {
        if let Some(beneath) = crate::command::mount::mounted_on(path)? {
            return MembershipTarget::of(&beneath).map(Some);
        }
        let volume = netram_volume::VolumePaths::at(path);
        if JournalPaths::at(&volume.journal()).log().exists() && !JournalPaths::at(path).log().exists() {
            return Ok(Some(MembershipTarget {
                journals: vec![volume.journal()],
                settings: volume.settings_file(),
            }));
        }
        let database = netram_sqlite::DatabasePaths::of(path).ok();
        Ok(database
            .filter(netram_sqlite::DatabasePaths::is_managed)
            .map(|database| MembershipTarget {
                journals: database.journal_slots(),
                settings: database.settings(),
            }))
    }

    /// The journals that processes have open, with their answers.
    ///
    /// # Errors
    /// A process does not answer, or refuses.
    pub(super) fn order(&self, order: &JournalOrder) -> Result<Vec<OpenJournal>> {
        let mut open = Vec::new();
        for journal in &self.journals {
            let answer = orders::order(journal, order)
                .with_context(|| format!("giving an order to the journal {}", journal.display()))?;
            open.extend(answer.map(|report| OpenJournal {
                journal: journal.clone(),
                report,
            }));
        }
        Ok(open)
    }

    /// Makes a change, here and in processes that have journals open.
    ///
    /// # Errors
    /// The change is impossible; everything is as it was. Or a process refused what it had called possible.
    pub(super) fn change(&self, edit: &MembershipEdit, args: &ChangeArgs) -> Result<ExitCode> {
        let file = MembershipFile::read(&self.settings)?;
        let open = self.order(&JournalOrder::Status)?;
        if args.until_closed {
            self.change_open(edit, &open)?;
            output::line("changed until it is closed; the settings file is as it was")?;
            return self.finish(&args.wait);
        }
        let before = file.membership()?;
        if let Some(other) = open.iter().find(|one| !one.report.membership().is_same(&before)) {
            bail!(
                "process {} has {} open with {}, but {} says {}: its environment or program overrides the file, or the file \
                 has changed since. Make the journal follow the file with `netram journal reload`, or change only what is \
                 open with --until-closed",
                other.report.pid,
                other.journal.display(),
                sentence(&other.report.membership()),
                file.path().display(),
                sentence(&before)
            );
        }
        let (text, after) = file.changed(edit)?;
        after.check()?;
        self.order(&JournalOrder::change(&after, true))?;
        file.replace(&text)?;
        output::line(format_args!("{}: {}", file.path().display(), sentence(&after)))?;
        // One that was opened meanwhile may have read the former file.
        let told = self.order(&JournalOrder::change(&after, false))?;
        if told.is_empty() {
            output::line("no process has it open; the next opening takes it up")?;
        }
        drop(file);
        self.finish(&args.wait)
    }

    /// Makes open journals follow the settings file.
    ///
    /// # Errors
    /// The file is invalid, no process has the journal open, or one refuses.
    pub(super) fn reload(&self, wait: &WaitArgs) -> Result<ExitCode> {
        let file = MembershipFile::read(&self.settings)?;
        let after = file.membership()?;
        after.check()?;
        self.order(&JournalOrder::change(&after, true))?;
        if self.order(&JournalOrder::change(&after, false))?.is_empty() {
            bail!("no process has it open; the next opening reads the settings");
        }
        output::line(format_args!("now: {}", sentence(&after)))?;
        drop(file);
        self.finish(wait)
    }

    fn change_open(&self, edit: &MembershipEdit, open: &[OpenJournal]) -> Result<()> {
        if open.is_empty() {
            bail!("no process has it open: leave out --until-closed to change its settings file");
        }
        for check in [true, false] {
            for one in open {
                let after = edit.apply(one.report.membership())?;
                after.check()?;
                orders::order(&one.journal, &JournalOrder::change(&after, check))?;
            }
        }
        Ok(())
    }

    /// Shows what is still to come, or waits for it.
    fn finish(&self, wait: &WaitArgs) -> Result<ExitCode> {
        let until = wait.wait.map(|wait| Instant::now() + wait.0);
        loop {
            let open = self.order(&JournalOrder::Status)?;
            if open.iter().all(|one| is_complete(&one.report)) {
                if !open.is_empty() {
                    output::line("complete")?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            if until.is_none_or(|until| Instant::now() >= until) {
                for one in &open {
                    for line in to_come(&one.report) {
                        output::line(line)?;
                    }
                }
                return Ok(match until {
                    Some(_) => ExitCode::FAILURE,
                    None => ExitCode::SUCCESS,
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether nothing is to come: removed lenders that are away may be told much later.
fn is_complete(report: &MembershipReport) -> bool {
    let told = |lender: &orders::LenderReport| !lender.removed || !lender.member;
    report.settled && report.lenders.iter().all(told)
}

/// Says in sentences for what an order waits.
pub(super) fn to_come(report: &MembershipReport) -> Vec<String> {
    let mut said = Vec::new();
    if !report.settled {
        said.push(format!(
            "not complete: {} held, commit rule {} in force{}",
            report.copies,
            report.rule_in_force,
            report
                .blocked
                .as_ref()
                .map_or_else(String::new, |why| format!("; {why}"))
        ));
    }
    for lender in &report.lenders {
        match (&lender.why_not, lender.removed, lender.member) {
            (_, true, true) => said.push(format!(
                "  {} stays a member until another lender has taken its place",
                lender.address
            )),
            (_, true, false) => said.push(format!(
                "  {} is told to free its window when it is there",
                lender.address
            )),
            (Some(why), false, _) if !report.settled => said.push(format!("  {}: {why}", lender.address)),
            _ => (),
        }
    }
    said
}

/// A membership in words.
pub(super) fn sentence(membership: &Membership) -> String {
    let lenders: Vec<String> = membership.lenders.iter().map(NetAddress::to_string).collect();
    let lenders = match lenders.is_empty() {
        true => "no lenders".to_owned(),
        false => format!(
            "{} of {} ({})",
            output::count(membership.members as u64, "member"),
            output::count(lenders.len() as u64, "lender"),
            lenders.join(", ")
        ),
    };
    format!(
        "{lenders}, rule {}, at least {}",
        membership.rule,
        membership.min()
    )
}
