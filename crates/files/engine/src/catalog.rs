//! The catalog: a snapshot of all names at the journal's first record. Together with the journal's records it
//! gives the names at the journal's end.
//!
//! ```text
//!  0  "NETRAMFC"
//!  8  version u32 (1 or 2) | the journal's id u128 | lsn u64
//! 36  the next node, how many nodes; then of each, as numbers of seven bits a byte:
//!     node | kind | mode | user | group | inode | made_ns | how many names, and of each: its directory, its length, its bytes
//!     of a mount that outlives its server (version 2): its reign, how many requests were executed and may be sent
//!     again, and of each: its number and the inode of its reply
//!     CRC-32C of all before it, u32
//! ```

use netram_proto::id::{JournalId, Lsn};
use netram_proto::wire::{ByteReader, crc32c, put_varint};

use crate::change::{
    DirectoryDecodeError, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec, bytes, made_node,
    node_kind, put_bytes,
};
use crate::executed::ExecutedRequests;
use crate::limit::{INODE_ID_END, INODES_MAX, NAME_BYTES_MAX};
use crate::name_table::{InodeIdentity, NameTable};

const MAGIC: &[u8; 8] = b"NETRAMFC";
const VERSION: u32 = 1;
/// Version with the requests of a mount that outlives its server.
const VERSION_WITH_REQUESTS: u32 = 2;
const CRC_BYTES: usize = 4;

/// Snapshot of a directory's names before the record at `lsn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Journal whose records follow this snapshot.
    pub journal: JournalId,
    /// First record that the snapshot does not include.
    pub lsn: Lsn,
    /// Names, inodes and their identities at `lsn`.
    pub names: NameTable,
    /// Requests that were executed before `lsn` and may be sent again; `None` if no server can take over.
    pub executed: Option<ExecutedRequests>,
}

/// Why bytes cannot be read as a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The file is not a catalog, or a later version of netram wrote it.
    #[error("it is not a catalog that this version of netram can read")]
    Foreign,
    /// The checksum does not match, or a field is out of range.
    #[error("it is damaged")]
    Damaged,
}

impl Catalog {
    /// Encodes the catalog in the format above, checksum included.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        let version = self.executed.as_ref().map_or(VERSION, |_| VERSION_WITH_REQUESTS);
        to.extend_from_slice(&version.to_le_bytes());
        to.extend_from_slice(&self.journal.0.to_le_bytes());
        to.extend_from_slice(&self.lsn.0.to_le_bytes());
        put_varint(&mut to, self.names.next().0);
        put_varint(&mut to, self.names.len() as u64);
        for node in self.names.nodes() {
            let Some(entry) = self.names.entry(node) else {
                continue;
            };
            let identity = entry.identity.unwrap_or_default();
            let places: Vec<DirectoryEntry<'_>> = self.names.names_of(node).collect();
            for number in [
                node.0,
                entry.kind as u64,
                entry.mode.into(),
                entry.owner.user.into(),
                entry.owner.group.into(),
                identity.inode,
                identity.made_ns,
                places.len() as u64,
            ] {
                put_varint(&mut to, number);
            }
            for place in places {
                put_varint(&mut to, place.directory.0);
                put_bytes(&mut to, place.name);
            }
        }
        if let Some(executed) = &self.executed {
            executed.put(&mut to);
        }
        let crc = crc32c(&to);
        to.extend_from_slice(&crc.to_le_bytes());
        to
    }

    /// Reads bytes that [`Catalog::encode`] wrote.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Foreign`] for another magic number or version, [`CatalogError::Damaged`] for anything
    /// else that does not decode.
    pub fn decode(bytes: &[u8]) -> Result<Catalog, CatalogError> {
        if !bytes.starts_with(MAGIC) {
            return Err(CatalogError::Foreign);
        }
        let (checked, crc) = bytes
            .split_at_checked(bytes.len().saturating_sub(CRC_BYTES))
            .ok_or(CatalogError::Damaged)?;
        if crc32c(checked).to_le_bytes() != crc {
            return Err(CatalogError::Damaged);
        }
        let mut from = ByteReader::new(&checked[MAGIC.len()..]);
        let has_requests = match from.u32() {
            Ok(VERSION) => false,
            Ok(VERSION_WITH_REQUESTS) => true,
            _ => return Err(CatalogError::Foreign),
        };
        read(&mut from, has_requests).map_err(|_| CatalogError::Damaged)
    }
}

