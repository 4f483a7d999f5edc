//! What earlier processes of the node left in its directory: offered to the server, and removed when that has
//! written down that nothing of it is missing.
//!
//! | of the journal | what is done |
//! |---|---|
//! | no mark | it never was a node's: removed |
//! | its node is gone, says the server | removed |
//! | in use, or of another region | left alone |
//! | it opens | offered; what the server lacks is sent |
//! | it does not: its members are sealed, say | the server is reading it from them, which is waited for |
//!
//! The server *says* that it wants nothing more before that is durable there. So a journal is removed only
//! after the server has told the outcome of a record that it never had: that takes the durable word that the
//! node id is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_journal::{JournalConfig, JournalOpenError, JournalPaths, OrphanJournal, forget};
use netram_proto::port::LogError;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{NodeId, RecordNumber};

use super::error::NodeGone;
use super::inner::NodeInner;
use super::mark::{JournalMark, MarkContents};
use super::payload::NodePayload;

/// Journals are in directories of this name and a number.
const PREFIX: &str = "journal-";
/// An answer that does not come is asked for again this often: the link may have broken.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long one attempt to offer a journal goes on: its node's lease may have to end, its members may be
/// away.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts at what could not be offered.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A record that no node has: whatever became of its node's others, this one is aborted, as soon as that is
/// durable.
const NEVER: RecordNumber = RecordNumber(u64::MAX);

/// Why a journal that was left stays where it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrphanError {
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Open(#[from] JournalOpenError),
    #[error("{0}")]
    Read(LogError),
    #[error("{0}")]
    Gone(#[from] NodeGone),
    #[error("it is of another region: its records are not this one's")]
    Alien,
    #[error("its log begins at a place that its mark does not name")]
    Mark,
    #[error("the server lacks records from {0} on, which are no more in the log")]
    Trimmed(RecordNumber),
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

/// The journals of nodes in a directory, oldest first; not those that were cut short before they were a
/// node's.
pub(crate) fn orphans_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, _) = journals_in(directory)?;
    found.retain(|root| !matches!(JournalMark::read(root), Ok(None)));
    Ok(found)
}

/// A journal of an earlier process that the server has not buried yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanStatus {
    /// Where it is.
    pub path: PathBuf,
    /// Why the last attempt to offer it has failed; there will be another one. `None`: the first one goes on.
    pub failed: Option<String>,
}

/// Offers what [`NodeInner::orphans`] names, until none of it is left or the node ends.
pub(super) fn run(shared: &NodeInner, config: &JournalConfig) {
    while !shared.is_over() {
        let left = shared.orphans().clone();
        for OrphanStatus { path, failed } in left {
            let offered = offer_one(shared, &path, config, Instant::now() + OFFER_TIMEOUT);
            if shared.is_over() {
                return;
            }
            let failed_now = offered.err().map(|error| error.to_string());
            if failed_now.is_some() && failed_now != failed {
                let (journal, error) = (path.display(), failed_now.as_deref());
                tracing::warn!(%journal, error, "what an earlier process of this node left cannot be offered yet");
            }
            let mut left = shared.orphans();
            match failed_now {
                None => left.retain(|other| other.path != path),
                failed => {
                    let its = left.iter_mut().filter(|other| other.path == path);
                    its.for_each(|its| its.failed.clone_from(&failed));
                }
            }
        }
        if shared.orphans().is_empty() {
            return;
        }
        std::thread::park_timeout(RETRY_INTERVAL);
    }
}

fn offer_one(
    shared: &NodeInner,
    root: &Path,
    config: &JournalConfig,
    until: Instant,
) -> Result<(), OrphanError> {
    let Some(marked) = JournalMark::read(root)? else {
        // Cut short before its log was made, or before it had joined.
        let place = JournalPaths::at(root);
        if place.is_locked().is_ok_and(|locked| locked) {
            return Err(OrphanError::Mark);
        }
        return Ok(fs::remove_dir_all(root)?);
    };
    let node = marked.owner.node;
    // The server has another node of that id, or will: its word about that one is not about this.
    if marked
        .region
        .is_some_and(|region| region != shared.join_info.region)
    {
        return Err(OrphanError::Alien);
    }
    let fate = shared.ask(node, NEVER, ASK_INTERVAL)?;
    // Only those are forgotten that were gone.
    if matches!(fate, Some(RecordOutcome::Aborted | RecordOutcome::Forgotten)) {
        return remove(root, config);
    }
    let unread = match OrphanJournal::open(root, config) {
        Ok((left, _)) => offer_records(shared, &left, &marked, until).err(),
        Err(error @ JournalOpenError::InUse { .. }) => return Err(error.into()),
        // Sealed, or given back already: the server reads it, or has.
        Err(error) => Some(error.into()),
    };
    match shared.outcome(node, NEVER, until)? {
        RecordOutcome::Open => Err(unread.unwrap_or(OrphanError::TimedOut)),
        RecordOutcome::Committed | RecordOutcome::Aborted | RecordOutcome::Forgotten => remove(root, config),
    }
}

