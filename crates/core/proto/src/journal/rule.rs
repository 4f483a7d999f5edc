//! The commit rule: the number of members that must hold a record before it is acknowledged. It determines
//! the number that must answer before recovery may conclude that it has seen every acknowledged record.

use core::fmt;
use core::str::FromStr;

use crate::id::Lsn;
use crate::limit::MEMBERS_MAX;

/// The condition under which the members of a view acknowledge a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitRule {
    /// Every member holds the record (LND's SCP). Recovery needs one member.
    #[default]
    All,
    /// One member holds the record (LND's LCP). Recovery needs every member.
    Any,
    /// At least this many members hold the record. Recovery needs n − k + 1.
    AtLeast(u8),
}

/// The text is not a commit rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleError;

impl fmt::Display for RuleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "a commit rule is `all`, `any` or a number from 1 to {MEMBERS_MAX}"
        )
    }
}

impl core::error::Error for RuleError {}

impl CommitRule {
    /// Number of members that must hold a record in a view of `members`.
    pub fn copies(self, members: usize) -> usize {
        match self {
            CommitRule::All => members,
            CommitRule::Any => 1,
            CommitRule::AtLeast(k) => usize::from(k),
        }
    }

    /// Number of members, of a view of `members`, that must answer so that no acknowledged record can be
    /// elsewhere.
    pub fn answers(self, members: usize) -> usize {
        (members + 1).saturating_sub(self.copies(members))
    }

    /// The LSN that enough entries of `held` have reached; `None` if the rule cannot be met. Reorders `held`.
    ///
    /// Sorts at most [`MEMBERS_MAX`] numbers: about 5 ns for two or three.
    pub fn satisfied(self, held: &mut [Lsn]) -> Option<Lsn> {
        let copies = self.copies(held.len());
        if copies == 0 || copies > held.len() {
            return None;
        }
        held.sort_unstable();
        Some(held[held.len() - copies])
    }
}

impl fmt::Display for CommitRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitRule::All => out.write_str("all"),
            CommitRule::Any => out.write_str("any"),
            CommitRule::AtLeast(k) => k.fmt(out),
        }
    }
}

impl FromStr for CommitRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<CommitRule, RuleError> {
        match text {
            "all" => Ok(CommitRule::All),
            "any" => Ok(CommitRule::Any),
            number => match number.parse() {
                Ok(k) if (1..=MEMBERS_MAX).contains(&usize::from(k)) => Ok(CommitRule::AtLeast(k)),
                _ => Err(RuleError),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_acknowledged_record_is_at_one_of_the_members_that_must_answer() {
        for members in 1..=MEMBERS_MAX {
            for rule in [
                CommitRule::All,
                CommitRule::Any,
                CommitRule::AtLeast(1),
                CommitRule::AtLeast(2),
            ] {
                let copies = rule.copies(members);
                if copies <= members {
                    assert_eq!(copies + rule.answers(members), members + 1, "{rule} of {members}");
                }
            }
        }
    }

    #[test]
    fn the_rule_is_satisfied_by_the_lsn_that_enough_members_hold() {
        let held = [Lsn(5), Lsn(9), Lsn(7)];
        assert_eq!(CommitRule::All.satisfied(&mut held.clone()), Some(Lsn(5)));
        assert_eq!(CommitRule::Any.satisfied(&mut held.clone()), Some(Lsn(9)));
        assert_eq!(CommitRule::AtLeast(2).satisfied(&mut held.clone()), Some(Lsn(7)));
        assert_eq!(CommitRule::AtLeast(4).satisfied(&mut held.clone()), None);
        assert_eq!(CommitRule::All.satisfied(&mut []), None);
    }

    #[test]
    fn rules_survive_printing_and_parsing() {
        for rule in [CommitRule::All, CommitRule::Any, CommitRule::AtLeast(2)] {
            assert_eq!(alloc::format!("{rule}").parse(), Ok(rule));
        }
        for wrong in ["", "0", "9", "most"] {
            assert_eq!(wrong.parse::<CommitRule>(), Err(RuleError));
        }
    }
}
