//! The account of one client: the amounts that it has of a server, against its limits.
//!
//! Threads take and give back without a lock; no append does either.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytesize::ByteSize;

use crate::wire::ClientResource;

const RESOURCES: usize = ClientResource::ALL.len();

/// The account of one client.
pub struct ClientAccount {
    name: Box<str>,
    limits: [AtomicU64; RESOURCES],
    used: [AtomicU64; RESOURCES],
}

/// A client asked for more than it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The client's name; empty without named clients.
    pub client: Box<str>,
    /// The resource that it asked for.
    pub resource: ClientResource,
    /// The amount that it would have had then.
    pub asked: u64,
    /// The amount that it may have.
    pub limit: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverLimit {
            client,
            resource,
            asked,
            limit,
        } = self;
        if resource.is_right() || *limit == 0 {
            return write!(out, "client `{client}` has no right to {resource}");
        }
        let amount = |amount: u64| match resource.is_bytes() {
            true => ByteSize(amount).display().iec().to_string(),
            false => amount.to_string(),
        };
        let (asked, limit) = (amount(*asked), amount(*limit));
        write!(
            out,
            "client `{client}` would have {resource} = {asked}; it may have {limit}"
        )
    }
}

impl core::error::Error for OverLimit {}

/// The amounts of one client, for a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientUsage {
    /// The client's name.
    pub name: Box<str>,
    /// For each of [`ClientResource::ALL`] the amount used and the limit; `u64::MAX` is none.
    pub amounts: [(u64, u64); RESOURCES],
}

impl ClientUsage {
    /// The amount of `resource` used, and its limit.
    pub fn of(&self, resource: ClientResource) -> (u64, u64) {
        self.amounts[resource.index()]
    }
}

impl ClientAccount {
    /// An account without limits, which has nothing yet.
    pub(crate) fn new(name: Box<str>) -> ClientAccount {
        ClientAccount {
            name,
            limits: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            used: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The client's name; empty for the one client of a server without named clients.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_limit(&self, resource: ClientResource, limit: u64) {
        self.limits[resource.index()].store(limit, Relaxed);
    }

    /// Checks that the client may have `resource` at all.
    ///
    /// # Errors
    /// It may have nothing of it.
    pub fn check(&self, resource: ClientResource) -> Result<(), OverLimit> {
        match self.limit(resource) {
            0 => Err(self.over(resource, 1)),
            _ => Ok(()),
        }
    }

    /// Takes an amount, which is given back when the charge is dropped.
    ///
    /// # Errors
    /// The client would have more than it may; nothing is taken.
    pub fn take(
        self: &Arc<ClientAccount>,
        resource: ClientResource,
        amount: u64,
    ) -> Result<ResourceCharge, OverLimit> {
        let mut charge = ResourceCharge::nothing(Arc::clone(self), resource);
        charge.resize(amount)?;
        Ok(charge)
    }

    /// Takes an amount that the client has already, whatever its limit: what an earlier process kept for it.
    pub fn take_kept(self: &Arc<ClientAccount>, resource: ClientResource, amount: u64) -> ResourceCharge {
        let mut charge = ResourceCharge::nothing(Arc::clone(self), resource);
        self.used[resource.index()].fetch_add(amount, Relaxed);
        charge.amount = amount;
        charge
    }

    /// The amount that the client may have.
    pub fn limit(&self, resource: ClientResource) -> u64 {
        self.limits[resource.index()].load(Relaxed)
    }

    /// The client's amounts and limits.
    pub fn usage(&self) -> ClientUsage {
        let amount = |resource: ClientResource| {
            let used = self.used[resource.index()].load(Relaxed);
            (used, self.limit(resource))
        };
        ClientUsage {
            name: self.name.clone(),
            amounts: ClientResource::ALL.map(amount),
        }
    }

    /// Whether the client has anything.
    pub(crate) fn is_in_use(&self) -> bool {
        self.used.iter().any(|used| used.load(Relaxed) > 0)
    }

    /// The refusal of an amount that the client would have.
    pub fn over(&self, resource: ClientResource, asked: u64) -> OverLimit {
        OverLimit {
            client: self.name.clone(),
            resource,
            asked,
            limit: self.limit(resource),
        }
    }
}

impl fmt::Debug for ClientAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ClientAccount({:?})", self.usage())
    }
}