fn read(from: &mut ByteReader<'_>, has_requests: bool) -> Result<Catalog, DirectoryDecodeError> {
    let (journal, lsn) = (JournalId(from.u128()?), Lsn(from.u64()?));
    let (next, count) = (from.varint()?, from.varint()? as usize);
    if !(1..=INODES_MAX).contains(&count) {
        return Err(DirectoryDecodeError::Fields);
    }
    let mut names = NameTable::new(0, FileOwner::default());
    let mut places = Vec::new();
    for _ in 0..count {
        let node = made_node(from)?;
        let kind = node_kind(from.varint()?)?;
        let mut number = || u32::try_from(from.varint()?).map_err(|_| DirectoryDecodeError::Fields);
        let (mode, user, group) = (number()?, number()?, number()?);
        let identity = InodeIdentity {
            inode: from.varint()?,
            made_ns: from.varint()?,
        };
        let made = InodeSpec {
            kind,
            mode,
            owner: FileOwner { user, group },
            target: b"",
        };
        if node == InodeId::ROOT && kind != InodeKind::Directory {
            return Err(DirectoryDecodeError::Fields);
        }
        names.add(node, &made);
        if let Some(entry) = names.entry_mut(node) {
            entry.identity = Some(identity);
        }
        for _ in 0..from.varint()? {
            let directory = InodeId(from.varint()?);
            places.push((node, directory, bytes(from, NAME_BYTES_MAX)?));
        }
    }
    for (node, directory, name) in places {
        let place = DirectoryEntry { directory, name };
        if NameTable::is_orphan_place(node, place) && names.keep_orphan(node) {
            continue;
        }
        let sound = names.kind(directory) == Some(InodeKind::Directory) && names.look_up(place).is_none();
        if !sound || node == InodeId::ROOT {
            return Err(DirectoryDecodeError::Fields);
        }
        names.name(node, place);
    }
    if next > INODE_ID_END {
        return Err(DirectoryDecodeError::Fields);
    }
    names.set_next(next);
    let executed = match has_requests {
        true => Some(ExecutedRequests::read(from)?),
        false => None,
    };
    match from.rest() {
        [] => Ok(Catalog {
            journal,
            lsn,
            names,
            executed,
        }),
        _ => Err(DirectoryDecodeError::Fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::DirectoryChange;

    /// The next inode got the number 0 after such a catalog, or one that was in use.
    #[test]
    fn an_inode_number_without_successor_is_damage() {
        let numbered = |next: u64| {
            let mut catalog = catalog();
            catalog.names.set_next(next);
            Catalog::decode(&catalog.encode()).map(|read| read.names.next())
        };
        assert_eq!(numbered(INODE_ID_END), Ok(InodeId(INODE_ID_END)));
        assert_eq!(numbered(INODE_ID_END + 1), Err(CatalogError::Damaged));
        let mut catalog = catalog();
        let made = InodeSpec {
            kind: InodeKind::File,
            mode: 0,
            owner: FileOwner::default(),
            target: b"",
        };
        catalog.names.add(InodeId(INODE_ID_END), &made);
        assert_eq!(
            Catalog::decode(&catalog.encode()).err(),
            Some(CatalogError::Damaged)
        );
    }

    fn catalog() -> Catalog {
        let mut names = NameTable::new(0o750, FileOwner { user: 5, group: 6 });
        for (directory, name, kind) in [
            (1, "wal", InodeKind::Directory),
            (2, "000001", InodeKind::File),
            (1, "link", InodeKind::Symlink),
        ] {
            let at = DirectoryEntry {
                directory: InodeId(directory),
                name: name.as_bytes(),
            };
            let made = InodeSpec {
                kind,
                mode: 0o600,
                owner: FileOwner::default(),
                target: b"",
            };
            let node = names.next();
            names
                .apply(&DirectoryChange::Make {
                    at,
                    node,
                    spec: made,
                    identity: None,
                })
                .unwrap();
        }
        let nodes: Vec<InodeId> = names.nodes().collect();
        for node in nodes {
            names.entry_mut(node).unwrap().identity = Some(InodeIdentity {
                inode: node.0 * 1000,
                made_ns: u64::MAX - node.0,
            });
        }
        let second = DirectoryEntry {
            directory: InodeId(1),
            name: b"second",
        };
        names
            .apply(&DirectoryChange::Link {
                node: InodeId(3),
                at: second,
            })
            .unwrap();
        Catalog {
            journal: JournalId(77),
            lsn: Lsn(4096),
            names,
            executed: None,
        }
    }

    #[test]
    fn an_encoded_catalog_decodes_to_itself() {
        assert_eq!(Catalog::decode(&catalog().encode()), Ok(catalog()));
        assert_eq!(Catalog::decode(&surviving().encode()), Ok(surviving()));
        assert!(surviving().names.is_orphan(InodeId(3)));
    }

    /// A catalog of a mount that outlives its server, with a file that has lost its names.
    fn surviving() -> Catalog {
        let mut catalog = catalog();
        for (directory, name) in [(2, "000001"), (1, "second")] {
            let at = DirectoryEntry {
                directory: InodeId(directory),
                name: name.as_bytes(),
            };
            let removed = catalog.names.apply_keeping(&DirectoryChange::Remove { at }, true);
            assert_eq!(removed, Ok(None));
        }
        let mut executed = ExecutedRequests::new(9);
        for number in [2, 1 << 40] {
            executed.add_recorded(executed.id(number), InodeId(number));
        }
        catalog.executed = Some(executed);
        catalog
    }

    #[test]
    fn a_truncated_or_changed_catalog_is_refused() {
        for whole in [catalog().encode(), surviving().encode()] {
            for cut in 0..whole.len() {
                assert!(Catalog::decode(&whole[..cut]).is_err(), "cut at {cut}");
            }
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] ^= 0x10;
                assert!(Catalog::decode(&changed).is_err(), "changed at {at}");
            }
        }
    }
}
