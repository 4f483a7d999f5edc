//! Name lookups. The system's resolver blocks while a name server is silent and cannot be interrupted. Each
//! lookup therefore has a thread of its own for each address family, and the caller waits with a deadline.
//!
//! The last addresses of a name are cached and offered while a lookup is under way. A silent name server
//! therefore does not make a lender unreachable.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::{self, IpFamily, NoAddressError};

/// Maximum names in the cache. Names come from settings and views, so a program with more names generates
/// them.
const NAMES_MAX: usize = 1024;

type LookupResult = Result<Vec<IpAddr>, NoAddressError>;
type PendingLookup = Arc<OnceLock<LookupResult>>;

#[derive(Default)]
struct LookupTable {
    /// Lookups under way, with the id of the process that runs their threads: a forked child has none of
    /// them.
    running: BTreeMap<(String, IpFamily), (u32, PendingLookup)>,
    known: BTreeMap<String, CachedName>,
}

/// The cached results for one name.
#[derive(Clone, Debug, Default)]
struct CachedName {
    /// The last address at which a connection succeeded.
    good: Option<IpAddr>,
    answered: BTreeMap<IpFamily, Vec<IpAddr>>,
}

static TABLE: Mutex<LookupTable> = Mutex::new(LookupTable {
    running: BTreeMap::new(),
    known: BTreeMap::new(),
});
static LOOKUP_DONE: Condvar = Condvar::new();

fn table() -> MutexGuard<'static, LookupTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LookupTable {
    fn known(&mut self, name: &str) -> &mut CachedName {
        if !self.known.contains_key(name) && self.known.len() >= NAMES_MAX {
            self.known.clear();
        }
        self.known.entry(name.to_owned()).or_default()
    }
}

/// Caches `ip` as the address of `name` at which a connection succeeded.
pub(crate) fn remember(name: &str, ip: IpAddr) {
    table().known(name).good = Some(ip);
}

/// A lookup of one name in both families.
pub(crate) struct NameQuery {
    name: String,
    /// Lookups whose result has not been taken.
    open: Vec<PendingLookup>,
    answered: bool,
}

impl NameQuery {
    /// Starts the lookup, or joins one that is under way. Fails if no thread can be started.
    pub(crate) fn ask(name: &str) -> io::Result<NameQuery> {
        let open: io::Result<Vec<PendingLookup>> = IpFamily::ALL
            .map(|family| look_up(name, family))
            .into_iter()
            .collect();
        Ok(NameQuery {
            name: name.to_owned(),
            open: open?,
            answered: false,
        })
    }

    /// Takes the next result that has arrived.
    pub(crate) fn take(&mut self) -> Option<LookupResult> {
        let at = self.open.iter().position(|outcome| outcome.get().is_some())?;
        let found = self.open.swap_remove(at).get().cloned()?;
        self.answered |= found.is_ok();
        Some(found)
    }

    /// Whether a result is outstanding.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether a result with addresses has been taken.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered
    }

    /// The cached addresses, beginning with the one at which a connection succeeded last.
    pub(crate) fn known(&self) -> Vec<IpAddr> {
        let known = table().known.get(&self.name).cloned().unwrap_or_default();
        let answered = known.answered.into_values().flatten();
        known.good.into_iter().chain(answered).collect()
    }

    /// Waits for a result, at most until `until`.
    pub(crate) fn wait(&self, until: Instant) {
        let mut table = table();
        while self.open.iter().all(|outcome| outcome.get().is_none()) {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            let waited = LOOKUP_DONE.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn look_up(name: &str, family: IpFamily) -> io::Result<PendingLookup> {
    let process = std::process::id();
    let key = (name.to_owned(), family);
    let outcome = PendingLookup::default();
    {
        let mut table = table();
        if let Some((whose, running)) = table.running.get(&key)
            && *whose == process
        {
            return Ok(Arc::clone(running));
        }
        table.running.insert(key.clone(), (process, Arc::clone(&outcome)));
    }
    let (ours, at) = (Arc::clone(&outcome), key.clone());
    let spawned = std::thread::Builder::new()
        .name("netram-lookup".into())
        .spawn(move || finish(at, &ours));
    if let Err(error) = spawned {
        table().running.remove(&key);
        return Err(error);
    }
    Ok(outcome)
}

fn finish(key: (String, IpFamily), outcome: &PendingLookup) {
    let found = sys::addresses(&key.0, key.1);
    let mut table = table();
    if let Ok(found) = &found {
        table.known(&key.0).answered.insert(key.1, found.clone());
    }
    // This thread alone sets it.
    let _ = outcome.set(found);
    table.running.remove(&key);
    drop(table);
    LOOKUP_DONE.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_this_machine_has_loopback_addresses_which_are_remembered() {
        let mut question = NameQuery::ask("localhost").unwrap();
        let mut found = Vec::new();
        while question.is_open() {
            question.wait(Instant::now() + Duration::from_secs(10));
            // A machine may lack one of the families.
            found.extend(question.take().expect("an answer").unwrap_or_default());
        }
        assert!(question.is_answered());
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        let last = *found.last().unwrap();
        remember("localhost", last);
        assert_eq!(question.known()[0], last);
    }

    #[test]
    fn an_invalid_name_has_no_address() {
        let mut question = NameQuery::ask("a\0b").unwrap();
        question.wait(Instant::now() + Duration::from_secs(10));
        assert!(question.take().expect("an answer").is_err());
    }
}
