//! The inquiry before an opening claims its epoch (rule 18): would it succeed? All members are asked; nothing
//! is changed, here or elsewhere.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use netram_proto::id::{Epoch, EpochSalt, Lsn, WriterId};
use netram_proto::journal::{
    ClaimNote, LogFile, LogScan, LogSuperblock, MemberReport, NotNewestError, PeerAnswer, Recovery,
    RecoveryError, View, Voter, beyond_repair,
};
use netram_proto::limit::EPOCH_MAX;
use netram_proto::time::Time;

use super::files::{open_key, open_log, open_view};
use super::{members, scan_log, span};
use crate::auto;
use crate::config::JournalConfig;
use crate::error::JournalOpenError;
use crate::file::DiskFile;
use crate::name::machine_name;
use crate::owner::JournalOwner;
use crate::paths::JournalPaths;
use crate::reason::RecoveryFailure;
use crate::seal::DataKey;

/// Forecast of an opening.
#[derive(Debug)]
pub struct OpenCheck {
    /// The epoch that would begin.
    pub epoch: Epoch,
    /// LSN at which the local log's valid prefix ends.
    pub local_end: Lsn,
    /// Number of members that must answer.
    pub needed: usize,
    /// The members of the last view with their answers and reports.
    pub members: Vec<(String, PeerAnswer, Option<MemberReport>)>,
    /// The loss that the caller's settings would accept.
    pub loss_accepted: Option<String>,
    /// Why the journal would not open; `None` if it would.
    pub refusal: Option<JournalOpenError>,
}

/// A journal's files, which are read and not changed.
pub(super) struct JournalSnapshot<'a> {
    pub(super) root: &'a Path,
    pub(super) log: &'a LogFile<DiskFile>,
    pub(super) log_path: PathBuf,
    pub(super) superblock: &'a LogSuperblock,
    pub(super) view: &'a View,
    pub(super) owner: &'a JournalOwner,
}

/// Result of the inquiry.
pub(super) struct InquiryResult {
    /// The view of the new epoch; no part of it is durable yet.
    pub(super) claim: View,
    /// The members' answers.
    pub(super) inquiry: Recovery,
    pub(super) loss_accepted: Option<String>,
}

/// Determines whether the journal at `root` would open, without changing anything.
pub(crate) fn check(root: &Path, config: &JournalConfig) -> Result<OpenCheck, JournalOpenError> {
    let place = JournalPaths::at(root);
    let config = &auto::found(config.clone(), &place);
    config.check().map_err(JournalOpenError::Config)?;
    let (log, _, superblock) = open_log(&place, false, std::time::Duration::ZERO)?;
    let view = open_view(&place, false)?.newest().clone();
    let (sealer, owner) = open_key(&place, superblock.journal)?;
    let looked = JournalSnapshot {
        root,
        log: &log,
        log_path: place.log(),
        superblock: &superblock,
        view: &view,
        owner: &owner,
    };
    let mut check = OpenCheck {
        epoch: view.epoch.next(),
        local_end: superblock.stable,
        needed: view.answers(),
        members: Vec::new(),
        loss_accepted: None,
        refusal: None,
    };
    if view.journal != superblock.journal {
        return Err(JournalOpenError::Mixed {
            path: root.to_path_buf(),
            log: superblock.journal,
            view: view.journal,
        });
    }
    if place.is_locked()? {
        check.refusal = Some(JournalOpenError::InUse {
            path: root.to_path_buf(),
            pid: place.holder(),
        });
        return Ok(check);
    }
    let local = match scan_log(&log, &superblock, &sealer, &place) {
        Ok(local) => local,
        Err(refusal) => {
            check.refusal = Some(refusal);
            return Ok(check);
        }
    };
    check.local_end = local.end.lsn;
    match looked.ask(&local, config) {
        Ok(asked) => {
            check.epoch = asked.claim.epoch;
            check.needed = asked.inquiry.needed();
            check.members = member_answers(&asked.inquiry);
            check.loss_accepted = asked.loss_accepted;
        }
        Err((inquiry, refusal)) => {
            check.needed = inquiry.needed();
            check.members = member_answers(&inquiry);
            check.refusal = Some(refusal);
        }
    }
    Ok(check)
}

