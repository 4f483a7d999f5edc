//! Look-ups of names. The system's resolver blocks for as long as a name server keeps silent, and cannot be
//! interrupted: so each look-up has a thread of its own, one for each family, and whoever asks waits no
//! longer than he likes.
//!
//! The addresses that a name had are remembered, and given while its look-up is under way: a lender is not
//! away because a name server is.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::{self, IpFamily, NoAddressError};

/// Names whose addresses are remembered. They come from settings and views: more are a program that makes
/// them up.
const NAMES_MAX: usize = 1024;

type LookupResult = Result<Vec<IpAddr>, NoAddressError>;
type PendingLookup = Arc<OnceLock<LookupResult>>;

#[derive(Default)]
struct LookupTable {
    /// Look-ups under way, and the process that has their threads: a forked one has none.
    running: BTreeMap<(String, IpFamily), (u32, PendingLookup)>,
    known: BTreeMap<String, CachedName>,
}

/// What was found earlier.
#[derive(Clone, Debug, Default)]
struct CachedName {
    /// A link came about there.
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

/// A link came about at this address of a name.
pub(crate) fn remember(name: &str, ip: IpAddr) {
    table().known(name).good = Some(ip);
}

/// A question for the addresses of a name.
pub(crate) struct NameQuery {
    name: String,
    /// Those that have not been taken.
    open: Vec<PendingLookup>,
    answered: bool,
}

impl NameQuery {
    /// Asks, unless that is under way already. An error: there is no thread for it.
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

    /// The next answer that has come.
    pub(crate) fn take(&mut self) -> Option<LookupResult> {
        let at = self.open.iter().position(|outcome| outcome.get().is_some())?;
        let found = self.open.swap_remove(at).get().cloned()?;
        self.answered |= found.is_ok();
        Some(found)
    }

    /// Whether an answer is still to come.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether one has come with addresses.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered
    }

    /// Where the name was before: where a link came about first.
    pub(crate) fn known(&self) -> Vec<IpAddr> {
        let known = table().known.get(&self.name).cloned().unwrap_or_default();
        let answered = known.answered.into_values().flatten();
        known.good.into_iter().chain(answered).collect()
    }

    /// Waits for an answer, at most until then.
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
    // Nobody else sets it.
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
    fn a_name_that_cannot_be_has_no_address() {
        let mut question = NameQuery::ask("a\0b").unwrap();
        question.wait(Instant::now() + Duration::from_secs(10));
        assert!(question.take().expect("an answer").is_err());
    }
}
