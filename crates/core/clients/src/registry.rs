//! The clients of a running server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_proto::client::{ClientAccount, ClientBook, ClientUsage, ServerTotals};
use netram_transport::{ClientIdentity, KeyRing, ListenSecurity, Security};

use crate::file::{ClientsFile, ClientsFileError};

/// The clients of a server: their keys and their accounts.
#[derive(Debug)]
pub struct ClientRegistry {
    /// The file of named clients; `None` if all clients are one.
    file: Option<PathBuf>,
    /// The keys of named clients; no key without a file.
    ring: KeyRing,
    book: Mutex<ClientBook>,
}

/// Changes that reading the file again has brought.
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
            book: Mutex::default(),
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
        self.book().set_totals(totals);
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
        let mut book = self.book();
        let limits = file.clients().iter();
        let limits = limits.map(|client| (client.name.clone(), client.limits));
        let revoked = book.replace(limits.collect());
        let change = RegistryChange {
            clients: book.names().cloned().collect(),
            keys: file.clients().iter().map(|client| client.keys.len()).sum(),
            revoked,
        };
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
        self.book().account(name)
    }

    /// The amounts of each client of the file, and of each other that has something. Empty without names.
    pub fn usage(&self) -> Vec<ClientUsage> {
        if !self.is_named() {
            return Vec::new();
        }
        self.book().usage()
    }

    fn book(&self) -> MutexGuard<'_, ClientBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::wire::ClientResource;
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