/// Removes a journal that nobody needs. The server has told its lenders; one that has lost its memory since
/// may have been asked for a window again by the process, if that stood still meanwhile. Whoever tells them
/// first and is cut off tells them again.
fn remove(root: &Path, config: &JournalConfig) -> Result<(), OrphanError> {
    let away = forget::tell_now(root, config, forget::PATIENCE);
    if !away.is_empty() {
        let journal = root.display();
        tracing::debug!(%journal, ?away, "lenders that are away were not told that a journal is over");
    }
    Ok(fs::remove_dir_all(root)?)
}

/// Offers a journal until the server wants nothing more of it.
fn offer_records(
    shared: &NodeInner,
    left: &OrphanJournal,
    marked: &MarkContents,
    until: Instant,
) -> Result<(), OrphanError> {
    let head = left.head().lsn;
    let mut from = marked.from.iter().filter(|(_, lsn)| *lsn == head);
    let (before, _) = *from.next().ok_or(OrphanError::Mark)?;
    let mut count = 0;
    left.read(head, &mut |_| {
        count += 1;
        true
    })
    .map_err(OrphanError::Read)?;
    let last = RecordNumber(before.0 + count);
    while Instant::now() < until && !shared.is_over() {
        shared.with(|core, _| {
            core.alive()?;
            core.wanted.remove(&marked.owner.node);
            core.machine.offer_orphan(marked.owner, last);
            Ok::<(), NodeGone>(())
        })?;
        match wanted(shared, marked.owner.node)? {
            Some(None) => return Ok(()),
            Some(Some(from)) if from <= before => return Err(OrphanError::Trimmed(from)),
            Some(Some(from)) => {
                send(shared, left, marked.owner.node, before, from)?;
                // What it was sent it merges now; if the link broke meanwhile it has to be offered again.
                let patience = until.min(Instant::now() + ASK_INTERVAL);
                if shared.outcome(marked.owner.node, NEVER, patience)? != RecordOutcome::Open {
                    return Ok(());
                }
            }
            None => {}
        }
    }
    Err(OrphanError::TimedOut)
}

/// The server's answer to an offer, if it comes.
fn wanted(shared: &NodeInner, node: NodeId) -> Result<Option<Option<RecordNumber>>, NodeGone> {
    let answer = shared.wait_reply(Instant::now() + ASK_INTERVAL, |core| {
        match core.wanted.remove(&node) {
            Some(wanted) => Some(Ok(wanted)),
            None => core.alive().err().map(Err),
        }
    });
    answer.transpose()
}

/// Sends the records from one on. `before` is the last that is no more in the log.
fn send(
    shared: &NodeInner,
    left: &OrphanJournal,
    node: NodeId,
    before: RecordNumber,
    from: RecordNumber,
) -> Result<(), OrphanError> {
    let mut number = before;
    let read = left.read(left.head().lsn, &mut |record| {
        number = number.next();
        if number >= from {
            let payload = NodePayload::from(record.payload);
            shared.with(|core, _| core.machine.send_orphan_record(node, number, payload));
        }
        true
    });
    read.map(drop).map_err(OrphanError::Read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_journal_never_takes_an_older_ones_place() {
        let directory = tempfile::tempdir().unwrap();
        let root = |number: u64| directory.path().join(format!("journal-{number}"));
        assert_eq!(journals_in(directory.path()).unwrap(), (vec![], root(1)));
        for number in [10, 9] {
            fs::create_dir(root(number)).unwrap();
        }
        fs::create_dir(directory.path().join("journal-old")).unwrap();
        fs::write(directory.path().join("notes"), "").unwrap();
        let found = journals_in(directory.path()).unwrap();
        assert_eq!(found, (vec![root(9), root(10)], root(11)));
    }
}
