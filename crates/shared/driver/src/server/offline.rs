//! Merges journals from nodes' directories into a region that is not being served: after a power failure of
//! all machines, or when a node's lenders are lost and its disk is not.
//!
//! First all records are read and ordered, then they are merged. If not all of them can be merged, nothing
//! changes: a further directory may have the missing ones. An interrupted merge can be repeated, since the
//! table has the numbers of merged records. Finally the nodes are recorded as gone, and only then their logs
//! are emptied.

use std::path::{Path, PathBuf};

use netram_journal::{JournalConfig, JournalInspector, JournalPaths, OrphanJournal};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{LogError, WaitError};
use netram_rvm::record::KIND_COMPACT;
use netram_shared_machine::{InvalidRecord, MergeQueue, MissingVersion, NodeId, QueuedRecord, RecordNumber};
use netram_store::{Store, StoreError};

use crate::node::orphans_in;

use super::store::{MergeError, PayloadError, RegionStore, RegionStoreError};
use super::table::NodeEntry;

/// Result for one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanMerge {
    /// The directory.
    pub root: PathBuf,
    /// Node that wrote the journal.
    pub node: NodeId,
    /// Last record of the node. No record follows it.
    pub last: RecordNumber,
    /// Number of its records that were merged now.
    pub merged: u64,
    /// Why acknowledged records may be missing, if that loss was accepted.
    pub loss_accepted: Option<String>,
}

