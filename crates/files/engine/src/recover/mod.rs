//! The journal's way into the disk, after a crash.
//!
//! The catalog says which file every node is, by identity; the records since say what became of it. So all
//! names are known before anything is done to the disk, and each file is found there whatever it is called by
//! now. A file that is missing, or one that nobody knows, stops recovery before it has changed anything.
//!
//! 1. Names are followed from the catalog to the journal's end.
//! 2. What is on the disk is sorted: what is where it belongs stays; what belongs elsewhere is laid aside;
//!    what is gone is removed. A file that was made since the catalog is found by the identity that its
//!    record has, and stays what it is: its bytes may have no record. One that the disk has not kept is made
//!    anew from records.
//! 3. Directories and files are made, or brought from aside, to where they belong.
//! 4. What was written is written again, in order.
//! 5. All of it is synced, and all else that is there; only then the catalog is replaced and the journal
//!    trimmed.
//!
//! Each step may be cut off, and be done again from the beginning: identities and the journal are as they
//! were.

mod name_replay;
mod tree_restore;

use std::collections::HashMap;

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, RecordLog};

use self::name_replay::NameReplay;
use self::tree_restore::TreeRestore;

use crate::catalog::Catalog;
use crate::change::{DirectoryChange, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec};
use crate::directory::DirectoryOptions;
use crate::error::DirectoryOpenError;
use crate::file_tree::{CatalogStore, FileTree, ListedEntry};
use crate::name_table::{InodeIdentity, NameTable};

/// What was done to the disk when the directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryRecovery {
    /// Records that were done again.
    pub records: u64,
    /// Bytes that were written again.
    pub bytes: u64,
    /// Files, directories and links that were made again.
    pub created: u64,
    /// Names that were removed again.
    pub removed: u64,
    /// Names that were given again.
    pub renamed: u64,
    /// Files that have bytes on the disk and no record of any: made since the last checkpoint, written, and
    /// never recorded. They are as the disk has them.
    pub unrecorded: Vec<Vec<u8>>,
}

/// Brings the disk to where the journal ends. Returns the names.
pub(crate) fn recover<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &DirectoryOptions,
) -> Result<(NameTable, DirectoryRecovery), DirectoryOpenError> {
    let (state, journal) = (log.state(), options.journal);
    let Some(bytes) = keep.load().map_err(DirectoryOpenError::CatalogIo)? else {
        if state.head < state.tail {
            return Err(DirectoryOpenError::NoCatalog);
        }
        return initialize(log, tree, keep, journal);
    };
    let catalog = Catalog::decode(&bytes).map_err(DirectoryOpenError::Catalog)?;
    if catalog.journal != journal {
        return Err(DirectoryOpenError::OtherJournal);
    }
    if !(state.head..=state.tail).contains(&catalog.lsn) {
        return Err(DirectoryOpenError::Gap {
            catalog: catalog.lsn,
            head: state.head,
            tail: state.tail,
        });
    }
    let root = tree.identity(b"").map_err(at(b""))?;
    let known = catalog
        .names
        .entry(InodeId::ROOT)
        .and_then(|entry| entry.identity);
    // Where loss is accepted a copy will do.
    if known != Some(root) && !options.loss_accepted {
        return match catalog.lsn < state.tail {
            true => Err(DirectoryOpenError::OtherDirectory),
            // The other one's disk has all that there was.
            false => initialize(log, tree, keep, journal),
        };
    }
    let story = NameReplay::read(log, &catalog)?;
    let mut names = story.names.clone();
    let mut settling = TreeRestore::new(tree, &catalog, &story, options)?;
    settling.sort()?;
    settling.lay_aside()?;
    settling.build()?;
    let unrecorded = settling.unrecorded()?;
    settling.replay_writes(log, catalog.lsn)?;
    let mut recovered = settling.finish();
    recovered.records = story.records;
    recovered.unrecorded = unrecorded;
    if options.loss_accepted {
        names = scan_tree(tree)?;
    }
    record_identities(tree, &mut names)?;
    sync_all(tree, &names)?;
    finish(log, keep, journal, &names)?;
    Ok((names, recovered))
}

