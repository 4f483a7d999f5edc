//! Recovery: replays the journal into the disk after a crash.
//!
//! The catalog gives each inode's identity on the disk, and the records since say what happened to it. All
//! final names are therefore known before the disk is changed, and each file is found whatever its current
//! name. A missing file, or one that the journal does not know, stops recovery before any change.
//!
//! 1. Follow names from the catalog to the journal's end.
//! 2. Sort the files on the disk. A file at its final path stays; one that belongs elsewhere is moved aside;
//!    one that is gone is removed. A file made since the catalog is found by the identity in its record. It
//!    is kept as it is, because its bytes may have no record. If the disk lost it, it is made anew.
//! 3. Make directories and files, or move them from aside to their final paths.
//! 4. Replay writes, in order.
//! 5. Sync everything, also what was not replayed. Only then replace the catalog and trim the journal.
//!
//! A crash at any step is harmless: identities and the journal are unchanged, so recovery starts over.

mod name_replay;
mod tree_restore;

use std::collections::HashMap;

use netram_proto::planted::PlantedFault;
use netram_proto::port::{IoError, RecordLog};

use self::name_replay::NameReplay;
use self::tree_restore::TreeRestore;

use crate::catalog::Catalog;
use crate::change::{DirectoryChange, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec};
use crate::directory::DirectoryOptions;
use crate::error::DirectoryOpenError;
use crate::executed::ExecutedRequests;
use crate::file_tree::{CatalogStore, FileTree, ListedEntry};
use crate::name_table::{InodeIdentity, NameTable};

/// Summary of the changes that recovery made to the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryRecovery {
    /// Number of records replayed.
    pub records: u64,
    /// Bytes written again.
    pub bytes: u64,
    /// Number of files, directories and symbolic links made again.
    pub created: u64,
    /// Number of names removed again.
    pub removed: u64,
    /// Number of renames and links made again.
    pub renamed: u64,
    /// Paths of files whose bytes are on the disk without any record: made and written since the last
    /// checkpoint, never recorded. They are left as they are.
    pub unrecorded: Vec<Vec<u8>>,
}

/// Brings the disk to the state at the journal's end. Returns the names.
pub(crate) fn recover<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &DirectoryOptions,
) -> Result<(NameTable, DirectoryRecovery), DirectoryOpenError> {
    let state = log.state();
    let Some(catalog) = load_catalog(log, keep, options)? else {
        if state.head < state.tail {
            return Err(DirectoryOpenError::NoCatalog);
        }
        return initialize(log, tree, keep, options);
    };
    // With `loss_accepted` a copy of the directory is accepted.
    if !is_of_directory(tree, &catalog)? && !options.loss_accepted {
        return match catalog.lsn < state.tail {
            true => Err(DirectoryOpenError::OtherDirectory),
            // The other directory's disk has everything: the journal holds nothing newer.
            false => initialize(log, tree, keep, options),
        };
    }
    let mut story = NameReplay::read(log, &catalog)?;
    // No program has them open any more.
    story.drop_orphans();
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
    begin_reign(log, tree, keep, options, &mut names)?;
    Ok((names, recovered))
}

/// Brings the names on the disk to the journal's end while programs have files open: the server was killed,
/// and the machine goes on. Returns the names and the requests that were executed.
///
/// Contents, lengths and attributes are left alone. The files have whatever a record says of them, and newer
/// changes without a record, which programs have seen. A recorded change that was not made belongs to a
/// request that is sent again.
pub(crate) fn take_over<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &DirectoryOptions,
) -> Result<(NameTable, ExecutedRequests, DirectoryRecovery), DirectoryOpenError> {
    let catalog = load_catalog(log, keep, options)?.ok_or(DirectoryOpenError::NotContinued)?;
    let Some(mut executed) = catalog.executed.clone() else {
        return Err(DirectoryOpenError::NotContinued);
    };
    if !is_of_directory(tree, &catalog)? {
        return Err(DirectoryOpenError::OtherDirectory);
    }
    let story = NameReplay::read(log, &catalog)?;
    if !options.planted.is(PlantedFault::ExecutedForgotten) {
        story
            .requests
            .iter()
            .for_each(|(request, node)| executed.add_recorded(*request, *node));
    }
    let mut settling = TreeRestore::new(tree, &catalog, &story, options)?;
    settling.sort()?;
    settling.lay_aside()?;
    settling.build()?;
    if options.planted.is(PlantedFault::ContentsReplayed) {
        settling.replay_writes(log, catalog.lsn)?;
    }
    settling.replay_xattrs(log, catalog.lsn)?;
    let mut names = story.names.clone();
    for node in settling.forgotten() {
        names.drop_orphan(node);
    }
    let mut recovered = settling.finish();
    recovered.records = story.records;
    let unknown: Vec<InodeId> = names.unidentified().collect();
    record_identities(tree, &mut names, unknown)?;
    // The killed server's list of what is not recorded yet is lost, so nothing may remain unsynced.
    if !options.planted.is(PlantedFault::TakenOverUnsynced)
        && let Err(error) = tree.sync_disk()
    {
        if let Some(notify) = options.on_failed_sync {
            notify();
        }
        return Err(DirectoryOpenError::Sync(error));
    }
    finish(log, keep, options, &names, Some(executed.clone()))?;
    Ok((names, executed, recovered))
}

