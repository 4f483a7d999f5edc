//! What earlier processes of the node left in its directory: offered to the server, and removed when that has written down that
//! nothing of it is missing.
//!
//! | of the journal | what is done |
//! |---|---|
//! | no mark | it never was a node's: removed |
//! | its node is gone, says the server | removed |
//! | in use, or of another region | left alone |
//! | it opens | offered; what the server lacks is sent |
//! | it does not: its members are sealed, say | the server is reading it from them, which is waited for |
//!
//! The server *says* that it wants nothing more before that is durable there. So a journal is removed only after the server has told
//! the outcome of a record that it never had: that takes the durable word that the node id is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_journal::{JournalConfig, Left, OpenError, Place, over};
use netram_proto::port::LogError;
use netram_shared_machine::message::Fate;
use netram_shared_machine::{NodeId, Number};

use super::error::Gone;
use super::mark::{Mark, Marked};
use super::payload::Payload;
use super::shared::Shared;

/// Journals are in directories of this name and a number.
const PREFIX: &str = "journal-";
/// An answer that does not come is asked for again this often: the link may have broken.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long one attempt to offer a journal goes on: its node's lease may have to end, its members may be away.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between two attempts at what could not be offered.
const PAUSE: Duration = Duration::from_secs(2);
/// A record that no node has: whatever became of its node's others, this one is aborted, as soon as that is durable.
const NEVER: Number = Number(u64::MAX);

/// Why a journal that was left stays where it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum OldError {
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Read(LogError),
    #[error("{0}")]
    Gone(#[from] Gone),
    #[error("it is of another region: its records are not this one's")]
    Alien,
    #[error("its log begins at a place that its mark does not name")]
    Mark,
    #[error("the server lacks records from {0} on, which are no more in the log")]
    Trimmed(Number),
    #[error("the server has not said in time that it has all")]
    TimedOut,
}

/// The directories of journals, oldest first, and the name for a new one.
pub(super) fn journals_in(directory: &Path) -> std::io::Result<(Vec<PathBuf>, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
            found.push(number);
        }
    }
    found.sort_unstable();
    let next = found.last().map_or(1, |last| last.saturating_add(1));
    let path = |number: u64| directory.join(format!("{PREFIX}{number}"));
    Ok((found.iter().map(|number| path(*number)).collect(), path(next)))
}

/// The journals of nodes in a directory, oldest first; not those that were cut short before they were a node's.
pub(crate) fn marked_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, _) = journals_in(directory)?;
    found.retain(|root| !matches!(Mark::read(root), Ok(None)));
    Ok(found)
}

/// A journal of an earlier process that the server has not buried yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// Where it is.
    pub path: PathBuf,
    /// Why the last attempt to offer it has failed; there will be another one. `None`: the first one goes on.
    pub failed: Option<String>,
}

/// Offers what [`Shared::left`] names, until none of it is left or the node ends.
pub(super) fn run(shared: &Shared, config: &JournalConfig) {
    while !shared.is_over() {
        let left = shared.left().clone();
        for LeftBehind { path, failed } in left {
            let offered = offer_one(shared, &path, config, Instant::now() + ATTEMPT);
            if shared.is_over() {
                return;
            }
            let failed_now = offered.err().map(|error| error.to_string());
            if failed_now.is_some() && failed_now != failed {
                let (journal, error) = (path.display(), failed_now.as_deref());
                tracing::warn!(%journal, error, "what an earlier process of this node left cannot be offered yet");
            }
            let mut left = shared.left();
            match failed_now {
                None => left.retain(|other| other.path != path),
                failed => {
                    let its = left.iter_mut().filter(|other| other.path == path);
                    its.for_each(|its| its.failed.clone_from(&failed));
                }
            }
        }
        if shared.left().is_empty() {
            return;
        }
        std::thread::park_timeout(PAUSE);
    }
}

