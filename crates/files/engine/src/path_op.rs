//! A change of names expressed in paths, as the disk needs it.

use netram_proto::port::IoError;

use crate::change::{DirectoryChange, FileOwner, InodeId, InodeKind, InodeSpec};
use crate::file_tree::FileTree;
use crate::name_table::{NameTable, orphan_name};

/// A change of names expressed in paths.
pub(crate) struct PathOp {
    step: Step,
    pub(crate) path: Vec<u8>,
    /// Inodes to be synced for the change: directories whose entries change.
    pub(crate) directories: [Option<InodeId>; 2],
    /// Hidden name that the file which loses its last name gets.
    orphan: Option<Box<[u8]>>,
}

enum Step {
    Make(InodeKind, u32, FileOwner, Vec<u8>),
    Link(Vec<u8>),
    Remove(bool),
    Rename(Vec<u8>, bool),
    SetXattr(Vec<u8>, Option<Vec<u8>>),
}

impl PathOp {
    /// Translates a change. `keeps`: a file that loses its last name is kept. `None`: a directory that it
    /// names is gone.
    pub(crate) fn of(names: &NameTable, change: &DirectoryChange<'_>, keeps: bool) -> Option<PathOp> {
        let orphan = names.orphaned(change).filter(|_| keeps).map(orphan_name);
        let deed = |path, step, directories| {
            Some(PathOp {
                step,
                path,
                directories,
                orphan: orphan.clone(),
            })
        };
        match *change {
            DirectoryChange::Make { at, spec: made, .. } => {
                let step = Step::Make(made.kind, made.mode, made.owner, made.target.to_vec());
                deed(names.path_of(at)?, step, [Some(at.directory), None])
            }
            DirectoryChange::Link { node, at } => {
                let step = Step::Link(names.path(node)?);
                deed(names.path_of(at)?, step, [Some(at.directory), None])
            }
            DirectoryChange::Remove { at } => {
                let directory = names.kind(names.look_up(at)?) == Some(InodeKind::Directory);
                deed(
                    names.path_of(at)?,
                    Step::Remove(directory),
                    [Some(at.directory), None],
                )
            }
            DirectoryChange::Rename { from, to, exchange } => {
                let step = Step::Rename(names.path_of(to)?, exchange);
                deed(
                    names.path_of(from)?,
                    step,
                    [Some(from.directory), Some(to.directory)],
                )
            }
            DirectoryChange::SetXattr { node, name, value } => {
                let step = Step::SetXattr(name.to_vec(), value.map(<[u8]>::to_vec));
                deed(names.path(node)?, step, [Some(node), None])
            }
            _ => None,
        }
    }

    pub(crate) fn carry_out<T: FileTree>(&self, tree: &T) -> Result<(), IoError> {
        match &self.step {
            Step::Make(kind, mode, owner, target) => tree.make(
                &self.path,
                &InodeSpec {
                    kind: *kind,
                    mode: *mode,
                    owner: *owner,
                    target,
                },
            ),
            Step::Link(of) => tree.link(of, &self.path),
            Step::Remove(directory) => match &self.orphan {
                Some(orphan) => tree.rename(&self.path, orphan, false),
                None => tree.remove(&self.path, *directory),
            },
            Step::Rename(to, exchange) => {
                if let Some(orphan) = &self.orphan {
                    tree.link(to, orphan)?;
                }
                let renamed = tree.rename(&self.path, to, *exchange);
                if let (Err(_), Some(orphan)) = (&renamed, &self.orphan) {
                    let _ = tree.remove(orphan, false);
                }
                renamed
            }
            Step::SetXattr(name, value) => tree.set_xattr(&self.path, name, value.as_deref()),
        }
    }
}