/// Determines whether a data lender's copy with the view `view` and a log that ends at `end` could be
/// recovered in the new directory `root`, by the holder of `key`. Changes nothing.
pub(crate) fn check_copy(
    root: &Path,
    view: &View,
    end: Lsn,
    key: &DataKey,
    config: &JournalConfig,
) -> OpenCheck {
    let config = &auto::found(config.clone(), &JournalPaths::at(root));
    let owner = JournalOwner::of(view.journal, key).unwrap_or(JournalOwner::none(view.journal));
    // The data lender makes one claim and the new journal, which fences, the next. An earlier attempt may
    // have got as far as the first.
    let claim = view.restored(WriterId(0)).restored(WriterId(0));
    let mut inquiry = fence(&claim, end, config).probing();
    let verdict = members::ask(&mut inquiry, &owner, config);
    warn_old_releases(&inquiry);
    let mut check = OpenCheck {
        epoch: claim.epoch,
        local_end: end,
        needed: inquiry.needed(),
        members: member_answers(&inquiry),
        loss_accepted: None,
        refusal: None,
    };
    match verdict {
        Ok(()) => (),
        Err(why) if is_accepted(&why.refusal, config) => check.loss_accepted = Some(why.refusal.to_string()),
        Err(RecoveryFailure {
            refusal,
            unreachable: away,
        }) => {
            check.refusal = Some(JournalOpenError::Refused {
                path: root.to_path_buf(),
                refusal,
                away: Box::new(away),
            });
        }
    }
    check
}

fn member_answers(inquiry: &Recovery) -> Vec<(String, PeerAnswer, Option<MemberReport>)> {
    inquiry
        .reports()
        .map(|(address, answer, told)| (address.to_owned(), answer, told))
        .collect()
}

impl JournalSnapshot<'_> {
    /// Asks all members whether the epoch after the last view's may begin.
    pub(super) fn ask(
        &self,
        local: &LogScan,
        config: &JournalConfig,
    ) -> Result<InquiryResult, (Box<Recovery>, JournalOpenError)> {
        let claim = match self.claim(local.end.lsn, config) {
            Ok(claim) => claim,
            Err((inquiry, refusal)) => return Err((inquiry, refusal)),
        };
        let mut inquiry = self.fence(&claim, local.end.lsn, config).probing();
        let verdict = members::ask(&mut inquiry, self.owner, config);
        warn_old_releases(&inquiry);
        let loss_accepted = match verdict {
            Ok(()) => None,
            Err(why) if is_accepted(&why.refusal, config) => Some(why.refusal.to_string()),
            Err(why) => {
                let refusal = self.refused(why, config);
                return Err((Box::new(inquiry), refusal));
            }
        };
        let limit = self.superblock.head.lsn.plus(self.log.capacity());
        let durable = self.superblock.stable.max(self.view.proof());
        let damage = beyond_repair(self.log, local, durable, limit, &inquiry);
        if let Some(source) = damage.filter(|_| !config.accept_loss) {
            let path = self.log_path.clone();
            return Err((Box::new(inquiry), JournalOpenError::Damaged { path, source }));
        }
        Ok(InquiryResult {
            claim,
            inquiry,
            loss_accepted,
        })
    }

    /// The last view in the next epoch. If the operator claims that this is the newest directory, the epoch
    /// is above all that any lender names.
    fn claim(&self, from: Lsn, config: &JournalConfig) -> Result<View, (Box<Recovery>, JournalOpenError)> {
        let writer = WriterId(u64::from_le_bytes(crate::random::random()));
        let claim = match (&config.newest, config.replica_origin) {
            (None, Some(_)) => self.view.restored(writer),
            (None, None) => self.view.claimed(writer),
            (Some(newest), _) => {
                let (seen, copy) = (self.highest_epoch(from, config)?, newest.copy.as_ref());
                let seen = copy.map_or(seen, |copy| seen.max(copy.epoch));
                let view = copy.map_or_else(|| self.view.clone(), |copy| self.view.with_claim_of(copy));
                let claim = view.claimed_above(seen, writer);
                View {
                    version: claim.version.max(copy.map_or(0, |copy| copy.version + 1)),
                    ..claim
                }
            }
        };
        if claim.epoch.0 > EPOCH_MAX {
            // If it were stored it could not be read again.
            let inquiry = self.fence(&claim, from, config).probing();
            let (path, source) = (self.root.to_path_buf(), NotNewestError::NoEpoch(self.view.epoch));
            return Err((Box::new(inquiry), JournalOpenError::NotNewest { path, source }));
        }
        Ok(View {
            note: Some(claim_note()),
            salt: Some(EpochSalt(crate::random::random())),
            ..claim
        })
    }

    /// The highest epoch that fenced the journal at any known lender, if the records they hold are consistent
    /// with the operator's claim.
    fn highest_epoch(
        &self,
        from: Lsn,
        config: &JournalConfig,
    ) -> Result<Epoch, (Box<Recovery>, JournalOpenError)> {
        let claim = self.view.claimed(self.view.writer);
        let mut inquiry = self.fence(&claim, from, config).probing();
        // The inquiry is expected to fail, since the journal is fenced.
        let _ = members::ask(&mut inquiry, self.owner, config);
        match inquiry.newest() {
            Ok(seen) => Ok(seen),
            Err(source) => {
                let path = self.root.to_path_buf();
                Err((Box::new(inquiry), JournalOpenError::NotNewest { path, source }))
            }
        }
    }

    /// The machine that fences and reads the members of `claim`, or only asks them.
    pub(super) fn fence(&self, claim: &View, from: Lsn, config: &JournalConfig) -> Recovery {
        fence(claim, from, config)
    }

    /// Turns the failure into the caller's error.
    pub(super) fn refused(&self, why: RecoveryFailure, config: &JournalConfig) -> JournalOpenError {
        let path = self.root.to_path_buf();
        let away = Box::new(why.unreachable);
        match why.refusal {
            RecoveryError::Fenced { seen } if config.voter == Voter::Server => {
                JournalOpenError::NodeFenced { path, seen }
            }
            refusal => JournalOpenError::Refused { path, refusal, away },
        }
    }
}

