//! A change of names expressed in paths, as the disk needs it.

use netram_proto::port::IoError;

use crate::change::{DirectoryChange, FileOwner, InodeId, InodeKind, InodeSpec};
use crate::file_tree::FileTree;
use crate::name_table::NameTable;

/// A change of names expressed in paths.
pub(crate) struct PathOp {
    step: Step,
    pub(crate) path: Vec<u8>,
    /// Directories whose entries change.
    pub(crate) directories: [Option<InodeId>; 2],
}

enum Step {
    Make(InodeKind, u32, FileOwner, Vec<u8>),
    Link(Vec<u8>),
    Remove(bool),
    Rename(Vec<u8>, bool),
}

impl PathOp {
    /// Translates a change. `None`: a directory that it names is gone.
    pub(crate) fn of(names: &NameTable, change: &DirectoryChange<'_>) -> Option<PathOp> {
        let deed = |path, step, directories| {
            Some(PathOp {
                step,
                path,
                directories,
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
            Step::Remove(directory) => tree.remove(&self.path, *directory),
            Step::Rename(to, exchange) => tree.rename(&self.path, to, *exchange),
        }
    }
}