fn offer_one(shared: &Shared, root: &Path, config: &JournalConfig, until: Instant) -> Result<(), OldError> {
    let Some(marked) = Mark::read(root)? else {
        // Cut short before its log was made, or before it had joined.
        let place = Place::at(root);
        if place.is_locked().is_ok_and(|locked| locked) {
            return Err(OldError::Mark);
        }
        return Ok(fs::remove_dir_all(root)?);
    };
    let node = marked.whose.node;
    // The server has another node of that id, or will: its word about that one is not about this.
    if marked.region.is_some_and(|region| region != shared.birth.region) {
        return Err(OldError::Alien);
    }
    let fate = shared.ask(node, NEVER, ASK_EVERY)?;
    // Only those are forgotten that were gone.
    if matches!(fate, Some(Fate::Aborted | Fate::Forgotten)) {
        return remove(root, config);
    }
    let unread = match Left::open(root, config) {
        Ok((left, _)) => give(shared, &left, &marked, until).err(),
        Err(error @ OpenError::InUse { .. }) => return Err(error.into()),
        // Sealed, or given back already: the server reads it, or has.
        Err(error) => Some(error.into()),
    };
    match shared.outcome(node, NEVER, until)? {
        Fate::Open => Err(unread.unwrap_or(OldError::TimedOut)),
        Fate::Committed | Fate::Aborted | Fate::Forgotten => remove(root, config),
    }
}

/// Removes a journal that nobody needs. The server has told its lenders; one that has lost its memory since may have been asked for a window
/// again by the process, if that stood still meanwhile. Whoever tells them first and is cut off tells them again.
fn remove(root: &Path, config: &JournalConfig) -> Result<(), OldError> {
    let away = over::tell_now(root, config, over::PATIENCE);
    if !away.is_empty() {
        let journal = root.display();
        tracing::debug!(%journal, ?away, "lenders that are away were not told that a journal is over");
    }
    Ok(fs::remove_dir_all(root)?)
}

/// Offers a journal until the server wants nothing more of it.
fn give(shared: &Shared, left: &Left, marked: &Marked, until: Instant) -> Result<(), OldError> {
    let head = left.head().lsn;
    let mut from = marked.from.iter().filter(|(_, lsn)| *lsn == head);
    let (before, _) = *from.next().ok_or(OldError::Mark)?;
    let mut count = 0;
    left.read(head, &mut |_| {
        count += 1;
        true
    })
    .map_err(OldError::Read)?;
    let last = Number(before.0 + count);
    while Instant::now() < until && !shared.is_over() {
        shared.with(|core, _| {
            core.alive()?;
            core.wanted.remove(&marked.whose.node);
            core.machine.offer(marked.whose, last);
            Ok::<(), Gone>(())
        })?;
        match wanted(shared, marked.whose.node)? {
            Some(None) => return Ok(()),
            Some(Some(from)) if from <= before => return Err(OldError::Trimmed(from)),
            Some(Some(from)) => {
                send(shared, left, marked.whose.node, before, from)?;
                // What it was sent it merges now; if the link broke meanwhile it has to be offered again.
                let patience = until.min(Instant::now() + ASK_EVERY);
                if shared.outcome(marked.whose.node, NEVER, patience)? != Fate::Open {
                    return Ok(());
                }
            }
            None => {}
        }
    }
    Err(OldError::TimedOut)
}

/// The server's answer to an offer, if it comes.
fn wanted(shared: &Shared, node: NodeId) -> Result<Option<Option<Number>>, Gone> {
    let answer = shared.wait_told(Instant::now() + ASK_EVERY, |core| {
        match core.wanted.remove(&node) {
            Some(wanted) => Some(Ok(wanted)),
            None => core.alive().err().map(Err),
        }
    });
    answer.transpose()
}

/// Sends the records from one on. `before` is the last that is no more in the log.
fn send(shared: &Shared, left: &Left, node: NodeId, before: Number, from: Number) -> Result<(), OldError> {
    let mut number = before;
    let read = left.read(left.head().lsn, &mut |record| {
        number = number.next();
        if number >= from {
            let payload = Payload::from(record.payload);
            shared.with(|core, _| core.machine.give_old(node, number, payload));
        }
        true
    });
    read.map(drop).map_err(OldError::Read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_journal_never_takes_an_older_ones_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = |number: u64| folder.path().join(format!("journal-{number}"));
        assert_eq!(journals_in(folder.path()).unwrap(), (vec![], root(1)));
        for number in [10, 9] {
            fs::create_dir(root(number)).unwrap();
        }
        fs::create_dir(folder.path().join("journal-old")).unwrap();
        fs::write(folder.path().join("notes"), "").unwrap();
        let found = journals_in(folder.path()).unwrap();
        assert_eq!(found, (vec![root(9), root(10)], root(11)));
    }
}