/// An amount that a client has. Dropping it gives the amount back.
#[derive(Debug)]
pub struct ResourceCharge {
    account: Arc<ClientAccount>,
    resource: ClientResource,
    amount: u64,
}

impl ResourceCharge {
    /// A charge of nothing, to be resized.
    pub fn nothing(account: Arc<ClientAccount>, resource: ClientResource) -> ResourceCharge {
        ResourceCharge {
            account,
            resource,
            amount: 0,
        }
    }

    /// The account that is charged.
    pub fn account(&self) -> &Arc<ClientAccount> {
        &self.account
    }

    /// Changes the amount. Less is always granted.
    ///
    /// # Errors
    /// The client would have more than it may; the amount stays.
    pub fn resize(&mut self, amount: u64) -> Result<(), OverLimit> {
        let used = &self.account.used[self.resource.index()];
        let limit = self.account.limit(self.resource);
        if amount <= self.amount {
            used.fetch_sub(self.amount - amount, Relaxed);
            self.amount = amount;
            return Ok(());
        }
        let more = amount - self.amount;
        let grown = |used: u64| used.checked_add(more).filter(|total| *total <= limit);
        match used.fetch_update(Relaxed, Relaxed, grown) {
            Ok(_) => {
                self.amount = amount;
                Ok(())
            }
            Err(used) => Err(self.account.over(self.resource, used.saturating_add(more))),
        }
    }

    /// The largest amount that [`resize`](Self::resize) grants now.
    pub fn largest(&self) -> u64 {
        let used = self.account.used[self.resource.index()].load(Relaxed);
        let free = self.account.limit(self.resource).saturating_sub(used);
        self.amount.saturating_add(free)
    }
}

impl Drop for ResourceCharge {
    fn drop(&mut self) {
        self.account.used[self.resource.index()].fetch_sub(self.amount, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_its_limit_and_no_more_and_gives_back_by_dropping() {
        let account = Arc::new(ClientAccount::new("db".into()));
        account.set_limit(ClientResource::Memory, 10);
        let mut first = account.take(ClientResource::Memory, 6).unwrap();
        let refused = account.take(ClientResource::Memory, 5).unwrap_err();
        assert_eq!((refused.asked, refused.limit), (11, 10));
        assert_eq!(
            refused.to_string(),
            "client `db` would have memory = 11 B; it may have 10 B"
        );
        assert_eq!(first.largest(), 10);
        first.resize(10).unwrap();
        first.resize(3).unwrap();
        let second = account.take(ClientResource::Memory, 7).unwrap();
        assert!(first.resize(4).is_err());
        assert_eq!(account.usage().of(ClientResource::Memory), (10, 10));
        drop(second);
        assert_eq!(account.usage().of(ClientResource::Memory), (3, 10));
        drop(first);
        assert!(!account.is_in_use());
    }

    #[test]
    fn a_lowered_limit_takes_nothing_away_and_grants_nothing_more() {
        let account = Arc::new(ClientAccount::new("db".into()));
        let mut kept = account.take_kept(ClientResource::Journals, 5);
        account.set_limit(ClientResource::Journals, 2);
        assert!(account.take(ClientResource::Journals, 1).is_err());
        assert_eq!(kept.largest(), 5);
        kept.resize(4).unwrap();
        assert!(kept.resize(5).is_err());
        account.set_limit(ClientResource::Status, 0);
        let refused = account.check(ClientResource::Status).unwrap_err().to_string();
        assert_eq!(refused, "client `db` has no right to status");
    }
}
