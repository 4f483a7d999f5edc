//! Why a lender does not count: one type, and the one place that turns it into words.
//!
//! A sentence names the cause, and the remedy where there is one. It does not name the lender, whose address stands before it.

use std::fmt;
use std::io;

use netram_proto::journal::{Blocked, LenderStatus, LinkPhase, RecoveryRefusal, Refused, Role};
use netram_proto::wire::Refusal;
use netram_transport::{ConnectError, Versions};

/// Why a lender's acknowledgements do not count at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no link, because of this.
    Away(Away),
    /// There was a link, and it is being made again.
    Lost,
    /// The link is being made: nothing is known yet.
    Connecting,
    /// It would not take the journal.
    Refused(Refused),
    /// Its memory is that of the lender at this address, too, and counts once.
    AliasOf(String),
    /// It answered, and made no progress.
    Stalled,
    /// It said that it is about to stop.
    Stopping,
    /// It is being given what the log holds.
    Joining,
    /// It is fed by what feeds the machine, or the members.
    OneDomain,
    /// Enough others are members.
    Spare,
}

/// Why there is no link to a lender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Away {
    /// Its name has no address.
    NameNotFound(String),
    /// No name server answered in time.
    NameUnanswered(String),
    /// The machine answers, and no program listens there.
    NothingListens,
    /// No answer in time: the machine is off, cut off, or drops what is sent to it.
    NoAnswer,
    /// The network does not lead there.
    NoWay(String),
    /// It has another cluster key.
    WrongKey,
    /// It demands a key, and there is none here.
    KeyRequired,
    /// It has no key, and there is one here.
    NoKeyThere,
    /// There is no key here, and it is not on this machine.
    NoKeyHere,
    /// It speaks other versions of the protocol.
    WrongVersion {
        /// Ours.
        ours: Versions,
        /// The other side's.
        theirs: Versions,
    },
    /// It has as many connections as it takes.
    Busy,
    /// It ended the connection before there was a link.
    CutOff,
    /// What listens there is another program.
    NotNetram,
    /// This machine refused, a descriptor for instance.
    Here(String),
}

impl std::error::Error for Away {}

impl From<&ConnectError> for Away {
    fn from(error: &ConnectError) -> Away {
        match error {
            ConnectError::Unreachable { source, .. } => Away::of_system(source),
            ConnectError::NameNotFound { name, .. } => Away::NameNotFound(name.clone()),
            ConnectError::NameUnanswered { name } => Away::NameUnanswered(name.clone()),
            ConnectError::TimedOut => Away::NoAnswer,
            ConnectError::WrongKey => Away::WrongKey,
            ConnectError::WrongVersion { ours, theirs } => Away::WrongVersion {
                ours: *ours,
                theirs: *theirs,
            },
            ConnectError::SecureRequired => Away::KeyRequired,
            ConnectError::InsecureRequired => Away::NoKeyThere,
            ConnectError::InsecureRefused { .. } => Away::NoKeyHere,
            ConnectError::Busy => Away::Busy,
            ConnectError::CutOff => Away::CutOff,
            ConnectError::NotNetram => Away::NotNetram,
        }
    }
}

impl Away {
    fn of_system(error: &io::Error) -> Away {
        match error.kind() {
            // Of a Unix socket: the file of a lender that has gone, or none.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Away::NothingListens,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Away::NoAnswer,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => Away::NoWay(error.to_string()),
            _ => Away::Here(error.to_string()),
        }
    }
}

impl Reason {
    /// Why this lender does not count. `away`: why there is no link, as far as that is known. `None`: it counts.
    pub fn of(lender: &LenderStatus, away: Option<&Away>) -> Option<Reason> {
        // Of a member whose link was lost the other reasons are old.
        if lender.member && lender.link == LinkPhase::Ready {
            return None;
        }
        Some(match (lender.link, away, lender.refused) {
            (LinkPhase::Ready, _, _) => Reason::of_linked(lender),
            (LinkPhase::Down(_) | LinkPhase::Connecting, Some(away), _) => Reason::Away(away.clone()),
            // It says so before it has bound the journal, and may end the link with it.
            (_, _, Some(refused)) if !lender.member => Reason::Refused(refused),
            (LinkPhase::Down(_) | LinkPhase::Connecting, None, _)
                if lender.member || lender.incarnation.0 != 0 =>
            {
                Reason::Lost
            }
            _ => Reason::Connecting,
        })
    }