/// A directory as it is, of which the journal has nothing.
fn initialize<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    journal: JournalId,
) -> Result<(NameTable, DirectoryRecovery), DirectoryOpenError> {
    let mut names = scan_tree(tree)?;
    record_identities(tree, &mut names)?;
    sync_all(tree, &names)?;
    finish(log, keep, journal, &names)?;
    Ok((names, DirectoryRecovery::default()))
}

/// All of it is on the disk: what whoever was here before had written and not synced, too. A program that
/// finds it there syncs the file, and may rely on it then. What a sync has lost that failed for whoever was
/// here before is not found any more.
fn sync_all<T: FileTree>(tree: &T, names: &NameTable) -> Result<(), DirectoryOpenError> {
    // Directories last: nothing is named that is not there.
    let is_directory = |node: &InodeId| names.kind(*node) == Some(InodeKind::Directory);
    let (directories, files): (Vec<InodeId>, Vec<InodeId>) = names.nodes().partition(is_directory);
    for node in files.into_iter().chain(directories) {
        let path = names.path(node).unwrap_or_default();
        tree.open_for_sync(&path)
            .and_then(|held| tree.sync_handle(&held))
            .map_err(at(&path))?;
        if names.kind(node) == Some(InodeKind::File) {
            tree.drop_cache(&path);
        }
    }
    Ok(())
}

fn finish<L: RecordLog, K: CatalogStore>(
    log: &L,
    keep: &K,
    journal: JournalId,
    names: &NameTable,
) -> Result<(), DirectoryOpenError> {
    let catalog = Catalog {
        journal,
        lsn: log.state().tail,
        names: names.clone(),
    };
    keep.store(&catalog.encode())
        .map_err(DirectoryOpenError::CatalogIo)?;
    log.trim(catalog.lsn)?;
    Ok(())
}

fn at(path: &[u8]) -> impl FnOnce(IoError) -> DirectoryOpenError {
    let path = path.to_vec();
    move |error| DirectoryOpenError::Disk { path, error }
}

fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        [] => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

/// Names of a directory that has no catalog yet: those that are on the disk.
fn scan_tree<T: FileTree>(tree: &T) -> Result<NameTable, DirectoryOpenError> {
    let (mode, owner) = tree.ownership(b"").map_err(at(b""))?;
    let mut names = NameTable::new(mode, owner);
    let mut known: HashMap<InodeIdentity, InodeId> = HashMap::new();
    let mut directories = vec![(InodeId::ROOT, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        for ListedEntry { name, kind, identity } in tree.list(&path).map_err(at(&path))? {
            let path = below(&path, &name);
            let place = DirectoryEntry {
                directory,
                name: &name,
            };
            let Some(kind) = kind else {
                return Err(DirectoryOpenError::Unsupported { path });
            };
            let refused = |path: &[u8]| {
                let path = path.to_vec();
                move |reason| DirectoryOpenError::Name { path, reason }
            };
            if let Some(node) = known.get(&identity).filter(|_| kind != InodeKind::Directory) {
                let link = DirectoryChange::Link {
                    node: *node,
                    at: place,
                };
                names.apply(&link).map_err(refused(&path))?;
                continue;
            }
            let (mode, owner) = match kind {
                InodeKind::Directory => tree.ownership(&path).map_err(at(&path))?,
                _ => (0, FileOwner::default()),
            };
            let (node, target) = (names.next(), &b""[..]);
            let made = InodeSpec {
                kind,
                mode,
                owner,
                target,
            };
            names
                .apply(&DirectoryChange::Make {
                    at: place,
                    node,
                    spec: made,
                    identity: Some(identity),
                })
                .map_err(refused(&path))?;
            known.insert(identity, node);
            if kind == InodeKind::Directory {
                directories.push((node, path));
            }
        }
    }
    Ok(names)
}

/// Which files nodes are that were made anew.
fn record_identities<T: FileTree>(tree: &T, names: &mut NameTable) -> Result<(), DirectoryOpenError> {
    let nodes: Vec<InodeId> = names.nodes().collect();
    for node in nodes {
        let path = names.path(node).unwrap_or_default();
        let identity = tree.identity(&path).map_err(at(&path))?;
        if let Some(entry) = names.entry_mut(node) {
            entry.identity = Some(identity);
        }
    }
    Ok(())
}
