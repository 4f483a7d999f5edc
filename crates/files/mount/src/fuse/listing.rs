//! Entries of directories.
//!
//! A program may read a listing in parts, and its server may be killed between two. The position at which it
//! goes on is therefore one that any server finds: the hash of the last name, by which entries are sorted.

use std::sync::PoisonError;

use netram_files::{InodeId, InodeKind};
use netram_fuse::{OpenReply, REQUEST_BYTES_MAX, ReplyBody};
use rustix::io::Errno;

use super::attributes::type_mode;
use super::filesystem::FuseFilesystem;

/// An entry of a directory and the position behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListingEntry {
    position: u64,
    node: InodeId,
    kind: InodeKind,
    name: Vec<u8>,
}

/// Bits of a name's hash, and of the position among names with the same hash. Positions stay below 2^31:
/// 32-bit programs that do not ask for 64-bit offsets fail at a larger one (`EOVERFLOW`).
const HASH_BITS: u32 = 24;
const SAME_HASH_BITS: u32 = 6;

impl FuseFilesystem {
    pub(super) fn open_directory(&self, body: &mut ReplyBody) -> Result<(), Errno> {
        body.opened(OpenReply {
            handle: self.handles.add_listing(),
            ..OpenReply::default()
        });
        Ok(())
    }

    pub(super) fn read_directory(
        &self,
        directory: InodeId,
        handle: u64,
        offset: u64,
        bytes: u32,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let listing = self.handles.listing(handle);
        let mut entries = listing.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // A read from the start takes the current entries, and so does one that another server began to
        // answer.
        if offset == 0 || entries.is_empty() {
            *entries = self.list(directory);
        }
        let from = entries.partition_point(|entry| entry.position <= offset);
        let limit = bytes.min(REQUEST_BYTES_MAX) as usize;
        for entry in &entries[from..] {
            let kind = type_mode(entry.kind);
            if !body.directory_entry(limit, entry.node.0, entry.position, kind, &entry.name) {
                break;
            }
        }
        Ok(())
    }

    /// Entries of a directory; none if it is gone.
    fn list(&self, directory: InodeId) -> Vec<ListingEntry> {
        let names = self.state.journaled.names();
        if names.kind(directory) != Some(InodeKind::Directory) {
            return Vec::new();
        }
        let own = [(&b"."[..], directory), (b"..", names.parent(directory))];
        let own = own.map(|(name, node)| (name.to_vec(), node, InodeKind::Directory));
        let inside = { names.children(directory) }.map(|(name, node)| {
            let kind = names.kind(node).unwrap_or(InodeKind::File);
            (name.to_vec(), node, kind)
        });
        positioned(own.into_iter().chain(inside), hash)
    }
}

/// Sorts entries and gives them positions, which increase and depend on the names alone. The first two are
/// the directory's own.
fn positioned(
    entries: impl Iterator<Item = (Vec<u8>, InodeId, InodeKind)>,
    hash: impl Fn(&[u8]) -> u64,
) -> Vec<ListingEntry> {
    let start = |(index, (name, node, kind)): (usize, (Vec<u8>, InodeId, InodeKind))| ListingEntry {
        position: match index {
            0..2 => 1,
            _ => (hash(&name) + 1) << SAME_HASH_BITS,
        },
        node,
        kind,
        name,
    };
    let mut entries: Vec<ListingEntry> = entries.enumerate().map(start).collect();
    entries.sort_by(|one, other| (one.position, &one.name).cmp(&(other.position, &other.name)));
    let mut last = 0;
    for entry in &mut entries {
        // Names with the same hash follow each other, in an order of their own.
        last = entry.position.max(last + 1);
        entry.position = last;
    }
    entries
}

/// Hash of a name (FNV-1a), the same in every version: a server of another version may go on with the
/// listing.
fn hash(name: &[u8]) -> u64 {
    let mixed = name.iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    (mixed ^ mixed >> HASH_BITS ^ mixed >> (2 * HASH_BITS)) & ((1 << HASH_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: u64) -> impl Iterator<Item = (Vec<u8>, InodeId, InodeKind)> {
        let own = [".", ".."].map(|name| (name.as_bytes().to_vec(), InodeId::ROOT, InodeKind::Directory));
        own.into_iter()
            .chain((2..count).map(|node| (format!("name-{node}").into(), InodeId(node), InodeKind::File)))
    }

    /// Positions were indexes: after a file had been removed, another server left one out.
    #[test]
    fn another_server_goes_on_at_the_position_although_names_have_come_and_gone() {
        let before = positioned(names(1000), hash);
        assert_eq!(before.len(), 1000);
        assert_eq!(hash(b"name-2"), 0x0031_3EDF, "as in every version");
        let after = positioned(
            names(1200).filter(|(_, node, _)| node.0 % 3 > 0 || node.0 < 2),
            hash,
        );
        for entry in &before {
            let rest = |entries: &[ListingEntry]| -> Vec<InodeId> {
                let rest = entries.iter().filter(|other| other.position > entry.position);
                let kept = rest.filter(|other| other.node.0 < 1000 && other.node.0 % 3 > 0);
                kept.map(|other| other.node).collect()
            };
            assert_eq!(rest(&before), rest(&after));
        }
    }

    #[test]
    fn names_with_the_same_hash_have_positions_of_their_own() {
        let hashes: [fn(&[u8]) -> u64; 3] = [
            |_| 7,
            |name| u64::from(name[name.len() - 1] % 3),
            |_| (1 << HASH_BITS) - 1,
        ];
        for hash in hashes {
            let entries = positioned(names(20_000), hash);
            let positions = entries.iter().map(|entry| entry.position);
            assert!(positions.clone().is_sorted_by(|one, other| one < other));
            assert!(positions.max() < Some(1 << 31));
            assert_eq!(entries[0].name, b".");
        }
    }
}
