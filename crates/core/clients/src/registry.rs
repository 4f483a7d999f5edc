//! The clients of a running server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_proto::wire::ClientResource;
use netram_transport::{ClientIdentity, KeyRing, ListenSecurity, Security};

use crate::account::{ClientAccount, ClientUsage};
use crate::file::{ClientsFile, ClientsFileError};
use crate::limits::{ClientLimits, ServerTotals};

/// The clients of a server: their keys and their accounts.
#[derive(Debug)]
pub struct ClientRegistry {
    /// The file of named clients; `None` if all clients are one.
    file: Option<PathBuf>,
    /// The keys of named clients; no key without a file.
    ring: KeyRing,
    known: Mutex<KnownClients>,
}

#[derive(Debug, Default)]
struct KnownClients {
    totals: ServerTotals,
    /// What the file says of each client.
    limits: BTreeMap<Box<str>, ClientLimits>,
    /// The accounts of these clients, and of others that still have something.
    accounts: BTreeMap<Box<str>, Arc<ClientAccount>>,
}

/// What reading the file again has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryChange {
    /// Names of the clients in the file now.
    pub clients: Vec<Box<str>>,
    /// Number of keys that are accepted now.
    pub keys: usize,
    /// Names that are gone. Their connections end, and what they keep stays.
    pub revoked: Vec<Box<str>>,
}

impl ClientRegistry {
    /// A server whose clients are one, without a name and without limits.
    pub fn of_one() -> ClientRegistry {
        ClientRegistry {
            file: None,
            ring: KeyRing::default(),
            known: Mutex::default(),
        }
    }

    /// Reads the file of clients.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or it says something that cannot be.
    pub fn read(file: &Path) -> Result<ClientRegistry, ClientsFileError> {
        let registry = ClientRegistry {
            file: Some(file.to_owned()),
            ..ClientRegistry::of_one()
        };
        registry.reload()?;
        Ok(registry)
    }

    /// Whether clients have names.
    pub fn is_named(&self) -> bool {
        self.file.is_some()
    }

    /// The protection of a listener for these clients; `security` if they have no names.
    pub fn listen_security(&self, security: &Security) -> ListenSecurity {
        match self.is_named() {
            true => ListenSecurity::Clients(self.ring.clone()),
            false => security.clone().into(),
        }
    }

    /// Sets what the server has for all clients together.
    pub fn set_totals(&self, totals: ServerTotals) {
        let mut known = self.known();
        known.totals = totals;
        known.apply_limits();
    }

    /// Reads the file again. Connections of clients that are still in it go on; those whose key is gone are
    /// marked as revoked. After an error everything stays as it was.
    ///
    /// # Errors
    /// As [`read`](Self::read). `None`: there is no file.
    pub fn reload(&self) -> Result<Option<RegistryChange>, ClientsFileError> {
        let Some(path) = &self.file else {
            return Ok(None);
        };
        let file = ClientsFile::load(path)?;
        let mut known = self.known();
        let limits: BTreeMap<Box<str>, ClientLimits> = { file.clients().iter() }
            .map(|client| (client.name.clone(), client.limits))
            .collect();
        let change = RegistryChange {
            clients: limits.keys().cloned().collect(),
            keys: file.clients().iter().map(|client| client.keys.len()).sum(),
            revoked: { known.limits.keys() }
                .filter(|name| !limits.contains_key(*name))
                .cloned()
                .collect(),
        };
        known.limits = limits;
        known.apply_limits();
        self.ring.replace(file.into_keys());
        Ok(Some(change))
    }

    /// The account of a link's client; of the one client without a name if the link has none.
    pub fn account(&self, client: Option<&Arc<ClientIdentity>>) -> Arc<ClientAccount> {
        self.account_named(client.map_or("", |client| client.name()))
    }

    /// The account of the client of this name, also if the file does not name it any more: what an earlier
    /// process kept for it still counts.
    pub fn account_named(&self, name: &str) -> Arc<ClientAccount> {
        let mut known = self.known();
        if let Some(account) = known.accounts.get(name) {
            return Arc::clone(account);
        }
        let account = Arc::new(ClientAccount::new(name.into()));
        known.accounts.insert(name.into(), Arc::clone(&account));
        account
    }

    /// What each client of the file has, and each other that has something. Empty without names.
    pub fn usage(&self) -> Vec<ClientUsage> {
        if !self.is_named() {
            return Vec::new();
        }
        let mut known = self.known();
        let KnownClients { limits, accounts, .. } = &mut *known;
        accounts.retain(|name, account| {
            limits.contains_key(name) || account.is_in_use() || Arc::strong_count(account) > 1
        });
        let named = accounts.values().filter(|account| !account.name().is_empty());
        named.map(|account| account.usage()).collect()
    }

    fn known(&self) -> MutexGuard<'_, KnownClients> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownClients {
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

#[cfg(test)]
mod tests {
    use netram_transport::{ClusterKey, KeyId};

    use super::*;

    fn file(clients: &[(&str, &ClusterKey)]) -> String {
        let entry = |(name, key): &(&str, &ClusterKey)| format!("[{name}]\nkey = {}\n", *key.to_text());
        clients.iter().map(entry).collect()
    }

    fn two_keys() -> [ClusterKey; 2] {
        let first = ClusterKey::generate();
        loop {
            let second = ClusterKey::generate();
            if KeyId::of(&first) != KeyId::of(&second) {
                return [first, second];
            }
        }
    }

    #[test]
    fn a_reload_changes_limits_keeps_accounts_and_names_who_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients");
        let [a, b] = two_keys();
        crate::file::tests::write(&path, &file(&[("a", &a), ("b", &b)]));
        let registry = ClientRegistry::read(&path).unwrap();
        registry.set_totals(ServerTotals {
            memory: 100,
            ..ServerTotals::default()
        });
        let account = registry.account_named("b");
        let charge = account.take(ClientResource::Memory, 50).unwrap();
        assert!(
            account.take(ClientResource::Memory, 1).is_err(),
            "half of the memory"
        );

        let text = format!("{}memory = 20B\n", file(&[("a", &a)]));
        crate::file::tests::write(&path, &text);
        let change = registry.reload().unwrap().unwrap();
        assert_eq!((change.clients.as_slice(), change.keys), (&["a".into()][..], 1));
        assert_eq!(change.revoked, ["b".into()]);
        assert_eq!(registry.account_named("a").limit(ClientResource::Memory), 20);
        let named = |registry: &ClientRegistry| -> Vec<Box<str>> {
            registry.usage().into_iter().map(|usage| usage.name).collect()
        };
        assert_eq!(
            named(&registry),
            ["a".into(), "b".into()],
            "b still has something"
        );
        drop((charge, account));
        assert_eq!(named(&registry), ["a".into()]);
    }

    #[test]
    fn a_file_that_cannot_be_read_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients");
        let [a, _] = two_keys();
        crate::file::tests::write(&path, &file(&[("a", &a)]));
        let registry = ClientRegistry::read(&path).unwrap();
        crate::file::tests::write(&path, "[a]\nkee = 1\n");
        assert!(registry.reload().unwrap_err().to_string().contains("kee"));
        assert_eq!(registry.ring.keys(), 1);
    }

    #[test]
    fn without_a_file_there_is_one_client_without_limits() {
        let registry = ClientRegistry::of_one();
        let account = registry.account(None);
        for resource in ClientResource::ALL {
            account.check(resource).unwrap();
        }
        assert!(Arc::ptr_eq(&account, &registry.account_named("")));
        assert!(registry.usage().is_empty());
    }
}
