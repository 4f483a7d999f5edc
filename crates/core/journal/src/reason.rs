//! Why a lender does not count: one type, and the only place that turns it into text.
//!
//! A message states the cause, and the remedy if there is one. The lender's address precedes it, so the
//! message does not repeat it.

use std::fmt;
use std::io;

use crate::owner::ForgedFence;
use netram_proto::journal::{
    DiskWaitReason, JournalLenderStatus, LenderRefusal, LenderRole, LinkPhase, RecoveryError,
};
use netram_proto::wire::{ClientLimitRefusal, FrameHeader, RefusalReason};
use netram_transport::{ConnectError, VersionRange};

/// Why a lender's acknowledgements do not count at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UncountedReason {
    /// No link could be made, for this reason.
    Unreachable(LinkFailure),
    /// The link was lost and is being re-established.
    Lost,
    /// The link is being established for the first time.
    Connecting,
    /// The lender refused the journal.
    Refused(LenderRefusal),
    /// The lender is the same as the one at this address, and counts once.
    AliasOf(String),
    /// The lender answers but makes no progress.
    Stalled,
    /// The lender has announced that it is stopping.
    Stopping,
    /// The lender's operator moves its clients away.
    Draining,
    /// The lender's machine is short of memory.
    Reclaiming,
    /// The lender is receiving the log's records.
    Joining,
    /// The lender shares a power domain with this machine or the members.
    OneDomain,
    /// The lender was removed while the journal was open.
    Removed,
    /// Enough other lenders are members.
    Spare,
}

/// Why no link to a lender could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFailure {
    /// The lender's name has no address.
    NameNotFound(String),
    /// No name server answered in time.
    NameUnanswered(String),
    /// The machine answers, but no program listens there.
    NothingListens,
    /// No answer in time: the machine is down or unreachable, or packets are dropped.
    NoAnswer,
    /// The network has no route to the lender.
    NoRoute(String),
    /// The lender has another cluster key.
    WrongKey,
    /// The lender requires a key, and this machine has none.
    KeyRequired,
    /// The lender has no key, and this machine has one.
    NoKeyThere,
    /// This machine has no key, and the lender is on another machine.
    NoKeyHere,
    /// The lender speaks other wire versions.
    WrongVersion {
        /// The versions of this build.
        ours: VersionRange,
        /// The lender's versions.
        theirs: VersionRange,
    },
    /// The lender has its maximum number of connections.
    Busy,
    /// The lender ended the connection before the handshake was complete.
    CutOff,
    /// The program that listens there is not netram.
    NotNetram,
    /// This machine's system refused, for example a descriptor.
    LocalSystem(String),
    /// The lender found no proof that this program owns the journal.
    NotOwner,
    /// The lender's operator has not given the name of this program's key what it asks for.
    OverClientLimit(ClientLimitRefusal),
    /// The lender claimed a fence that the journal's owner has not signed.
    ForgedFence,
}

impl std::error::Error for LinkFailure {}

impl From<&ConnectError> for LinkFailure {
    fn from(error: &ConnectError) -> LinkFailure {
        match error {
            ConnectError::Unreachable { source, .. } => LinkFailure::of_system(source),
            ConnectError::NameNotFound { name, .. } => LinkFailure::NameNotFound(name.clone()),
            ConnectError::NameUnanswered { name } => LinkFailure::NameUnanswered(name.clone()),
            ConnectError::TimedOut => LinkFailure::NoAnswer,
            ConnectError::WrongKey => LinkFailure::WrongKey,
            ConnectError::WrongVersion { ours, theirs } => LinkFailure::WrongVersion {
                ours: *ours,
                theirs: *theirs,
            },
            ConnectError::SecureRequired => LinkFailure::KeyRequired,
            ConnectError::InsecureRequired => LinkFailure::NoKeyThere,
            ConnectError::InsecureRefused { .. } => LinkFailure::NoKeyHere,
            ConnectError::Busy => LinkFailure::Busy,
            ConnectError::CutOff => LinkFailure::CutOff,
            ConnectError::NotNetram => LinkFailure::NotNetram,
        }
    }
}