/// Failure to merge directories.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The directory cannot be read.
    #[error("{root}: {cause}")]
    Directory {
        /// The directory.
        root: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The settings or files of the node's journal are invalid.
    #[error("{root}: {cause}")]
    Files {
        /// The directory.
        root: PathBuf,
        /// The cause.
        cause: StoreError,
    },
    /// The node's journal could not be recovered.
    #[error("{root}: {cause}")]
    Journal {
        /// The directory.
        root: PathBuf,
        /// The cause.
        cause: netram_journal::JournalOpenError,
    },
    /// The records of the journal could not be read.
    #[error("{root}: {cause}")]
    Read {
        /// The directory.
        root: PathBuf,
        /// The cause.
        cause: LogError,
    },
    /// The journal belongs to another region, or to no node.
    #[error(
        "{root} contains journal {journal}, which belongs to no node of this region; name the right directory"
    )]
    Alien {
        /// The directory.
        root: PathBuf,
        /// Identity of its journal.
        journal: JournalId,
    },
    /// The directory contains no journal of a node.
    #[error(
        "{root} contains no journal of a node; name the node's own directory, or omit it if the node left no journal. Nothing was changed"
    )]
    Empty {
        /// The directory.
        root: PathBuf,
    },
    /// Two directories contain the same journal.
    #[error("{root} contains the same journal as another named directory; name only the newer one")]
    Twice {
        /// The directory.
        root: PathBuf,
    },
    /// The journal does not continue the node's records in the region.
    #[error(
        "{root} does not continue the records of node {node} in the region, which end at LSN {at} of its journal: it is another or an older copy of the journal"
    )]
    Apart {
        /// The directory.
        root: PathBuf,
        /// Node that wrote the journal.
        node: NodeId,
        /// LSN where the node's records in the region end.
        at: Lsn,
    },
    /// The journal contains a record that is invalid for this region.
    #[error("{root}: record {number} of node {node}: {cause}")]
    Record {
        /// The directory.
        root: PathBuf,
        /// Node that wrote the journal.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The cause.
        cause: PayloadError,
    },
    /// Two records contradict each other.
    #[error("{0}")]
    Impossible(#[from] InvalidRecord),
    /// Records depend on versions that no directory has.
    #[error("{}; name the directories of all nodes that were members of the region. Nothing was changed", sentences(.0))]
    Missing(Vec<MissingVersion>),
    /// The region's store did not take a record.
    #[error("{0}")]
    Merge(#[from] MergeError),
    /// The region's store did not take a change.
    #[error("{0}")]
    Store(#[from] RegionStoreError),
    /// The region's log failed.
    #[error("the server's log failed: {0}")]
    Wait(#[from] WaitError),
}

fn sentences(missing: &[MissingVersion]) -> String {
    let said: Vec<String> = missing.iter().map(ToString::to_string).collect();
    said.join("; ")
}

/// One journal and its node.
struct Lane {
    root: PathBuf,
    orphan: OrphanJournal,
    node: NodeId,
    /// Last merged record of the node when the journal was opened.
    before: RecordNumber,
    /// Whether the node is gone already, so that only its log is to be emptied.
    gone: bool,
    loss_accepted: Option<String>,
}

/// Place of a record in its journal.
#[derive(Clone, Copy)]
struct RecordPlace {
    lane: usize,
    lsn: Lsn,
    next: Lsn,
}

/// Merges the records in these directories that the region lacks, in an order that their stamps allow.
/// Records that are only at the journals' lenders count, too. Afterwards the nodes are gone. A directory is a
/// journal's, or a node's, which contains journals.
///
/// The nodes' processes must have ended. The stamps of all records are kept in memory, and one whole record.
///
/// # Errors
///
/// [`OfflineError`] if a directory cannot be read or is not of this region, or if records are missing.
/// Nothing has been merged then, except after an error of the server's log.
pub fn merge_orphans(
    store: &mut RegionStore,
    roots: &[PathBuf],
    accept_loss: bool,
) -> Result<Vec<OrphanMerge>, OfflineError> {
    let mut lanes: Vec<Lane> = Vec::with_capacity(roots.len());
    for (root, journal) in journals_of(roots)? {
        lanes.push(Lane::open(store, &root, journal, accept_loss)?);
    }
    for (number, node, place) in order(store, &lanes)? {
        let lane = &lanes[place.lane];
        let ends = lane
            .orphan
            .link_at(place.next)
            .map_err(|cause| lane.read_error(cause))?;
        let payload = lane.payload(place.lsn)?;
        store.merge(node, number, Some(ends), &payload)?;
    }
    let mut done = Vec::with_capacity(lanes.len());
    for lane in lanes {
        done.push(lane.end(store)?);
    }
    Ok(done)
}

/// The journals in these directories. None is opened before all are known to differ: opening one fences its
/// members, which would refuse the records to its copy.
fn journals_of(roots: &[PathBuf]) -> Result<Vec<(PathBuf, JournalId)>, OfflineError> {
    let mut journals: Vec<(PathBuf, JournalId)> = Vec::new();
    for root in roots {
        for root in journals_at(root)? {
            let found = JournalInspector::open(&root).map_err(|cause| OfflineError::Journal {
                root: root.clone(),
                cause,
            })?;
            let journal = found.superblock().journal;
            if journals.iter().any(|(_, other)| *other == journal) {
                return Err(OfflineError::Twice { root });
            }
            journals.push((root, journal));
        }
    }
    Ok(journals)
}

/// The journals in one directory.
fn journals_at(root: &Path) -> Result<Vec<PathBuf>, OfflineError> {
    if !root.is_dir() || JournalPaths::at(root).log().exists() {
        return Ok(vec![root.to_owned()]);
    }
    let root = root.to_owned();
    match orphans_in(&root) {
        // Taken for merged, the right directory's records would seem safe.
        Ok(journals) if journals.is_empty() => Err(OfflineError::Empty { root }),
        Ok(journals) => Ok(journals),
        Err(cause) => Err(OfflineError::Directory { root, cause }),
    }
}

/// The records that the region lacks, in merge order.
fn order(
    store: &RegionStore,
    lanes: &[Lane],
) -> Result<Vec<(RecordNumber, NodeId, RecordPlace)>, OfflineError> {
    let mut merge = MergeQueue::new(store.table().versions(), store.table().numbers());
    for (index, lane) in lanes.iter().enumerate() {
        if let Some(node) = store.table().node(lane.node) {
            lane.queue(index, store, node, &mut merge)?;
        }
    }
    let mut order = Vec::new();
    while let Some(entry) = merge.pop()? {
        order.push((entry.record.number, entry.node, entry.record.ticket));
    }
    match merge.missing() {
        missing if missing.is_empty() => Ok(order),
        missing => Err(OfflineError::Missing(missing)),
    }
}

impl Lane {
    fn open(
        store: &RegionStore,
        root: &Path,
        journal: JournalId,
        accept_loss: bool,
    ) -> Result<Lane, OfflineError> {
        let journal_error = |cause| OfflineError::Journal {
            root: root.to_owned(),
            cause,
        };
        let live = store
            .table()
            .nodes
            .iter()
            .find(|node| node.view.journal == journal);
        let gone = store.table().gone.iter().rfind(|gone| gone.journal == journal);
        let (node, before, is_gone) = match (live, gone) {
            (Some(node), _) => (node.id, node.merged, false),
            (None, Some(gone)) => (gone.id, gone.last, true),
            (None, None) => {
                let root = root.to_owned();
                return Err(OfflineError::Alien { root, journal });
            }
        };
        let home_error = |cause| OfflineError::Files {
            root: root.to_owned(),
            cause,
        };
        let settings = Store::at(root).settings().map_err(home_error)?;
        let config = settings
            .journal_config()
            .map_err(|error| home_error(error.into()))?;
        let config = JournalConfig {
            accept_loss: config.accept_loss || accept_loss,
            ..config
        };
        let (left, recovered) = OrphanJournal::open(root, &config).map_err(journal_error)?;
        Ok(Lane {
            root: root.to_owned(),
            orphan: left,
            node,
            before,
            gone: is_gone,
            loss_accepted: recovered.loss_accepted,
        })
    }

    /// Queues the stamps of the records that the region lacks.
    fn queue(
        &self,
        lane: usize,
        store: &RegionStore,
        node: &NodeEntry,
        merge: &mut MergeQueue<RecordPlace>,
    ) -> Result<(), OfflineError> {
        let from = node.end.lsn;
        // The server's disk was faster than the node's, and no member had the rest: the region has every
        // record here.
        if self.orphan.end().lsn < from {
            return Ok(());
        }
        if self.orphan.link_at(from).ok() != Some(node.end) {
            return Err(OfflineError::Apart {
                root: self.root.clone(),
                node: node.id,
                at: from,
            });
        }
        let (mut number, mut outcome) = (node.marked, Ok(()));
        let read = self.orphan.read(from, &mut |record| {
            number = number.next();
            if number <= node.merged {
                return true;
            }
            let foreign = match record.kind {
                KIND_COMPACT => store.check(record.payload),
                _ => Err(PayloadError::Kind(record.kind.0)),
            };
            let place = RecordPlace {
                lane,
                lsn: record.lsn,
                next: record.next,
            };
            let pushed = match foreign {
                Err(cause) => Err(OfflineError::Record {
                    root: self.root.clone(),
                    node: node.id,
                    number,
                    cause,
                }),
                Ok(foreign) => {
                    let queued = QueuedRecord {
                        number,
                        stamp: foreign.stamp,
                        ticket: place,
                    };
                    merge.push(node.id, queued).map_err(OfflineError::from)
                }
            };
            outcome = pushed;
            outcome.is_ok()
        });
        read.map_err(|cause| self.read_error(cause))?;
        outcome
    }

    fn payload(&self, at: Lsn) -> Result<Vec<u8>, OfflineError> {
        let mut payload = Vec::new();
        let read = self.orphan.read(at, &mut |record| {
            payload = record.payload.to_vec();
            false
        });
        read.map_err(|cause| self.read_error(cause))?;
        Ok(payload)
    }

    fn read_error(&self, cause: LogError) -> OfflineError {
        OfflineError::Read {
            root: self.root.clone(),
            cause,
        }
    }

    /// Records that the node is gone, and empties its log.
    fn end(self, store: &mut RegionStore) -> Result<OrphanMerge, OfflineError> {
        let last = match store.table().node(self.node) {
            Some(node) => node.merged,
            None => self.before,
        };
        if !self.gone {
            // The server tells the node's lenders when it starts.
            let end = store.retire_pending_forget(self.node)?;
            store.wait(end)?;
        }
        let Lane {
            root, orphan: left, ..
        } = self;
        left.merged().map_err(|cause| OfflineError::Journal {
            root: root.clone(),
            cause,
        })?;
        Ok(OrphanMerge {
            root,
            node: self.node,
            last,
            merged: last.0 - self.before.0,
            loss_accepted: self.loss_accepted,
        })
    }
}
