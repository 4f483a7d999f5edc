//! Changes of names, carried out in a directory.

use netram_files::{ChangeError, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec, NameTable};

use super::maintenance::TestedDirectory;
use crate::check::fail;
use crate::check::files::{NameChange, name};

/// The node of this path in the directory.
pub(super) fn node(names: &NameTable, path: &[u8]) -> InodeId {
    let mut node = InodeId::ROOT;
    for name in path.split(|byte| *byte == b'/') {
        let Some(next) = names.look_up(DirectoryEntry {
            directory: node,
            name,
        }) else {
            fail(
                6,
                format!(
                    "the directory knows of no {}, which is there",
                    path.escape_ascii()
                ),
            );
        };
        node = next;
    }
    node
}

fn directory_entry<'p>(names: &NameTable, path: &'p [u8]) -> DirectoryEntry<'p> {
    let name = name(path);
    let directory = match path.len() - name.len() {
        0 => InodeId::ROOT,
        slash => node(names, &path[..slash - 1]),
    };
    DirectoryEntry { directory, name }
}

/// A change of names in words.
pub(super) fn describe_change(naming: &NameChange) -> String {
    let (what, paths) = match naming {
        NameChange::Make(path, _) => ("make", [path, path]),
        NameChange::Remove(path) => ("remove", [path, path]),
        NameChange::Link(of, path) => ("link", [of, path]),
        NameChange::Rename(from, to, false) => ("rename", [from, to]),
        NameChange::Rename(from, to, true) => ("exchange", [from, to]),
    };
    format!("{what} {} {}", paths[0].escape_ascii(), paths[1].escape_ascii())
}

/// Carries a change of names out.
pub(super) fn carry_out(
    directory: &TestedDirectory,
    naming: &NameChange,
    request: Option<u64>,
) -> Result<(), ChangeError> {
    let place = |path| directory_entry(&directory.names(), path);
    match naming {
        NameChange::Make(path, is_directory) => {
            let made = InodeSpec {
                kind: match is_directory {
                    true => InodeKind::Directory,
                    false => InodeKind::File,
                },
                mode: 0o600,
                owner: FileOwner::default(),
                target: b"",
            };
            directory.make(place(path), made, request).map(drop)
        }
        NameChange::Link(of, path) => {
            let of = node(&directory.names(), of);
            directory.link(of, place(path), request)
        }
        NameChange::Remove(path) => {
            let is_directory = name(path).starts_with(b"d");
            directory.remove(place(path), is_directory, request)
        }
        NameChange::Rename(from, to, exchange) => {
            directory.rename(place(from), place(to), true, *exchange, request)
        }
    }
}