impl LinkFailure {
    /// Whether the lender was reached and its own words are the reason.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            LinkFailure::NotOwner | LinkFailure::OverClientLimit(_) | LinkFailure::ForgedFence
        )
    }

    /// The failure that a refusal is; `None` if the lender may be stopping or full, which can change in a
    /// moment.
    pub(crate) fn of_refusal(header: &FrameHeader) -> Option<LinkFailure> {
        match RefusalReason::from_byte(header.flags)? {
            RefusalReason::NotOwner => Some(LinkFailure::NotOwner),
            RefusalReason::OverClientLimit => {
                let refusal = ClientLimitRefusal::from_numbers(header.lsn.0, header.stable.0);
                Some(LinkFailure::OverClientLimit(refusal))
            }
            _ => None,
        }
    }

    fn of_system(error: &io::Error) -> LinkFailure {
        match error.kind() {
            // For a Unix socket: the file is missing, or its lender is gone.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => LinkFailure::NothingListens,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => LinkFailure::NoAnswer,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => LinkFailure::NoRoute(error.to_string()),
            _ => LinkFailure::LocalSystem(error.to_string()),
        }
    }
}

impl UncountedReason {
    /// Why this lender does not count; `None` if it does. `away` is why there is no link, if that is known.
    pub fn of(lender: &JournalLenderStatus, away: Option<&LinkFailure>) -> Option<UncountedReason> {
        // For a member whose link was lost the other reasons are outdated.
        if lender.member && lender.link == LinkPhase::Ready {
            return None;
        }
        Some(match (lender.link, away, lender.refused) {
            // The link was closed for it, and a member is not asked again.
            (_, _, Some(refused)) if refused.reason == RefusalReason::Fenced => {
                UncountedReason::Refused(refused)
            }
            (LinkPhase::Ready, _, _) => UncountedReason::of_linked(lender),
            (LinkPhase::Down(_) | LinkPhase::Connecting, Some(away), _) => {
                UncountedReason::Unreachable(away.clone())
            }
            // A lender refuses before it has bound the journal, and may end the link with it.
            (_, _, Some(refused)) if !lender.member => UncountedReason::Refused(refused),
            (LinkPhase::Down(_) | LinkPhase::Connecting, None, _)
                if lender.member || lender.incarnation.0 != 0 =>
            {
                UncountedReason::Lost
            }
            _ => UncountedReason::Connecting,
        })
    }

    fn of_linked(lender: &JournalLenderStatus) -> UncountedReason {
        match (&lender.alias_of, lender.refused, lender.role) {
            (Some(other), _, _) => UncountedReason::AliasOf(other.clone()),
            (None, Some(refused), _) => UncountedReason::Refused(refused),
            (None, None, _) if lender.stalled => UncountedReason::Stalled,
            (None, None, _) if lender.stopping => UncountedReason::Stopping,
            (None, None, _) if lender.draining => UncountedReason::Draining,
            (None, None, _) if lender.reclaiming => UncountedReason::Reclaiming,
            (None, None, _) if lender.removed => UncountedReason::Removed,
            (None, None, LenderRole::Joining | LenderRole::CatchingUp(_)) => UncountedReason::Joining,
            (None, None, _) if lender.unfit => UncountedReason::OneDomain,
            (None, None, LenderRole::Spare | LenderRole::Member) => UncountedReason::Spare,
        }
    }
}