/// The stored catalog. `None`: there is none.
fn load_catalog<L: RecordLog, K: CatalogStore>(
    log: &L,
    keep: &K,
    options: &DirectoryOptions,
) -> Result<Option<Catalog>, DirectoryOpenError> {
    let Some(bytes) = keep.load().map_err(DirectoryOpenError::CatalogIo)? else {
        return Ok(None);
    };
    let (state, catalog) = (
        log.state(),
        Catalog::decode(&bytes).map_err(DirectoryOpenError::Catalog)?,
    );
    if catalog.journal != options.journal {
        return Err(DirectoryOpenError::OtherJournal);
    }
    if !(state.head..=state.tail).contains(&catalog.lsn) {
        return Err(DirectoryOpenError::Gap {
            catalog: catalog.lsn,
            head: state.head,
            tail: state.tail,
        });
    }
    Ok(Some(catalog))
}

/// Whether the catalog is of this directory, and not of a copy or another one.
fn is_of_directory<T: FileTree>(tree: &T, catalog: &Catalog) -> Result<bool, DirectoryOpenError> {
    let root = tree.identity(b"").map_err(at(b""))?;
    let known = catalog.names.entry(InodeId::ROOT);
    Ok(known.and_then(|entry| entry.identity) == Some(root))
}

/// Takes over a directory as it is; the journal has no record of it.
fn initialize<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &DirectoryOptions,
) -> Result<(NameTable, DirectoryRecovery), DirectoryOpenError> {
    let mut names = scan_tree(tree)?;
    begin_reign(log, tree, keep, options, &mut names)?;
    Ok((names, DirectoryRecovery::default()))
}

/// Syncs everything, and begins a catalog in which no request has been executed yet.
fn begin_reign<L: RecordLog, T: FileTree, K: CatalogStore>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &DirectoryOptions,
    names: &mut NameTable,
) -> Result<(), DirectoryOpenError> {
    let all = names.nodes().collect();
    record_identities(tree, names, all)?;
    sync_all(tree, names)?;
    let executed = options.reign.map(ExecutedRequests::new);
    finish(log, keep, options, names, executed)
}

/// Syncs everything, including unsynced writes of the previous process: a program that finds them may sync
/// the file and rely on it. A sync failure that the previous process met can no longer be detected.
fn sync_all<T: FileTree>(tree: &T, names: &NameTable) -> Result<(), DirectoryOpenError> {
    // Directories come last, so that no durable name refers to a missing file.
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
    options: &DirectoryOptions,
    names: &NameTable,
    executed: Option<ExecutedRequests>,
) -> Result<(), DirectoryOpenError> {
    let catalog = Catalog {
        journal: options.journal,
        lsn: log.state().tail,
        names: names.clone(),
        executed,
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

/// Reads the names of a directory without a catalog from the disk.
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

/// Looks up the identities of inodes that were made anew.
fn record_identities<T: FileTree>(
    tree: &T,
    names: &mut NameTable,
    nodes: Vec<InodeId>,
) -> Result<(), DirectoryOpenError> {
    for node in nodes {
        let path = names.path(node).unwrap_or_default();
        let identity = tree.identity(&path).map_err(at(&path))?;
        if let Some(entry) = names.entry_mut(node) {
            entry.identity = Some(identity);
        }
    }
    Ok(())
}