/// Whether the operator accepts this refusal's consequence.
pub(super) fn is_accepted(refusal: &RecoveryError, config: &JournalConfig) -> bool {
    let loss = matches!(
        refusal,
        RecoveryError::Missing { .. } | RecoveryError::Unproven { .. }
    );
    loss && config.accept_loss
}

/// The machine that fences and reads the members of `claim`, or only asks them.
fn fence(claim: &View, from: Lsn, config: &JournalConfig) -> Recovery {
    let (grace, patience) = (span(config.grace), span(config.patience));
    let spares: Vec<String> = config.lenders.iter().map(ToString::to_string).collect();
    let recovery = Recovery::new(claim, claim.epoch, claim.writer, from, Time(0), grace, patience)
        .with_addresses(spares.iter().map(String::as_str));
    match config.replica_origin {
        Some(of_replica) => recovery.of_replica(claim, of_replica.closed),
        None => recovery,
    }
}

fn warn_old_releases(inquiry: &Recovery) {
    for (address, _, told) in inquiry.reports() {
        if told.is_some_and(|told| told.partial) {
            tracing::warn!(
                lender = address,
                "this lender runs an earlier release and cannot report what it holds before it is fenced, so it stays fenced if \
                 the opening is refused; run the same release on both"
            );
        }
    }
}

/// Returns the name of a program and of its subcommand. A helper that `netram` starts of itself has `@`
/// before its name, for systemd, and the hidden word `part` after it.
fn command_name(mut arguments: impl Iterator<Item = String>) -> String {
    let program = arguments.next().unwrap_or_default();
    let program = Path::new(&program)
        .file_name()
        .map(|name| name.to_string_lossy().trim_start_matches('@').to_owned());
    let is_word = |word: &String| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-')
    };
    let mut command = vec![program.unwrap_or_default()];
    let shown = arguments.filter(|word| word != "part");
    command.extend(shown.take_while(is_word).take(2));
    command.join(" ")
}

/// A note about the claiming program, shown to a writer that it fences.
pub fn claim_note() -> ClaimNote {
    let command = command_name(std::env::args());
    let by = format!("{command} on {} (process {})", machine_name(), std::process::id());
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    ClaimNote::new(since.map_or(0, |since| since.as_secs()), &by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_names_the_program_and_its_subcommand() {
        let named = |line: &str| command_name(line.split(' ').map(str::to_owned));
        assert_eq!(
            named("/usr/bin/netram volume attach db --way fuse"),
            "netram volume attach"
        );
        assert_eq!(named("@netram part volume /srv/db"), "netram volume");
        assert_eq!(named("/srv/bank --port 7"), "bank");
        assert_eq!(named(""), "");
    }
}
