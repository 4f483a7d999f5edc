//! The clients of a server by name: their limits, and their accounts.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::account::{ClientAccount, ClientUsage};
use super::limits::{ClientLimits, ServerTotals};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::wire::ClientResource;

/// The clients of a server.
#[derive(Debug, Default)]
pub struct ClientBook {
    totals: ServerTotals,
    /// The file's limits of each client.
    limits: BTreeMap<Box<str>, ClientLimits>,
    /// The accounts of these clients, and of others that still have something.
    accounts: BTreeMap<Box<str>, Arc<ClientAccount>>,
    planted: FaultSwitch,
}

impl ClientBook {
    /// Plants a fault, for the simulator's own test.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Sets the amounts that the server has for all clients together.
    pub fn set_totals(&mut self, totals: ServerTotals) {
        self.totals = totals;
        self.apply_limits();
    }

    /// Replaces the clients and their limits by those of the file. Accounts stay. Returns the names that are
    /// gone.
    pub fn replace(&mut self, limits: BTreeMap<Box<str>, ClientLimits>) -> Vec<Box<str>> {
        let gone = { self.limits.keys() }
            .filter(|name| !limits.contains_key(*name))
            .cloned()
            .collect();
        self.limits = limits;
        self.apply_limits();
        gone
    }

    /// The names in the file.
    pub fn names(&self) -> impl Iterator<Item = &Box<str>> {
        self.limits.keys()
    }

    /// The account of the client of this name, also if the file does not name it any more: what an earlier
    /// process kept for it still counts.
    pub fn account(&mut self, name: &str) -> Arc<ClientAccount> {
        let name = match self.limits.keys().next() {
            Some(first) if self.planted.is(PlantedFault::LimitSharedAcrossNames) => first,
            _ => name,
        };
        if let Some(account) = self.accounts.get(name) {
            return Arc::clone(account);
        }
        let account = Arc::new(ClientAccount::new(name.into()));
        self.accounts.insert(name.into(), Arc::clone(&account));
        account
    }

    /// The amounts of each client of the file, and of each other that has something.
    pub fn usage(&mut self) -> Vec<ClientUsage> {
        let ClientBook { limits, accounts, .. } = self;
        accounts.retain(|name, account| {
            limits.contains_key(name) || account.is_in_use() || Arc::strong_count(account) > 1
        });
        let named = accounts.values().filter(|account| !account.name().is_empty());
        named.map(|account| account.usage()).collect()
    }

    /// Makes an account for each client of the file, and sets the limits of all accounts.
    fn apply_limits(&mut self) {
        for name in self.limits.keys() {
            let new = || Arc::new(ClientAccount::new(name.clone()));
            self.accounts.entry(name.clone()).or_insert_with(new);
        }
        for (name, account) in &self.accounts {
            let Some(limits) = self.limits.get(name) else {
                continue;
            };
            for resource in ClientResource::ALL {
                let limit = limits.effective(resource, &self.totals, self.limits.len());
                account.set_limit(resource, limit);
            }
        }
    }
}
