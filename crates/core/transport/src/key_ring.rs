//! The keys that a listener with named clients accepts.
//!
//! A client's preamble says which key it has by the key's [`KeyId`], so a listener with any number of keys
//! tries one. The ring can be replaced while links are open: whose key has left it is marked as revoked, and
//! the threads that serve its links end them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest::{SHA256, digest};

use crate::key::ClusterKey;

/// Maximum number of keys tried for a client that does not say which one it has.
const UNNAMED_KEYS_MAX: usize = 2;

/// The short number by which a client names its key, in the clear. It says nothing about the key: it is two
/// bytes of a hash of 256 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u16);

impl KeyId {
    /// The id of `key`, never zero.
    pub fn of(key: &ClusterKey) -> KeyId {
        let hash = digest(&SHA256, key.to_text().as_bytes());
        let bytes = [hash.as_ref()[0], hash.as_ref()[1]];
        KeyId(u16::from_be_bytes(bytes).max(1))
    }

    /// The id in a preamble; zero for a client that names no key.
    pub(crate) fn to_wire(self) -> u16 {
        self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04x}", self.0)
    }
}

/// Whose key a link was opened with.
pub struct ClientIdentity {
    name: Box<str>,
    key: KeyId,
    revoked: AtomicBool,
}

impl ClientIdentity {
    /// The client's name in the list of clients.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key that the client has proven to hold.
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// Whether the key was taken off the list, so that the link must end.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ClientIdentity({}, key {})", self.name, self.key)
    }
}

/// A key and its client.
#[derive(Clone)]
struct RingKey {
    key: ClusterKey,
    identity: Arc<ClientIdentity>,
}

/// The keys that a listener accepts, each with the name of its client. Clones share one ring.
#[derive(Clone, Default)]
pub struct KeyRing(Arc<RwLock<Vec<RingKey>>>);

impl KeyRing {
    /// Replaces the keys. A key that was there for the same client keeps its links; any other key's links are
    /// revoked. The keys of the first name are also tried for clients that name none: programs before named
    /// clients.
    ///
    /// # Panics
    /// If two keys have the same id. The reader of the list refuses such a list.
    pub fn replace(&self, keys: impl IntoIterator<Item = (Box<str>, ClusterKey)>) {
        let mut ring = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *ring);
        for (name, key) in keys {
            let id = KeyId::of(&key);
            assert!(
                ring.iter().all(|other| other.identity.key != id),
                "key ids are distinct"
            );
            let kept = old
                .iter()
                .position(|old| old.key == key && old.identity.name == name);
            let ring_key = match kept {
                Some(at) => old.swap_remove(at),
                None => RingKey {
                    key,
                    identity: Arc::new(ClientIdentity {
                        name,
                        key: id,
                        revoked: AtomicBool::new(false),
                    }),
                },
            };
            ring.push(ring_key);
        }
        for gone in old {
            gone.identity.revoked.store(true, Ordering::Release);
        }
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.read().len()
    }

    /// The keys that a client with this id in its preamble may have. A client that names none may have a key
    /// of the first name.
    pub(crate) fn candidates(&self, id: u16) -> Vec<(ClusterKey, Arc<ClientIdentity>)> {
        let ring = self.read();
        let first = ring.first().map(|first| Arc::clone(&first.identity));
        let may_be = |entry: &&RingKey| match (id, &first) {
            (0, Some(first)) => entry.identity.name == first.name,
            _ => entry.identity.key.0 == id,
        };
        let found = ring.iter().filter(may_be).take(UNNAMED_KEYS_MAX);
        found
            .map(|entry| (entry.key.clone(), Arc::clone(&entry.identity)))
            .collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<RingKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "KeyRing({} keys)", self.keys())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a key whose id differs from those of `others`.
    fn another(others: &[&ClusterKey]) -> ClusterKey {
        loop {
            let key = ClusterKey::generate();
            if others.iter().all(|other| KeyId::of(other) != KeyId::of(&key)) {
                return key;
            }
        }
    }

    #[test]
    fn a_client_is_found_by_the_id_of_either_of_its_keys() {
        let old = ClusterKey::generate();
        let new = another(&[&old]);
        let other = another(&[&old, &new]);
        let ring = KeyRing::default();
        ring.replace([
            ("a".into(), old.clone()),
            ("b".into(), other.clone()),
            ("a".into(), new.clone()),
        ]);
        for (key, name) in [(&old, "a"), (&new, "a"), (&other, "b")] {
            let found = ring.candidates(KeyId::of(key).to_wire());
            assert_eq!(found.len(), 1);
            assert!(found[0].0 == *key && found[0].1.name() == name);
        }
        let unnamed = ring.candidates(0);
        assert_eq!(unnamed.len(), 2, "the keys of the first name");
        assert!(unnamed.iter().all(|(_, identity)| identity.name() == "a"));
    }

    #[test]
    fn a_key_that_leaves_the_ring_is_revoked_and_one_that_stays_is_not() {
        let stays = ClusterKey::generate();
        let goes = another(&[&stays]);
        let ring = KeyRing::default();
        ring.replace([("a".into(), stays.clone()), ("b".into(), goes.clone())]);
        let identity = |key: &ClusterKey| ring.candidates(KeyId::of(key).to_wire())[0].1.clone();
        let (kept, gone) = (identity(&stays), identity(&goes));
        ring.replace([("a".into(), stays.clone())]);
        assert!(!kept.is_revoked() && gone.is_revoked());
        assert!(Arc::ptr_eq(&kept, &identity(&stays)));
        ring.replace([("c".into(), stays.clone())]);
        assert!(kept.is_revoked(), "another client has the key now");
    }
}
