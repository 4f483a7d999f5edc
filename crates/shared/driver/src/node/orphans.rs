//! Journals that earlier processes of the node left in its directory. They are offered to the server, and
//! removed once everything in them is durable there.
//!
//! | the journal | action |
//! |---|---|
//! | has no mark | it never belonged to a node: removed |
//! | belongs to a node that the server reports as gone | removed |
//! | is in use, or of another region | left alone |
//! | can be opened | offered; the records that the server lacks are sent |
//! | cannot be opened, because its members are fenced, for example | the server reads it from them, which is
//! waited for |
//!
//! The server may answer that it wants no more records before these are durable there. So a journal is
//! removed only after the server has reported a record as aborted that never existed. It does so only when
//! the end of the node id is durable.

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

/// Prefix of the journals' directories, followed by a number.
const PREFIX: &str = "journal-";
/// Pause before a question without an answer is repeated: the link may have broken.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of one attempt to offer a journal: its node's lease may have to end, or its members may be
/// away.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to offer a journal.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Number of a record that no node has. It is reported as aborted as soon as the end of its node is durable.
const NEVER: RecordNumber = RecordNumber(u64::MAX);

/// Reason why a journal is left where it is.
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
    #[error("the journal belongs to a node of another region")]
    Alien,
    #[error("the journal's log begins at a place that the file `node` beside it does not name")]
    Mark,
    #[error("the server lacks records from number {0} on, which are no longer in the journal's log")]
    Trimmed(RecordNumber),
    #[error("the server did not confirm in time that it has all records of the journal")]
    TimedOut,
}

/// Directories of the journals, oldest first, and the path for a new one.
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

/// Journals of nodes in a directory, oldest first. Leaves out journals that never belonged to a node.
pub(crate) fn orphans_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, _) = journals_in(directory)?;
    found.retain(|root| !matches!(JournalMark::read(root), Ok(None)));
    Ok(found)
}

/// A journal of an earlier process that the server has not retired yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanStatus {
    /// Directory of the journal.
    pub path: PathBuf,
    /// Why the last attempt to offer it failed; another one will follow. `None`: the first attempt is under
    /// way.
    pub failed: Option<String>,
}

/// Offers the journals in [`NodeInner::orphans`], until none is left or the node ends.
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
                tracing::warn!(%journal, error, "cannot offer the journal of an earlier process of this node to the server yet; trying again");
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
        // The process ended before the journal's log existed, or before it had joined.
        let place = JournalPaths::at(root);
        if place.is_locked().is_ok_and(|locked| locked) {
            return Err(OrphanError::Mark);
        }
        return Ok(fs::remove_dir_all(root)?);
    };
    let node = marked.owner.node;
    // That server's node of the same id is another one, so its answer would not be about this journal.
    if marked
        .region
        .is_some_and(|region| region != shared.join_info.region)
    {
        return Err(OrphanError::Alien);
    }
    let fate = shared.ask(node, NEVER, ASK_INTERVAL)?;
    // Only ids of gone nodes are forgotten.
    if matches!(fate, Some(RecordOutcome::Aborted | RecordOutcome::Forgotten)) {
        return remove(root, config);
    }
    let unread = match OrphanJournal::open(root, config) {
        Ok((left, _)) => offer_records(shared, &left, &marked, until).err(),
        Err(error @ JournalOpenError::InUse { .. }) => return Err(error.into()),
        // The journal is fenced, or its windows are freed: the server is reading it, or has read it.
        Err(error) => Some(error.into()),
    };
    match shared.outcome(node, NEVER, until)? {
        RecordOutcome::Open => Err(unread.unwrap_or(OrphanError::TimedOut)),
        RecordOutcome::Committed | RecordOutcome::Aborted | RecordOutcome::Forgotten => remove(root, config),
    }
}

/// Removes a journal that is not needed any more. The server has told its lenders. But a lender that lost its
/// memory may have been asked for a window again by the journal's process, if that was stopped for a while.
/// So the lenders are told once more before the directory is removed.
fn remove(root: &Path, config: &JournalConfig) -> Result<(), OrphanError> {
    let away = forget::tell_now(root, config, forget::PATIENCE);
    if !away.is_empty() {
        let journal = root.display();
        tracing::debug!(%journal, ?away, "could not tell some lenders that a journal is not needed any more");
    }
    Ok(fs::remove_dir_all(root)?)
}

/// Offers a journal until the server wants no more of its records.
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
                // The server merges the records now. If the link broke, they have to be offered again.
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

/// The server's answer to an offer, if it comes in time.
fn wanted(shared: &NodeInner, node: NodeId) -> Result<Option<Option<RecordNumber>>, NodeGone> {
    let answer = shared.wait_reply(Instant::now() + ASK_INTERVAL, |core| {
        match core.wanted.remove(&node) {
            Some(wanted) => Some(Ok(wanted)),
            None => core.alive().err().map(Err),
        }
    });
    answer.transpose()
}

/// Sends the records from number `from` on. `before`: last record that is no longer in the log.
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