impl fmt::Display for UncountedReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UncountedReason::Unreachable(away) => away.fmt(out),
            UncountedReason::Lost => out.write_str("the link was lost and is being re-established"),
            UncountedReason::Connecting => out.write_str("it is being connected"),
            UncountedReason::Refused(refused) => refusal(out, *refused),
            UncountedReason::AliasOf(other) => write!(
                out,
                "it is the same lender as the one at {other}, and counts once: name another lender"
            ),
            UncountedReason::Stalled => out.write_str("it answers but makes no progress"),
            UncountedReason::Stopping => out.write_str("it is stopping"),
            UncountedReason::Draining => out.write_str("its operator drains it"),
            UncountedReason::Reclaiming => out.write_str("its machine is short of memory"),
            UncountedReason::Removed => out.write_str("it was removed and is being told"),
            UncountedReason::Joining => out.write_str("it is receiving the log's records"),
            UncountedReason::OneDomain => out.write_str(
                "it shares a power domain with this machine or the members: set its domain with `netram lender serve --domain`",
            ),
            UncountedReason::Spare => out.write_str("a spare: enough others are members"),
        }
    }
}

impl fmt::Display for LinkFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkFailure::NameNotFound(name) => write!(out, "the name {name} has no address"),
            LinkFailure::NameUnanswered(name) => ConnectError::NameUnanswered { name: name.clone() }.fmt(out),
            LinkFailure::NothingListens => out.write_str("nothing listens there: start the lender"),
            LinkFailure::NoAnswer => {
                out.write_str("no answer in time: is the machine up, and does a firewall let it answer?")
            }
            LinkFailure::NoRoute(why) => write!(out, "there is no route to it: {why}"),
            LinkFailure::WrongKey => ConnectError::WrongKey.fmt(out),
            LinkFailure::KeyRequired => ConnectError::SecureRequired.fmt(out),
            LinkFailure::NoKeyThere => ConnectError::InsecureRequired.fmt(out),
            LinkFailure::NoKeyHere => out.write_str(
                "it is not on this machine; without a cluster key only local addresses are allowed",
            ),
            LinkFailure::WrongVersion { ours, theirs } => ConnectError::WrongVersion {
                ours: *ours,
                theirs: *theirs,
            }
            .fmt(out),
            LinkFailure::Busy => ConnectError::Busy.fmt(out),
            LinkFailure::CutOff => ConnectError::CutOff.fmt(out),
            LinkFailure::NotNetram => ConnectError::NotNetram.fmt(out),
            LinkFailure::LocalSystem(why) => write!(out, "this machine refused: {why}"),
            LinkFailure::NotOwner => out.write_str(
                "it found no proof that this program owns the journal: is the journal's `data.key` its own?",
            ),
            LinkFailure::OverClientLimit(refusal) => refusal.fmt(out),
            LinkFailure::ForgedFence => ForgedFence.fmt(out),
        }
    }
}

fn refusal(out: &mut fmt::Formatter<'_>, refused: LenderRefusal) -> fmt::Result {
    let LenderRefusal {
        reason: why,
        asked,
        limit,
    } = refused;
    match why {
        RefusalReason::NoRoom => write!(
            out,
            "no room: it has {limit} bytes free, and {asked} are asked for; give it more with `netram lender serve --memory`, or \
             make the log smaller"
        ),
        RefusalReason::OverQuota => write!(
            out,
            "over its quota: one journal gets {limit} bytes there, and {asked} are asked for"
        ),
        RefusalReason::TooManyJournals => write!(
            out,
            "no slot: it holds {limit} journals, and takes no more; `netram lender status` names them"
        ),
        RefusalReason::NotOwner => write!(out, "{}", LinkFailure::NotOwner),
        RefusalReason::OverClientLimit => {
            write!(out, "{}", ClientLimitRefusal::from_numbers(asked, limit))
        }
        RefusalReason::DataOnly => {
            out.write_str("it takes data sessions only at this address: name another of its addresses")
        }
        RefusalReason::RegionOnly => {
            out.write_str("it serves a shared region and lends no memory to journals")
        }
        RefusalReason::Fenced => write!(
            out,
            "it says that epoch {limit} has fenced this writer of epoch {asked}, which the other lenders do not confirm; if no copy \
             of this directory is in use elsewhere, the lender is broken or lies"
        ),
        other => write!(out, "it refused: {other:?}"),
    }
}

