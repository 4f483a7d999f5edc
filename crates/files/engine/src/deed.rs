//! A change of names in the words of the disk: paths.

use netram_proto::port::IoError;

use crate::change::{Change, Made, Node, NodeKind, Owner};
use crate::names::Names;
use crate::tree::Tree;

/// A change of names in the words of the disk.
pub(crate) struct Deed {
    step: Step,
    pub(crate) path: Vec<u8>,
    /// The folders in which names change.
    pub(crate) folders: [Option<Node>; 2],
}

enum Step {
    Make(NodeKind, u32, Owner, Vec<u8>),
    Link(Vec<u8>),
    Remove(bool),
    Rename(Vec<u8>, bool),
}

impl Deed {
    /// `None`: a folder that it names is gone.
    pub(crate) fn of(names: &Names, change: &Change<'_>) -> Option<Deed> {
        let deed = |path, step, folders| Some(Deed { step, path, folders });
        match *change {
            Change::Make { at, made, .. } => {
                let step = Step::Make(made.kind, made.mode, made.owner, made.target.to_vec());
                deed(names.path_of(at)?, step, [Some(at.folder), None])
            }
            Change::Link { node, at } => {
                let step = Step::Link(names.path(node)?);
                deed(names.path_of(at)?, step, [Some(at.folder), None])
            }
            Change::Remove { at } => {
                let folder = names.kind(names.look_up(at)?) == Some(NodeKind::Folder);
                deed(names.path_of(at)?, Step::Remove(folder), [Some(at.folder), None])
            }
            Change::Rename { from, to, exchange } => {
                let step = Step::Rename(names.path_of(to)?, exchange);
                deed(names.path_of(from)?, step, [Some(from.folder), Some(to.folder)])
            }
            _ => None,
        }
    }

    pub(crate) fn carry_out<T: Tree>(&self, tree: &T) -> Result<(), IoError> {
        match &self.step {
            Step::Make(kind, mode, owner, target) => tree.make(
                &self.path,
                &Made {
                    kind: *kind,
                    mode: *mode,
                    owner: *owner,
                    target,
                },
            ),
            Step::Link(of) => tree.link(of, &self.path),
            Step::Remove(folder) => tree.remove(&self.path, *folder),
            Step::Rename(to, exchange) => tree.rename(&self.path, to, *exchange),
        }
    }
}
