//! Lenders, commit rule and number of members of an open journal, and changing them.

use std::sync::atomic::Ordering;

use netram_proto::journal::{CommitRule, JournalMembership, MembershipError};
use netram_transport::{NetAddress, Security, SecurityError};

use crate::config::JournalConfig;
use crate::core::JournalState;
use crate::journal::Journal;

/// The part of a journal's settings that may change while the journal is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Lenders that may become members, in order of preference, which lenders that are added to an open
    /// journal take at the next opening.
    pub lenders: Vec<NetAddress>,
    /// Number of members that must hold a record before it is acknowledged.
    pub rule: CommitRule,
    /// Number of members wanted. The other lenders are spares.
    pub members: usize,
    /// Minimum number of members; with fewer, commits wait for the disk. `None`: `members` for the rule
    /// `all`, otherwise the number of copies that the rule needs.
    pub members_min: Option<usize>,
}

/// Why an open journal's membership was not changed.
#[derive(Debug, thiserror::Error)]
pub enum MembershipChangeError {
    /// The membership contradicts itself, or the journal can change no more.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The journal has no cluster key, and the lender is on another machine.
    #[error(
        "{0} is not on this machine, and the journal was opened without a cluster key, with which only local lenders are \
         allowed: name the key in its settings (`key-file`) and open it again"
    )]
    NoKey(NetAddress),
    /// The journal was opened without lenders, and the cluster key that it needs now cannot be loaded.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

impl From<&JournalConfig> for Membership {
    fn from(config: &JournalConfig) -> Membership {
        Membership {
            lenders: config.lenders.clone(),
            rule: config.rule,
            members: config.members,
            members_min: config.members_min,
        }
    }
}

impl Membership {
    /// A membership whose minimum of members is `min`; `None` in it if that is the default.
    pub fn with_min(lenders: Vec<NetAddress>, rule: CommitRule, members: usize, min: usize) -> Membership {
        let usual = Membership {
            lenders,
            rule,
            members,
            members_min: None,
        };
        Membership {
            members_min: (usual.min() != min).then_some(min),
            ..usual
        }
    }

    /// The number of members below which commits wait for the disk.
    pub fn min(&self) -> usize {
        self.members_min.unwrap_or(self.rule.copies(self.members)).max(1)
    }

    /// Checks the membership of an open journal for contradictions and limits.
    ///
    /// # Errors
    /// One [`MembershipError`] a contradiction.
    pub fn check(&self) -> Result<(), MembershipError> {
        let wanted = self.wanted();
        let is_empty = wanted.lenders.is_empty() || wanted.wanted == 0;
        is_empty
            .then_some(MembershipError::NoneLeft)
            .map_or_else(|| wanted.check(), Err)
    }

    /// Whether `other` has the same lenders, in whatever order, and the same numbers.
    pub fn is_same(&self, other: &Membership) -> bool {
        let have = |these: &Membership, those: &Membership| {
            those.lenders.iter().all(|one| these.lenders.contains(one))
        };
        let numbers = |one: &Membership| (one.rule, one.members, one.min());
        have(self, other) && have(other, self) && numbers(self) == numbers(other)
    }

    /// The membership as the state machine takes it.
    pub(crate) fn wanted(&self) -> JournalMembership {
        JournalMembership {
            lenders: self.lenders.iter().map(NetAddress::to_string).collect(),
            rule: self.rule,
            wanted: self.members,
            min: self.min(),
        }
    }
}

impl Journal {
    /// Lenders, commit rule and number of members that the journal is to have.
    pub fn membership(&self) -> Membership {
        self.shared.membership()
    }

    /// Changes lenders, commit rule and number of members while the journal is open. Commits go on meanwhile,
    /// and need the copies of both the old and the new membership until the new view is stored. A removed
    /// member stays until another lender has taken its place. [`JournalStatus::writer`] shows when everything
    /// is settled. The settings file does not change.
    ///
    /// # Errors
    /// [`MembershipChangeError`] if the journal cannot have this membership; nothing has changed.
    pub fn change_membership(&self, wish: &Membership) -> Result<(), MembershipChangeError> {
        if self.mark.is_child() {
            return Err(MembershipError::Ended.into());
        }
        self.shared.change_membership(wish, false)
    }
}

impl JournalState {
    pub(crate) fn membership(&self) -> Membership {
        let wanted = self.core().writer.membership();
        let parsed = wanted.lenders.iter().filter_map(|one| one.parse().ok());
        Membership::with_min(parsed.collect(), wanted.rule, wanted.wanted, wanted.min)
    }

    /// Gives the journal another membership, or, with `check_only`, tells whether it could have it.
    pub(crate) fn change_membership(
        &self,
        wish: &Membership,
        check_only: bool,
    ) -> Result<(), MembershipChangeError> {
        let wanted = wish.wanted();
        let mut core = self.core();
        core.writer.check_membership(&wanted)?;
        let key = match &core.security {
            Security::Insecure if self.lenderless.load(Ordering::Relaxed) => default_key()?,
            _ => None,
        };
        let plain = key.is_none() && matches!(core.security, Security::Insecure);
        if let Some(remote) = wish.lenders.iter().find(|one| plain && !one.is_local()) {
            return Err(MembershipChangeError::NoKey(remote.clone()));
        }
        if check_only {
            return Ok(());
        }
        tracing::info!(lenders = ?wanted.lenders, rule = %wanted.rule, members = wanted.wanted, min = wanted.min, "new membership");
        let (rule, named) = (wanted.rule, wanted.lenders.join(", "));
        let members = wanted.wanted;
        self.events.note(format!(
            "rule `{rule}` and {members} as the number of members were asked for, of {named}"
        ));
        if let Some(key) = key {
            core.security = key;
        }
        let now = self.now();
        core.writer.on_membership(&wanted, now)?;
        let count = core.writer.lender_count();
        core.links.grow(count);
        self.lenderless.store(false, Ordering::Relaxed);
        self.send(&mut core);
        drop(core);
        self.wake_maintenance();
        Ok(())
    }
}

/// The cluster key of a journal that was opened without lenders, and so without a key, if there is one.
fn default_key() -> Result<Option<Security>, SecurityError> {
    match Security::choose(None, false) {
        Ok(key) => Ok(Some(key)),
        Err(SecurityError::NoKey(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