    fn of_linked(lender: &LenderStatus) -> Reason {
        match (&lender.alias_of, lender.refused, lender.role) {
            (Some(other), _, _) => Reason::AliasOf(other.clone()),
            (None, Some(refused), _) => Reason::Refused(refused),
            (None, None, _) if lender.stalled => Reason::Stalled,
            (None, None, _) if lender.stopping => Reason::Stopping,
            (None, None, Role::Joining | Role::Catching(_)) => Reason::Joining,
            (None, None, _) if lender.unfit => Reason::OneDomain,
            (None, None, Role::Spare | Role::Member) => Reason::Spare,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Away(away) => away.fmt(out),
            Reason::Lost => out.write_str("the link was lost, and is being made again"),
            Reason::Connecting => out.write_str("it is being connected"),
            Reason::Refused(refused) => refusal(out, *refused),
            Reason::AliasOf(other) => write!(
                out,
                "its memory is that of the lender at {other}, and counts once: name another lender"
            ),
            Reason::Stalled => out.write_str("it answers, and makes no progress"),
            Reason::Stopping => out.write_str("it is stopping"),
            Reason::Joining => out.write_str("it is being given what the log holds"),
            Reason::OneDomain => out.write_str(
                "it is in one power domain with this machine or the members: say what feeds it with `netram lend --domain`",
            ),
            Reason::Spare => out.write_str("a spare: enough others are members"),
        }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Away::NameNotFound(name) => write!(out, "the name {name} has no address"),
            Away::NameUnanswered(name) => ConnectError::NameUnanswered { name: name.clone() }.fmt(out),
            Away::NothingListens => out.write_str("nothing listens there: start the lender"),
            Away::NoAnswer => {
                out.write_str("no answer in time: is the machine up, and does a firewall let it answer?")
            }
            Away::NoWay(why) => write!(out, "the network does not lead there: {why}"),
            Away::WrongKey => ConnectError::WrongKey.fmt(out),
            Away::KeyRequired => ConnectError::SecureRequired.fmt(out),
            Away::NoKeyThere => ConnectError::InsecureRequired.fmt(out),
            Away::NoKeyHere => out.write_str(
                "it is not on this machine; without a cluster key only local addresses are allowed",
            ),
            Away::WrongVersion { ours, theirs } => ConnectError::WrongVersion {
                ours: *ours,
                theirs: *theirs,
            }
            .fmt(out),
            Away::Busy => ConnectError::Busy.fmt(out),
            Away::CutOff => ConnectError::CutOff.fmt(out),
            Away::NotNetram => ConnectError::NotNetram.fmt(out),
            Away::Here(why) => write!(out, "this machine refused: {why}"),
        }
    }
}

fn refusal(out: &mut fmt::Formatter<'_>, refused: Refused) -> fmt::Result {
    let Refused { why, asked, limit } = refused;
    match why {
        Refusal::NoRoom => write!(
            out,
            "no room: it has {limit} bytes free, and {asked} are asked for; give it more with `netram lend --memory`, or \
             make the log smaller"
        ),
        Refusal::OverQuota => write!(
            out,
            "over its quota: one journal gets {limit} bytes there, and {asked} are asked for"
        ),
        Refusal::TooManyJournals => write!(
            out,
            "no slot: it holds {limit} journals, and takes no more; `netram status` names them"
        ),
        Refusal::DataOnly => {
            out.write_str("it takes data sessions only at this address: name another of its addresses")
        }
        Refusal::RegionOnly => out.write_str("it belongs to a shared region, and lends nothing"),
        other => write!(out, "it refused: {other:?}"),
    }
}

/// Why commits wait for the disk: what is missing, and why each lender that is no member does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    /// What is missing.
    pub blocked: Blocked,
    /// How many lenders the settings name.
    pub configured: usize,
    /// Each lender that does not count, and why.
    pub lenders: Vec<(String, Reason)>,
}

impl fmt::Display for Uncounted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.blocked.fmt(out)?;
        for (index, (address, reason)) in self.lenders.iter().enumerate() {
            write!(out, "{} {address}: {reason}", if index == 0 { "." } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Uncounted {}

/// Lenders that recovery could not reach when it gave up, and why. The sentence of a refusal ends in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AwayLenders(pub Vec<(String, Away)>);

impl fmt::Display for AwayLenders {
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
pub(crate) struct Unanswered {
    /// What could not be proven.
    pub(crate) refusal: RecoveryRefusal,
    /// Why some did not answer.
    pub(crate) away: AwayLenders,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.refusal, self.away)
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Incarnation, Lsn};
    use netram_proto::time::Time;

    use super::*;

    fn lender(link: LinkPhase) -> LenderStatus {
        LenderStatus {
            address: "tcp://10.0.0.2:7420".to_owned(),
            domain: String::new(),
            incarnation: Incarnation(0),
            link,
            role: Role::Spare,
            member: false,
            held: Lsn(0),
            refused: None,
            alias_of: None,
            stalled: false,
            stopping: false,
            unfit: false,
        }
    }

    #[test]
    fn what_the_system_says_of_a_connection_is_told_apart() {
        let of = |errno| Away::of_system(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(111), Away::NothingListens, "ECONNREFUSED");
        assert_eq!(of(2), Away::NothingListens, "ENOENT");
        assert_eq!(of(110), Away::NoAnswer, "ETIMEDOUT");
        assert!(matches!(of(113), Away::NoWay(_)), "EHOSTUNREACH");
        assert!(matches!(of(101), Away::NoWay(_)), "ENETUNREACH");
        assert!(matches!(of(24), Away::Here(_)), "EMFILE");
    }

    #[test]
    fn a_lender_that_counts_has_no_reason_and_each_other_has_one() {
        let down = LinkPhase::Down(Time(0));
        let why = |lender: &LenderStatus| Reason::of(lender, Some(&Away::WrongKey));
        assert_eq!(why(&lender(down)), Some(Reason::Away(Away::WrongKey)));
        let member = LenderStatus {
            member: true,
            role: Role::Member,
            ..lender(LinkPhase::Ready)
        };
        assert_eq!(why(&member), None);
        assert_eq!(why(&lender(LinkPhase::Ready)), Some(Reason::Spare));
        assert_eq!(Reason::of(&lender(down), None), Some(Reason::Connecting));
        let lost = LenderStatus { link: down, ..member };
        assert_eq!(Reason::of(&lost, None), Some(Reason::Lost));
        // A refusal of before is no reason any more once nothing listens.
        let refused = LenderStatus {
            refused: Some(Refused {
                why: Refusal::NoRoom,
                asked: 2,
                limit: 1,
            }),
            ..lender(LinkPhase::Connecting)
        };
        let away = Reason::of(&refused, Some(&Away::NothingListens));
        assert_eq!(away, Some(Reason::Away(Away::NothingListens)));
    }
}
