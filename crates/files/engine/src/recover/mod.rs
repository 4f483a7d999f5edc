//! The journal's way into the disk, after a crash.
//!
//! The catalog says which file every node is, by identity; the records since say what became of it. So all names are known before anything is done to
//! the disk, and each file is found there whatever it is called by now. A file that is missing, or one that nobody knows, stops recovery before it has
//! changed anything.
//!
//! 1. Names are followed from the catalog to the journal's end.
//! 2. What is on the disk is sorted: what is where it belongs stays; what belongs elsewhere is laid aside; what is gone is removed. A file that was made
//!    since the catalog is found by the identity that its record has, and stays what it is: its bytes may have no record. One that the disk has not kept
//!    is made anew from records.
//! 3. Folders and files are made, or brought from aside, to where they belong.
//! 4. What was written is written again, in order.
//! 5. All of it is synced, and all else that is there; only then the catalog is replaced and the journal trimmed.
//!
//! Each step may be cut off, and be done again from the beginning: identities and the journal are as they were.

mod settling;
mod story;

use std::collections::HashMap;

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, Log};

use self::settling::Settling;
use self::story::Story;

use crate::catalog::Catalog;
use crate::change::{Change, Made, Node, NodeKind, Owner, Place};
use crate::error::OpenError;
use crate::folder::Options;
use crate::names::{Identity, Names};
use crate::tree::{Found, Keep, Tree};

/// What was done to the disk when the folder was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that were done again.
    pub records: u64,
    /// Bytes that were written again.
    pub bytes: u64,
    /// Files, folders and links that were made again.
    pub made: u64,
    /// Names that were removed again.
    pub removed: u64,
    /// Names that were given again.
    pub renamed: u64,
    /// Files that have bytes on the disk and no record of any: made since the last checkpoint, written, and never
    /// recorded. They are as the disk has them.
    pub unrecorded: Vec<Vec<u8>>,
}

/// Brings the disk to where the journal ends. Returns the names.
pub(crate) fn recover<L: Log, T: Tree, K: Keep>(
    log: &L,
    tree: &T,
    keep: &K,
    options: &Options,
) -> Result<(Names, Recovered), OpenError> {
    let (state, journal) = (log.state(), options.journal);
    let Some(bytes) = keep.load().map_err(OpenError::Keep)? else {
        if state.head < state.tail {
            return Err(OpenError::NoCatalog);
        }
        return begin(log, tree, keep, journal);
    };
    let catalog = Catalog::decode(&bytes).map_err(OpenError::Catalog)?;
    if catalog.journal != journal {
        return Err(OpenError::OtherJournal);
    }
    if !(state.head..=state.tail).contains(&catalog.lsn) {
        return Err(OpenError::Gap {
            catalog: catalog.lsn,
            head: state.head,
            tail: state.tail,
        });
    }
    let root = tree.identity(b"").map_err(at(b""))?;
    let known = catalog.names.entry(Node::ROOT).and_then(|entry| entry.identity);
    // Where loss is accepted a copy will do.
    if known != Some(root) && !options.loss_accepted {
        return match catalog.lsn < state.tail {
            true => Err(OpenError::OtherFolder),
            // The other one's disk has all that there was.
            false => begin(log, tree, keep, journal),
        };
    }
    let story = Story::read(log, &catalog)?;
    let mut names = story.names.clone();
    let mut settling = Settling::new(tree, &catalog, &story, options)?;
    settling.sort()?;
    settling.lay_aside()?;
    settling.build()?;
    let unrecorded = settling.unrecorded()?;
    settling.write_again(log, catalog.lsn)?;
    let mut recovered = settling.done();
    recovered.records = story.records;
    recovered.unrecorded = unrecorded;
    if options.loss_accepted {
        names = take_stock(tree)?;
    }
    identify(tree, &mut names)?;
    sync_all(tree, &names)?;
    finish(log, keep, journal, &names)?;
    Ok((names, recovered))
}