/// Why commits wait for the disk: what is missing, and why each lender that is not a member does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumError {
    /// The missing condition.
    pub blocked: DiskWaitReason,
    /// Number of lenders in the settings.
    pub configured: usize,
    /// The lenders that do not count, each with the reason.
    pub lenders: Vec<(String, UncountedReason)>,
}

impl fmt::Display for QuorumError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.blocked.fmt(out)?;
        for (index, (address, reason)) in self.lenders.iter().enumerate() {
            write!(out, "{} {address}: {reason}", if index == 0 { "." } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for QuorumError {}

/// Lenders that recovery could not reach before it gave up, with reasons. The message of a refusal ends with
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreachableLenders(pub Vec<(String, LinkFailure)>);

impl fmt::Display for UnreachableLenders {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (address, away)) in self.0.iter().enumerate() {
            let before = if index == 0 { ". Not reached:" } else { ";" };
            write!(out, "{before} {address}: {away}")?;
        }
        Ok(())
    }
}

/// Why recovery was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecoveryFailure {
    /// The condition that could not be proven.
    pub(crate) refusal: RecoveryError,
    /// Why some lenders did not answer.
    pub(crate) unreachable: UnreachableLenders,
}

impl fmt::Display for RecoveryFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.refusal, self.unreachable)
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Incarnation, Lsn};
    use netram_proto::time::Time;

    use super::*;

    fn lender(link: LinkPhase) -> JournalLenderStatus {
        JournalLenderStatus {
            index: 0,
            address: "tcp://10.0.0.2:7420".to_owned(),
            domain: String::new(),
            incarnation: Incarnation(0),
            link,
            role: LenderRole::Spare,
            member: false,
            held: Lsn(0),
            refused: None,
            alias_of: None,
            stalled: false,
            stopping: false,
            draining: false,
            reclaiming: false,
            unfit: false,
            removed: false,
        }
    }

    #[test]
    fn system_errors_of_a_connection_map_to_distinct_reasons() {
        let of = |errno| LinkFailure::of_system(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(111), LinkFailure::NothingListens, "ECONNREFUSED");
        assert_eq!(of(2), LinkFailure::NothingListens, "ENOENT");
        assert_eq!(of(110), LinkFailure::NoAnswer, "ETIMEDOUT");
        assert!(matches!(of(113), LinkFailure::NoRoute(_)), "EHOSTUNREACH");
        assert!(matches!(of(101), LinkFailure::NoRoute(_)), "ENETUNREACH");
        assert!(matches!(of(24), LinkFailure::LocalSystem(_)), "EMFILE");
    }

    #[test]
    fn a_lender_that_counts_has_no_reason_and_each_other_has_one() {
        let down = LinkPhase::Down(Time(0));
        let why = |lender: &JournalLenderStatus| UncountedReason::of(lender, Some(&LinkFailure::WrongKey));
        assert_eq!(
            why(&lender(down)),
            Some(UncountedReason::Unreachable(LinkFailure::WrongKey))
        );
        let member = JournalLenderStatus {
            member: true,
            role: LenderRole::Member,
            ..lender(LinkPhase::Ready)
        };
        assert_eq!(why(&member), None);
        assert_eq!(why(&lender(LinkPhase::Ready)), Some(UncountedReason::Spare));
        assert_eq!(
            UncountedReason::of(&lender(down), None),
            Some(UncountedReason::Connecting)
        );
        let lost = JournalLenderStatus { link: down, ..member };
        assert_eq!(UncountedReason::of(&lost, None), Some(UncountedReason::Lost));
        // A previous refusal is outdated once nothing listens.
        let refused = JournalLenderStatus {
            refused: Some(LenderRefusal {
                reason: RefusalReason::NoRoom,
                asked: 2,
                limit: 1,
            }),
            ..lender(LinkPhase::Connecting)
        };
        let away = UncountedReason::of(&refused, Some(&LinkFailure::NothingListens));
        assert_eq!(
            away,
            Some(UncountedReason::Unreachable(LinkFailure::NothingListens))
        );
    }
}