/// A folder as it is, of which the journal has nothing.
fn begin<L: Log, T: Tree, K: Keep>(
    log: &L,
    tree: &T,
    keep: &K,
    journal: JournalId,
) -> Result<(Names, Recovered), OpenError> {
    let mut names = take_stock(tree)?;
    identify(tree, &mut names)?;
    sync_all(tree, &names)?;
    finish(log, keep, journal, &names)?;
    Ok((names, Recovered::default()))
}

/// All of it is on the disk: what whoever was here before had written and not synced, too. A program that finds it there syncs the file, and may rely on it
/// then. What a sync has lost that failed for whoever was here before is not found any more.
fn sync_all<T: Tree>(tree: &T, names: &Names) -> Result<(), OpenError> {
    // Folders last: nothing is named that is not there.
    let is_folder = |node: &Node| names.kind(*node) == Some(NodeKind::Folder);
    let (folders, files): (Vec<Node>, Vec<Node>) = names.nodes().partition(is_folder);
    for node in files.into_iter().chain(folders) {
        let path = names.path(node).unwrap_or_default();
        tree.hold(&path)
            .and_then(|held| tree.sync_held(&held))
            .map_err(at(&path))?;
        if names.kind(node) == Some(NodeKind::File) {
            tree.forget(&path);
        }
    }
    Ok(())
}

fn finish<L: Log, K: Keep>(log: &L, keep: &K, journal: JournalId, names: &Names) -> Result<(), OpenError> {
    let catalog = Catalog {
        journal,
        lsn: log.state().tail,
        names: names.clone(),
    };
    keep.store(&catalog.encode()).map_err(OpenError::Keep)?;
    log.trim(catalog.lsn)?;
    Ok(())
}

fn at(path: &[u8]) -> impl FnOnce(IoError) -> OpenError {
    let path = path.to_vec();
    move |error| OpenError::Disk { path, error }
}

fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder {
        [] => name.to_vec(),
        _ => [folder, b"/", name].concat(),
    }
}

/// Names of a folder that has no catalog yet: those that are on the disk.
fn take_stock<T: Tree>(tree: &T) -> Result<Names, OpenError> {
    let (mode, owner) = tree.ownership(b"").map_err(at(b""))?;
    let mut names = Names::new(mode, owner);
    let mut known: HashMap<Identity, Node> = HashMap::new();
    let mut folders = vec![(Node::ROOT, Vec::new())];
    while let Some((folder, path)) = folders.pop() {
        for Found { name, kind, identity } in tree.list(&path).map_err(at(&path))? {
            let path = below(&path, &name);
            let place = Place { folder, name: &name };
            let Some(kind) = kind else {
                return Err(OpenError::Unfit { path });
            };
            let refused = |path: &[u8]| {
                let path = path.to_vec();
                move |reason| OpenError::Name { path, reason }
            };
            if let Some(node) = known.get(&identity).filter(|_| kind != NodeKind::Folder) {
                let link = Change::Link {
                    node: *node,
                    at: place,
                };
                names.apply(&link).map_err(refused(&path))?;
                continue;
            }
            let (mode, owner) = match kind {
                NodeKind::Folder => tree.ownership(&path).map_err(at(&path))?,
                _ => (0, Owner::default()),
            };
            let (node, target) = (names.next(), &b""[..]);
            let made = Made {
                kind,
                mode,
                owner,
                target,
            };
            names
                .apply(&Change::Make {
                    at: place,
                    node,
                    made,
                    identity: Some(identity),
                })
                .map_err(refused(&path))?;
            known.insert(identity, node);
            if kind == NodeKind::Folder {
                folders.push((node, path));
            }
        }
    }
    Ok(names)
}

/// Which files nodes are that were made anew.
fn identify<T: Tree>(tree: &T, names: &mut Names) -> Result<(), OpenError> {
    let nodes: Vec<Node> = names.nodes().collect();
    for node in nodes {
        let path = names.path(node).unwrap_or_default();
        let identity = tree.identity(&path).map_err(at(&path))?;
        if let Some(entry) = names.entry_mut(node) {
            entry.identity = Some(identity);
        }
    }
    Ok(())
}
